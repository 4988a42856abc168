"""The paper's figures: what is drawn follows the rows, and nothing is drawn where nothing was timed."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

import synthetic_figures
import synthetic_run
from compare.record.records import Status
from compare.report import paper
from compare.report.paper import Point, summed_us

SVG = "{http://www.w3.org/2000/svg}"


def texts(path):
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every figure, by name, and the kernels of its suite that have a time."""
    folder, found = tmp_path_factory.mktemp("figures"), {}
    for suite in paper.FIGURES:
        records = synthetic_figures.records(suite)
        kernels = {record.kernel for record in records if record.timing}
        found |= {name: (path, kernels) for name, path in paper.draw(suite, records, folder).items()}
    return found


def test_every_kernel_of_a_figure_is_in_its_legend(drawn):
    assert set(drawn) == set(paper.CAPTIONS)
    for path, kernels in drawn.values():
        assert kernels <= set(texts(path))


def test_a_run_without_times_has_no_figure_of_times(tmp_path):
    records = [
        synthetic_run.failed(record.workload, record.kernel, Status.UNAVAILABLE)
        for record in synthetic_figures.records("fig9")
    ]
    assert paper.draw("fig9", records, tmp_path) == {}


def test_without_flash_attention_the_fastest_kernel_is_the_yardstick(tmp_path):
    kernels = ("triton/naive", "triton/parallel_softmax")
    records = synthetic_figures.records("fig9", kernels)
    (path,) = paper.draw("fig9", records, tmp_path).values()
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


@pytest.mark.parametrize("suite", ["fig6", "fig7", "fig8", "fig9"])
def test_a_run_that_was_cut_short_is_drawn_as_far_as_it_went(tmp_path, suite):
    records = synthetic_figures.records(suite)
    for path in paper.draw(suite, records[:9], tmp_path).values():
        assert {record.kernel for record in records[:9] if record.timing} <= set(texts(path))


def test_shares_that_only_some_batches_have_are_no_mean(tmp_path):
    records = [
        r for r in synthetic_figures.records("fig6") if (r.workload.num_seqs == 1) == (r.workload.num_decodes > 0)
    ]
    assert list(paper.draw("fig6", records, tmp_path)) == ["fig6-by-share"]
