"""The page: whole by itself, what was not timed says so first, what is in it is in the rows."""

import html
import re
from dataclasses import replace

import pytest

import synthetic_figures
import synthetic_run
from compare.analysis.runs import read
from compare.analysis.verdict import FA3
from compare.competitors.registry import OWN
from compare.record.records import Status
from compare.report import glance, report


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A timed run, one for a GPU that was absent, one of a figure's suite; written."""
    base = tmp_path_factory.mktemp("runs")
    made = {"timed": synthetic_run.timed_run(base / "timed"), "absent": synthetic_run.absent_run(base / "absent")}
    made["fig9"] = synthetic_figures.run(base / "fig9", "fig9")
    for folder in made.values():
        report.write(folder)
    return made


def text(folder):
    return (folder / "report.html").read_text()


def plain(page):
    """The words of a page, without its markup."""
    body = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def test_the_page_needs_no_other_file_and_no_network(folders):
    for folder in folders.values():
        page = text(folder)
        assert not re.search(r'(?:src|href)="(?!#)', page), "the only references lead into the page"
        assert "@import" not in page and not re.search(r"url\((?!#)", page)


def test_what_was_not_timed_says_so_in_a_band_before_anything_else(folders):
    page = text(folders["absent"])
    main = page.split("<main", 1)[1].partition(">")[2]
    assert re.match(r'\s*<article id="r0">\s*<p class="band untimed">mi300 is not here: compiled and checked', main)
    assert 'class="band timed"' not in page and "µs" not in plain(main.split('id="r0-reading"')[0])


def test_every_failure_has_its_log_and_its_command(tmp_path):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    records = [synthetic_run.failed(load, kernel, Status.OOM) for kernel in ("triton/naive", "helion/naive")]
    records[0] = records[0].replace(log_tail="<b>not markup</b> & `code`\n```")
    folder = synthetic_run.write(tmp_path, records)
    report.write(folder)
    failures = text(folder).split('id="r0-failures"')[1]
    assert failures.count("<details open>") == 2
    assert "&lt;b&gt;not markup&lt;/b&gt; &amp; `code`" in failures
    assert "python -m compare.run --kernels helion/naive" in plain(failures)


def verdicts(folder):
    """The lines of the first screen."""
    page = glance.section(read(folder))
    return [line for block in page.blocks if block.kind == "bullets" for line in block.lines]


def rounds(load, kernel, us):
    """A cell with as many rounds as an interval needs."""
    one = synthetic_run.timed(load, kernel, us)
    return one.replace(timing=replace(one.timing, samples_us=(us,) * 30))


def test_a_sentence_a_class_says_what_a_caller_gets_or_the_best_of_each_dsl(tmp_path):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    us = {"triton/auto": 10.0, "triton/q_block": 8.0, "helion/q_block": 16.0, "helion/naive": 40.0}
    records = [rounds(load, kernel, us) for kernel, us in (us | {FA3: 8.0}).items()]
    (decode, ended) = verdicts(synthetic_run.write(tmp_path, records))
    assert decode.startswith(f"**Decode**, 1 row: `triton/auto` is slower than `{FA3}`, **0.80×**")
    assert "`helion/q_block` is slower than it, **0.50×**" in decode and "naive" not in decode
    assert ended == "No cell failed."


@pytest.mark.parametrize(("others", "drawn"), [((), True), (("naive", "q_block", "split", "unpaged"), False)])
def test_a_rung_has_a_bar_beside_auto_where_all_kernels_have_room(tmp_path, others, drawn):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    kernels = [f"{dsl}/{rung}" for dsl in ("triton", "helion") for rung in ("auto", "static_grid", *others)]
    run = read(synthetic_run.write(tmp_path, [rounds(load, kernel, 8.0) for kernel in (FA3, *kernels)]))
    bars = {standing.kernel for standing in glance.verdicts(run).bars["decode"]}
    assert ({"triton/static_grid", "helion/static_grid"} <= bars) == drawn


def test_a_kernel_from_outside_is_on_the_first_screen(tmp_path):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    records = [rounds(load, kernel, us) for kernel, us in (("my.module:kernel", 4.0), (FA3, 8.0))]
    decode, _ = verdicts(synthetic_run.write(tmp_path, records))
    assert f"`my.module:kernel` is faster than `{FA3}`, **2.00×**" in decode


def test_without_times_the_first_screen_says_what_was_proved_and_what_was_not(folders):
    lines = verdicts(folders["absent"])
    assert [line.split(":")[0] for line in lines] == ["**Proved**", "**Proved**", "**Not proved**", "No cell failed."]
    assert "interpreter, on 18 cells" in lines[0] and "compile for gfx942" in lines[1]
    assert "nothing here is a time of AMD Instinct MI300X" in lines[2] and "what the compiled code computes" in lines[2]


def test_the_first_screen_names_five_failures_and_counts_the_rest(tmp_path):
    records = [synthetic_run.failing(f"row-{number}") for number in range(7)]
    lines = verdicts(synthetic_run.write(tmp_path, records, planned=9))
    assert "**7 cells failed**" in "".join(lines) and sum("signal 11" in line for line in lines) == 5
    assert "2 of 9 planned cells are missing" in lines[-1]


def test_a_figure_has_eight_kernels_at_most_and_the_rest_is_folded(tmp_path):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    kernels = [FA3, *OWN]
    records = [synthetic_run.timed(load, kernel, 8.0 + at) for at, kernel in enumerate(kernels)]
    folder = synthetic_run.write(tmp_path, records)
    report.write(folder)
    drawn = sorted((folder / "figures").glob("decode*.svg"))
    names = [{name for name in kernels if f">{name}<" in path.read_text()} for path in drawn]
    assert sorted(map(len, names)) == [1, 8, 8] and set.union(*names) == set(kernels)
    assert {FA3, "triton/auto", "helion/auto"} <= names[drawn.index(folder / "figures" / "decode.svg")]
    assert "decode: speed and latency per workload: the other kernels" in (folder / "report.html").read_text()
