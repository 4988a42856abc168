"""The public call of both DSLs: hints, checks, scratch, plans. Kernels are interpreted; tests/gpu has the rest."""

import copy
import importlib
import math
import pickle

import pytest
import torch

from calls import TENSORS, assert_right, exact, tensors
from common.cases.batch import make_batch
from common.kit import isolated
from common.oracle.integrity import same_bits
from common.serving.arguments import HINTS, batch_of
from common.spec import AttentionShape, Features, Layout, SpecError
from common.spec.overlap import share_memory

SHAPE = AttentionShape(4, 2, 32, 16, torch.float32)
LENS = [(1, 37), (20, 40), (3, 3), (1, 70)]


def dsl(name):
    return importlib.import_module(name)


def judged(module, batch, out, lse=None, features=None):
    features = features or Features()
    contract = importlib.import_module(f"{module.__name__}.auto").CONTRACT
    assert_right(out, lse, batch, features, contract)


def chosen(module, batch, hinted):
    """What a call with these hints launches."""
    auto = importlib.import_module(f"{module.__name__}.auto")
    given = (*(getattr(batch, name) for name in TENSORS), None, None)
    stats = batch_of(given, None, tuple(hinted.get(name) for name in HINTS)).stats
    return auto.choose(batch.shape, stats, None)


@pytest.mark.parametrize("name", ["dsl_triton", "dsl_helion"])
def test_the_packages_export_the_call_without_importing_their_compiler(name):
    import subprocess
    import sys

    code = f"import sys, {name}; assert not {{'triton', 'helion'}} & set(sys.modules); print({name}.__all__)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "paged_attention" in told and "plan_paged_attention" in told


@pytest.mark.parametrize("name", ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)])
def test_a_wrong_hint_costs_no_correctness(name):
    """Twice too large, half too small, 1, unknown: within the budget, the same bits where the choice is the same."""
    module, batch, seen = dsl(name), make_batch(LENS, SHAPE, pad_tokens=2), {}
    right = exact(batch)
    for wrong in (
        right,
        {key: 2 * value for key, value in right.items()},
        {key: max(value // 2, 1) for key, value in right.items()},
        dict.fromkeys(right, 1),
        dict.fromkeys(right),
    ):
        out = module.paged_attention(**tensors(batch), **wrong)
        judged(module, batch, out)
        live = out[: int(batch.query_start_loc[-1])]
        assert same_bits(seen.setdefault(chosen(module, batch, wrong), live), live)


ALL = Features(sliding_window=7, softcap=2.0, sinks=torch.linspace(-1, 1, 4))
OPTIONS = {
    "scale": ({"sliding_window": 7, "softmax_scale": 0.3}, Features(sliding_window=7), 0.3),
    "non-causal": ({"causal": False}, Features(causal=False), None),
    "features": ({"features": ALL}, ALL, None),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [*(("dsl_triton", o) for o in OPTIONS), pytest.param("dsl_helion", "features", marks=pytest.mark.slow)],
)
def test_options_reach_the_kernel(name, options):
    """out and lse in place, scale, window and causality by their short forms, sinks and softcap by features."""
    module, batch = dsl(name), make_batch([(1, 37), (2, 40)], SHAPE)
    given, features, scale = OPTIONS[options]
    out, lse = torch.empty_like(batch.query), torch.empty(batch.query.shape[:2])
    assert module.paged_attention(**tensors(batch), **exact(batch), out=out, lse=lse, **given) is out
    judged(module, batch if scale is None else batch.replace(softmax_scale=scale), out, lse, features)


def test_a_cache_that_is_x_packed_is_served_by_split():
    module = dsl("dsl_triton")
    batch = make_batch([(1, 37), (5, 20)], SHAPE, layout=Layout.X_PACKED, new_kv=True)
    given = tensors(batch) | exact(batch) | {"key": batch.key, "value": batch.value}
    judged(module, batch, module.paged_attention(**given))
    plan = module.plan_paged_attention(SHAPE, 8, 2, 64, "cpu", kernel="split")
    judged(module, batch, plan(**given, out=torch.empty_like(batch.query)))
    with pytest.raises(SpecError, match="key_cache: found x_packed pages"):
        module.plan_paged_attention(SHAPE, 8, 2, 64, "cpu")(**given, out=torch.empty_like(batch.query))


def test_scratch_full_of_nan_changes_nothing():
    module, batch = dsl("dsl_triton"), make_batch([(1, 200), (1, 90)], SHAPE)
    buffer = torch.full((2**18,), 0xFF, dtype=torch.uint8)
    first = module.paged_attention(**tensors(batch), **exact(batch), workspace=buffer)
    assert same_bits(first, module.paged_attention(**tensors(batch), **exact(batch)))


def strided(tensor):
    """The same shape with a last dimension that is not contiguous."""
    return torch.empty(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]


# what the call checks itself, and one of each kind that a signature tells; test_validation.py has the others
BAD = {
    "query-rank": ("query", lambda t: t.flatten(1)),
    "query-dtype": ("query", lambda t: t.double()),
    "key_cache-stride": ("key_cache", strided),
    "value_cache-shape": ("value_cache", lambda t: t[:, :, :1]),
    "block_table-rows": ("block_table", lambda t: t[:1]),
    "query_start_loc-length": ("query_start_loc", lambda t: t[:-1]),
    "seq_lens-dtype": ("seq_lens", lambda t: t.long()),
    "out-shape": ("out", lambda t: t[:1]),
    "lse-dtype": ("lse", lambda t: t.half()),
    "key-alone": ("value", lambda t: None),
    "workspace-small": ("workspace", lambda t: t[:64]),
    "workspace-address": ("workspace", lambda t: t[1:]),
    "block_table-empty": ("block_table", lambda t: t[:, :0].contiguous()),
    "features-beside-causal": ("features", lambda x: Features()),
}


def good(causal=True):
    """Options of a call that nothing is wrong with."""
    batch = make_batch([(1, 200), (1, 30)], SHAPE, new_kv=True)
    options = tensors(batch) | exact(batch) | {"key": batch.key, "value": batch.value, "causal": causal}
    options |= {"out": torch.empty_like(batch.query), "lse": torch.empty(2, 4), "softmax_scale": None}
    options |= {"sliding_window": None, "features": None, "validate": "host"}
    return options | {"workspace": torch.empty(2**18, dtype=torch.uint8)}


@pytest.fixture(scope="module")
def warm():
    """The call after one that was good: what is kept of it must let nothing else through. Both DSLs have one class."""
    call = dsl("dsl_triton").paged_attention
    call(**good())
    return call


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_its_name(warm, case):
    argument, spoil = BAD[case]
    options = good(causal=case != "features-beside-causal")
    with pytest.raises(SpecError) as refusal:
        warm(**options | {argument: spoil(options[argument])})
    assert refusal.value.argument == argument
    assert refusal.value.allowed and str(refusal.value.found)


@pytest.mark.parametrize("case", ["query-dtype", "value_cache-scalar"])
def test_a_call_without_an_output_names_what_is_wrong_with_the_input(case):
    argument, spoil = (BAD | {"value_cache-scalar": ("value_cache", lambda t: t[0, 0, 0, 0])})[case]
    batch = make_batch([(1, 30)], SHAPE)
    options = tensors(batch) | exact(batch)
    with pytest.raises(SpecError) as refusal:
        dsl("dsl_triton").paged_attention(**options | {argument: spoil(options[argument])})
    assert refusal.value.argument == argument


VALUES = {
    "starts-begin": ("query_start_loc[0]", lambda b: b.query_start_loc[0].fill_(1)),
    "wider-than-table": ("seq_lens[0]", lambda b: b.seq_lens[0].fill_(10**6)),
    "page-past-cache": ("block_table[1]", lambda b: b.block_table[1, 1].fill_(10**6)),
    "sink-nan": ("sinks[3]", lambda b: None),
}


@pytest.mark.parametrize("validate", ["full", "host"])  # on a CPU they are host facts: nobody is waited for
@pytest.mark.parametrize("case", VALUES)
def test_validation_looks_at_every_value(case, validate):
    argument, spoil = VALUES[case]
    batch = make_batch([(1, 37), (3, 40), (1, 5)], SHAPE)
    module, sinks = dsl("dsl_triton"), torch.zeros(4)
    call = {**tensors(batch), **exact(batch), "features": Features(sinks=sinks)}
    module.paged_attention(**call, validate=validate)
    spoil(batch)
    sinks[3] = math.nan if case == "sink-nan" else 0.0
    with pytest.raises(SpecError) as refusal:
        module.paged_attention(**call, validate=validate)
    assert refusal.value.argument == argument


@pytest.mark.parametrize(
    ("name", "validate"),
    [
        *(("dsl_triton", how) for how in ("full", "host", "off")),
        pytest.param("dsl_helion", "host", marks=pytest.mark.slow),
    ],
)
def test_fewer_keys_than_queries_pass_every_validation(name, validate):
    """Two queries of one key, V = 3: it is seen by both."""
    query, cache = torch.ones(2, 1, 8), torch.full((1, 8, 1, 8), 3.0)
    table, starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([[0]], [0, 2], [1]))
    features = {"causal": False, "validate": validate, "max_query_len": 2, "max_seq_len": 1}
    found = dsl(name).paged_attention(query, cache, cache, table, starts, lengths, **features)
    assert torch.equal(found, torch.full_like(query, 3.0))


def test_garbage_behind_the_used_part_passes_full_validation():
    batch = make_batch([(1, 37), (0, 0)], SHAPE, extra_columns=5, pad_tokens=3)
    judged(
        dsl("dsl_triton"), batch, dsl("dsl_triton").paged_attention(**tensors(batch), **exact(batch), validate="full")
    )


@pytest.mark.parametrize("name", ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)])
def test_a_plan_serves_its_capacity_and_refuses_more(name):
    plan = dsl(name).plan_paged_attention(SHAPE, 40, 4, 128, "cpu")
    batch = make_batch(LENS, SHAPE)
    out = torch.empty_like(batch.query)
    assert plan(**tensors(batch), **exact(batch), out=out) is out
    judged(dsl(name), batch, out)
    for lens, argument in (([(1, 9)] * 5, "seq_lens"), ([(41, 41)], "query")):
        more = make_batch(lens, SHAPE)
        with pytest.raises(SpecError, match="at most the plan's") as refusal:
            plan(**tensors(more), **exact(more), out=torch.empty_like(more.query))
        assert refusal.value.argument == argument
    other = make_batch([(1, 9)], AttentionShape(4, 2, 32, 32, torch.float32))
    with pytest.raises(SpecError, match="the plan's shape"):
        plan(**tensors(other), **exact(other), out=torch.empty_like(other.query))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("name", ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)])
def test_a_copy_of_a_plan_or_call_serves_from_memory_of_its_own(name, copied):
    plan, batch = dsl(name).plan_paged_attention(SHAPE, 40, 4, 128, "cpu", typical_seq_len=32), make_batch(LENS, SHAPE)
    other = copied(plan)
    assert other.typical_seq_len == 32 and not share_memory(other.workspace, plan.workspace)
    for call in (other, copied(dsl(name).paged_attention)):
        judged(dsl(name), batch, call(**tensors(batch), **exact(batch), out=torch.empty_like(batch.query)))
    with pytest.raises(SpecError, match="max_tokens: found 0, allowed") as refusal:
        dsl(name).plan_paged_attention(SHAPE, 0, 4, 128, "cpu")
    assert str(copied(refusal.value)) == str(refusal.value)


PLANS = {
    "max_tokens": 0, "max_seqs": 0, "max_seq_len": 2**31, "max_keys": -1, "shape": (4, 2, 32),
    "features": {"sliding_window": 3}, "kernel": "absent", "softcap": Features(softcap=-1.0),
    "chunk": Features(chunk=8, sliding_window=3), "sliding_window": Features(sliding_window=0),
}  # fmt: skip


@pytest.mark.parametrize("argument", PLANS)
def test_a_plan_of_bad_arguments_is_refused_by_their_names(argument):
    given = PLANS[argument]
    asked = {"shape": SHAPE, "max_tokens": 1, "max_seqs": 1, "max_seq_len": 1}
    asked |= {"features" if isinstance(given, Features) else argument: given}
    with pytest.raises(SpecError) as refusal:
        dsl("dsl_triton").plan_paged_attention(**asked, device="cpu")
    assert refusal.value.argument == argument


def test_the_kit_offers_the_hints_that_a_call_takes():
    """The kit's child imports torch alone, so it has the names a second time."""
    assert isolated.HINTS == HINTS
