"""The same configs over Triton releases: what counts as worse, what the page says, releases that cannot be had."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from common import gpus
from compare.competitors import registry, sources
from compare.static.compile import Outcome
from compare.studies.versions import page as versions_page
from compare.studies.versions import versions
from compare.studies.versions.subjects import RELEASES, TARGETS, subjects

FINE = {
    "kernel": "_q_block_kernel",
    "registers": 200,
    "spills": 0,
    "shared_bytes": 1024,
    "programs": 4,
    "redundancy": 1.0,
    "matrix": {"mfma 16x16x16": 8},
    "loads": {"128": 8, "32": 2},
}


def line(release: str, launch: dict | None = FINE, rebuilt: str = "", subject: str = "s") -> dict:
    told = {"status": "ok", "reason": "", "launches": [launch]}
    if launch is None:
        told = {"status": "compile_error", "reason": "ValueError: no", "launches": []}
    shown = {"kernel": "triton/q_block", "shape": "32:8:256", "config": {"a": {"b": 1}}, "options": {}}
    return {"triton": release, "target": "gfx950", "id": subject, "rebuilt": rebuilt} | shown | told


def test_a_line_of_an_older_source_is_no_line_of_todays():
    today, *_ = subjects(gpus.resolve("mi350"), ["triton/q_block"])
    assert today.source == sources.of_kernel("triton/q_block")
    assert replace(today, source="older").id != today.id


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"spills": 1}, "spills 0 to 1"),
        ({"spills": 197}, {"spills": 344}, "spills 197 to 344"),
        ({"spills": 3}, {"spills": 16}, None),
        ({"spills": 200}, {"spills": 220}, None),
        ({}, {"programs": 3}, "programs a unit 4 to 3"),
        ({}, {"redundancy": 1.5}, "matrix work 1.00 to 1.50"),
        ({}, {"redundancy": 1.04}, None),
        ({}, {"matrix": {}}, "no matrix instruction"),
        ({}, {"loads": {"32": 40}}, "bits a load 109 to 32"),
        ({}, {"registers": 300, "shared_bytes": 4096}, None),
        ({"spills": 9}, {"spills": 0, "programs": 8}, None),
    ],
)
def test_worse(before, after, says):
    found = versions_page.worse(FINE | before, FINE | after)
    assert (len(found) == 1 and says in found[0]) if says else found == []


def test_what_compiles_no_more_is_flagged():
    assert versions_page.flags(line("3.6.0"), line("3.7.1", None)) == [
        ("", "does not compile: compile_error: ValueError: no")
    ]


def test_a_rebuilt_regression_must_be_flagged_by_itself():
    quiet = [line("3.6.0", rebuilt="org/repo#1"), line("3.7.1", rebuilt="org/repo#1")]
    loud = [quiet[0], line("3.7.1", FINE | {"spills": 90}, "org/repo#1")]
    assert versions_page.unflagged(versions_page.by_subject(quiet), RELEASES) == ["org/repo#1"]
    assert versions_page.unflagged(versions_page.by_subject(loud), RELEASES) == []


def test_the_page_says_that_it_is_partial_and_what_cannot_be_had():
    gone = {"triton": "3.8.0", "target": "", "id": "", "status": "unavailable", "reason": "ERROR: no such release"}
    lines = [line("3.6.0"), line("3.7.1", FINE | {"spills": 5}), gone]
    page, missed = versions_page.render(lines, ("3.6.0", "3.7.1", "3.8.0"), {"gfx950": ["s", "t"]})
    assert "**Partial**: 2 of 6 configs" in page
    assert "Triton 3.8.0 is unavailable: ERROR: no such release" in page
    assert "| 3.6.0 to 3.7.1 | gfx950 | triton/q_block | _q_block_kernel | spills 0 to 5 |" in page
    assert missed == []
    whole, _ = versions_page.render(lines[:2], ("3.6.0", "3.7.1"), {"gfx950": ["s"]})
    assert "Complete: 2 configs" in whole


def test_a_release_that_pip_does_not_give_is_unavailable(monkeypatch):
    def failing(command, **_):
        assert command[-1] == "triton==0.0.1"
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution\n")

    monkeypatch.setattr(versions.subprocess, "run", failing)
    with pytest.raises(versions.Unavailable, match="No matching distribution"), versions.installed("0.0.1"):
        pass


def test_the_release_that_is_installed_is_used_where_it_is():
    with versions.installed(versions.importlib.metadata.version("triton")) as folder:
        assert folder is None


def test_children_see_the_release_and_the_process_its_own_environment_again(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with versions._in_front("theirs", "cache"):
        assert os.environ["PYTHONPATH"].split(os.pathsep) == ["theirs", "mine"]
        assert os.environ["TRITON_CACHE_DIR"] == "cache"
    assert os.environ["PYTHONPATH"] == "mine"
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_torn_line_is_dropped_and_the_next_one_begins_a_line(tmp_path):
    path = tmp_path / "versions.jsonl"
    path.write_text(json.dumps(line("3.6.0")) + '\n{"triton": "3.')
    assert versions.read_lines(path) == [line("3.6.0")]
    versions.Sweep(path, 1.0).add(line("3.7.1"))
    assert versions.read_lines(path) == [line("3.6.0"), line("3.7.1")]


def test_subjects_are_the_committed_configs_and_the_rebuilt_regressions():
    kernels = registry.select("triton/q_block,triton/auto,baseline/sdpa")
    reports = {target: [] for target in TARGETS}
    for target, name in TARGETS.items():
        found = subjects(gpus.resolve(name), kernels)
        assert {one.kernel for one in found} == {"triton/q_block"}
        assert len({one.id for one in found}) == len(found)
        reports[target] = [one.rebuilt for one in found if one.rebuilt]
    assert reports.pop("gfx950") == ["ROCm/aiter#4137", "sgl-project/sglang#34741"]
    assert not any(reports.values())


def test_the_committed_lines_flag_both_reports():
    lines = versions.read_lines(versions.DATA)
    found = versions_page.by_subject(lines)
    compiled = {one["rebuilt"] for releases in found.values() for one in releases.values()} - {""}
    assert compiled == {"ROCm/aiter#4137", "sgl-project/sglang#34741"}
    assert versions_page.unflagged(found, RELEASES) == []


def test_a_compiler_that_was_ended_with_the_command_leaves_no_line(tmp_path, monkeypatch):
    """The next call compiles that config; a compiler that died by itself is a finding."""
    gpu = gpus.resolve("mi350")
    wanted = subjects(gpu, ("triton/q_block",))[:3]
    ends = (-15, -2, -6)

    def compiled(jobs, gpu, limit_s):
        for job, code in zip(jobs, ends, strict=True):
            yield Outcome(job, "crash", reason=f"the compiling process ended with {code}")

    monkeypatch.setattr(versions, "compile_in_child", compiled)
    sweep = versions.Sweep(tmp_path / "lines.jsonl", 1.0)
    sweep.compile("3.7.1", gpu, wanted, lambda: None)
    assert [told["id"] for told in versions.read_lines(sweep.path)] == [wanted[2].id]
    assert versions.Sweep(sweep.path, 1.0).missing("3.7.1", gpu, wanted) == wanted[:2]
