"""How good the configs in use are, second by second, from invented logs of tuners."""

import json

import pytest

from compare.__main__ import main as diptych
from compare.studies.costs import tuning


def timed(t, row, policy, us, arm="triton", kernel="triton/q_block", **more):
    fields = {"arm": arm, "kernel": kernel, "row": row, "policy": policy, "t": t, "status": "ok", "screen_us": us}
    return fields | more


LOG = [
    timed(1.0, "a", "default", 100.0),
    timed(2.0, "b", "default", 50.0),
    timed(3.0, "a", "p1", 60.0),
    timed(4.0, "b", "p1", 80.0),
    timed(5.0, "b", "p2", 40.0),
    timed(6.0, "a", "p2", 55.0),
    timed(7.0, "a", "p1", 60.0, final_us=50.0),
    timed(8.0, "b", "p2", 40.0, final_us=40.0),
    {"arm": "triton", "kernel": "triton/q_block", "row": "a", "t": 9.0, "done": True},
    {**timed(9.5, "b", "p9", 1.0), "status": "spills"},
]


def test_the_curve_counts_a_candidate_from_its_first_time_with_its_last_word():
    points = tuning.curve(LOG, "triton", "triton/q_block")
    assert [t for t, _ in points] == [2.0, 3.0, 5.0]  # 2 s: both rows have one; p1 of `a` counts from 3 s, with 50 us
    assert points[0][1] == pytest.approx((50 / 100 * 40 / 50) ** 0.5)
    assert points[1][1] == pytest.approx((1.0 * 40 / 50) ** 0.5)
    assert points[-1][1] == pytest.approx(1.0)


def test_the_time_to_a_share_is_the_first_second_that_has_it():
    points = tuning.curve(LOG, "triton", "triton/q_block")
    assert [tuning.time_to(points, share) for share in (0.6, 0.85, 0.9, 0.99)] == [2.0, 3.0, 5.0, 5.0]
    assert tuning.time_to([(1.0, 0.5)], 0.9) is None


def test_across_arms_the_best_known_is_anybodys():
    other = [timed(1.0, row, "default", 20.0, arm="helion", kernel="helion/q_block") for row in "ab"]
    points = tuning.curve(LOG + other, "triton", "triton/q_block", across=True)
    assert points[-1][1] == pytest.approx((20 / 50 * 20 / 40) ** 0.5)
    assert tuning.curve(LOG + other, "triton", "triton/q_block")[-1][1] == pytest.approx(1.0)


def test_a_tuning_run_becomes_a_row_an_arm_and_kernel(tmp_path):
    (tmp_path / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    (row,) = tuning.rows([tmp_path])
    assert (row["arm"], row["kernel"], row["rows"], row["spent_s"]) == ("triton", "triton/q_block", 2, 9.5)
    assert (row["to_90%_s"], row["to_99%_s"]) == (5.0, 5.0)
    assert (row["candidates"], row["timed"], row["covered_s"]) == (7, 6, 2.0)
    assert "across_rows" not in row, "nobody else is in the log"


def test_a_row_that_was_not_reached_runs_the_untuned_default():
    points = tuning.curve(LOG, "triton", "triton/q_block", start=tuning.Start.DEFAULT)
    assert [t for t, _ in points][:1] == [0.0] and points[0][1] == pytest.approx((50 / 100 * 40 / 50) ** 0.5)
    assert points[-1] == (5.0, pytest.approx(1.0))
    silent = [line for line in LOG if (line["row"], line.get("policy")) != ("b", "default")]
    late = tuning.curve(silent, "triton", "triton/q_block", start=tuning.Start.DEFAULT)
    assert late[0][0] == 4.0, "no time of b's default: nothing is known of b before p1"


def test_a_loser_of_the_screening_is_no_better_than_the_worst_finalist():
    lucky = [*LOG, timed(8.5, "b", "p3", 30.0)]
    assert tuning.curve(lucky, "triton", "triton/q_block")[-1] == (5.0, pytest.approx(1.0))
    alone = [timed(1.0, "a", "default", 100.0), timed(2.0, "a", "p1", 90.0)]
    assert tuning.curve(alone, "triton", "triton/q_block") == [(1.0, pytest.approx(0.9)), (2.0, 1.0)]


def test_dsls_are_compared_on_the_rows_that_both_reached_by_the_best_of_either(tmp_path):
    theirs = [
        timed(3.0, "a", "default", 80.0, arm="helion", kernel="helion/q_block"),
        timed(6.0, "a", "p1", 40.0, arm="helion", kernel="helion/q_block"),
        timed(7.0, "a", "p1", 10.0, arm="helion", kernel="helion/unpaged"),
    ]
    for name, lines in {"t": LOG, "h": theirs}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    triton, helion, alone = tuning.rows([tmp_path / "t", tmp_path / "h"])
    assert [row["run"] for row in (triton, helion, alone)] == ["t", "h", "h"]
    assert triton["across_rows"] == helion["across_rows"] == 1 and "across_rows" not in alone
    assert triton["across_untuned"] == pytest.approx(40 / 100) and helion["across_untuned"] == pytest.approx(40 / 80)
    assert (triton["across_to_90%_s"], helion["across_to_90%_s"], helion["to_90%_s"]) == (None, 6.0, 6.0)
    assert triton["to_99%_s"] == 5.0, "its own figures are over its own rows"


MANIFEST = {"gpu": "h200", "gpus": 1, "cores": 24, "minutes": 8.0, "seed": 0, "rows": [{"label": "a"}, {"label": "b"}]}


def runs(tmp_path, **manifests):
    """A folder a manifest, all with LOG."""
    for name, manifest in manifests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    return [tmp_path / name for name in manifests]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"minutes": 4.0}, "minutes 8.0 in one, 4.0 in two"),
        ({"cores": 12}, "cores 24 in one, 12 in two"),
        ({"gpu": "h100"}, "gpu h200 in one, h100 in two"),
        ({"seed": 1}, "seed 0 in one, 1 in two"),
        ({"rows": [{"label": "a"}]}, "other rows: 2 in one, 1 in two"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_runs_of_other_budgets_do_not_stand_beside_each_other(other, said, tmp_path, capsys):
    folders = runs(tmp_path, one=MANIFEST, two=MANIFEST | other)
    with pytest.raises(tuning.UnequalBudgets, match=said):
        tuning.rows(folders)
    words = ["--gpu", "h200", "--only", "tuning", "--out", str(tmp_path / "out"), "--tuned", *map(str, folders)]
    assert diptych(["study", "costs", *words]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()
