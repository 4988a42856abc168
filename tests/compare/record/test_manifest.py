"""manifest.json is read with suspicion: what is not of its kind is an error that names it, and null says nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synthetic_run
from compare.analysis import runs
from compare.plan.resume import Former
from compare.record import folder as run_folder
from compare.record.folder import NotARun
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([
    "run_id", "command", "started", "commit", "spec", "suite", "plan", "gpu", "contract", "versions", "kernels",
    "workloads", "resumed", "planned", "seconds", "dirty", "trace", "parts", "machine", "headline", "timing_contract",
])  # fmt: skip
CELLS = synthetic_run.checked(synthetic_run.workload(*synthetic_run.LOADS[0][:5]), "triton/naive", 0.4).to_json()
DAILY, NIGHTLY = 300, 10_000


def readable(tmp_path, text, cells):
    """A run folder of these files is read, or refused by a typed error."""
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    (tmp_path / "cells.jsonl").write_text(cells, encoding="utf-8", errors="surrogatepass")
    try:
        found = runs.read(tmp_path)
    except NotARun as error:
        assert str(error).startswith("run folder: found")
        return
    assert found.headline and isinstance(found.title, str) and found.gpu_title and found.contract is not None
    Former(tmp_path, found.manifest).seconds  # noqa: B018


def property_of(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(
        changes=st.dictionaries(NAMES, JSON, max_size=3), cut=st.none() | st.integers(0, 400), noise=st.text(max_size=9)
    )
    def holds(tmp_path_factory, changes, cut, noise):
        known = {"run_id": "run", "suite": "smoke", "kernels": ["triton/naive"], "workloads": [], "planned": 1}
        text, cells = json.dumps(known | changes), CELLS + "\n"
        if cut is not None:
            text, cells = text[: cut % (len(text) + 1)] + noise, cells[:cut] + noise
        readable(tmp_path_factory.getbasetemp(), text, cells)

    return holds


test_any_run_folder_is_read_or_refused = property_of(DAILY)
test_any_of_ten_thousand_run_folders_is_read_or_refused = pytest.mark.slow(property_of(NIGHTLY))


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
