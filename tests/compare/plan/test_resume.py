"""Which rows of an earlier run count, where the others go, and which run is meant; nothing here imports torch."""

import contextlib
import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from compare.plan import resume
from compare.plan.resume import CannotResume, find, finished, keep, settle
from compare.record import store
from compare.record.records import Evidence, Status, Timing
from compare.record.store import Store, load
from row_producer import record

CELLS = [f"cell{number}" for number in range(6)]
PRINTS = {cell: f"print-of-{cell}" for cell in CELLS}
JOBS = [CELLS[:3], CELLS[3:]]
TIMING = Timing("graph", "cold", 12.5, 12.0, 13.0, 3, 64, 64, 1 << 29, (12.0, 12.5, 13.0))


def planned(plan, contract):
    """As much of a plan as `find` reads."""
    return SimpleNamespace(hash=plan, contract=SimpleNamespace(name=contract))


def row(number, **changes):
    return record(number).replace(**{"fingerprint": f"print-of-cell{number}"} | changes)


def timed(number, process=0, **changes):
    evidence = (Evidence.MEASURED, Evidence.CHECKED_ON_GPU)
    known = {"status": Status.OK, "reason": "", "evidence": evidence, "timing": TIMING, "process": process}
    return row(number, **known | changes)


def written(folder, *rows, tail=""):
    path = folder / "cells.jsonl"
    path.write_text("".join(r.to_json() + "\n" for r in rows) + tail)
    return path


def kept_of(folder, *rows, tail="", **how):
    written(folder, *rows, tail=tail)
    return keep(finished(folder), PRINTS, JOBS, **how)


def test_nothing_here_imports_torch():
    code = "import compare.plan.resume, compare.record.store, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_finished_cells_of_the_same_fingerprint_are_kept_whatever_their_status(tmp_path):
    kept = kept_of(tmp_path, *map(row, range(6)))
    assert kept.done == {(cell, 0) for cell in CELLS} and not kept.dropped
    assert {r.status for r in kept.records} == {Status.OK, Status.INCORRECT, Status.CRASH}
    assert kept.line == "6 finished rows kept"


def test_another_fingerprint_or_none_and_what_is_not_planned_is_run_again(tmp_path):
    rows = [row(0), row(1, fingerprint="other"), row(2, fingerprint=""), row(9), row(3, process=2)]
    kept = kept_of(tmp_path, *rows, processes=2)
    assert kept.done == {("cell0", 0)}
    assert kept.line == "1 finished rows kept; 2 of another fingerprint; 2 not planned now"


def test_the_last_row_of_a_cell_counts(tmp_path):
    kept = kept_of(tmp_path, row(0), row(0, seconds=5.0))
    assert [r.seconds for r in kept.records] == [5.0] and len(kept.dropped) == 1


def test_what_failed_is_run_again_only_on_request(tmp_path):
    rows = [row(0), row(1), row(2), row(3, status=Status.UNAVAILABLE, reason="no package", evidence=())]
    assert len(kept_of(tmp_path, *rows).records) == 4
    assert kept_of(tmp_path, *rows, retry=True).done == {("cell0", 0)}


def test_timed_kernels_of_a_job_are_kept_together_or_not_at_all(tmp_path):
    """Job 1 is whole in process 0; of job 2 a cell is missing there, and process 1 has a part of job 1 alone."""
    first = [timed(0), timed(1), row(2)]
    kept = kept_of(tmp_path, *first, timed(3), timed(4), timed(0, 1), processes=2)
    assert kept.done == {("cell0", 0), ("cell1", 0), ("cell2", 0)}
    assert {why for _, why in kept.dropped} == {"to be timed again with the others of their row"}


def test_a_declared_failure_among_timed_cells_is_no_gap(tmp_path):
    kept = kept_of(tmp_path, timed(0), timed(1), row(2))  # cell2 crashed, finally
    assert len(kept.done) == 3


def test_settling_moves_what_does_not_count_and_loses_nothing(tmp_path):
    rows = [row(0), row(1, fingerprint="other"), row(2)]
    kept = kept_of(tmp_path, *rows, tail='{"foreign": 1}\n{"torn')
    settle(kept)
    assert [r.cell_id for r in load(tmp_path / "cells.jsonl").records] == ["cell0", "cell2"]
    assert not load(tmp_path / "cells.jsonl").skipped
    aside = (tmp_path / resume.SUPERSEDED).read_text().splitlines()
    assert aside == [rows[1].to_json(), '{"foreign": 1}']


def test_a_whole_file_is_left_as_it_is(tmp_path):
    path = written(tmp_path, *map(row, range(6)))
    before = path.stat().st_ino
    settle(keep(finished(tmp_path), PRINTS, JOBS))
    assert path.stat().st_ino == before and not (tmp_path / resume.SUPERSEDED).exists()


def test_settling_under_a_running_writer_is_refused(tmp_path):
    kept = kept_of(tmp_path, row(0, fingerprint="other"))
    with Store(tmp_path / "cells.jsonl"), pytest.raises(store.Busy):
        settle(kept)


@pytest.mark.parametrize("point", range(8))
def test_settling_that_is_cut_short_anywhere_loses_no_row(tmp_path, monkeypatch, point):
    """An error at the n-th write, sync or rename; afterwards each row is in one of the two files."""
    generator = random.Random(point)
    rows = [row(n, fingerprint=PRINTS[f"cell{n}"] if generator.random() < 0.5 else "other") for n in range(6)]
    kept, left = kept_of(tmp_path, *rows, tail="torn"), [generator.randrange(12)]

    def failing(real):
        def call(*arguments):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        return call

    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(store.os, name, failing(getattr(store.os, name)))
    with contextlib.suppress(OSError):
        settle(kept)
    monkeypatch.undo()
    found = load(tmp_path / "cells.jsonl").records
    aside = tmp_path / resume.SUPERSEDED
    found += load(aside).records if aside.exists() else []
    assert {r.to_json() for r in rows} <= {r.to_json() for r in found}
    settle(keep(finished(tmp_path), PRINTS, JOBS))
    assert all(r.fingerprint == PRINTS[r.cell_id] for r in load(tmp_path / "cells.jsonl").records)


def a_run(results, name, plan="p", contract="c"):
    folder = results / name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"plan": plan, "timing_contract": contract, "run_id": name}))
    (folder / "cells.jsonl").write_text("")
    return folder


def test_without_a_name_the_last_run_of_the_plan_is_meant(tmp_path):
    a_run(tmp_path, "20261121T100000Z_h200_a")
    newest = a_run(tmp_path, "20261121T110000Z_h200_b")
    a_run(tmp_path, "20261121T120000Z_h200_c", plan="another")
    (tmp_path / "20261121T130000Z_h200_d").mkdir()
    (tmp_path / "20261121T130000Z_h200_d" / "manifest.json").write_text("{torn")
    assert find(planned("p", "c"), "", tmp_path).folder == newest
    with pytest.raises(CannotResume, match="no run of plan q"):
        find(planned("q", "c"), "", tmp_path)


def test_a_named_folder_has_to_hold_that_plan_and_contract_or_nothing_yet(tmp_path):
    folder = a_run(tmp_path, "run")
    assert find(planned("p", "c"), str(folder)).folder == folder
    assert find(planned("p", "c"), str(tmp_path / "new"), begins=True) is None
    with pytest.raises(CannotResume, match="new, which is not there, allowed a run's folder"):
        find(planned("p", "c"), str(tmp_path / "new"))
    for plan, contract, named in (("q", "c", "plan p"), ("p", "d", "timing contract c")):
        with pytest.raises(CannotResume, match=named):
            find(planned(plan, contract), str(folder))


def test_the_manifest_says_when_it_went_on(tmp_path):
    kept, folder = kept_of(tmp_path, row(0)), a_run(tmp_path, "run")
    once = find(planned("p", "c"), str(folder)).told(kept, "now")
    assert once == [{"at": "now", "commit": "", "kept": 1}]
