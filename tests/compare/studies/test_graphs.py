"""compare.studies.graphs.graphs without a GPU: kernels and clock are fakes, the stage, the judging and the report are
real."""

import json

import pytest
import torch
from rich.console import Console

import fake_kernels
from common.oracle.reference import reference
from common.spec import AttentionShape, Features, SpecError
from compare.__main__ import main as diptych
from compare.bench import timing
from compare.studies.graphs import graphs, report
from compare.studies.graphs.graphs import Size, Stage
from compare.workloads import Workload

SHAPE = AttentionShape(2, 1, 16, 16, torch.float32)
SIZE = Size(seqs=4, keys=64, tokens=24)
ROWS = [Workload("decode", ((1, 40), (1, 64)), SHAPE), Workload("mixed", ((1, 9), (20, 33)), SHAPE)]


class Kernel(type(fake_kernels.honest)):
    """Takes as long as its name says; counts who asked its flag."""

    def __init__(self, us):
        self.us, self.checks = us, 0

    def check(self, workspace):
        self.checks += 1


class Spoiled(Kernel):
    def spoil(self, batch, out):
        out[0] += 1.0


class Runner:
    """Launches at once; a sample is what the test says that the kernel takes."""

    timer, note = "fake", ""

    def __init__(self, launch, sets):
        self.parts, self._launch = [tuple(range(sets))], launch
        self.us = 1.0

    def run(self):
        for number in self.parts[0]:
            self._launch(number)

    def sample(self, part):
        return self.us


@pytest.fixture
def stage():
    return Stage(SIZE, SHAPE, sets=2, pages=40, device=torch.device("cpu"))


@pytest.fixture
def bench(monkeypatch):
    """Kernels by id, and tools whose device loses 100 bytes with each look."""
    kernels = {
        f"{dsl}/{name}": Kernel(us)
        for dsl in ("triton", "helion")
        for name, us in (("auto", 9.0), ("static_grid", 10.0))
    }
    monkeypatch.setattr(graphs.registry, "load", kernels.__getitem__)
    monkeypatch.setattr(graphs.registry, "default_config", lambda *_: (None, "DEFAULT"))
    left = iter(range(10**6, 0, -100))
    tools = graphs.Tools(None, torch.device("cpu"), Runner, lambda work: work() or 32.0, lambda: next(left), 0.0)

    def interleave(tracks, seconds):
        for track in tracks:
            track.samples += [track.runner.sample(0)] * 3

    monkeypatch.setattr(timing, "interleave", interleave)
    return kernels, tools


def test_a_filled_stage_is_the_batch_at_the_capacity_and_as_views(stage):
    for row in (ROWS[1], ROWS[0]):
        stage.fill(row.lens)
        full, exact = stage.full()[1], stage.exact()[1]
        assert (full.num_seqs, full.num_tokens) == (SIZE.seqs, SIZE.tokens)
        assert (exact.num_seqs, exact.num_tokens) == (len(row.lens), row.stats.num_tokens)
        assert exact.stats == row.stats and full.seq_lens[len(row.lens) :].sum() == 0
        there, here = reference(full, Features()), reference(exact, Features())
        assert torch.equal(there.out[: exact.num_tokens], here.out)


def test_page_sets_lie_apart_while_the_pool_has_pages(stage):
    stage.fill(((1, 64), (1, 33)))
    used = [set(stage.tables[n, 0, :4].tolist()) | set(stage.tables[n, 1, :3].tolist()) for n in range(2)]
    assert len(used[0]) == len(used[1]) == 7 and not used[0] & used[1]


@pytest.mark.parametrize("lens", [[(1, 65)], [(25, 25)], [(1, 1)] * 5, [(1, 64)] * 4 + [(0, 64)]], ids=str)
def test_what_the_capacity_does_not_hold_is_refused(stage, lens):
    with pytest.raises(SpecError, match="lens: found"):
        stage.fill(lens)


def test_one_graph_for_all_is_judged_and_timed_against_one_per_row(stage, bench):
    kernels, tools = bench
    found = list(graphs.one_for_all(tools, stage, ("triton",), ROWS))
    assert [row["experiment"] for row in found[:1]] == ["one for all: memory"]
    assert [(r["row"], r["kernel"], r["us"], r["wrong"]) for r in found[1:]] == [
        (row.label, kernel, 1.0, "") for row in ROWS for kernel in ("triton/static_grid", "triton/auto")
    ]
    assert kernels["triton/static_grid"].checks == len(ROWS)


def test_a_wrong_output_has_no_time_and_is_exit_1(stage, bench, tmp_path):
    kernels, tools = bench
    kernels["triton/static_grid"] = Spoiled(1.0)
    results = list(graphs.one_for_all(tools, stage, ("triton",), ROWS[:1]))
    wrong = next(row for row in results if row.get("wrong"))
    assert wrong["kernel"] == "triton/static_grid" and wrong["us"] is None
    (tmp_path / "manifest.json").write_text('{"headline": "Fake"}')
    assert graphs.record(Console(quiet=True), tmp_path, iter(results)) == graphs.WRONG
    assert "- `triton/static_grid`, one for all, decode: " in (tmp_path / "report.md").read_text()


class Broken(Kernel):
    def launch(self, *args, **options):
        raise RuntimeError("no room for the scratch")


def test_a_lost_device_ends_the_run_and_what_was_found_is_kept(stage, bench, tmp_path, monkeypatch):
    kernels, tools = bench
    kernels["helion/static_grid"] = Broken(1.0)
    monkeypatch.setattr(graphs, "device_is_sick", lambda device: True)
    (tmp_path / "manifest.json").write_text('{"headline": "Fake"}')
    with pytest.raises(RuntimeError, match="no room"):
        graphs.record(Console(quiet=True), tmp_path, graphs.one_for_all(tools, stage, ("triton", "helion"), ROWS))
    assert "no room" in (tmp_path / "report.md").read_text()


def test_an_interrupted_run_has_its_report_which_can_be_made_again(stage, bench, tmp_path, capsys):
    def some():
        yield from graphs.layers(bench[1], stage, "triton")
        raise KeyboardInterrupt

    (tmp_path / "manifest.json").write_text('{"headline": "Fake"}')
    assert graphs.record(Console(quiet=True), tmp_path, some()) == graphs.INTERRUPTED
    first = (tmp_path / "report.md").read_text()
    assert "## Partial graphs" in first
    with open(tmp_path / report.LINES, "a") as file:
        file.write('{"experiment": "par')  # what a killed process leaves
    assert diptych(["study", "graphs", "--report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == first
    assert diptych(["study", "graphs", "--report", str(tmp_path / "figures")]) == 2
    assert "allowed a folder that study graphs wrote" in capsys.readouterr().err


def test_a_dsl_that_is_not_here_is_said_and_left_out(monkeypatch, capsys):
    def load(kernel_id):
        if kernel_id.startswith("helion"):
            raise graphs.registry.Unavailable("ImportError: no helion")

    monkeypatch.setattr(graphs.registry, "load", load)
    assert list(graphs.here(Console(), ("triton", "helion"))) == ["triton"]
    assert "helion: unavailable: ImportError: no helion" in capsys.readouterr().out


def test_fewer_sequences_meet_their_own_graph_all_larger_ones_and_the_one_for_all(stage, bench):
    found = list(graphs.powers_of_two(bench[1], stage, "helion"))
    timed = [(row["sequences"], row["graph"]) for row in found if row["experiment"] == "powers of two"]
    assert timed == [(1, g) for g in ("its own", "1", "2", "4", "one for all")] + [
        (3, g) for g in ("its own", "4", "one for all")
    ]
    memory = [(row["kernel"], row["graphs"], row["graph_bytes"]) for row in found if "memory" in row["experiment"]]
    assert memory == [("helion/auto", 3, 300), ("helion/static_grid", 1, 100)]


def test_partial_graphs_are_timed_against_full_ones(stage, bench):
    found = list(graphs.layers(bench[1], stage, "triton"))
    assert [(row["kernel"], row["graph"], row["us"]) for row in found] == [
        (f"triton/{name}", kind, 16.0) for name in ("auto", "static_grid") for kind in ("full", "partial")
    ]


def test_the_report_has_a_table_and_a_figure_of_each_experiment(stage, bench, tmp_path):
    _, tools = bench
    results = [
        *graphs.one_for_all(tools, stage, ("triton", "helion"), ROWS),
        *graphs.powers_of_two(tools, stage, "triton"),
    ]
    results += [*graphs.layers(tools, stage, "triton")]
    us = {"auto": 9.0, "static_grid": 10.0}
    results = [row | ({"us": us[row["kernel"].split("/")[1]]} if row.get("us") else {}) for row in results]
    (tmp_path / "manifest.json").write_text('{"headline": "Fake"}')
    assert graphs.record(Console(quiet=True), tmp_path, iter(results)) == graphs.OK
    text = (tmp_path / "report.md").read_text()
    for title in ("One graph for all", "A graph for more sequences", "Memory", "Partial graphs"):
        assert f"## {title}" in text
    assert "0.900×" in text or "0.90×" in text
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"one_for_all.svg", "waves.svg"}
    assert (tmp_path / "report.html").read_text().count("<svg") == 2
    assert len((tmp_path / "graphs.jsonl").read_text().splitlines()) == len(results)
    assert {pair["ratio"] for pair in report.ratios(results)} == {0.9}
    assert json.loads((tmp_path / "graphs.jsonl").read_text().splitlines()[0])["experiment"] == "one for all: memory"


def test_rows_are_those_that_the_capacity_holds():
    labels = {row.label for row in graphs.chosen_rows(None, Size())}
    assert {"q8k", "16q1s2k_16q512s1536"} <= labels and not {"q32k", "1024q1s512"} & labels
