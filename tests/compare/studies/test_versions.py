"""The same configs over releases: what counts as worse, what the page says, what cannot be had, what stands alone."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from common import gpus
from common.process import Child, Lost
from compare.competitors import registry, sources
from compare.exits import terminable
from compare.static.compile import Outcome
from compare.studies.versions import page as versions_page
from compare.studies.versions import scripts, versions
from compare.studies.versions.subjects import (
    HELIONS,
    RELEASES,
    TARGETS,
    Pair,
    pairs,
    steps,
    subjects,
)

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


STEPS = steps(RELEASES, HELIONS)


def line(
    release: str, launch: dict | None = FINE, rebuilt: str = "", subject: str = "s", helion: str = "", target="gfx950"
) -> dict:
    told = {"status": "ok", "reason": "", "launches": [launch]}
    if launch is None:
        told = {"status": "compile_error", "reason": "ValueError: no", "launches": []}
    kernel = "helion/q_block" if helion else "triton/q_block"
    shown = {"kernel": kernel, "shape": "32:8:256", "config": {"a": {"b": 1}}, "options": {}}
    about = {"triton": release, "helion": helion, "target": target, "id": subject, "rebuilt": rebuilt}
    return about | shown | told


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
    assert (len(found) == 1 and says in str(found[0])) if says else found == []


def test_what_compiles_no_more_is_flagged():
    (found,) = versions_page.changes(line("3.6.0"), line("3.7.1", None))
    assert str(found) == "does not compile compile_error: ValueError: no"
    assert not versions_page.changes(line("3.6.0", None), line("3.7.1", None))


def test_each_step_has_one_cause_and_the_newest_is_first():
    assert pairs(("3.8.0", "3.9.0"), HELIONS) == [
        Pair("3.8.0", "1.5.1"),
        Pair("3.9.0", "1.5.1"),
        Pair("3.9.0", "1.5.0"),
    ]
    assert [str(step) for step in STEPS] == [
        "helion 1.5.0 to 1.5.1",
        "triton 3.8.0 to 3.9.0",
        "triton 3.7.1 to 3.8.0",
        "triton 3.6.0 to 3.7.1",
    ]
    for step in STEPS:
        assert set((step.before, step.after)) <= set(pairs(RELEASES, HELIONS))
        assert step.of(False) == (Pair(step.before.triton), Pair(step.after.triton))


def spilling(n: int) -> dict:
    return FINE | {"spills": n}


def test_a_row_is_the_worst_of_a_kernel_a_target_and_a_step_and_how_many_there_are():
    lines = [line("3.7.1", subject=name) for name in "abc"]
    lines += [line("3.8.0", spilling(n), subject=name) for name, n in zip("abc", (5, 90, 0), strict=True)]
    lines += [line("3.7.1", FINE, "", "a", target="gfx942"), line("3.8.0", spilling(7), "", "a", target="gfx942")]
    lines += [line("3.9.0", FINE, "", "h", "1.5.0"), line("3.9.0", FINE | {"programs": 3}, "", "h", "1.5.1")]
    found = versions_page.regressions(versions_page.by_subject(lines), STEPS)
    told = [(str(one.step), one.what, one.target, one.kernel, one.worst.told, one.count) for one in found]
    assert told == [
        ("helion 1.5.0 to 1.5.1", "programs a unit", "gfx950", "helion/q_block", "4 to 3", 1),
        ("triton 3.7.1 to 3.8.0", "spills", "gfx942", "triton/q_block", "0 to 7", 1),
        ("triton 3.7.1 to 3.8.0", "spills", "gfx950", "triton/q_block", "0 to 90", 2),
    ]
    assert found[2].after["id"] == "b"
    kinds = versions_page.worst_of_kinds(found)
    assert [one.worst.told for one in kinds.values()] == ["4 to 3", "0 to 90"]
    assert list(kinds)[1] == ("triton 3.7.1 to 3.8.0", "spills", "gfx")


def test_a_kernel_without_helion_has_no_part_in_helions_steps():
    lines = [line("3.9.0"), line("3.9.0", spilling(99), helion="1.5.0"), line("3.8.0")]
    assert versions_page.regressions(versions_page.by_subject(lines), STEPS) == []


def test_a_rebuilt_regression_must_be_flagged_by_itself():
    quiet = [line("3.6.0", rebuilt="org/repo#1"), line("3.7.1", rebuilt="org/repo#1")]
    loud = [quiet[0], line("3.7.1", FINE | {"spills": 90}, "org/repo#1")]
    assert versions_page.unflagged(versions_page.by_subject(quiet), STEPS) == ["org/repo#1"]
    assert versions_page.unflagged(versions_page.by_subject(loud), STEPS) == []
    assert versions_page.unflagged(versions_page.by_subject(quiet[:1]), STEPS) == []


def test_the_page_says_that_it_is_partial_and_what_cannot_be_had():
    releases, helions = ("3.6.0", "3.7.1", "3.8.0"), ("1.5.0", "1.5.1")
    gone = {"triton": "3.8.0", "helion": "", "target": "", "id": "", "status": "unavailable", "reason": "ERROR: none"}
    lines = [line("3.6.0"), line("3.7.1", spilling(5)), gone, line("3.6.0", helion="1.5.1", subject="h")]
    wanted = {"gfx950": {"s": False, "t": False, "h": True}}
    kind = ("triton 3.6.0 to 3.7.1", "spills", "gfx")
    page = versions_page.render(lines, releases, helions, wanted, {kind: "scripts/x.py"})
    assert "**Partial**: 3 of 10 configs" in page  # t by 3.6.0 and 3.7.1, h by 3.7.1; what has 3.8.0 cannot be
    assert "3.8.0 is unavailable: ERROR: none" in page
    assert (
        "| triton 3.6.0 to 3.7.1 | spills | gfx950 | triton/q_block | `_q_block_kernel` | 0 to 5 | 1 "
        "| `python scripts/x.py` |" in page
    )
    assert "| 3.7.1 | none | gfx950 | 2 | 1 | 0 | 1 | 1 | 5 |" in page
    assert "| 3.6.0 | 1.5.1 | gfx950 | 1 | 1 | 0 | 0 | 0 | 0 |" in page
    whole = versions_page.render(lines[:2], releases[:2], helions[1:], {"gfx950": {"s": False}}, {})
    assert "Complete: 2 configs" in whole and "Nothing." not in whole
    assert "Nothing." in versions_page.render(lines[:1], releases[:1], helions, {"gfx950": {"s": False}}, {})


def test_a_release_that_pip_does_not_give_is_unavailable(monkeypatch):
    def failing(command, **_):
        assert command[-1] == "triton==0.0.1"
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution\n")

    monkeypatch.setattr(versions.subprocess, "run", failing)
    with pytest.raises(versions.Unavailable, match="No matching distribution"), versions.installed("0.0.1"):
        pass


def test_the_release_that_is_installed_is_used_where_it_is():
    for package in ("triton", "helion"):
        with versions.installed(versions.importlib.metadata.version(package), package) as folder:
            assert folder is None


def test_a_shelf_installs_each_release_once_and_removes_it(monkeypatch, tmp_path):
    asked = []

    @contextlib.contextmanager
    def installed(release, package):
        asked.append((package, release))
        yield f"{package}-{release}"
        asked.append("removed")

    monkeypatch.setattr(versions, "installed", installed)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shelf = versions.Shelf()
    for pair in (Pair("3.9.0", "1.5.1"), Pair("3.9.0"), Pair("3.9.0", "1.5.1")):
        with shelf.compiling(pair, "cache"):
            folders = os.environ["PYTHONPATH"].split(os.pathsep)
        assert folders == ["triton-3.9.0", *(["helion-1.5.1"] if pair.helion else [])]
    assert asked == [("triton", "3.9.0"), ("helion", "1.5.1")]
    shelf.close()
    assert asked[2:] == ["removed", "removed"]


def test_children_see_the_release_and_the_process_its_own_environment_again(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with versions._in_front(["theirs"], "cache"):
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


def test_lines_of_older_sources_are_dropped(tmp_path):
    path = tmp_path / "versions.jsonl"
    former = {name: value for name, value in line("3.6.0", subject="a").items() if name != "helion"}
    gone = {"triton": "3.8.0", "helion": "", "target": "", "id": "", "status": "unavailable", "reason": "no"}
    kept = [line("3.6.0", subject="a"), line("3.6.0", subject="h", helion="1.5.1")]
    path.write_text("".join(map(versions._written, [kept[0], line("3.6.0", subject="old"), former, gone, kept[1]])))
    sweep = versions.Sweep(path, 1.0)
    assert sweep.drop_stale({"gfx950": {"a", "h"}}) == 3
    assert versions.read_lines(path) == sweep.lines == kept
    before = path.stat().st_mtime_ns
    assert sweep.drop_stale({"gfx950": {"a", "h", "new"}}) == 0 and path.stat().st_mtime_ns == before


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


def test_a_native_kernel_is_compiled_for_its_own_machine_alone():
    kernels = registry.select("triton/native.sm90_prefill,triton/native.auto")
    found = {target: subjects(gpus.resolve(name), kernels) for target, name in TARGETS.items()}
    assert {one.kernel for one in found.pop("sm_90")} == {"triton/native.sm90_prefill"}
    assert not any(found.values())


def test_the_committed_lines_flag_both_reports():
    lines = versions.read_lines(versions.DATA)
    found = versions_page.by_subject(lines)
    compiled = {one["rebuilt"] for releases in found.values() for one in releases.values()} - {""}
    assert compiled == {"ROCm/aiter#4137", "sgl-project/sglang#34741"}
    assert versions_page.unflagged(found, STEPS) == []


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
    sweep.compile(Pair("3.7.1", "1.5.1"), gpu, wanted, lambda: None)
    assert [told["id"] for told in versions.read_lines(sweep.path)] == [wanted[2].id]
    assert versions.Sweep(sweep.path, 1.0).missing(Pair("3.7.1", "1.5.0"), gpu, wanted) == wanted[:2]


def test_a_command_that_is_ended_takes_its_compilers_along(tmp_path, monkeypatch):
    """The config in hand is the last; the child is closed, not left behind."""
    gpu, ended = gpus.resolve("mi350"), []

    def compiled(jobs, gpu, limit_s):
        try:
            for job in jobs:
                yield Outcome(job, "ok")
        finally:
            ended.append(gpu.arch)

    monkeypatch.setattr(versions, "compile_in_child", compiled)
    sweep = versions.Sweep(tmp_path / "lines.jsonl", 1.0)
    sweep.compile(Pair("3.7.1"), gpu, subjects(gpu, ("triton/q_block",))[:3], sweep.stopped.set)
    assert len(sweep.lines) == 1 and ended == ["gfx950"]


def interrupted(tmp_path, monkeypatch, compiled, follow) -> versions.Sweep:
    """A command that a SIGTERM meets in its first config; follow(sweep): in another thread then."""
    gpu, begun = gpus.resolve("mi350"), threading.Event()
    wanted = {gpu: subjects(gpu, ("triton/q_block",))[:3]}
    sweep = versions.Sweep(tmp_path / "lines.jsonl", 1.0)

    def signals():
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        sweep.stopped.wait()
        follow(sweep)

    monkeypatch.setattr(versions, "compile_in_child", lambda jobs, gpu, limit_s: compiled(jobs, begun))
    thread = threading.Thread(target=signals, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt), terminable():
        versions.run(sweep, Here(), [Pair("3.7.1")], wanted, 1)
    thread.join()
    return sweep


def test_a_signal_is_answered_at_once_and_the_config_in_hand_kept(tmp_path, monkeypatch, capsys):
    """The config in hand ends when the answer was read: 30 s later where there is none."""
    said = []

    def compiled(jobs, begun):
        for job in jobs:
            begun.set()
            for _ in range(300):
                said.append(capsys.readouterr().err)
                if versions.STOPPING in "".join(said):
                    break
                time.sleep(0.1)
            yield Outcome(job, "ok")

    sweep = interrupted(tmp_path, monkeypatch, compiled, lambda sweep: None)
    assert len(sweep.lines) == 1 and "".join(said).count(versions.STOPPING) == 1


def test_a_second_signal_ends_the_compiler_whose_death_is_no_line(tmp_path, monkeypatch):
    children = []

    def compiled(jobs, begun):
        for job in jobs:
            child = Child([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
            children.append(child)
            begun.set()
            with pytest.raises(Lost) as lost:
                child.line(600)
            yield Outcome(job, "crash", reason=f"the compiling process ended with {lost.value.code}")

    sweep = interrupted(tmp_path, monkeypatch, compiled, lambda sweep: os.kill(os.getpid(), signal.SIGTERM))
    assert sweep.lines == [] and [child.ended for child in children] == [True]
    children[0].end()


def test_lanes_share_the_parts_and_only_helions_depend_on_helion(tmp_path, monkeypatch):
    kernels = registry.select("triton/naive,helion/naive")
    wanted = {gpus.resolve(name): subjects(gpus.resolve(name), kernels) for name in ("mi300", "h200")}
    children = []

    def compiled(jobs, gpu, limit_s):
        children.append((gpu.arch, {job.kernel for job in jobs}))
        return (Outcome(job, "ok") for job in jobs)

    monkeypatch.setattr(versions, "compile_in_child", compiled)
    monkeypatch.setattr(versions, "installed", lambda release, package: contextlib.nullcontext())
    sweep, shelf = versions.Sweep(tmp_path / "lines.jsonl", 1.0), versions.Shelf()
    asked = pairs(("3.8.0", "3.9.0"), HELIONS)
    versions.run(sweep, shelf, asked, wanted, 2)
    helion = {line["triton"] + " " + line["helion"] for line in sweep.lines if line["kernel"].startswith("helion")}
    assert helion == {"3.8.0 1.5.1", "3.9.0 1.5.1", "3.9.0 1.5.0"}
    assert {line["triton"] for line in sweep.lines if line["helion"] == ""} == {"3.8.0", "3.9.0"}
    per_dsl = {dsl: sum(one.is_helion is dsl for ones in wanted.values() for one in ones) for dsl in (True, False)}
    assert len(sweep.lines) == 3 * per_dsl[True] + 2 * per_dsl[False]
    assert sorted(children, key=str) == sorted(
        itertools.chain(
            ((arch, {"helion/naive"}) for arch in ("gfx942", "sm_90") for _ in range(3)),
            ((arch, {"triton/naive"}) for arch in ("gfx942", "sm_90") for _ in range(2)),
        ),
        key=str,
    )
    versions.run(sweep, shelf, asked, wanted, 2)
    assert len(children) == 10, "what has a line is not compiled again"


TTIR = """\
#loc = loc("somebodys/x.py":3:0)
#loc1 = loc(unknown)
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc))) attributes {noinline = false} {
    %c = arith.constant 1.000000e+00 : f32 loc(#loc1)
    tt.store %x, %c : !tt.ptr<f32> loc(callsite(#loc at #loc1))
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


class Here:
    """A shelf on which every release is what is installed."""

    @contextlib.contextmanager
    def compiling(self, pair, cache):
        with versions._in_front([], cache):
            yield


def one_regression(what="spills", symbol="k"):
    before, after = line("3.7.1"), line("3.8.0", spilling(9))
    change = versions_page.Change(what, "0 to 9", 9.0, symbol)
    step = next(one for one in STEPS if one.versions == ("3.7.1", "3.8.0"))
    return versions_page.Regression(step, "gfx950", "triton/q_block", "", what, 1, change, before, after)


@pytest.mark.parametrize("target", ["gfx950", "sm_90"])
def test_a_script_compiles_its_ir_without_this_project(target, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    text = scripts._PLACES.sub("", TTIR)
    assert "loc" not in text and "somebody" not in text and text.count("\n") == 7
    one = replace(one_regression(), target=target)
    name, gpu = scripts.name_of(one.kind), gpus.resolve(TARGETS[target])
    files = scripts._files(name, one, gpu, [scripts.Source(text, "ttir", {"num_warps": 4})], [])
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    command = [sys.executable, name]
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"TRITON_CACHE_DIR": str(tmp_path / "c")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    (told,) = map(json.loads, done.stdout.splitlines())
    assert told["registers"] > 0 and told["spills"] == 0 and told["shared"] == 0 and "error" not in told
    assert len(files[name].splitlines()) <= 40
    (tmp_path / next(file for file in files if file.endswith(".ttir"))).write_text("no module")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "error" in json.loads(done.stdout)


def printed(**more):
    return {"registers": 80, "spills": 0, "shared": 0, "loads": {"a": 2}, "matrix": {"m": 4}} | more


@pytest.mark.parametrize(
    ("what", "after", "shown"),
    [
        (versions_page.SPILLS, printed(spills=4), True),
        (versions_page.SPILLS, printed(registers=90), False),
        (versions_page.PROGRAMS, printed(registers=90), True),
        (versions_page.PROGRAMS, printed(shared=90), True),
        (versions_page.PROGRAMS, printed(), False),
        (versions_page.REDUNDANT, printed(matrix={"m": 5}), True),
        (versions_page.MATRIX, printed(matrix={}), True),
        (versions_page.MATRIX, printed(matrix={"m": 1}), False),
        (versions_page.WIDTH, printed(loads={"b": 8}), True),
        (versions_page.WIDTH, printed(), False),
        (versions_page.REFUSED, {"error": "no"}, True),
        (versions_page.REFUSED, printed(), False),
        (versions_page.SPILLS, {"error": "no"}, False),
    ],
)
def test_a_script_is_kept_where_it_shows_what_the_page_says(what, after, shown):
    assert scripts.shows(what, printed(), after) is shown
    assert not scripts.shows(what, {"error": "already"}, after)


def test_scripts_are_written_once_and_those_of_no_regression_go(tmp_path, monkeypatch):
    folder, one = tmp_path / "versions" / "scripts", one_regression()
    source = scripts.Source("module {}", "ttir", {"num_warps": 4})
    said = {"3.7.1": [printed(triton="3.7.1")], "3.8.0": [printed(triton="3.8.0", spills=9)]}
    made = []
    monkeypatch.setattr(scripts, "_sources", lambda *asked: made.append(asked) or [source])
    monkeypatch.setattr(scripts, "_run", lambda script, pair, shelf: said[pair.triton])
    every = {"gfx950": [type("Subject", (), {"id": "s", "is_helion": False})]}

    def write(*found):
        scripts.write(folder, found, every, Here())
        return sorted(path.name for path in folder.glob("*")) if folder.exists() else []

    names = ["triton_3_8_0_gfx_spills.0.ttir", "triton_3_8_0_gfx_spills.py"]
    assert write(one) == names and len(made) == 2
    assert '"spills": 9' in Path(folder, names[1]).read_text()
    assert scripts.found(folder, [one], tmp_path) == {one.kind: f"versions/scripts/{names[1]}"}
    assert write(one) == names and len(made) == 2
    other = replace(one, after=one.after | {"id": "t"})
    assert scripts.found(folder, [other], tmp_path) == {}
    assert write() == []
    said["3.8.0"] = said["3.7.1"]
    assert write(one) == [], "the same IR gives the same code"


def test_a_helion_that_cannot_be_had_leaves_the_others(tmp_path, monkeypatch):
    wanted = {gpu: subjects(gpu, registry.select("triton/naive,helion/naive")) for gpu in [gpus.resolve("h200")]}

    @contextlib.contextmanager
    def installed(release, package):
        if release == "1.5.0":
            raise versions.Unavailable(package, release, "ERROR: gone")
        yield None

    monkeypatch.setattr(versions, "compile_in_child", lambda jobs, gpu, limit_s: (Outcome(job, "ok") for job in jobs))
    monkeypatch.setattr(versions, "installed", installed)
    sweep = versions.Sweep(tmp_path / "lines.jsonl", 1.0)
    versions.run(sweep, versions.Shelf(), pairs(RELEASES[-2:], HELIONS), wanted, 1)
    assert versions_page.unavailable(sweep.lines) == {"1.5.0": "ERROR: gone"}
    ids = {gpu.arch: {one.id: one.is_helion for one in ones} for gpu, ones in wanted.items()}
    assert versions_page.left(sweep.lines, pairs(RELEASES[-2:], HELIONS), ids)[0] == 0
    assert "1.5.0 is unavailable: ERROR: gone" in versions_page.render(sweep.lines, RELEASES[-2:], HELIONS, ids, {})
