"""What a run without a GPU shows of speed: the committed ones, marked as another machine's."""

import pytest

from compare.analysis import committed
from compare.analysis.runs import read
from compare.report import report
from synthetic_run import checked, timed_run, workload, write


@pytest.fixture
def interpreted(tmp_path):
    return write(tmp_path / "run", [checked(workload("q1s512", "decode", 1, 1, 512), "triton/naive", 0.5)])


def test_a_run_without_a_gpu_shows_the_committed_speeds_on_one_page(interpreted):
    found = committed.headline()
    text = report.write(interpreted).read_text()
    assert f"\n# Correctness on this machine; speeds measured on an {found.gpu} on {found.day}\n" in text
    assert "**Not of this machine.**" in text
    for kind, *cells in found.body:
        assert f"| {kind} | {' | '.join(cells)} |" in text


def test_the_committed_speeds_are_those_of_the_table():
    assert [line[0] for line in committed.headline().body] == list(committed.KINDS)
    assert committed.headline().day.startswith("20")


def test_a_run_with_times_shows_its_own_alone(tmp_path):
    timed_run(tmp_path / "run")
    assert read(tmp_path / "run").elsewhere is None
    assert "Not of this machine" not in report.write(tmp_path / "run").read_text()


def test_without_the_sources_there_is_nothing_to_show(interpreted, tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "TABLE", tmp_path / "none.toml")
    committed.headline.cache_clear()
    assert "\n# Paged attention: peers on no GPU\n" in report.write(interpreted).read_text()
    committed.headline.cache_clear()
