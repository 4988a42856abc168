"""Every malformed input is refused before a launch, and the refusal names the argument."""

import math

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, Layout, SpecError
from common.spec.validation import validate, validate_output

SHAPE = AttentionShape(num_query_heads=4, num_kv_heads=2, head_size=16, block_size=8, dtype=torch.float32)
LENS = [(1, 9), (3, 20), (0, 0)]
INF, NAN = float("inf"), float("nan")


def good():
    return make_batch(LENS, SHAPE)


def packed():
    return make_batch(LENS, SHAPE, layout=Layout.X_PACKED)


def with_new_tokens(batch, **changes):
    new = torch.zeros(batch.num_tokens, 2, 16)
    return batch.replace(**{"key": new, "value": new.clone(), **changes})


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def patched(tensor, index, value):
    """A copy of `tensor` with one entry changed."""
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def every_other(tensor):
    """The same values and shape, at a distance of two in the last dimension."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def test_a_good_batch_is_accepted():
    for features in (Features(), Features(causal=False, sliding_window=3, softcap=5.0, sinks=torch.zeros(4))):
        batch = with_new_tokens(good())
        validate(batch, features)
        validate_output(batch, torch.empty_like(batch.query), torch.empty(batch.num_tokens, 4))


@pytest.mark.parametrize("features", [Features(), Features(causal=False), Features(False, cross=True)], ids=str)
def test_a_sequence_may_have_fewer_keys_than_queries(features):
    validate(good().replace(seq_lens=ints(9, 2, 0)), features)  # of three


SHAPES = {
    "query-heads-zero": ({"num_query_heads": 0}, "num_query_heads"),
    "query-heads-float": ({"num_query_heads": 4.0}, "num_query_heads"),
    "query-heads-bool": ({"num_query_heads": True, "num_kv_heads": 1}, "num_query_heads"),
    "query-heads-not-a-multiple": ({"num_query_heads": 5, "num_kv_heads": 2}, "num_query_heads"),
    "fewer-query-than-kv-heads": ({"num_query_heads": 2, "num_kv_heads": 4}, "num_query_heads"),
    "kv-heads-zero": ({"num_kv_heads": 0}, "num_kv_heads"),
    "head-size-12": ({"head_size": 12}, "head_size"),
    "head-size-520": ({"head_size": 520}, "head_size"),
    "value-size-12": ({"value_size": 12}, "value_size"),
    "value-size-520": ({"value_size": 520}, "value_size"),
    "dtype-e5m2": ({"dtype": torch.float8_e5m2}, "dtype"),
    "cache-of-another-float": ({"kv_dtype": torch.float16}, "kv_dtype"),
    "cache-of-integers": ({"kv_dtype": torch.int32}, "kv_dtype"),
    "fp8-query-int8-cache": ({"dtype": torch.float8_e4m3fn, "kv_dtype": torch.int8}, "kv_dtype"),
    "fp8-query-another-fp8": ({"dtype": torch.float8_e4m3fn, "kv_dtype": torch.float8_e4m3fnuz}, "kv_dtype"),
    "head-size-none": ({"head_size": None}, "head_size"),
    "page-1": ({"block_size": 1}, "block_size"),
    "page-20": ({"block_size": 20}, "block_size"),
    "page-zero": ({"block_size": 0}, "block_size"),
    "dtype-float64": ({"dtype": torch.float64}, "dtype"),
    "dtype-a-string": ({"dtype": "bf16"}, "dtype"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_malformed_shape_is_refused(case):
    sizes, argument = SHAPES[case]
    with pytest.raises(SpecError) as refused:
        AttentionShape(**sizes)
    assert refused.value.argument == argument


# id -> (what is done to a good batch, the argument that the refusal names)
BATCHES = {
    "not-a-batch": (lambda b: vars(b), "batch"),
    "paged-called-x-packed": (lambda b: b.replace(layout=Layout.X_PACKED), "key_cache"),
    "x-packed-by-one": (
        lambda b: packed().replace(key_cache=b.key_cache.permute(0, 2, 3, 1)[..., None].contiguous()),
        "key_cache",
    ),
    "x-packed-called-paged": (lambda b: packed().replace(layout=Layout.PAGED), "key_cache"),
    "x-packed-key-paged-value": (lambda b: packed().replace(value_cache=b.value_cache), "value_cache"),
    "x-packed-key-lanes-apart": (lambda b: packed().replace(key_cache=every_other(packed().key_cache)), "key_cache"),
    "x-packed-page-id-past-the-pool": (
        lambda b: packed().replace(block_table=patched(b.block_table, (1, 2), b.key_cache.shape[0])),
        "block_table[1]",
    ),
    "layout-a-string": (lambda b: b.replace(layout="paged"), "layout"),
    "query-none": (lambda b: b.replace(query=None), "query"),
    "query-flat": (lambda b: b.replace(query=b.query.flatten(1)), "query"),
    "query-float64": (lambda b: b.replace(query=b.query.double()), "query"),
    "query-lanes-apart": (lambda b: b.replace(query=every_other(b.query)), "query"),
    "query-without-heads": (lambda b: b.replace(query=b.query[:, :0]), "num_query_heads"),
    "query-heads-not-a-multiple": (lambda b: b.replace(query=b.query[:, :3]), "num_query_heads"),
    "query-head-size-12": (lambda b: b.replace(query=b.query[..., :12]), "head_size"),
    "query-of-another-head-size": (lambda b: b.replace(query=b.query[..., :8]), "key_cache"),
    "key-cache-flat": (lambda b: b.replace(key_cache=b.key_cache.flatten(2)), "key_cache"),
    "key-cache-half": (lambda b: b.replace(key_cache=b.key_cache.half()), "key_cache"),
    "key-cache-elsewhere": (lambda b: b.replace(key_cache=b.key_cache.to("meta")), "key_cache"),
    "key-cache-lanes-apart": (lambda b: b.replace(key_cache=every_other(b.key_cache)), "key_cache"),
    "key-cache-without-heads": (
        lambda b: b.replace(key_cache=b.key_cache[:, :, :0], value_cache=b.value_cache[:, :, :0]),
        "num_kv_heads",
    ),
    "page-1": (lambda b: b.replace(key_cache=b.key_cache[:, :1], value_cache=b.value_cache[:, :1]), "block_size"),
    "value-cache-half": (lambda b: b.replace(value_cache=b.value_cache.half()), "value_cache"),
    "value-cache-fewer-pages": (lambda b: b.replace(value_cache=b.value_cache[1:]), "value_cache"),
    "value-cache-of-12-lanes": (lambda b: b.replace(value_cache=b.value_cache[..., :12]), "value_size"),
    "caches-int32": (
        lambda b: b.replace(key_cache=b.key_cache.nan_to_num().int(), value_cache=b.value_cache.nan_to_num().int()),
        "key_cache",
    ),
    "key-cache-fp8-alone": (lambda b: b.replace(key_cache=b.key_cache.to(torch.float8_e4m3fn)), "value_cache"),
    "query-fp8-alone": (lambda b: b.replace(query=b.query.to(torch.float8_e4m3fn)), "key_cache"),
    "value-cache-lanes-apart": (lambda b: b.replace(value_cache=every_other(b.value_cache)), "value_cache"),
    "table-of-one-dimension": (lambda b: b.replace(block_table=b.block_table[0]), "block_table"),
    "table-int16": (lambda b: b.replace(block_table=b.block_table.short()), "block_table"),
    "table-a-row-short": (lambda b: b.replace(block_table=b.block_table[:2]), "block_table"),
    "table-transposed-in-memory": (
        lambda b: b.replace(block_table=b.block_table.t().contiguous().t()),
        "block_table",
    ),
    "table-elsewhere": (lambda b: b.replace(block_table=b.block_table.to("meta")), "block_table"),
    "table-too-narrow": (lambda b: b.replace(block_table=b.block_table[:, :2]), "seq_lens[1]"),
    "page-id-negative": (lambda b: b.replace(block_table=patched(b.block_table, (1, 2), -1)), "block_table[1]"),
    "page-id-past-the-pool": (
        lambda b: b.replace(block_table=patched(b.block_table, (0, 0), b.key_cache.shape[0])),
        "block_table[0]",
    ),
    "page-id-beyond-int32": (
        lambda b: b.replace(block_table=patched(b.block_table.long(), (0, 1), 2**32)),
        "block_table[0]",
    ),
    "starts-int64": (lambda b: b.replace(query_start_loc=b.query_start_loc.long()), "query_start_loc"),
    "starts-of-two-dimensions": (lambda b: b.replace(query_start_loc=b.query_start_loc[None]), "query_start_loc"),
    "starts-one-short": (lambda b: b.replace(query_start_loc=b.query_start_loc[:-1]), "query_start_loc"),
    "starts-apart": (lambda b: b.replace(query_start_loc=every_other(b.query_start_loc)), "query_start_loc"),
    "starts-at-one": (lambda b: b.replace(query_start_loc=ints(1, 1, 4, 4)), "query_start_loc[0]"),
    "starts-decreasing": (lambda b: b.replace(query_start_loc=ints(0, 3, 1, 4)), "query_start_loc[2]"),
    "starts-past-the-query": (lambda b: b.replace(query_start_loc=ints(0, 1, 4, 5)), "query_start_loc[3]"),
    "lengths-int64": (lambda b: b.replace(seq_lens=b.seq_lens.long()), "seq_lens"),
    "lengths-of-two-dimensions": (lambda b: b.replace(seq_lens=b.seq_lens[:, None]), "seq_lens"),
    "lengths-apart": (lambda b: b.replace(seq_lens=every_other(b.seq_lens)), "seq_lens"),
    "length-negative": (lambda b: b.replace(seq_lens=ints(9, 20, -1)), "seq_lens[2]"),
    "length-beyond-the-table": (lambda b: b.replace(seq_lens=ints(9, 49, 0)), "seq_lens[1]"),
    "scale-minus-infinite": (lambda b: b.replace(softmax_scale=-INF), "softmax_scale"),
    "scale-subnormal": (lambda b: b.replace(softmax_scale=math.nextafter(2.0**-126, 0.0)), "softmax_scale"),
    "scale-of-infinite-logits": (lambda b: b.replace(softmax_scale=math.nextafter(2.0**64, INF)), "softmax_scale"),
    "stats-none": (lambda b: b.replace(stats=None), "stats"),
    "new-key-alone": (lambda b: with_new_tokens(b, value=None), "value"),
    "new-key-a-token-short": (lambda b: with_new_tokens(b, key=torch.zeros(3, 2, 16)), "key"),
    "new-value-half": (lambda b: with_new_tokens(b, value=torch.zeros(4, 2, 16).half()), "value"),
    "new-value-elsewhere": (lambda b: with_new_tokens(b, value=torch.zeros(4, 2, 16, device="meta")), "value"),
    "new-value-unaligned": (lambda b: with_new_tokens(b, value=torch.zeros(129)[1:].view(4, 2, 16)), "value"),
    "new-key-of-strided-lanes": (lambda b: with_new_tokens(b, key=torch.zeros(4, 2, 32)[..., ::2]), "key"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_malformed_batch_is_refused(case):
    """Types and shapes without reading the device too."""
    spoil, argument = BATCHES[case]
    for values in (True,) if argument.endswith("]") else (True, False):
        with pytest.raises(SpecError) as refused:
            validate(spoil(good()), Features(), values=values)
        assert refused.value.argument == argument
        assert str(refused.value).startswith(f"{argument}: found ")


@pytest.mark.parametrize("scale", [2.0**-126, 0.25, 2.0**64])
@pytest.mark.parametrize("softcap", [2.0**-30, 30.0, 2.0**125])
def test_numbers_from_the_smallest_to_the_largest_are_allowed(scale, softcap):
    validate(good().replace(softmax_scale=scale), Features(softcap=softcap))


def test_a_sink_of_minus_infinity_is_no_sink_and_allowed():
    validate(good(), Features(sinks=torch.full((4,), -INF)))
