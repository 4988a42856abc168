"""Malformed command lines of every verb: an exit code of the table, five lines at most, no traceback."""

import shlex
from pathlib import Path

import pytest

from common import gpus
from compare import exits
from compare.__main__ import VERBS, main

RUN = str(Path(__file__).parents[2] / "docs" / "results" / "h200" / "fig9")
CODES = {exits.USAGE, exits.NO_GPU, exits.NOTHING}
# Those that are told no more than that they are wrong.
QUIET = (
    "--vers", "-x", "run --suite", "run --kernels triton/auto@fast", "run --kernels , --list --workload 1q",
    "run --gpu", "run --frobnicate", "run --workloads 1q1s10 extra", "run --workload 3x", "run --workload q9s3",
    "run --workload decode --suite peers", "run --workload 1q1s10 --shape 0:0:0", "run --set block-size=0",
    "run --set block-size=abc", "run --set cpu-budget=-1", "run --set cpu-budget=nan", "run --max-time nan",
    "run --precision 0", "run --precision 2", "run --processes 0", "run --seed x", "run --seed -1",
    "run --seed 99999999999999999999", "run --trace .",
    "run --resume /proc/nowhere --kernels triton/naive --workload 1q1s10",
    "run --out /etc/passwd --workload 1q1s10 --kernels triton/naive", "run --timer sundial", "run --re x",
    "run --gpu h200 --require-gpu", "fleet --frobnicate", "report", "report /nowhere",
    "report . --print means --unit triton/auto", "report /etc", "report RUN --print mens",
    "report RUN --print means --unit triton/q_blok", "diff RUN", "diff /a /b", "diff RUN RUN/../peers-before",
    "diff RUN RUN --kernels nothing", "diff RUN RUN --unit triton/x", "merge", "merge RUN --out",
    "merge /a /b --out /nowhere", "tune", "tune --gpu h2000", "tune --rank", "tune --fit /nowhere",
    "tune --minutes none", "explain", "explain 3x", "explain 1q1s10 --kernels x", "grade", "exchange",
    "exchange export RUN", "pack", "pack a.pack", "doctor --frob", "doctor --gpu xx", "study host --frob",
    "study hots", "pages nope",
)  # fmt: skip
# line: what it is told, beside the length of it all. RUN: a committed run; good.csv: a trace.
LINES = dict.fromkeys(QUIET, "") | {
    "rnu": "verb: did you mean run? found rnu, allowed ",
    "reprot x": "verb: did you mean report?",
    "run --suite smok": "did you mean smoke",
    "run --suite peers --workload q1s32": "did you mean q1s32k",
    "run --suite peers --shape 8:8:64": "--shape",
    "run --suite smoke --workload window-17 --set block-size=32": "--set block-size",
    "run --kernels triton/qblock": "did you mean triton/q_block",
    "run --gpu mi30": "did you mean mi350, mi300",
    "run --workload 32q1s2k_x": "^",
    "run --workload ''": "workload",
    "run --workload 1q1s10 --shape 8:3:128": "num_query_heads",
    "run --workload 1q1s10 --shape llama4": "did you mean llama-",
    "run --workload 1q1s10 --set dtype=float99": "dtype",
    "run --workload q1s2k --set block-size=12": "block_size",
    "run --set dtype=bf16": "--set dtype",
    "run --set block-size=1073741824": "--set block-size: found",
    "run --set cache=warm": "allowed cold, hot",
    "run --set heuristics=best": "--set heuristics: found best",
    "run --set step-ms=4": "step-ms",
    "run --set timeout=0": "--set timeout: found 0",
    "run --set window": "--set: found 'window'",
    "run --set window=0": "--set window: found 0",
    "run --set window=2147483648": "--set window: found 2147483648",
    "run --suite features --set window=3 --list": "chunk: found chunk=1024 beside sliding_window=3, allowed one",
    "explain 4q2k+cross --window 3": "cross: found cross=True beside sliding_window=3, allowed one of the two",
    "run --set window=3,dtpye=bf16": "--set: found 'dtpye=bf16'",
    "run --trace /nowhere.csv": "nowhere.csv",
    "run --trace x.csv:steps=3": "--trace: found 'steps=3', allowed batches=..., step-ms=..., token-us=...",
    "run --trace good.csv:batches=0": "--trace batches: found 0",
    "run --trace good.csv:token-us=-1": "token_us",
    "run --trace good.csv --suite peers": "--suite",
    "run --trace /dev/zero --list": "trace: found /dev/zero, which is no regular file",
    "run --retry": "--retry",
    "run --resume": "resume",
    "run --out a --resume b": "--out",
    "run --out /proc/x --workload 1q1s10 --kernels triton/naive": "cannot be written",
    "run --timer paper --set cache=cold": "--set cache",
    "run --device tpu:0 --workload 1q1s10 --kernels triton/naive": "device",
    "run --device meta": "allowed cpu, cuda",
    "run --device cuda:7": "not here",
    "report RUN --print means": "--unit",
    "report RUN --unit triton/auto": "--unit: found alone",
    "report RUN --kernels *": "--kernels: found alone",
    "report RUN RUN": "RUN: found 2",
    "diff": "missing: before, after",
    "merge RUN --out merged": "two or more",
    "merge RUN nowhere --out merged": "nowhere",
    "explain 1q1s10 --gpu h20x": "did you mean h20",
    "explain q1x2k": "q1x2k",
    "explain q1s2k --dtype fp4": "fp4",
    "tune --rank --out x": "--out: found beside --rank, allowed --kernels, --gpu, --candidates, --seed",
    "tune --fit x --rank": "--fit: found beside --rank",
    "tune --gpus two": "--gpus: found two, allowed an integer from 1 to 2147483647, or all",
    "tune --resume": "--resume: found alone, allowed beside --out DIR",
    "study regret --gpus 0": "--gpus: found 0",
    "grade nowhere": "folder: found nowhere, allowed one with files NAME.py",
    "grade . --level frist": "level: did you mean first?",
    "grade . --jobs 0": "--jobs: found 0",
    "grade . --time-limit nan": "--time-limit: found nan",
    "exchange import . --time-limit 1e8": "--time-limit: found 1e8, allowed seconds above 0 and up to 3e+07",
    "exchange import nowhere": "folder: found nowhere, without a Definition to ask, allowed one with",
    "exchange import . --rows 0": "--rows: found 0",
    "exchange export nowhere out": "run folder: found nowhere",
    "pack a.pack --shape 3:x": "shape: found '3:x'",
    "pack a.pack --shape llama-3-8b --limits 3": "--limits: found 3",
    "pack nowhere.pack --check": "nowhere.pack: found no such file",
    "pack good.csv --check": "good.csv: found ReadError",
    "pack /dev/zero --check": "file: found /dev/zero, which is no regular file",
    "pack a.pack --shape llama-3-8b --limits -1,2,3": "--limits: found -1,2,3, allowed one value, as --limits=VALUE",
    "pack a.pack --shape llama-3-8b --limits 1,2,9999999999": "--limits: found 1,2,9999999999",
    "pack a.pack --shape llama-3-8b --check": "--check: found beside --shape",
    "fleet nowhere": "--fleet: found nowhere, allowed local, or HOST:PORT",
    "fleet 127.0.0.1:-1": "--fleet: found 127.0.0.1:-1, allowed",
    "doctor --workload 3x": "3x",
    "doctor --kernel triton/qblock": "did you mean triton/q_block",
    "doctor --device tpu:x": "device",
    "study cuonts": "study: did you mean counts? found cuonts, allowed ",
    "study sizes --kernels triton/nothing": "triton/nothing",
    "study regret --of nowhere": "nowhere",
    "study counts --out .": "--out: found ., allowed a file",
    "study estimates --out /dev/null/x.md": "--out: found /dev/null/x.md, allowed a file",
    "study mutation --out x --axes -3": "--axes: found -3",
    "study mutation --out x --draw -1": "--draw: found -1",
    "census --take nowhere.json": "nowhere.json",
    "census --take good.csv": "--take: found good.csv",
    "census --take /dev/zero": "--take: found /dev/zero, which is no regular file",
    "history --gpu h2000": "--gpu: found h2000, allowed one with two committed days: h200",
    "bisect --row q1s512": "--bad",
    "bisect --row q1s512 --bad nothing --what right": "--bad: found 'nothing', allowed a commit",
    "bisect --row q1s512 --bad HEAD --what fast": "--what: found 'fast'",
    "bisect --row q1s512 --bad HEAD --what right --out good.csv": "good.csv, which cannot be written",
    "pages figurs": "pages: did you mean figures? found figurs, allowed ",
    "pages choosing --wrt": "--help lists",
    "pages reports --runs h200/nothing": "h200/nothing",
}


@pytest.mark.parametrize("line", LINES)
def test_it_is_refused_in_few_words_and_writes_nothing(line, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpus, "detect", lambda index=0: None)
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n")
    try:
        code = main(shlex.split(line.replace("RUN", RUN)))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code in CODES, (code, said)
    assert LINES[line] in " ".join(said.split()), said
    assert 0 < len(said.splitlines()) <= exits.MOST_LINES, said
    assert "Traceback" not in said and "[Errno" not in said and "usage:" not in said
    assert len(said.replace(RUN, "docs/results/h200/fig9")) <= 6 * 80, said
    assert [path.name for path in tmp_path.iterdir()] == ["good.csv"]


def test_every_verb_is_asked_for_something_malformed():
    assert {line.split()[0] for line in LINES} >= set(VERBS) and len(LINES) >= 50


def test_what_is_nearest_comes_first(capsys):
    assert main(["run", "--suite", "smok"]) == exits.USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first == "suite: did you mean smoke?" and second.strip().startswith("found 'smok', allowed smoke, ")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("report docs/results/h200/paers", "docs/results/h200/peers"),
        ("report docs/results/mi300", "docs/results/mi300/family"),
    ],
)
def test_a_folder_that_is_no_run_is_told_with_the_runs_near_it(line, near, capsys):
    assert main(line.split()) == exits.USAGE
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("run folder: did you mean ") and near in first


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_message_fits_five_lines_of_its_window(width):
    many = ", ".join(f"kernel_{number}" for number in range(300))
    told = exits.told(f"kernel: found 'x', allowed {many}; nearest: kernel_1, kernel_2", width)
    assert told.startswith("kernel: did you mean kernel_1, kernel_2?") and told.endswith("...")
    assert sum(-(-len(line) // width) for line in told.splitlines()) <= exits.MOST_LINES
    assert exits.told("a: found x, allowed y", width) == "a: found x, allowed y"
