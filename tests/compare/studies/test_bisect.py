"""The first bad commit of a small repository whose commits say how fast they are; a runner that reads that."""

import subprocess

import pytest

from compare.__main__ import main as diptych
from compare.exits import NO_GPU, USAGE
from compare.record import folder as run_folder
from compare.studies import bisect
from compare.studies.bisect import Bisection, CannotBisect, Row
from synthetic_run import timed, workload

LOAD = workload("32q1s2k~", "decode", 32, 32, 49000)


def git(at, *words):
    done = subprocess.run(
        ["git", "-C", str(at), "-c", "user.name=x", "-c", "user.email=x@x", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def made(tmp_path):
    """(a function from speeds to a Bisection over a repository with a commit each, its commits, those that were run)"""
    ran, commits = [], []

    def make(*speeds):
        at = tmp_path / "repository"
        git(tmp_path, "init", "-q", str(at))
        for number, speed in enumerate(speeds):
            (at / "speed").write_text(f"{speed} {number}")
            git(at, "add", "speed")
            git(at, "commit", "-q", "-m", f"commit {number}")
            commits.append(git(at, "rev-parse", "HEAD"))

        def run(tree, out):
            ran.append(commits.index(git(tree, "rev-parse", "HEAD")))
            (out / "speed").write_text((tree / "speed").read_text())

        def value(out):
            said = (out / "speed").read_text().split()[0]
            return None if said == "broken" else float(said)

        return Bisection(at, tmp_path / "folder", run, value)

    return make, commits, ran


def test_it_finds_the_commit_that_lost(made):
    make, commits, ran = made
    one = make(1.0, 1.02, 0.99, 1.0, 1.01, 0.8, 0.79, 0.81, 0.8)
    assert one.first("HEAD", commits[0]) == commits[5]
    assert len(ran) == len(set(ran)) <= 6, "the ends and three or four midpoints, each once"


def test_a_commit_that_does_not_run_is_skipped(made):
    make, commits, _ = made
    assert make(1.0, 1.0, "broken", "broken", 1.0, 0.5, 0.5).first("HEAD", commits[0]) == commits[5]


def test_where_only_skipped_ones_are_left_none_is_named(made):
    make, commits, _ = made
    assert make(1.0, "broken", "broken", 0.5).first("HEAD", commits[0]) is None


def test_neighbours_need_no_midpoint(made):
    make, commits, ran = made
    assert make(1.0, 0.5).first("HEAD", commits[0]) == commits[1] and sorted(ran) == [0, 1]


def test_without_a_good_commit_ancestors_are_tried_in_doubling_steps(made):
    make, commits, ran = made
    one = make(1.0, 1.0, 1.0, 0.8, 0.8, "broken", 0.8, 0.8)
    assert one.first("HEAD", None) == commits[3]
    assert ran[:5] == [7, 6, 5, 3, 0]  # bad, then 1, 2 and 4 before it, and the first


def test_it_goes_on_where_it_stopped(made):
    make, commits, ran = made
    whole = make(1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5)

    def stopped(tree, out):
        if len(ran) == 3:
            raise KeyboardInterrupt
        whole.run(tree, out)

    with pytest.raises(KeyboardInterrupt):
        Bisection(whole.repository, whole.folder, stopped, whole.value).first("HEAD", commits[0])
    before = list(ran)
    assert whole.first("HEAD", commits[0]) == commits[4]
    assert len(before) == 3 and len(ran) == len(set(ran)), "what was measured is not measured again"
    assert whole.first("HEAD", commits[0]) == commits[4] and len(ran) == len(set(ran))


@pytest.mark.parametrize(
    ("speeds", "good", "said"),
    [
        ((1.0, 1.0, 0.99), 0, "as good as its ancestors"),
        ((1.0, "broken"), 0, "where the row does not run"),
        ((1.0, 0.5), "nothing", "--good: found 'nothing', allowed a commit of"),
        ((1.0, 0.5), "", "--good: found ''"),
    ],
)
def test_what_cannot_be_bisected_is_refused(made, speeds, good, said):
    make, commits, _ = made
    one = make(*speeds)
    with pytest.raises(CannotBisect, match=said):
        one.first("HEAD", commits[good] if good == 0 else good)


@pytest.mark.parametrize("bad", ["nothing", ""])
def test_a_bad_commit_that_is_none_is_named(made, bad):
    """An empty one was taken for none, and the good commit for it."""
    make, commits, _ = made
    with pytest.raises(CannotBisect, match=f"--bad: found '{bad}', allowed a commit of"):
        make(1.0, 0.5).first(bad, commits[0])


def test_a_row_is_as_good_as_its_speed_or_right(tmp_path, monkeypatch):
    rows = [timed(LOAD, "triton/auto", 8.0), timed(LOAD, "baseline/flash_attn3", 10.0)]
    monkeypatch.setattr(bisect.runs, "read", lambda out: type("Run", (), {"records": rows}))
    assert Row((), "triton/auto", "baseline/flash_attn3").value(tmp_path) == 1.25
    assert Row((), "helion/auto", "baseline/flash_attn3").value(tmp_path) is None
    assert Row((), "triton/auto", None).value(tmp_path) == 1.0


def test_a_folder_without_a_run_did_not_run(tmp_path):
    assert Row((), "triton/auto", None).value(tmp_path / "nothing") is None


def test_a_speed_without_a_gpu_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(bisect.gpus, "detect", lambda: None)
    assert diptych(["bisect", "--row", "q1s512", "--bad", "HEAD"]) == NO_GPU
    assert "allowed right" in capsys.readouterr().err


def test_an_unknown_commit_is_a_usage_error(tmp_path, capsys):
    if not (run_folder.ROOT / ".git").exists():
        pytest.skip("no clone")
    words = ["bisect", "--row", "q1s512", "--what", "right", "--bad", "nothing", "--out", str(tmp_path)]
    assert diptych(words) == USAGE
    assert "--bad: found 'nothing', allowed a commit of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--row", "nosuchrow"), "workload: found 'nosuchrow'"),
        (("--row", "nosuchrow", "--suite", "smoke"), "workload: found 'nosuchrow', allowed globs of"),
        (("--row", "*", "--suite", "smoke"), "--row: found 8, ragged-decode, prefill-33, chunk-17-over-40, ..."),
        (("--row", "q1s512", "--kernel", "triton/*"), "--kernel: found 8, triton/naive"),
        (("--row", "q1s512", "--kernel", "no"), "kernel: found 'no'"),
        (("--row", "q1s512", "--suite", "no"), "suite: found 'no'"),
    ],
)
def test_a_row_or_kernel_that_is_not_one_is_refused_before_a_commit_runs(words, said, tmp_path, capsys):
    """An unknown row was run at commit after commit, and none of them had it."""
    out = tmp_path / "bisection"
    assert diptych(["bisect", *words, "--what", "right", "--bad", "HEAD", "--out", str(out)]) == USAGE
    assert said in capsys.readouterr().err and not out.exists()
