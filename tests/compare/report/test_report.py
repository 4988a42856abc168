"""The report of a run folder: every figure in it, read back; nothing invented where nothing was measured."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from markdown_it import MarkdownIt

import synthetic_run
from compare.competitors import registry
from compare.record.records import Status
from compare.record.store import read_records
from compare.report import report, sections, style


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = synthetic_run.timed_run(tmp_path_factory.mktemp("timed"))
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    folder = synthetic_run.absent_run(tmp_path_factory.mktemp("absent"))
    report.write(folder)
    return folder


def _text(folder):
    return (folder / "report.md").read_text()


def _section(folder, title):
    return re.split(r"^#+ ", _text(folder).split(title + "\n", 1)[1], maxsplit=1, flags=re.M)[0]


def test_the_first_line_says_that_the_gpu_is_absent(absent):
    line = "mi300 is not here: compiled and checked, not timed"
    assert _text(absent).splitlines()[0] == line
    assert (absent / "summary.csv").read_text().splitlines()[0] == f"# {line}"


def test_a_contract_weaker_than_the_default_is_named(tmp_path):
    rows = [synthetic_run.checked(synthetic_run.workload(*synthetic_run.LOADS[0][:5]), "triton/naive", 0.4)]
    assert "weaker precision" not in report.write(synthetic_run.write(tmp_path / "default", rows)).read_text()
    rows[0] = rows[0].replace(gate=replace(rows[0].gate, contract="sums bfloat16"))
    text = report.write(synthetic_run.write(tmp_path / "weak", rows)).read_text()
    assert "Declared a weaker precision than the default, and were judged by it: `triton/naive`: sums bfloat16." in text


def test_an_untimed_run_has_no_time_anywhere(absent):
    assert "µs" not in _text(absent).split("## How to read")[0]
    assert sorted(path.name for path in (absent / "figures").iterdir()) == ["glance.svg"]
    rows = pd.read_csv(absent / "summary.csv", comment="#")
    assert rows[["us", "gbps", "ratio_to_best"]].isna().all(axis=None)


def test_summary_has_a_row_a_cell_and_the_right_ratios_and_a_bound_is_never_the_best(timed):
    rows = pd.read_csv(timed / "summary.csv").set_index(["workload", "kernel"])
    assert len(rows) == len(read_records(timed / "cells.jsonl"))
    row = rows.loc[("q1s512", "triton/q_block")]
    assert row.us == pytest.approx(11.0 * 1.3)
    assert row.ratio_to_best == pytest.approx(1.3 / 0.9, rel=1e-4)
    assert row.speed_of_fa3 == pytest.approx(1 / 1.3, rel=1e-4)
    assert row.spread_frac == pytest.approx(0.03, rel=1e-4)
    assert rows.loc[("q1s512", "baseline/sdpa_dense")].ratio_to_best == pytest.approx(0.8 / 0.9, rel=1e-4)
    assert rows.loc[("q1s512", "triton/parallel_softmax")].ratio_to_best == 1.0


def test_a_failure_keeps_its_log_and_its_command(timed):
    text = _section(timed, "### `baseline/sdpa_dense` on 16q1s2k_16q512s1536: crash")
    assert "signal 11" in text
    assert "Segmentation fault" in text
    assert "python -m compare.run --kernels baseline/sdpa_dense" in text


def test_coverage_counts_by_status(timed):
    text = _section(timed, "## Coverage")
    assert "45 of 45 planned cells finished, 44 ok" in text
    assert "| `baseline/sdpa_dense` | 4 | 1 |" in text


def test_a_repeated_cell_counts_once_with_its_last_record(tmp_path):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    first = synthetic_run.failed(load, "triton/naive", Status.TIMEOUT)
    folder = synthetic_run.write(tmp_path, [first, synthetic_run.timed(load, "triton/naive", 20.0)])
    text = report.write(folder).read_text()
    assert "1 of 2 planned cells finished, 1 ok" in text
    assert "## Failures" not in text


def test_every_kernel_of_the_registry_has_a_look_of_its_own():
    assert set(registry.KERNELS) | set(registry.ABLATIONS) <= set(style.STYLES)
    assert len(set(style.STYLES.values())) == len(style.STYLES)
    shapes = [(marker, fill) for _, marker, fill in style.STYLES.values()]
    assert len(set(shapes)) == len(shapes), "without colour the marker and its filling must tell them apart"


def test_every_figure_that_the_report_shows_exists(timed, absent):
    for folder in (timed, absent):
        shown = re.findall(r"\]\((figures/[^)]+)\)", _text(folder))
        assert shown and all((folder / path).is_file() for path in shown)


def test_tables_are_whole(timed, absent):
    """Every line of a table has as many columns as its head, whatever a reason or config contains."""
    for folder in (timed, absent):
        columns = None
        for line in _text(folder).splitlines():
            if not line.startswith("|"):
                columns = None
                continue
            count = len(re.findall(r"(?<!\\)\|", line))
            columns = columns or count
            assert count == columns, line


def test_an_estimate_is_a_column_that_says_what_it_is_and_never_a_time(tmp_path):
    folder = synthetic_run.absent_run(tmp_path)
    records = read_records(folder / "cells.jsonl")
    said = {"floor_us": 0.4, "us": 9.8, "limiter": "launch", "p10": 0.5, "p90": 2.0}
    said |= {"text": "0.4 .. 9.8 x [0.50, 2.00]"}
    gpu = json.loads((folder / "manifest.json").read_text())["gpu"]
    synthetic_run.write(folder, [record.replace(estimate=said) for record in records], gpu=gpu)
    text = report.write(folder).read_text()
    assert "bound .. estimate × spread, µs, not measured" in text and "| 0.4 .. 9.8 x [0.50, 2.00] | launch |" in text
    assert "microseconds of a model, no measurement" in _section(folder, "## How to read this, and its limits")
    assert pd.read_csv(folder / "summary.csv", comment="#").us.isna().all()


RUDE = "ValueError: a|b <script>x</script> ![p](http://e) *x* `y` _z_ snake_case & # \x1b[31m \ud800"


@pytest.mark.parametrize("status", [Status.CRASH, Status.UNSUPPORTED])
def test_what_a_kernel_says_is_nobodys_markup(tmp_path, status):
    row = synthetic_run.failed(synthetic_run.workload(*synthetic_run.LOADS[0][:5]), "outside.kernel:x", status)
    written = report.write(synthetic_run.write(tmp_path, [row.replace(reason=RUDE)]))
    found = MarkdownIt("commonmark", {"html": True}).enable("table").parse(written.read_text(encoding="utf-8"))
    lines = [token for token in found if token.type == "inline" and "ValueError" in token.content]
    read = ["".join(child.content for child in token.children) for token in lines]
    said = "a|b <script>x</script> ![p](http://e) *x* `y` _z_ snake_case & # \ufffd[31m"
    assert read and all(said in line for line in read)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;x&lt;/script&gt;" in html and "<script>x" not in html and "`y`" in html


@pytest.mark.parametrize("kernel", ["a`b", "a|b", "a b", "<b>", "", "x" * 300])
def test_no_record_has_a_kernel_whose_name_is_markup(kernel):
    row = synthetic_run.failed(synthetic_run.workload(*synthetic_run.LOADS[0][:5]), "triton/naive")
    with pytest.raises(ValueError, match="kernel: found"):
        row.replace(kernel=kernel)


def test_the_checker_table_keeps_the_worst_ratio_of_a_kernel_and_of_nothing_is_none():
    loads = [synthetic_run.workload(label, "decode", 1, 1, keys) for label, keys in (("q1s512", 512), ("q1s2k", 2048))]
    rows = [
        synthetic_run.checked(load, "triton/naive", ratio) for load, ratio in zip(loads, (0.25, 0.875), strict=True)
    ]
    assert sections.checker_table(rows).markdown.splitlines()[-1] == "| `triton/naive` | bfloat16 | 2 | 0.875 |"
    assert sections.checker_table([]) is None
