"""The commands of a first run on an MI300X, as its ROCm would hear them (tests/support/rocm), to their last line.

Every process of them is a real one: it sees torch's ROCm build with one GPU, interprets what it launches, compiles
what it compiles for gfx942, and has none of NVIDIA's packages and tools. A call for one of these is a line of a log.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from children import compiling
from compare.analysis.tables import number
from dsls import HELION_SLOWLY

ROOT = Path(__file__).parents[3]
ROCM = ROOT / "tests" / "support" / "rocm"
THEIRS = ("baseline/sdpa", "baseline/flash_attn3", "baseline/vllm_triton", "baseline/aiter_triton")
QUICK = ("--processes", "1", "--max-time", "0.05")
RUN = ("run", "--gpu", "mi300", "--require-gpu", "--suite", "smoke", "--out", "run")
REFUSED = "not captured: RuntimeError: HIP error: operation not supported"


@pytest.fixture
def diptych(tmp_path):
    """Runs a command there; what it prints. It ends well, and asks for nothing of NVIDIA's."""
    log = tmp_path / "asked_of_nvidia"

    def run(*words, folders=(), code=0, **more):
        environment = compiling(ROCM, *folders, ROOT, WALK_LOG=str(log), OMP_NUM_THREADS="1", COLUMNS="200", **more)
        command = [sys.executable, "-m", "compare", *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=3600)
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
        assert not log.exists(), log.read_text()
        return done.stdout

    return run


def rows(folder):
    return [json.loads(line) for line in (folder / "run" / "cells.jsonl").read_text().splitlines()]


def judged(found, kernel):
    """Every row of a kernel was timed and passed the gate."""
    mine = [row for row in found if row["kernel"] == kernel]
    assert mine and {row["status"] for row in mine} == {"ok"}, mine
    assert all({"measured", "checked-on-gpu"} <= set(row["evidence"]) for row in mine)
    return mine


@pytest.mark.parametrize("own", HELION_SLOWLY)
@pytest.mark.slow
def test_a_run_is_timed_and_reported(diptych, tmp_path, own):
    ours = f"{own}/q_block"
    kernels = ",".join([ours, *THEIRS])
    said = diptych(*RUN, *QUICK, "--kernels", kernels, "--workload", "ragged-decode,speculative-4")
    assert said.startswith("mi300 is here (AMD Instinct MI300X): checked and timed")
    found = rows(tmp_path)
    for row in judged(found, ours):
        assert row["timing"]["timer"] == "graph" and not row["timing"]["note"]
        assert row["config_origin"] == "heuristics"  # no tree was measured here
        [fact] = row["facts"]
        assert fact["arch"] == "gfx942" and not fact["dropped"]  # options that AMD's compiler does not know
        assert fact["registers"] and fact["occupancy"]["waves"] and "mfma" in str(fact["matrix"])
    judged(found, "baseline/sdpa")
    absent = {row["kernel"]: row for row in found if row["status"] == "unavailable"}
    assert set(absent) == set(THEIRS) - {"baseline/sdpa"} and all(row["reason"] for row in absent.values())
    assert {row["versions"]["rocm"] for row in found} == {"6.4.43484-123eb5128"}
    report = (tmp_path / "run" / "report.md").read_text()
    assert "smoke on AMD Instinct MI300X" in report and f"| `{ours}` | 2 |" in report


@pytest.mark.slow
def test_where_graphs_are_refused_the_time_is_one_of_events_and_says_so(diptych, tmp_path):
    diptych(*RUN, *QUICK, "--kernels", "triton/q_block", "--workload", "ragged-decode", WALK_GRAPHS="refused")
    [row] = judged(rows(tmp_path), "triton/q_block")
    assert (row["timing"]["timer"], row["timing"]["note"]) == ("events", REFUSED)
    assert f"{number(row['timing']['median_us'])} events" in (tmp_path / "run" / "report.md").read_text()


DOCTOR = ("doctor", *QUICK, "--kernel", "baseline/sdpa", "--workload", "q1s16", "--out", "noise.json")


def test_the_doctor_says_in_a_line_each_what_nobody_tells(diptych, tmp_path):
    said = diptych(*DOCTOR)
    for line in (
        "whether other processes use the GPU is not known (ModuleNotFoundError: No module named 'amdsmi')",
        "none of amdsmi, amd-smi tells the SM clock: throttling would not be seen",
        "FlashAttention 3 is not here",
    ):
        assert said.count(line) == 1, said
    assert json.loads((tmp_path / "noise.json").read_text())["gpu"] == "mi300"


def tuned(folder):
    lines = [json.loads(line) for line in (folder / "tune" / "candidates.jsonl").read_text().splitlines()]
    return [line for line in lines if not line.get("done")]


TUNE = ("tune", "--gpu", "mi300", "--rows", "3", "--candidates", "2", "--cores", "2", "--no-install", "--out", "tune")


@pytest.mark.slow  # daily in tests/compare/tune, without ROCm
def test_a_kernel_is_tuned_on_three_rows(diptych, tmp_path):
    """The file names the GPU; whether a config won depends on the rules."""
    diptych(*TUNE, "--minutes", "3", "--kernels", "triton/q_block")
    found = tuned(tmp_path)
    assert (tmp_path / "tune/winners-triton-mi300.jsonl").exists()
    assert {line["status"] for line in found} <= {"ok", "duplicate"}
    assert len({line["row"] for line in found if line.get("final_us")}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_every_row_of_smoke(diptych, tmp_path, dsl):
    kernels = [f"{dsl}/*", *THEIRS, "baseline/flashinfer_*", "baseline/cudnn*"]
    diptych(*RUN, *QUICK, "--kernels", ",".join(kernels))
    found = rows(tmp_path)
    assert {row["status"] for row in found} <= {"ok", "unavailable", "unsupported"}
    ours = [row for row in found if row["kernel"].startswith(dsl)]
    assert {row["status"] for row in ours} == {"ok"}
    assert not any(fact["dropped"] for row in ours for fact in row["facts"])
