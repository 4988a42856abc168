"""The committed trees of measured GPUs: each departure from the default is a config that `auto` can run, and compiles
for its GPU without spilling more than the tuner allows, and computes attention."""

import dataclasses
import importlib
import os
import pkgutil

import pytest
import torch

from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.gpus import TABLE, resolve
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.serving.call import PagedAttention
from common.serving.choice import Choice
from common.serving.grid import decided_by
from common.spec import AttentionShape, Features
from common.spec.metadata import EVERY_KEY
from compare.competitors import registry
from compare.competitors.explain import path_of
from compare.static.compile import Compilation, compile_in_child
from compare.tune.compile import MAX_SPILL_BYTES
from compare.tune.space import Space, flatten
from compare.workloads import suites
from kernel_cases import conform

pytestmark = pytest.mark.filterwarnings("ignore:.*no measured tree")


def trees():
    """(dsl, GPU) of every file in dsl_*/heuristics/fitted that is named like a GPU of the table."""
    for dsl in ("triton", "helion"):
        package = importlib.import_module(f"dsl_{dsl}.heuristics.fitted")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name in TABLE:
                yield dsl, module.name


TREES = list(trees())
ROWS = [row for name in ("tuning", "peers", "serving") for row in suites.suite(name)]


def departures(dsl, gpu):
    """(kernel id, row, config) where the tree gives a row another config than the default, a config once a kernel."""
    tree = importlib.import_module(f"dsl_{dsl}.heuristics.fitted.{gpu.name}")
    default = importlib.import_module(f"dsl_{dsl}.heuristics.generic.default")
    found = {}
    for row in (row for row in ROWS if tree.covers(row.shape, gpu)):
        for name in set(tree.HELD_OUT) - {"auto"}:
            config = getattr(tree, name)(row.shape, row.stats, gpu)
            if config != getattr(default, name)(row.shape, row.stats, gpu):
                found.setdefault((name, config, row.shape), (f"{dsl}/{name}", row, config))
    return list(found.values())


@pytest.mark.parametrize(("dsl", "name"), TREES)
def test_a_departure_lies_in_the_kernels_space(dsl, name):
    gpu = resolve(name)
    default = importlib.import_module(f"dsl_{dsl}.heuristics.generic.default")
    found = departures(dsl, gpu)
    assert found, "a tree that never departs is the default: delete it"
    for kernel_id, row, config in found:
        space = Space(registry.load(kernel_id).space(row.shape, gpu))
        before = getattr(default, kernel_id.split("/")[1])(row.shape, row.stats, gpu)
        assert space.allows(config, before), (kernel_id, row.label, config)


@pytest.mark.parametrize(("dsl", "name"), TREES)
def test_auto_serves_every_row_by_the_tree_and_explain_tells_its_path(dsl, name):
    gpu, auto = resolve(name), registry.load(f"{dsl}/auto")
    asked = 0
    for row in ROWS:
        choice = auto.choose(row.shape, row.stats, gpu)
        assert isinstance(choice, Choice) and choice.kernel in registry.RUNGS
        if choice.path != f"heuristics/fitted/{name}.py: auto":
            continue  # a shape that was not measured
        asked, point = asked + 1, decided_by(row.stats)
        assert choice.provenance.startswith("gpu ") and "rows" in choice.provenance
        met = path_of(auto.FAMILY, choice, row.shape, point, gpu)
        assert met[0] == ("not covers(shape, gpu)", False)
    assert asked > len(ROWS) // 2


@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize(("dsl", "name"), TREES)
def test_a_cache_of_8_bits_gets_the_default_where_16_were_measured(dsl, name, cache):
    gpu, auto = resolve(name), registry.load(f"{dsl}/auto")
    tree = importlib.import_module(f"dsl_{dsl}.heuristics.fitted.{name}")
    measured = [row for row in ROWS if tree.covers(row.shape, gpu) and not row.shape.quantised]
    assert measured
    for row in measured:
        shape = dataclasses.replace(row.shape, kv_dtype=cache)
        chosen = [auto.choose(shape, row.stats, gpu, heuristics=whose) for whose in ("tree", "default")]
        assert chosen[0] == chosen[1], row.label


def interpretable(config):
    """A config without what no CPU does, launches that overlap, and with a grid of few programs."""
    if not dataclasses.is_dataclass(config):
        return config
    plain = {field.name: interpretable(getattr(config, field.name)) for field in dataclasses.fields(config)}
    few = {"overlap": False, "copy_programs": 4}
    return dataclasses.replace(config, **plain | {field: few[field] for field in few if field in plain})


# decodes, verified tokens and prompts, an empty sequence, a last page that is not full
CASES = ("one-empty-sequence", "query-15-16-17", "new-kv-mixed")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled kernels: tests/gpu")
@pytest.mark.parametrize(
    ("dsl", "name"), [pytest.param(*tree, marks=[pytest.mark.slow] * (tree[0] == "helion")) for tree in TREES]
)
def test_a_departure_computes_what_the_default_does(dsl, name):
    gpu, done = resolve(name), set()
    default = importlib.import_module(f"dsl_{dsl}.heuristics.generic.default")
    for kernel_id, row, config in departures(dsl, gpu):
        before = flatten(getattr(default, kernel_id.split("/")[1])(row.shape, row.stats, gpu))
        what = (kernel_id, *(item for item in flatten(config).items() if item not in before.items()))
        if what not in done:  # once each: the same change to another batch's default is no other code
            done.add(what)
            config = interpretable(config)
            case = BY_NAME[CASES[len(done) % len(CASES)]]
            assert conform(registry.load(kernel_id), case, config)["outcome"] == "supported"


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled kernels: tests/gpu")
def test_the_public_call_runs_what_the_tree_chooses(monkeypatch):
    """As if the H200 were here: lengths of each departure of `auto`, of few sequences and heads."""
    gpu, auto, met = resolve("h200"), registry.load("triton/auto"), set()
    choose = auto.FAMILY.choose

    def chosen(shape, stats, _, needs=frozenset(), heuristics="tree", sees=EVERY_KEY):
        choice = choose(shape, stats, gpu, needs, heuristics, sees)
        met.add((choice.kernel, choice.path))
        return dataclasses.replace(choice, config=interpretable(choice.config))

    monkeypatch.setattr(auto.FAMILY, "choose", chosen)
    call, shape = PagedAttention(auto.FAMILY), AttentionShape(2, 1, 128, 16, torch.bfloat16)
    for lens in ([(1, 300)] * 9, [(20, 20)] * 2 + [(1, 40)], [(60, 60), (33, 90)], [(17, 40)] * 3):
        batch = make_batch(lens, shape)
        tensors = (batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc)
        hints = {name: getattr(batch.stats, name) for name in ("max_query_len", "max_seq_len", "num_decodes")}
        out = call(*tensors, batch.seq_lens, **hints)
        verdict = check(out, None, batch, Features(), auto.CONTRACT, reference(batch, Features()))
        assert verdict.ok, verdict.reason
    assert len({kernel for kernel, _ in met}) > 1 and {path for _, path in met} == {"heuristics/fitted/h200.py: auto"}


@pytest.mark.slow
@pytest.mark.parametrize(("dsl", "name"), TREES)
def test_no_departure_spills(dsl, name):
    gpu, bad = resolve(name), []
    jobs = [
        Compilation(row, kernel_id, registry.config_dict(config)) for kernel_id, row, config in departures(dsl, gpu)
    ]
    for outcome in compile_in_child(jobs, gpu, limit_s=600.0):
        lens = outcome.job.workload.lens
        where = f"{outcome.job.kernel} {lens[0]}x{len(lens)} {outcome.config}"
        if outcome.status != "ok":
            bad.append(f"{where}: {outcome.status}: {outcome.reason}")
        for facts in outcome.facts:
            if 4 * facts["spills"] > MAX_SPILL_BYTES[gpu.vendor]:
                bad.append(f"{where} {facts['kernel']}: {facts['spills']} registers spilled")
    assert not bad, "\n".join(bad)
