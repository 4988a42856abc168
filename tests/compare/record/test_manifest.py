"""manifest.json is read with suspicion: what is not of its kind is an error that names it, and null says nothing."""

import pytest

from compare.plan.resume import Former
from compare.record import folder as run_folder
from compare.record.manifest import checked, read


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"contract": {"timer": "sundial"}}, "manifest.json, contract: found timer 'sundial', allowed graph, events"),
        ({"contract": {"timer": ["graph"]}}, "contract: found timer"), ({"contract": 7}, "found contract 7"),
        ({"versions": {"torch": 2}}, "found versions"), ({"versions": []}, "found versions"),
        ({"workloads": [7]}, "found workloads"), ({"kernels": "triton/auto"}, "found kernels"),
        ({"seconds": float("nan")}, "found seconds nan"), ({"planned": -1}, "found planned -1"),
        ({"resumed": 7}, "found resumed"), ({"gpu": {"name": 7}}, "manifest.json, gpu: found name 7"),
        ({"parts": {"a": {"suite": 3}}}, "found suite 3"), ([], "found list, allowed an object"),
    ],
)  # fmt: skip
def test_what_is_not_of_its_kind_is_named(said, words):
    with pytest.raises(ValueError, match=words):
        checked(said)


def test_what_is_null_says_nothing():
    assert checked({"versions": None, "gpu": None, "contract": {"timer": "graph", "name": None}}) == {
        "contract": {"timer": "graph"}
    }


def test_every_committed_run_is_read():
    cells = (run_folder.ROOT / "docs/results").glob("**/cells.jsonl*")
    paths = [path for path in (one.with_name("manifest.json") for one in cells) if path.exists()]
    assert len(paths) > 10 and all(read(path) for path in paths)


TEN = "2026-11-24T10:00:00+00:00"


@pytest.mark.parametrize(
    ("manifest", "seconds"),
    [
        ({"started": TEN, "exit_code": 0, "seconds": 40.0}, 40.0),
        ({"started": TEN}, 90.0),  # killed: until its last row
        ({"started": TEN, "seconds": 40.0, "resumed": [{"at": "2026-11-24T10:01:00+00:00"}]}, 70.0),
        ({"started": "2099-11-24T10:00:00+00:00", "seconds": 40.0}, 40.0),  # of another clock
        ({"started": "yesterday"}, 0.0),
    ],
)  # fmt: skip
def test_a_run_counts_the_seconds_of_all_its_parts(tmp_path, manifest, seconds):
    import datetime
    import os

    rows = tmp_path / "cells.jsonl"
    rows.write_text("")
    at = datetime.datetime(2026, 11, 24, 10, 1, 30, tzinfo=datetime.UTC).timestamp()
    os.utime(rows, (at, at))
    assert Former(tmp_path, manifest).seconds == pytest.approx(seconds)
