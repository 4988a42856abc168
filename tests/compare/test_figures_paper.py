"""The paper's figures: what is drawn follows the rows, and nothing is drawn where nothing was timed."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
import synthetic_figures
import synthetic_run

from compare import figure_style, figures_paper
from compare.figures_paper import Point, summed_us
from compare.records import Status

SVG = "{http://www.w3.org/2000/svg}"


def texts(path):
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("suite", ["fig6", "fig7", "fig8", "fig9"])
def test_every_kernel_of_a_figure_is_in_its_legend_and_the_file_is_the_same_again(tmp_path, suite):
    records = synthetic_figures.records(suite)
    for name, path in figures_paper.draw(suite, records, tmp_path).items():
        assert name in figures_paper.CAPTIONS
        assert {record.kernel for record in records if record.timing} <= set(texts(path))
        before = path.read_bytes()
        figures_paper.draw(suite, records, tmp_path)
        assert path.read_bytes() == before


def test_a_panel_a_length_and_a_panel_a_decode_share(tmp_path):
    drawn = figures_paper.draw("fig6", synthetic_figures.records("fig6"), tmp_path)
    lengths = [text for text in texts(drawn["fig6-by-length"]) if text.startswith("longest sequence")]
    assert lengths == ["longest sequence 256", "longest sequence 1,024", "longest sequence 4,096"]
    assert "sequences in the batch (geometric mean over decode shares 0%, 100%)" in texts(drawn["fig6-by-length"])
    shares = [text for text in texts(drawn["fig6-by-share"]) if text.endswith("% decodes")]
    assert shares == ["0% decodes", "50% decodes", "100% decodes"]


def test_a_run_without_times_has_no_figure_of_times(tmp_path):
    records = [
        synthetic_run.failed(record.workload, record.kernel, Status.UNAVAILABLE)
        for record in synthetic_figures.records("fig9")
    ]
    assert figures_paper.draw("fig9", records, tmp_path) == {}


def test_without_flash_attention_the_fastest_kernel_is_the_yardstick(tmp_path):
    kernels = ("triton/naive", "triton/parallel_softmax")
    records = synthetic_figures.records("fig9", kernels)
    (path,) = figures_paper.draw("fig9", records, tmp_path).values()
    assert "triton/parallel_softmax = 100%" in texts(path)


def steps(**us):
    load = synthetic_run.workload("", "decode", 1, 1, 1)
    return [
        Point(load.__class__(**vars(load) | {"max_seq_len": 500 + int(at[1:])}), "triton/naive", time)
        for at, time in us.items()
    ]


def test_the_time_of_all_steps_is_linear_between_those_measured():
    found = steps(_10=10.0, _110=20.0)
    assert summed_us(found, 10) == 100.0, "before the first one, as the first"
    assert summed_us(found, 110) == 100.0 + 100 * 15.0
    assert math.isnan(summed_us(found, 200)) and math.isnan(summed_us([], 10))


def test_a_variant_has_its_kernels_marker_on_a_line_of_its_own():
    plain, page = figure_style.line("triton/q_block"), figure_style.line("triton/q_block@page")
    assert (plain["marker"], plain["color"]) == (page["marker"], page["color"])
    assert plain["linestyle"] != page["linestyle"] and page["label"] == "triton/q_block@page"
