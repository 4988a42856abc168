"""Points over days and toolchains: equal rows, later times, and what lost."""

import pytest

from compare.__main__ import main as diptych
from compare.analysis.runs import RunData
from compare.exits import NOTHING
from compare.pages import history
from synthetic_run import timed, workload

LOADS = [workload(f"{n}q1s2k~", "decode", n, n, 1024 * n) for n in (2, 4, 8, 16, 32)]


def run(day, speeds, triton="3.6.0", kernel="triton/auto", **more):
    """A run whose kernel has these speeds over FlashAttention 3, by row."""
    rows = [timed(load, "baseline/flash_attn3", 10.0) for load, _ in zip(LOADS, speeds, strict=False)]
    rows += [timed(load, kernel, 10.0 / speed) for load, speed in zip(LOADS, speeds, strict=False)]
    said = {"started": f"{day}T00:00", "commit": f"c{day[-2:]}", "versions": {"triton": triton, "helion": "1.5.0"}}
    return RunData(None, said | more, rows)


def test_a_mean_is_over_the_rows_that_all_points_have():
    points = history.points([run("2026-11-01", [1, 1, 1, 1]), run("2026-11-02", [2, 2, 2, 2, 9])])
    kept, rows = history.alike(points, "triton/auto")
    assert [point.day for point in kept] == ["2026-11-01", "2026-11-02"] and len(rows) == 4
    assert kept[1].mean("triton/auto", "decode", rows) == pytest.approx(2.0)  # the row of 9 is not in it
    assert "| Triton | peers, 2026-11-02, Triton 3.6.0, Helion 1.5.0 | c02 | 2.00 | 4 |" in history.table(
        points, "peers"
    )


def test_a_point_with_few_of_the_newest_rows_is_left_out():
    points = history.points([run("2026-11-01", [1, 1]), run("2026-11-02", [2, 2, 2, 2, 2])])
    kept, rows = history.alike(points, "triton/auto")
    assert [point.day for point in kept] == ["2026-11-02"] and len(rows) == 5


def test_a_toolchain_is_a_point_of_its_own_and_a_later_time_counts():
    runs = [run("2026-11-01", [1.0]), run("2026-11-01", [1.5]), run("2026-11-01", [3.0], triton="3.9.0")]
    assert [(p.triton, *(round(speed, 3) for speed in p.rows.values())) for p in history.points(runs)] == [
        ("3.6.0", 1.5),
        ("3.9.0", 3.0),
    ]


def test_a_merged_run_has_the_commits_of_its_parts():
    parts = {name: {"commit": name * 8, "versions": {"triton": "3.6.0", "helion": "1.5.0"}} for name in "ab"}
    (point,) = history.points([run("2026-11-01", [1.0], parts=parts)])
    assert (point.commits, point.triton) == (["a" * 7, "b" * 7], "3.6.0")


def test_rows_that_lost_are_named_with_the_day_of_their_best():
    points = history.points([run("2026-11-01", [1, 1.0]), run("2026-11-02", [1, 1.4]), run("2026-11-03", [0.95, 0.7])])
    told = history.slower(points)
    assert "| Triton | 4q1s2k~ | decode | 1.40 | 2026-11-02, Triton 3.6.0 | 0.70 | 2026-11-03 |" in told
    assert "2q1s2k~" not in told, "5% is no loss"
    assert history.slower(points[:1]) == ""


def test_a_picture_has_its_kernels_days_and_the_other_toolchain():
    points = history.points(
        [run("2026-11-01", [1, 1]), run("2026-11-02", [1, 1]), run("2026-11-02", [1, 1], triton="3.9.0")]
    )
    picture = history.drawn({"peers": points})
    assert all(word in picture for word in ("decode, 2 rows of peers", "11-01", "11-02", "Triton 3.9.0", ">Triton<"))
    assert "Helion" not in picture


def test_the_page_is_filled_between_its_marks(tmp_path):
    text = "a\n<!-- dated: history h9 -->\nold\n<!-- end dated -->\nb\n"
    (tmp_path / "h9").mkdir()
    assert history.filled(text, tmp_path) == "a\n<!-- dated: history h9 -->\n\n<!-- end dated -->\nb\n"


def test_the_committed_page_and_its_picture_are_fresh():
    assert diptych(["pages", "history"]) == 0


def test_a_gpu_without_runs_has_no_history(capsys):
    assert diptych(["history", "--gpu", "mi300"]) == NOTHING
    assert "h200" in capsys.readouterr().err
