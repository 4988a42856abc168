"""Regret: what counts, what is the best, and that `auto` is judged as a user gets it."""

import argparse
import json
from types import SimpleNamespace

import pytest

from calls import exact, tensors
from common.cases.batch import make_batch
from common.gpus import resolve
from common.serving import prepared
from common.serving.call import PagedAttention
from common.serving.prepared import Prepared
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.static.estimate_work import works
from compare.studies import regret
from compare.tune.records import NotThisRun
from compare.tune.space import DEFAULT, TREE, start
from compare.workloads import GrammarError, suites

ROWS, H200 = suites.unseen(5, 4), resolve("h200")
UNEVEN = suites.unseen(5)


@pytest.fixture
def folder(tmp_path):
    """Four rows: auto 10% off, auto the best, nothing beside auto, and auto not timed."""
    lines = []

    def add(number, kernel, policy, **fields):
        plain = {"kernel": "q_block"} if kernel.endswith("auto") else {}
        head = {"arm": "triton", "kernel": f"triton/{kernel}", "row": ROWS[number].label, "policy": policy, "t": 1.0}
        lines.append(head | {"config": plain, "status": "ok"} | fields)

    for number, us in enumerate((11.0, 9.0, 5.0)):
        add(number, "auto", TREE.name, final_us=us)
    for number in (0, 1, 3):
        add(number, "q_block", DEFAULT.name, final_us=10.0)
        add(number, "unpaged", DEFAULT.name, final_us=12.0)
        add(number, "unpaged", "fixed tile_size=64", screen_us=2.0)  # what was not timed twice is no best
        add(number, "q_block", TREE.name, status="duplicate", of=DEFAULT.name)
    (tmp_path / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "manifest.json").write_text(json.dumps({"rows": [row.to_dict() for row in ROWS]}))
    return tmp_path


def test_a_row_counts_where_auto_and_another_were_timed_twice(folder):
    found = {row.label: row for row in regret.judged(folder)}
    assert list(found) == [ROWS[0].label, ROWS[1].label]
    first, second = found.values()
    assert first.regret == pytest.approx(0.1) and first.best == "q_block: default" and first.timed == 3
    assert second.regret == 0.0  # auto is one of those that it is compared with


def test_one_config_under_two_names_is_one_candidate_with_the_least_of_its_times(folder):
    log, config = folder / "candidates.jsonl", {"block_m": 16}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["kernel"] == "triton/auto" and line["row"] == ROWS[0].label:
            line["config"] = {"kernel": "q_block", "config": config, "path": "p", "provenance": "untuned default"}
        elif line["kernel"] == "triton/q_block" and line["policy"] == DEFAULT.name:
            line["config"] = config
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = regret.judged(folder)[0]
    assert (first.us, first.best_us, first.regret) == (10.0, 10.0, 0.0)


def _planned(folder, **policies):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"policies": policies}))


def test_a_row_that_was_cut_off_before_a_kernel_was_through_does_not_count(folder):
    log = folder / "candidates.jsonl"
    plan = {f"triton/{name}": [{}] for name in ("auto", "q_block", "unpaged", "parallel_softmax")}
    _planned(folder, **plan)
    head = {"arm": "triton", "policy": "", "done": True, "t": 2.0}
    done = [head | {"row": row.label, "kernel": kernel} for row in ROWS[:2] for kernel in list(plan)[:3]]
    failed = {"arm": "triton", "kernel": "triton/parallel_softmax", "row": ROWS[1].label, "policy": DEFAULT.name}
    more = [*done, failed | {"status": "compile_error", "t": 2.0}]
    log.write_text(log.read_text() + "".join(json.dumps(line) + "\n" for line in more) + '{"arm": "tri')
    assert [row.label for row in regret.judged(folder)] == [ROWS[1].label]  # nothing compiled there: it is through


def test_a_run_goes_on_with_more_rows_and_minutes_and_never_with_those_of_another_seed(folder, monkeypatch):
    given = []

    class Arm:
        def __init__(self, name, plan, rows, machine, log, out, together):
            self.rows = rows

        def run(self, seconds):
            given.append((len(self.rows), seconds))

        def report(self):
            return []

    monkeypatch.setattr(regret, "Arm", Arm)
    monkeypatch.setattr(regret, "plan", lambda *_: {})
    manifest = {"gpu": "h200", "seed": 5, "rows": [row.to_dict() for row in ROWS]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    asked = {"dsl": "triton", "workload": None, "configs": 8, "minutes": 1.0, "resume": True}
    here = argparse.Namespace(gpu=H200)
    regret.measure(argparse.Namespace(seed=5, rows=6, **asked), here, folder)
    assert given == [(6, 61.0)]  # one second of an earlier budget is in its lines
    with pytest.raises(NotThisRun):
        regret.measure(argparse.Namespace(seed=6, rows=4, **asked), here, folder)
    with pytest.raises(NotThisRun):
        regret.measure(argparse.Namespace(seed=5, rows=4, **asked | {"resume": False}), here, folder)


def test_a_run_has_the_rows_that_match_as_they_are_without_a_glob(tmp_path, monkeypatch):
    given, idle = [], SimpleNamespace(run=lambda seconds: None, report=list)
    monkeypatch.setattr(regret, "plan", lambda *_: {})
    monkeypatch.setattr(regret, "Arm", lambda name, plan, rows, *_, **__: given.append(rows) or idle)
    asked = argparse.Namespace(seed=5, rows=8, dsl="helion", configs=8, minutes=1.0, resume=False)
    asked.workload = "*-prefill-*,*-mixed-*"
    regret.measure(asked, argparse.Namespace(gpu=H200), tmp_path)
    assert given == [tuple(row for row in suites.unseen(5, 8) if row.kind in ("prefill", "mixed"))]
    asked.workload = "*-prefil-*"
    with pytest.raises(GrammarError, match="prefill"):
        regret.measure(asked, argparse.Namespace(gpu=H200), tmp_path)


def test_the_table_is_written_again_from_a_run(folder, capsys):
    assert diptych(["study", "regret", "--of", str(folder), str(folder)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "| triton/auto | all | 4 | 5.0 | 10.0 | 10.0 |" in told
    (folder / "candidates.jsonl").write_text("")
    assert diptych(["study", "regret", "--of", str(folder)]) == 5


@pytest.mark.parametrize("dsl", registry.DSLS)
def test_what_is_timed_has_every_auto_as_a_user_gets_it_and_every_kernel_that_it_may_take(dsl):
    found = regret.plan(dsl, ROWS, H200, 16, 5)
    gluon = [regret.GLUON] * (dsl == "triton")
    assert set(found) == {*regret.AUTO[dsl], *(f"{dsl}/{rung}" for rung in regret.RUNGS), *gluon}
    for kernel_id, policies in found.items():
        alone = kernel_id in (*regret.AUTO[dsl], *gluon)
        assert policies[: 1 if alone else 2] == ([TREE] if alone else [DEFAULT, TREE])
        assert len(set(policies)) == len(policies) and (alone or len(policies) >= 10)
    kernel, row = registry.load(f"{dsl}/auto"), ROWS[3]
    chosen = kernel.choose(row.shape, row.stats, H200, row.ask.members(row.shape), sees=row.ask.sees)
    assert TREE.config(start(TREE, f"{dsl}/auto", kernel, row, H200)) == chosen


@pytest.mark.parametrize("kernel_id", [auto for dsl in registry.DSLS for auto in regret.AUTO[dsl]])
def test_a_call_with_every_hint_launches_what_is_timed(monkeypatch, kernel_id):
    """Rows' lengths are uneven: by the longest alone a call took other configs than the study judged."""
    kernel, launched = registry.load(kernel_id), []
    monkeypatch.setattr(prepared, "gpu_of", lambda device: H200)
    monkeypatch.setattr(Prepared, "launch", lambda made, *_: launched.append(made.choice))
    call = PagedAttention(kernel.FAMILY)
    timed = [TREE.config(start(TREE, kernel_id, kernel, row, H200)) for row in UNEVEN]
    for row in UNEVEN:
        batch = make_batch(row.lens, row.shape, fill=False)
        for hints in (exact(row), exact(row) | {"total_seq_len": None}):
            call(**tensors(batch), **hints, features=row.features(batch), validate="off")
    assert launched[::2] == timed
    assert launched[1::2] != timed  # or a total tells nothing here


def symbols_of(name, config):
    """Of the launches of a call, in launch order."""
    if name == "q_block":
        return ["_q_block_kernel"]
    short = ["_segments_kernel"]
    if config.get("decode", config)["num_segments"] > 1:
        short.append("_reduce_segments_kernel")
    long = {"adjustable_tile": ["_long_queries_kernel"], "unpaged": ["_copy_kernel", "_unpaged_kernel"]}
    return [*long.get(name, []), *short]


def longest_and_share(dsl, row, gpu):
    """Keys of the longest program of `auto`'s launches, and of all programs a unit: what it takes if it is not the
    longest that decides."""
    choice = registry.load(f"{dsl}/auto").choose(row.shape, row.stats, gpu, sees=row.ask.sees)
    config = registry.config_dict(choice.config)
    symbols = symbols_of(choice.kernel, config)
    found = zip(symbols, works(f"{dsl}/{choice.kernel}", config, symbols, row), strict=True)
    attended = [(work.tiles, work.keys) for symbol, work in found if "reduce" not in symbol and "copy" not in symbol]
    longest = max(max(tiles, default=0) * keys for tiles, keys in attended)
    return longest, sum(sum(tiles) * keys for tiles, keys in attended) / gpu.units


@pytest.mark.parametrize("dsl", registry.DSLS)
@pytest.mark.parametrize("seed", [100, 110, 120])
def test_no_long_program_is_left_alone_where_its_keys_can_be_split(dsl, seed):
    """On no row of a seed that nobody fits to: 28 programs of 4126 keys on 132 units were, of heads of 256."""
    for row in suites.unseen(seed, 48):
        longest, share = longest_and_share(dsl, row, resolve("h100"))
        assert longest <= max(1600, 2.5 * share), f"{row.label}: {longest} keys, {share:.0f} a unit"
