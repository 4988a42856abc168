"""Every public door: what comes in malformed is refused by its name, before and after a good call of the same shapes.

Five kinds, a property each: gradients, numbers, memory, ranges, types. In Triton alone, interpreted: what looks at
arguments is common to both DSLs. Before and after: `fresh` is a call that knows nothing, else one that keeps a good
call of these shapes, whose checks it skips.
"""

import functools
import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from calls import TENSORS, assert_right, bytes_of, tensors
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.serving.call import PagedAttention
from common.serving.facade import FlashAttention, get_scheduler_metadata
from common.serving.page_writer import PageWriter
from common.serving.plan import planner, sizer
from common.serving.points import Point, points, prompts
from common.spec import AttentionShape, Features, SpecError
from common.spec.precision import Precision
from dsl_triton.auto import FAMILY

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are not interpreted here")
SHAPE = AttentionShape(2, 1, 16, 16, torch.float32)
BATCH = make_batch([(1, 20), (2, 9)], SHAPE, new_kv=True)
CAPACITY = {"shape": SHAPE, "max_tokens": 4, "max_seqs": 2, "max_seq_len": 32, "device": "cpu"}
SEEN = Features(sliding_window=7, softcap=5.0, sinks=torch.zeros(2), alibi_slopes=torch.ones(2))
plan_paged_attention, workspace_bytes = planner(FAMILY), sizer(FAMILY)


def property_of(examples, **drawn):
    def decorated(test):
        return settings(max_examples=examples, deadline=None, derandomize=True)(given(**drawn)(test))

    return decorated


def good(**changes):
    """Options of a call that nothing is wrong with."""
    options = tensors(BATCH) | {"max_query_len": 2, "max_seq_len": 20}
    options |= {"num_decodes": 1, "total_seq_len": 29, "key": BATCH.key, "value": BATCH.value, "softmax_scale": 0.25}
    options |= {"out": torch.empty_like(BATCH.query), "lse": torch.empty(3, 2), "features": SEEN}
    return options | {"workspace": torch.empty(2**16, dtype=torch.uint8), **changes}


def flash(**changes):
    options = {"q": BATCH.query, "k": BATCH.key_cache, "v": BATCH.value_cache, "block_table": BATCH.block_table}
    options |= {"cu_seqlens_q": BATCH.query_start_loc, "seqused_k": BATCH.seq_lens, "max_seqlen_q": 2}
    options |= {"max_seqlen_k": 20, "softmax_scale": 0.25, "causal": True, "window_size": (6, 0), "softcap": 5.0}
    return options | {"sinks": SEEN.sinks, "alibi_slopes": SEEN.alibi_slopes, **changes}


def cached(**changes):
    options = {"q": BATCH.query[:2, None], "k_cache": BATCH.key_cache, "v_cache": BATCH.value_cache}
    return options | {"cache_seqlens": BATCH.seq_lens, "block_table": BATCH.block_table, "causal": True} | changes


def write(**changes):
    options = {"key": BATCH.key, "value": BATCH.value, "slot_mapping": torch.arange(3)}
    return options | {name: torch.zeros(2, 16, 1, 16) for name in ("key_cache", "value_cache")} | changes


def calls(fresh):
    """The doors that read or write tensors, each with its good options; but for fresh ones, after a call of these."""
    return _calls() if fresh else _used()


def _calls():
    call = PagedAttention(FAMILY)
    facade = FlashAttention(call)
    return {
        "call": (call, good), "plan": (plan_paged_attention(**CAPACITY, features=SEEN), planned),
        "flash": (facade.flash_attn_varlen_func, flash), "cached": (facade.flash_attn_with_kvcache, cached),
        "write": (PageWriter(FAMILY), write),
    }  # fmt: skip


@functools.cache
def _used():
    found = _calls()
    for door, options in found.values():
        door(**options())
    return found


def planned(**changes):
    options = good(**changes)
    if "workspace" not in changes:
        options.pop("workspace")
    return options


def judged(options, out, lse=None):
    """That `out` is what the reference says of these options of `paged_attention`."""
    read = BATCH.replace(**{name: options[name] for name in TENSORS}, softmax_scale=float(options["softmax_scale"]))
    features = options["features"]
    assert_right(out, lse, read, features, Precision(), structured=True)


def refused(door, options, names):
    with pytest.raises(SpecError) as refusal:
        door(**options)
    assert refusal.value.argument.split("[")[0] in names and refusal.value.allowed


FLOATS = {
    "call": ("query", "key_cache", "value_cache", "key", "value", "out", "lse", "sinks", "alibi_slopes"),
    "flash": ("q", "k", "v", "sinks", "alibi_slopes"), "write": ("key", "value", "key_cache", "value_cache"),
    "cached": ("q", "k_cache", "v_cache"),
}  # fmt: skip
FLOATS["plan"] = FLOATS["call"]
KERNELS_NAMES = {"k": "key_cache", "v": "value_cache", "k_cache": "k", "v_cache": "v"}
PLACES = st.sampled_from([(door, name) for door, names in FLOATS.items() for name in names])


def changed(options, name, change):
    """The options with one tensor changed, in its feature where it is one."""
    if name in options:
        return options | {name: change(options[name])}
    features = options["features"]
    given_ = {field: getattr(features, field) for field in Features.__dataclass_fields__}
    return options | {"features": Features(**given_ | {name: change(given_[name])})}


@property_of(30, place=PLACES, fresh=st.booleans(), recorded=st.booleans())
def test_a_gradient_is_refused_where_it_would_be_recorded_and_ignored_where_not(place, fresh, recorded):
    where, name = place
    door, options = calls(fresh)[where]
    asked = changed(options(), name, lambda t: t.clone().requires_grad_())
    with torch.set_grad_enabled(recorded):
        if recorded:
            refused(door, asked, {name, KERNELS_NAMES.get(name)})
        else:
            door(**asked)
            with torch.enable_grad():  # what was kept of it
                refused(door, asked, {name, KERNELS_NAMES.get(name)})


@property_of(20, place=PLACES, fresh=st.booleans())
def test_a_tangent_is_refused_by_name(place, fresh):
    where, name = place
    door, options = calls(fresh)[where]
    with forward_ad.dual_level():
        door(**options())
        refused(door, changed(options(), name, lambda t: forward_ad.make_dual(t, t)), {name, KERNELS_NAMES.get(name)})


@property_of(40, place=PLACES, fresh=st.booleans())
def test_a_negative_bit_is_refused_by_name(place, fresh):
    where, name = place
    door, options = calls(fresh)[where]
    refused(door, changed(options(), name, torch._neg_view), {name, KERNELS_NAMES.get(name)})


WHOLE = (int, np.int64, np.int32, np.uint8)
REALS = (float, np.float64, np.float32, Fraction, np.float16)
COUNTS = {"max_query_len": 2, "max_seq_len": 20, "num_decodes": 1, "total_seq_len": 29, "prompt_seq_len": 20}
NUMBERS = [(name, n, made) for name, n in COUNTS.items() for made in WHOLE]
NUMBERS += [("softmax_scale", n, made) for n in (0.25, 1.0) for made in REALS] + [("softmax_scale", 1, int)]
FIELDS = [(name, n, made) for name, n in (("sliding_window", 5), ("chunk", 4)) for made in WHOLE]
FIELDS += [("softcap", 5.0, made) for made in REALS] + [("causal", True, np.bool_), ("softcap", 5, int)]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("name", "number", "made"), NUMBERS, ids=str)
def test_a_number_of_any_library_is_served_as_pythons_own(name, number, made, fresh):
    options, given_ = good(), good(**{name: made(number)})
    for asked in (options, given_):
        asked["lse"] = torch.empty(3, 2)
        calls(fresh)["call"][0](**asked)
    judged(options | {"softmax_scale": given_["softmax_scale"]}, given_["out"], given_["lse"])


@pytest.mark.parametrize(("name", "number", "made"), FIELDS, ids=str)
def test_a_feature_holds_its_numbers_as_pythons_own(name, number, made):
    found = getattr(Features(**{name: made(number)}), name)
    assert type(found) is (float if name == "softcap" else type(number)) and found == number


def test_sizes_of_any_library_are_pythons_own():
    sizes = {"num_query_heads": 4, "num_kv_heads": 2, "head_size": 32, "block_size": 16, "value_size": 16}
    shape = AttentionShape(**{name: np.int64(size) for name, size in sizes.items()}, dtype=torch.float32)
    assert all(type(getattr(shape, name)) is int for name in sizes)
    plan = plan_paged_attention(**CAPACITY | {"max_tokens": np.int64(4), "typical_seq_len": np.int32(8)})
    assert type(plan.max_tokens) is type(plan.typical_seq_len) is int
    assert type(Point(np.int64(2), np.int64(9)).num_seqs) is int


# Equal to a good value, so that what is kept of a good call might be found by them; and numbers that are none.
LOOKALIKES = [("max_query_len", 2.0), ("num_decodes", True), ("max_seq_len", 20.0), ("total_seq_len", 29.0)]
LOOKALIKES += [("portable", 0), ("same_step", 0), ("causal", 1), ("validate", b"host")]
LOOKALIKES += [(name, x) for name in ("softmax_scale", *COUNTS) for x in (math.nan, math.inf, 1j, "1", torch.tensor(1))]
LOOKALIKES += [("softmax_scale", x) for x in (True, 0.0, -1.0, Fraction(10**400), 10**400, np.float64("nan"))]
INSIDE = [("sliding_window", 7.0), ("softcap", True), ("causal", 1), ("alibi_sqrt", 0), ("chunk", 4.0), ("cross", 0)]
INSIDE += [("sliding_window", True), ("chunk", 10**5000), ("chunk_lookback", False), ("softcap", math.nan)]
INSIDE += [("softcap", torch.tensor(5.0)), ("causal", None), ("softcap", math.inf)]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("name", "value"), LOOKALIKES, ids=lambda value: f"{value!r:.20}")
def test_what_only_looks_like_a_number_is_refused_by_name(name, value, fresh):
    names = {name} | ({"features"} if name == "causal" else set())
    refused(calls(fresh)["call"][0], good(**{name: value}), names)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("name", "value"), INSIDE, ids=lambda value: type(value).__name__)
def test_a_feature_that_only_looks_like_a_number_is_refused_by_name(name, value, fresh):
    door, options = calls(fresh)["call"]
    refused(door, changed(options(), name, lambda _: value), {name})


def shared(tensors):
    """Whether any two bytes of these have one address."""
    found = [byte for tensor in tensors for byte in bytes_of(tensor)]
    return len({*found}) < len(found)


@property_of(
    60, token=st.integers(0, 80), head=st.integers(0, 48), behind=st.integers(-64, 128), row=st.integers(0, 4),
    fresh=st.booleans(),
)  # fmt: skip
def test_an_output_is_written_in_place_or_refused_where_it_meets_itself_or_an_input(token, head, behind, row, fresh):
    """The query, out and lse in one buffer, in any strides."""
    buffer = torch.zeros(1024)
    query = buffer[64:160].view(3, 2, 16).copy_(BATCH.query)
    out = buffer.as_strided((3, 2, 16), (token, head, 1), 64 + behind)
    lse = buffer.as_strided((3, 2), (row, 1), 600)
    options = good(query=query, out=out, lse=lse)
    door = calls(fresh)["call"][0]
    meets_query = {*bytes_of(query)} & {*bytes_of(out)}
    if shared([out]) or shared([lse]) or shared([out, lse]) or meets_query:
        refused(door, options, {"out", "lse"})
    else:
        door(**options)
        judged(options, out, lse)


@property_of(60, page=st.integers(0, 600), slot=st.integers(0, 40), behind=st.integers(0, 1400), fresh=st.booleans())
def test_pages_are_written_or_refused_where_they_meet(page, slot, behind, fresh):
    """K and V in one buffer, in any strides; where they do not meet every token is where its slot says."""
    buffer = torch.zeros(4096)
    strides = (page, slot, 16, 1)
    caches = [buffer.as_strided((2, 16, 1, 16), strides, at) for at in (0, behind)]
    options = write(key_cache=caches[0], value_cache=caches[1])
    door = calls(fresh)["write"][0]
    if shared(caches):
        refused(door, options, {"key_cache", "value_cache"})
    else:
        door(**options)
        for cache, rows in zip(caches, (BATCH.key, BATCH.value), strict=True):
            assert torch.equal(cache[0, :3], rows)


@property_of(
    16, name=st.sampled_from(["sinks", "alibi_slopes", "tree_bias", "softcap", "softmax_scale"]),
    exponent=st.floats(-140, 130), sign=st.sampled_from([1.0, -1.0]), fresh=st.booleans(),
)  # fmt: skip
def test_a_number_of_any_size_is_carried_or_refused(name, exponent, sign, fresh):
    """Numbers that float32 has: never NaN where the reference is finite."""
    number = sign * min(2.0**exponent, 3.4e38)
    tensors = {"sinks": (2,), "alibi_slopes": (2,), "tree_bias": (2, 2)}
    value = torch.full(tensors[name], number) if name in tensors else number
    features = Features(**{name: value}) if name in Features.__dataclass_fields__ else Features()
    options = good(features=features, **({"softmax_scale": number} if name == "softmax_scale" else {}))
    try:
        calls(fresh)["call"][0](**options)
    except SpecError as error:
        assert error.argument.split("[")[0] == name and "2^" in error.allowed
        assert abs(number) > 2.0**64 or number < 2.0**-29
        return
    judged(options, options["out"], options["lse"])


FP8 = AttentionShape(2, 1, 32, 16, torch.float8_e4m3fn)


@property_of(24, sizes=st.tuples(*[st.floats(-140, 120)] * 3), name=st.sampled_from(["value_scale", "softmax_scale"]))
def test_scales_of_any_size_are_carried_or_refused(sizes, name):
    """Of Q and K, whose product with the softmax scale is one number to a kernel, and of V."""
    query, key, third = (2.0**size for size in sizes)
    batch = make_batch([(1, 20)], FP8)
    batch = batch.replace(softmax_scale=third) if name == "softmax_scale" else batch
    scales = {"query_scale": torch.tensor([query]), "key_scale": torch.tensor([key])}
    scales |= {"value_scale": torch.tensor([min(third, 2.0**100)])} if name == "value_scale" else {}
    features, out = Features(**scales), torch.empty(1, 2, 32)
    try:
        PagedAttention(FAMILY)(
            **{field: getattr(batch, field) for field in TENSORS}, max_query_len=1, max_seq_len=20, out=out,
            features=features, softmax_scale=batch.softmax_scale,
        )  # fmt: skip
    except SpecError as error:
        assert error.argument.split("[")[0] in {*scales, "softmax_scale"} and "2^" in error.allowed
        return
    assert out.isfinite().all() and reference(batch, features).out.isfinite().all()


BOUND = st.integers(-3, 60) | st.sampled_from([2**31 - 2, 2**31 - 1, 2**31, 2**40])


@property_of(16, left=BOUND, right=BOUND, causal=st.booleans())
def test_a_window_past_all_keys_is_none(left, right, causal):
    """Against FlashAttention's words: a query at p sees keys p - left .. p + right, without bound where negative."""
    door, options = calls(False)["flash"]
    asked = options(window_size=(left, right), causal=causal, alibi_slopes=None, softcap=0.0, sinks=None)
    try:
        found = door(**asked)
    except SpecError as error:
        assert error.argument == "window_size" and not causal and left != right and right != 0
        return
    both = left if 0 <= left < 60 else None
    right = 0 if causal else right
    features = Features(right == 0, None if both is None else both + 1)
    judged(good(features=features), found)


def tensors_of_any_kind():
    jagged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    nested = torch.nested.nested_tensor([torch.zeros(2, 16), torch.zeros(3, 16)])
    freed = torch.zeros(3, 2, 16)
    freed.untyped_storage().resize_(0)
    return [jagged, nested, freed, torch.eye(3).to_sparse(), torch.zeros(()), torch.zeros(3, 2, 16, device="meta")]


NONSENSE = [[1], object(), "x", {"a": 1}, 1j, np.zeros(2), {"a"}, ..., *tensors_of_any_kind()]


def doors():
    """Every public door by name: what to call, and its good arguments."""
    capacity = CAPACITY | {"features": SEEN, "kernel": None, "max_keys": 8, "one_config": True, "portable": False}
    plan = _used()["plan"][0]
    warm_up = {"key_cache": None, "value_cache": None, "block_table": None, "lse": False, "new_kv": False}
    warm_up |= {"out_dtype": None, "points": [Point(1, 8)], "progress": None}
    sizes = {"batch_sizes": [1], "lengths": [8], "query_lens": [1]}
    more = {"same_step": False, "portable": False, "validate": "host", "causal": True, "sliding_window": None}
    flashed = {"attention_chunk": 0, "scheduler_metadata": None, "num_splits": 0, "return_softmax_lse": False}
    flashed |= {"out": None, "cu_seqlens_k": None, "s_aux": None, "dropout_p": 0.0, "q_v": None}
    metadata = {"batch_size": 1, "max_seqlen_q": 1, "max_seqlen_k": 8, "num_decodes": 1, "total_seq_len": 8}
    shape = {"num_query_heads": 4, "num_kv_heads": 2, "head_size": 32, "block_size": 16, "dtype": torch.float32}
    used = {name: (door, options()) for name, (door, options) in _used().items()}
    used["call"] = used["call"][0], used["call"][1] | more
    used["flash"] = used["flash"][0], used["flash"][1] | flashed
    used["cached"] = used["cached"][0], used["cached"][1] | {"k": None, "page_table": None, "cache_batch_idx": None}
    used["write"] = used["write"][0], used["write"][1] | {"key_scale": None, "value_scale": None}
    return used | {
        "planner": (plan_paged_attention, capacity | {"typical_seq_len": 8, "workspace": None}),
        "sizer": (workspace_bytes, capacity), "warm-up": (plan.warmup, warm_up),
        "point": (Point, {"num_seqs": 1, "max_seq_len": 8, "max_query_len": 1, "num_decodes": 1}),
        "points": (lambda **sizes: [*points(**sizes)], sizes | {"mixed": [False]}),
        "prompts": (lambda **sizes: [*prompts(**sizes)], sizes),
        "metadata": (get_scheduler_metadata, metadata | {"num_splits": 0}), "shape": (AttentionShape, shape),
    }  # fmt: skip


RENAMED = {
    "q": "query", "cu_seqlens_q": "query_start_loc", "seqused_k": "seq_lens", "cache_seqlens": "seq_lens",
    "s_aux": "sinks", "attention_chunk": "chunk", "causal": "features", "sliding_window": "features",
}  # fmt: skip


ARGUMENTS = st.deferred(
    lambda: st.sampled_from([(name, one) for name, (_, options) in doors().items() for one in options])
)


@property_of(300, where=ARGUMENTS, value=st.sampled_from(range(len(NONSENSE))))
def test_nonsense_is_refused_by_the_name_of_its_argument(where, value):
    name, argument = where
    door, options = doors()[name]
    if value == 0 and name in ("points", "prompts"):
        return  # there a list of integers is none
    refused(door, options | {argument: NONSENSE[value]}, {argument, RENAMED.get(argument), KERNELS_NAMES.get(argument)})
