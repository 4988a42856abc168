"""What makes a committed page or report writes it, or says whether it is fresh."""

import subprocess

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.exits import OK, WRONG
from compare.pages import reports, settle
from compare.record.folder import ROOT
from compare.report import report


def test_a_page_is_stale_until_it_is_written(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert settle(page, "new µ\n", "it", write=False) == 1  # not there
    page.write_text("old\n")
    assert settle(page, "new µ\n", "it", write=False) == 1
    assert (
        page.read_text() == "old\n"
        and capsys.readouterr().out == f"{page} is stale: python -m compare pages it --write\n" * 2
    )
    assert settle(page, "new µ\n", "it", write=True) == 0
    assert settle(page, "new µ\n", "it", write=False) == 0
    assert page.read_bytes() == "new µ\n".encode() and "is fresh" in capsys.readouterr().out


def names():
    return [run.relative_to(reports.RESULTS).as_posix() for run in reports.committed()]


DAILY = {
    "h200/fig8",
    "mi300/family",
}  # of a GPU that was here and of one that was not: a few seconds each


@pytest.mark.parametrize("run", [pytest.param(run, marks=[] if run in DAILY else pytest.mark.slow) for run in names()])
def test_a_committed_report_is_what_is_written_now(run):
    """`python -m compare pages reports --write` makes it so."""
    assert diptych(["pages", "reports", "--runs", run]) == OK


def test_there_are_reports_to_write_again():
    assert set(names()) >= DAILY and len(names()) > 20


def test_the_list_of_runs_is_of_what_is_committed_and_short():
    """`python -m compare pages reports --write` makes it so."""
    text = (reports.RESULTS / "README.md").read_text(encoding="utf-8")
    assert text == reports.index() and len(text.splitlines()) <= 40


def test_another_report_is_stale_and_written(tmp_path, monkeypatch):
    run = synthetic_run.absent_run(tmp_path / "h200" / "peers")  # few figures, for it is written five times
    written = report.write(run).read_text()
    monkeypatch.setattr(reports, "RESULTS", tmp_path)
    (run / "report.md").write_text("another\n")
    assert diptych(["pages", "reports", "--runs", "h200/peers"]) == WRONG
    assert diptych(["pages", "reports", "--runs", "h200/peers", "--write"]) == OK
    assert (run / "report.md").read_text() == written
    assert diptych(["pages", "reports", "--runs", "h200/peers"]) == OK


@pytest.mark.parametrize(
    "path", ["docs/results/h200/peers/report.html", "docs/results/h200/peers/summary.csv", "results/x/report.md"]
)
def test_what_a_run_leaves_beside_is_ignored(path):
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0
