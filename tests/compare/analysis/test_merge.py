"""Runs of several GPUs in one folder; runs that do not belong together are refused and both are named."""

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.analysis import merge, verdict
from compare.analysis.runs import read
from compare.record.store import load
from compare.report import report
from sampled_run import DECODE, PREFILL, rows
from tests.compare.analysis.test_diff import CONTRACT, FA3, GPU, measured, run_at

MI300 = {"asked": "mi300", "name": "mi300", "title": "AMD Instinct MI300X", "present": False}


def absent(folder, **manifest):
    records = [synthetic_run.checked(load, "triton/auto", 0.3) for load in (DECODE, PREFILL)]
    records = [record.replace(cell_id=f"mi300-{record.cell_id}") for record in records]  # an id is over the GPU too
    return run_at(folder, records, gpu=MI300, run_id="absent", headline="mi300 is not here", **manifest)


def merged(tmp_path, *runs):
    assert diptych(["merge", *map(str, runs), "--out", str(tmp_path / "merged")]) == 0
    return read(tmp_path / "merged")


def test_two_gpus_stay_apart_in_one_folder(tmp_path, capsys):
    one, two = run_at(tmp_path / "one", measured(1), run_id="timed", headline="h200 is here"), absent(tmp_path / "two")
    whole = merged(tmp_path, one, two)
    assert len(whole.raw) == 38 and "38 rows of 2 runs" in capsys.readouterr().out
    timed, untimed = merge.parts(whole)
    assert (timed.gpu, untimed.gpu) == ("h200", "mi300") and timed.headline == "h200 is here"
    assert [len(timed.raw), len(untimed.raw)] == [36, 2]
    assert whole.headline == "h200 is here; mi300 is not here"
    assert (timed.manifest["spec"], timed.contract) == ("5bec", CONTRACT) == (whole.manifest["spec"], whole.contract)


def test_a_merged_run_is_compared_gpu_by_gpu(tmp_path, capsys):
    one = run_at(tmp_path / "one", measured(1), run_id="timed")
    merged(tmp_path, one, absent(tmp_path / "two"))
    assert diptych(["diff", str(tmp_path / "merged"), str(run_at(tmp_path / "new", measured(2, slow=1.2)))]) == 0
    out = capsys.readouterr().out
    assert "1 REGRESS" in out and "2 REMOVED" in out and "h200: triton/auto" in out


def test_parts_of_one_gpu_are_compared_together(tmp_path, capsys):
    shares = [run_at(tmp_path / load.label, measured(1, loads=[load]), run_id=load.label) for load in (DECODE, PREFILL)]
    merged(tmp_path, *shares)
    new = run_at(tmp_path / "new", measured(2, loads=(DECODE, PREFILL)))
    capsys.readouterr()
    assert diptych(["diff", str(tmp_path / "merged"), str(new)]) == 0
    assert "6 cells: 6 SAME" in capsys.readouterr().out


def test_runs_of_one_name_with_a_number_behind_it_are_two_parts(tmp_path):
    ones = [run_at(tmp_path / name, measured(seed), run_id="run#2") for seed, name in enumerate("ab")]
    assert len(merge.parts(merged(tmp_path, *ones))) == 2


def test_repetitions_become_further_processes(tmp_path):
    one, two = run_at(tmp_path / "one", measured(1)), run_at(tmp_path / "two", measured(2))
    whole = merged(tmp_path, one, two)
    assert [part.manifest["run_id"] for part in merge.parts(whole)] == ["run", "run"]
    assert set(whole.manifest["parts"]) == {"run", "run#2"}
    (judged,) = [v for v in verdict.judge(whole.raw, [("triton/auto", FA3)]) if v.workload.label == "q8k"]
    assert judged.basis == "6 processes, 192 rounds, paired"


SHARE = {
    "workloads": [{"label": "q8k"}, {"label": "q1s2k"}],
    "kernels": ["triton/auto", FA3],
    "versions": {"torch": "2"},
}


def shares(tmp_path, **second):
    """The rows of one load each, as two GPUs of a machine or two calls measured them."""
    made = []
    for number, (row, changes) in enumerate(((DECODE, {"commit": "a"}), (PREFILL, {"commit": "b"} | second))):
        records = rows(row, {"triton/auto": 1.0, FA3: 1.1})
        made.append(run_at(tmp_path / str(number), records, **(SHARE | changes)))
    return merge.tables(merged(tmp_path, *made))


def test_shares_of_one_run_are_one_table(tmp_path):
    (one,) = shares(tmp_path, versions={"torch": "2", "cuda": "13"})
    assert len(one.records) == 4 and one.manifest["planned"] == 4
    assert one.manifest["commit"] == "a, b" and one.manifest["versions"] == {"torch": "2", "cuda": "13"}
    assert report.write(one.folder).exists() and not (one.folder / "figures" / "1").exists()


@pytest.mark.parametrize(
    "changes",
    [{"machine": {"cpus": 2}}, {"suite": "serving"}, {"versions": {"torch": "3"}}, {"gpu": MI300}, {"kernels": []}],
    ids=["machine", "suite", "versions", "gpu", "unsaid"],
)
def test_parts_that_differ_keep_tables_of_their_own(tmp_path, changes):
    assert len(shares(tmp_path, **changes)) == 2


def test_repetitions_keep_tables_of_their_own(tmp_path):
    runs = [run_at(tmp_path / str(n), measured(n), run_id=str(n), **SHARE) for n in range(2)]
    assert len(merge.tables(merged(tmp_path, *runs))) == 2


def test_rounds_of_two_runs_are_never_pairs(tmp_path):
    """Two halves of a comparison, each kernel in a run of its own."""
    one = run_at(tmp_path / "one", rows(DECODE, {"triton/auto": 1.0}))
    two = run_at(tmp_path / "two", rows(DECODE, {FA3: 1.0}), run_id="two")
    whole = merged(tmp_path, one, two)
    (judged,) = verdict.judge(whole.raw, [("triton/auto", FA3)])
    assert judged.basis.endswith("not paired")


def test_a_merged_folder_merges_again(tmp_path):
    one, two = run_at(tmp_path / "one", measured(1)), absent(tmp_path / "two")
    three = run_at(tmp_path / "three", measured(3), run_id="three")
    assert diptych(["merge", str(one), str(two), "--out", str(tmp_path / "first")]) == 0
    whole = merged(tmp_path, tmp_path / "first", three)
    assert [part.gpu for part in merge.parts(whole)] == ["h200", "mi300", "h200"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"spec": "0dd"}, "spec"), ({"timing_contract": "graph-hot-interleaved/2"}, "timing contract")],
)
def test_mixed_specs_and_contracts_are_refused(tmp_path, capsys, changes, named):
    one, two = run_at(tmp_path / "one", measured(1)), run_at(tmp_path / "two", measured(2), **changes)
    assert diptych(["merge", str(one), str(two), "--out", str(tmp_path / "merged")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(named) and str(one) in said and str(two) in said
    assert not (tmp_path / "merged").exists()


def test_a_run_without_times_has_no_contract_to_differ_by(tmp_path):
    one, two = run_at(tmp_path / "one", measured(1)), absent(tmp_path / "two", timing_contract="another/1")
    assert merged(tmp_path, one, two).contract == CONTRACT


def test_a_cell_of_two_sources_is_refused_by_name(tmp_path, capsys):
    one = run_at(tmp_path / "one", measured(1))
    two = run_at(tmp_path / "two", measured(2, fingerprint="g", source_sha="f00d"), run_id="two")
    assert diptych(["merge", str(one), str(two), "--out", str(tmp_path / "merged")]) == 2
    said = capsys.readouterr().err
    assert "triton/auto on 32q1s2k~" in said and "source 0123456789abcdef -> f00d" in said and "in two" in said


def test_neither_rows_without_fingerprints_nor_a_run_given_twice_are_repetitions(tmp_path, capsys):
    one, two = (run_at(tmp_path / str(n), measured(n, fingerprint=""), run_id=str(n)) for n in (1, 2))
    assert diptych(["merge", str(one), str(two), "--out", str(tmp_path / "merged")]) == 2
    assert "fingerprints none and none" in capsys.readouterr().err
    assert diptych(["merge", str(one), str(one), "--out", str(tmp_path / "merged")]) == 2
    assert "found the same row in 1 and in 1#2" in capsys.readouterr().err


def test_a_folder_with_a_run_is_not_merged_into(tmp_path, capsys):
    one = run_at(tmp_path / "one", measured(1, loads=(DECODE,)))
    assert diptych(["merge", str(one), str(absent(tmp_path / "two")), "--out", str(one)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_lines_left_out_are_said_and_the_others_kept(tmp_path, capsys):
    one, two = run_at(tmp_path / "one", measured(1), gpu=GPU), absent(tmp_path / "two")
    with open(two / "cells.jsonl", "a") as file:
        file.write("torn")
    merged(tmp_path, one, two)
    assert "no newline" in capsys.readouterr().err and len(load(tmp_path / "merged" / "cells.jsonl").records) == 38
