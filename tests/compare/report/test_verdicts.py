"""The verdicts of a run in its report and its summary.csv, and a merged folder as one report of both GPUs."""

import pandas as pd
import pytest

from compare.analysis import merge
from compare.analysis.runs import read
from compare.analysis.tables import Table
from compare.record.noise import Noise
from compare.report import report, verdicts
from sampled_run import DECODE, PREFILL, rows
from synthetic_run import absent_run
from tests.compare.analysis.test_diff import CONTRACT, FA3, measured, run_at
from tests.compare.analysis.test_merge import absent


def sections(folder):
    return {section.title: section for section in verdicts.sections(read(folder))}


def first_table(section):
    return next(block for block in section.blocks if isinstance(block, Table))


def test_a_timed_run_has_the_unit_and_the_twins(tmp_path):
    found = sections(run_at(tmp_path / "run", measured(1)))
    assert list(found) == [f"Against {FA3}", "Helion against Triton"]
    text = first_table(found[f"Against {FA3}"]).markdown
    assert "| `triton/auto` | 1.11× |" in text and "| `helion/auto` | 1.00× | [0.99" in text
    assert "0.90×" in first_table(found["Helion against Triton"]).markdown


def test_the_margin_and_the_noise_floor_are_said(tmp_path):
    folder = run_at(tmp_path / "run", measured(1))
    assert "No noise floor" in sections(folder)[f"Against {FA3}"].blocks[0].text
    Noise("h200", CONTRACT, "triton/q_block", 3, 0.15, 0.2).write(folder / "noise.json")
    section = sections(folder)[f"Against {FA3}"]
    assert "beyond 15%" in section.blocks[0].text and "differed by 15% within" in section.blocks[0].text
    (auto,) = [row for row in first_table(section).body if row[0] == "`triton/auto`"]
    assert auto[4:8] == [0, 4, 0, 0], "eleven percent are the same within a margin of fifteen"
    (folder / "noise.json").write_text("{}")
    assert "was not read" in sections(folder)[f"Against {FA3}"].blocks[0].text


def test_failures_stand_beside_the_mean(tmp_path):
    records = rows(DECODE, {"triton/auto": 1.0, FA3: 1.0}) + rows(PREFILL, {"triton/auto": None, FA3: 1.0})
    text = first_table(sections(run_at(tmp_path / "run", records))[f"Against {FA3}"]).markdown
    assert "| 1 of 2 | 1 crash |" in text


def test_a_run_without_times_has_no_verdicts(tmp_path):
    assert not sections(absent_run(tmp_path / "run"))


def test_the_summary_has_the_verdict_of_every_cell(tmp_path):
    folder = run_at(tmp_path / "run", measured(1))
    report.write(folder)
    found = pd.read_csv(folder / "summary.csv").set_index(["workload", "kernel"])
    cell = found.loc["q8k", "triton/auto"]
    assert cell.verdict == "faster" and cell.speed_low < cell.speed < cell.speed_high < 1.2
    assert cell.verdict_basis == "3 processes, 96 rounds, paired" and found.loc["q8k", FA3].isna().verdict
    assert "## Against baseline/flash_attn3" in (folder / "report.md").read_text()


def test_a_merged_folder_is_one_report_of_both_gpus(tmp_path):
    one, two = run_at(tmp_path / "one", measured(1)), absent(tmp_path / "two")
    merge.merge([read(one), read(two)], tmp_path / "merged")
    text = report.write(tmp_path / "merged").read_text()
    assert text.count("## Coverage") == 2 and "on NVIDIA H200 SXM 141 GB" in text and "mi300 is not here" in text
    lines = (tmp_path / "merged" / "summary.csv").read_text().splitlines()
    assert lines[0] == "# mi300 is not here" and {line.rsplit(",", 1)[1] for line in lines[2:]} == {"run", "absent"}


@pytest.mark.parametrize("tail", ["torn", '{"op": "matmul"}\n'])
def test_lines_left_out_are_in_the_summary_and_in_the_report(tmp_path, tail):
    folder = run_at(tmp_path / "run", measured(1, loads=(DECODE,)))
    with open(folder / "cells.jsonl", "a") as file:
        file.write(tail)
    assert "1 line left out" in report.write(folder).read_text()
    assert (folder / "summary.csv").read_text().startswith("# cells.jsonl: 1 line left out")
