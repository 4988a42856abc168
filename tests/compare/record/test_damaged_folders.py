"""A folder with a field damaged at random ends in a typed error that names it, or works: report, diff, merge, resume.

Values are of the wrong type, NaN, huge, negative, half a surrogate pair, somebody's markup, or missing; in rows with a
checksum that fits, so that the field itself is met.
"""

import errno
import json
import os
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import synthetic_run
from common.gpus import UnknownGpu
from compare.__main__ import main as diptych
from compare.analysis.runs import read
from compare.plan.resume import Former, keep, settle
from compare.record import whole
from compare.record.folder import NotARun
from compare.record.records import seal
from compare.record.store import load
from compare.report import figures, glance, style
from compare.tune import records as tuned
from compare.tune import tune, won
from damaged import MISSING, damaged

VALUES = [
    None, True, -1, 0, 3, 2**63, 10**400, -5e-324, 1e308, -1e308, float("nan"), float("inf"), 0.5, "", "x", "\ud800",
    "a\udfffb", "<script>x</script>", "$\\frac$", "\x00\x1b[31m", "x" * 5000, "a\n\n# b", [], [[]], ["\ud800"], {},
    {"": 1}, {"a": {"b": float("nan")}}, [{}], [None], MISSING,
]  # fmt: skip
LOADS = [synthetic_run.workload(*load[:5]) for load in synthetic_run.LOADS[:2]]
FA3 = "baseline/flash_attn3"
SEATS = {"vm:0": {"address": "GPU-1", "rows": 2, "noise": {"mean": 0.1, "most": 0.2, "cells": 3}}}


def rows():
    """Timed ones, an untimed one of an absent GPU, a failure: plain, with every field that a reader looks at."""
    found = [
        synthetic_run.timed(load, kernel, us)
        for load in LOADS
        for kernel, us in (("triton/auto", 9.0), ("helion/q_block", 12.0), (FA3, 10.0))
    ]
    found += [synthetic_run.checked(LOADS[0], "triton/naive", 0.4), synthetic_run.failed(LOADS[1], "helion/naive")]
    plain = [json.loads(record.to_json()) for record in found]
    plain[6]["facts"][0] |= {
        "loops": [{"matrix": {"mfma": 2}, "loads": {"128": 4}, "barriers": 1, "waits": 2}],
        "occupancy": {"programs": 2, "limit": "registers"}, "matrix_redundancy": 1.0,
        "executed": {"workgroups": 4, "instructions": 9, "loads": 2, "load lines": 3, "matrix flops": 8},
    }  # fmt: skip
    plain[6]["estimate"] = {"text": "3 .. 4", "limiter": "bytes", "us": 4.0}
    plain[6]["evidence"] = ["executed-in-model", "interpreted", "compiled"]
    alike = {"fingerprint": "f", "gpu": "h200"}
    return [{name: value for name, value in (row | alike).items() if name != "check"} for row in plain]


MANIFEST = {
    "schema": 1, "run_id": "run", "command": "python -m compare.run", "suite": "peers", "planned": 9, "finished": 8,
    "headline": "Checked", "versions": {"torch": "2.11.0"}, "commit": "abc1234", "dirty": False, "spec": "s",
    "started": "2026-11-21T12:00:00Z", "timing_contract": "graph-cold-interleaved/2", "heuristics": "tree",
    "gpu": {"name": "h200", "title": "NVIDIA H200", "asked": "h200", "present": True}, "plan": "p",
    "machine": {"system": "Linux", "cpus": 2}, "trace": {"name": "t", "assumptions": "a"}, "exit_code": 0,
    "contract": {"timer": "graph", "cache": "cold", "name": "graph-cold-interleaved/2", "processes": 1, "line": "l",
                 "precision": 0.005, "max_time_s": 1.5},
    "workloads": [{"label": load.label} for load in LOADS], "kernels": ["triton/auto"], "seconds": 3.0,
    "resumed": [{"at": "2026-11-21T12:00:00Z", "commit": "abc", "kept": 2}],
    "fleet": {"seats": SEATS, "losses": ["a seat"], "unfit": {"vm:1": "no GPU"}},
}  # fmt: skip


def places(value, at=()):
    """The path of every field and item."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*at, name)
        yield from places(inner, (*at, name))


def written(folder, manifest, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "cells.jsonl").write_text("".join(seal(json.dumps(line, separators=(",", ":"))) + "\n" for line in lines))
    return folder


def called(*words):
    """The exit code of a command; a traceback is a failure."""
    return diptych([*map(str, words)])


def every_reader(folder, whole):
    """What reads a run's folder, each to a typed end."""
    try:
        run = read(folder)
    except NotARun as error:
        assert str(folder) in str(error) and ": found " in str(error)
        return
    assert called("report", folder) in (0, 2)
    assert "<script>x" not in (folder / "report.html").read_text(encoding="utf-8")
    page = (folder / "report.md").read_text(encoding="utf-8")
    if "<script>x" in page:
        found = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)
        assert not [t for token in found for t in [token, *(token.children or ())] if t.type.startswith("html")]
    for first, second in ((folder, whole), (whole, folder)):
        assert called("diff", first, second, "--all") in (0, 2, 5)
    merged = folder / "merged"
    code = called("merge", folder, whole, "--out", merged)
    assert code in (0, 2)
    if code == 0:
        assert called("report", merged) in (0, 2)
    assert isinstance(Former(folder, run.manifest).seconds, float | int)
    kept = keep(load(folder / "cells.jsonl"), {}, [[]])
    assert isinstance(kept.line, str)
    settle(kept)


ROWS = rows()
AGAIN = [row | {"wall_s": 9.0} for row in ROWS]  # measured once more
OF_ROWS = [(number, place) for number, row in enumerate(ROWS) for place in places(row)]
OF_MANIFEST = [(None, place) for place in places(MANIFEST)]


@pytest.fixture
def undrawn(monkeypatch):
    """No figures: a second each."""
    monkeypatch.setattr(figures, "draw", lambda *_, **__: {})
    monkeypatch.setattr(glance, "draw", lambda *_: {})


def test_the_folder_that_is_damaged_is_a_good_one(tmp_path, undrawn):
    folder = written(tmp_path / "run", MANIFEST, ROWS)
    assert not read(folder).note
    every_reader(folder, written(tmp_path / "whole", MANIFEST, AGAIN))
    assert (folder / "merged" / "report.md").exists()


def property_of(examples):
    @pytest.mark.usefixtures("undrawn")
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(at=st.sampled_from(OF_MANIFEST) | st.sampled_from(OF_ROWS), wrong=st.sampled_from(VALUES))
    def holds(tmp_path_factory, at, wrong):
        (number, place), (manifest, lines) = at, (MANIFEST, list(ROWS))
        if number is None:
            manifest = damaged(manifest, place, wrong)
        else:
            lines[number] = damaged(lines[number], place, wrong)
        base = tmp_path_factory.mktemp("damaged")
        every_reader(written(base / "run", manifest, lines), written(base / "whole", MANIFEST, AGAIN))

    return holds


test_any_damaged_field_ends_in_a_typed_error_or_works = property_of(8)
test_any_of_many_damaged_fields_does = pytest.mark.slow(property_of(400))


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        ((6, ("facts",)), [{}], r"facts\[0\]: found no kernel"),
        ((6, ("facts", 0, "loads")), {"x": 1}, r"facts\[0\]: found loads"),
        ((0, ("timing", "samples_us")), [1.0, -1.0], "timing: found samples_us"),
        ((0, ("timing", "timer")), "sundial", "timing: found timer 'sundial', allowed graph"),
        ((0, ("workload", "num_seqs")), 10**30, "workload.num_seqs: found an integer of 100 bits"),
        ((0, ("derived", "gbps")), float("nan"), "derived.gbps: found nan"),
    ],
)  # fmt: skip
def test_a_row_is_left_out_by_the_name_of_its_field(tmp_path, place, wrong, said):
    lines = list(ROWS)
    lines[place[0]] = damaged(lines[place[0]], place[1], wrong)
    note = read(written(tmp_path, MANIFEST, lines)).note
    assert f"line {place[0] + 1}: " in note and re.search(said, note), note


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        (("schema",), float("nan"), "schema: found nan, allowed finite numbers"),
        (("workloads", 0, "label"), 3, r"workloads\[0\]: found label 3, allowed a text"),
        (("fleet", "seats"), MISSING, "fleet: found no seats"),
        (("fleet", "seats", "vm:0", "noise", "mean"), "x", "vm:0, noise: found mean 'x'"),
        (("seconds",), 10**400, "seconds: found an integer of 1329 bits"),
    ],
)
def test_a_manifest_is_refused_by_the_name_of_its_field(tmp_path, place, wrong, said):
    with pytest.raises(NotARun, match=said):
        read(written(tmp_path, damaged(MANIFEST, place, wrong), ROWS))


def test_a_label_of_any_characters_is_drawn_and_written(tmp_path):
    label = "\ud800 $\\frac$ <script>x</script> `a` |\x1b"
    lines = [row | {"workload": row["workload"] | {"label": label}} for row in ROWS]
    named = dict.fromkeys(("run_id", "suite", "headline", "commit"), label) | {"machine": {"system": label}}
    written(tmp_path, MANIFEST | named | {"gpu": MANIFEST["gpu"] | {"title": label}}, lines)
    assert called("report", tmp_path) == 0
    drawn = list((tmp_path / "figures").glob("*.svg"))
    for path in drawn:
        ElementTree.parse(path)
    assert drawn and any("&lt;script&gt;x" in path.read_text(encoding="utf-8") for path in drawn)
    assert "<script>x" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    found = MarkdownIt("commonmark", {"html": True}).enable("table").parse((tmp_path / "report.md").read_text("utf-8"))
    assert not [t for token in found for t in [token, *(token.children or ())] if t.type.startswith("html")]


def test_a_figure_that_does_not_get_to_the_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(whole.os, "replace", Full("x.svg"))
    with pytest.raises(whole.CannotWrite, match=f"{tmp_path / 'x.svg'}: found `No space left on device`"):
        style.save(style.pyplot().figure(), tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


class Full:
    """os.replace on a disk that is full for one name."""

    def __init__(self, name):
        self.name, self.real = name, os.replace

    def __call__(self, source, target):
        if target.name == self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(source, target)


@pytest.mark.parametrize("name", ["summary.csv", "report.md", "report.html"])
def test_a_disk_that_fills_names_the_file_and_leaves_the_former_one(tmp_path, monkeypatch, capsys, name, undrawn):
    folder = synthetic_run.write(tmp_path, [synthetic_run.timed(LOADS[0], "triton/auto", 9.0)])
    assert called("report", folder) == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(whole.os, "replace", Full(name))
    capsys.readouterr()
    assert called("report", folder) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and name in said and str(folder) in said and "are kept" in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


ROW = tune.pick_rows(1)[0]
LINE = {"arm": "triton", "kernel": "triton/q_block", "row": ROW.label, "policy": "default", "status": "ok", "t": 1.0}
LINE |= {"config": {"block_m": 16}, "screen_us": 9.0, "final_us": 9.0, "reason": ""}
TUNED = {"gpu": "h200", "rows": [ROW.to_dict()], "policies": {"triton/q_block": [{}]}, "started": "2026-11-21T12:00"}
TUNED |= {"commit": "c", "versions": {"torch": "2"}, "sources": {"triton/q_block": "s"}, "minutes": 1.0, "seed": 0}
OF_TUNED = [(which, place) for which, of in ((0, TUNED), (1, LINE)) for place in places(of)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(at=st.sampled_from(OF_TUNED), wrong=st.sampled_from(VALUES))
def test_any_damaged_run_of_the_tuner_fits_or_is_refused(tmp_path_factory, at, wrong):
    both = [TUNED, LINE]
    both[at[0]] = damaged(both[at[0]], at[1], wrong)
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "manifest.json").write_text(json.dumps(both[0]))
    (folder / "candidates.jsonl").write_text(json.dumps(both[1]) + "\n")
    try:
        assert won.write(folder, install=False) in (True, False)
    except tuned.NotThisRun as error:
        assert str(folder) in str(error) and "found" in str(error)
    except UnknownGpu as error:
        assert at == (0, ("gpu",)), error
