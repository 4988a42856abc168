"""Features that are malformed or contradict each other are refused by name, with both sides said."""

import math

import numpy as np
import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, Layout, SpecError
from common.spec.feature_rules import CONTRADICTIONS, NEEDS, contradiction
from common.spec.kernel import MEMBERS, asked_of
from common.spec.paged_batch import FP8
from common.spec.validation import check_values, validate, validate_output

SHAPE = AttentionShape(4, 2, 16, 8, torch.float16)
LENS = [(1, 9), (3, 20), (0, 0)]
FN, FNUZ, E5M2 = FP8
NAN, INF = math.nan, math.inf
SLOPES, FLAGS = torch.ones(4), torch.ones(3, dtype=torch.int32)
SPANS, TREE = torch.tensor([[[1, 4]]] * 3, dtype=torch.int32), torch.zeros(3, 3)
ONE, HEADS = torch.ones(1), torch.ones(2)
# what asks for each side of a contradiction
ASKS = {
    "cross": {"cross": True, "causal": False}, "causal": {"causal": True}, "not causal": {"causal": False},
    "sliding_window": {"sliding_window": 4}, "alibi_slopes": {"alibi_slopes": SLOPES}, "chunk": {"chunk": 4},
    "spans": {"spans": SPANS}, "causal_per_sequence": {"causal_per_sequence": FLAGS}, "tree_bias": {"tree_bias": TREE},
    "alibi_sqrt": {"alibi_sqrt": True}, "chunk_lookback": {"chunk_lookback": 2},
}  # fmt: skip


def batch_of(kv_dtype=None, dtype=torch.float16, lens=LENS, **options):
    return make_batch(lens, AttentionShape(4, 2, 16, 8, dtype, None, kv_dtype), **options)


def tokens(batch, dtype=torch.float32):
    return torch.ones(batch.key_cache.shape[:3], dtype=dtype)


GOOD = {
    "alibi": (None, Features(alibi_slopes=SLOPES)),
    "alibi-sqrt": (None, Features(alibi_slopes=SLOPES, alibi_sqrt=True)),
    "chunk": (None, Features(chunk=4, chunk_lookback=2, alibi_slopes=SLOPES, spans=SPANS)),
    "spans": (None, Features(sliding_window=3, spans=SPANS, causal_per_sequence=FLAGS)),
    "flags": (None, Features(causal_per_sequence=FLAGS.bool(), sliding_window=3)),
    "cross": (None, Features(False, cross=True, softcap=5.0, sinks=SLOPES)),
    "tree": (None, Features(tree_bias=TREE.half(), alibi_slopes=SLOPES, sliding_window=3)),
    "fp8-one": (FN, Features(key_scale=ONE, value_scale=HEADS)),
    "fp8-none": (FNUZ, Features()),
    "e5m2-tokens": (E5M2, Features(value_scale=tokens(batch_of(E5M2)))),
    "int8": (torch.int8, Features(key_scale=tokens(batch_of(torch.int8)), value_scale=tokens(batch_of(torch.int8)))),
}


@pytest.mark.parametrize("case", GOOD)
def test_features_that_fit_are_accepted(case):
    kv_dtype, features = GOOD[case]
    batch = batch_of(kv_dtype)
    validate(batch, features)
    check_values(batch, features)
    validate_output(batch, torch.empty_like(batch.query), None, features)


@pytest.mark.parametrize("pair", CONTRADICTIONS, ids=" and ".join)
def test_contradictions_name_both_sides(pair):
    one, other = pair
    features = Features(**ASKS[one] | ASKS[other])
    found = contradiction(features)
    with pytest.raises(SpecError) as refused:
        validate(batch_of(), features, values=False)
    assert refused.value.argument == found[0]
    says = {"not causal": "causal=False"}
    assert all(says.get(name, name) in str(refused.value.found) for name in found)
    if "cross" not in pair or other == "causal":  # the others of `cross` are found beside its causal=False as well
        assert found == pair


@pytest.mark.parametrize("pair", NEEDS, ids=" without ".join)
def test_a_part_without_its_whole_is_refused(pair):
    with pytest.raises(SpecError, match=f"{pair[0]}.*without {pair[1]}"):
        validate(batch_of(), Features(**ASKS[pair[0]]))


# id -> (features of a batch, the argument that the refusal names, dtype of the caches, dtype of the query)
MALFORMED = {
    "features-a-dict": ({"causal": True}, "features", None),
    "window-zero": (Features(sliding_window=0), "sliding_window", None),
    "window-minus-one": (Features(sliding_window=-1), "sliding_window", None),
    "window-beyond-int32": (Features(sliding_window=2**31), "sliding_window", None),
    "softcap-zero": (Features(softcap=0.0), "softcap", None),
    "softcap-negative": (Features(softcap=-30.0), "softcap", None),
    "softcap-subnormal": (Features(softcap=1e-40), "softcap", None),
    "softcap-infinite-in-float32": (Features(softcap=1e40), "softcap", None),
    "softcap-of-infinite-quotients": (Features(softcap=math.nextafter(2.0**-30, 0.0)), "softcap", None),
    "sinks-a-list": (Features(sinks=[0.0] * 4), "sinks", None),
    "sinks-a-numpy-array": (Features(sinks=np.zeros(4)), "sinks", None),
    "sinks-per-kv-head": (Features(sinks=torch.zeros(2)), "sinks", None),
    "sinks-of-two-dimensions": (Features(sinks=torch.zeros(4, 1)), "sinks", None),
    "sinks-float64": (Features(sinks=torch.zeros(4, dtype=torch.float64)), "sinks", None),
    "sinks-elsewhere": (Features(sinks=torch.zeros(4, device="meta")), "sinks", None),
    "sinks-apart": (Features(sinks=torch.zeros(8)[::2]), "sinks", None),
    "sinks-nan": (Features(sinks=torch.tensor([0.0, NAN, 0.0, 0.0])), "sinks", None),
    "sinks-infinite": (Features(sinks=torch.tensor([0.0, INF, 0.0, 0.0])), "sinks", None),
    "slopes-of-two-heads": (Features(alibi_slopes=HEADS), "alibi_slopes", None),
    "slopes-half": (Features(alibi_slopes=SLOPES.half()), "alibi_slopes", None),
    "slopes-elsewhere": (Features(alibi_slopes=SLOPES.to("meta")), "alibi_slopes", None),
    "slopes-apart": (Features(alibi_slopes=torch.ones(8)[::2]), "alibi_slopes", None),
    "slopes-a-list": (Features(alibi_slopes=[1.0] * 4), "alibi_slopes", None),
    "slopes-infinite": (Features(alibi_slopes=SLOPES * INF), "alibi_slopes", None),
    "chunk-zero": (Features(chunk=0), "chunk", None),
    "chunk-bool": (Features(chunk=True), "chunk", None),
    "lookback-negative": (Features(chunk=4, chunk_lookback=-1), "chunk_lookback", None),
    "spans-of-two-sequences": (Features(spans=SPANS[:2]), "spans", None),
    "spans-of-none": (Features(spans=SPANS[:, :0]), "spans", None),
    "spans-int64": (Features(spans=SPANS.long()), "spans", None),
    "spans-overlapping": (Features(spans=SPANS.repeat(1, 2, 1)), "spans", None),
    "spans-before-0": (Features(spans=SPANS - 2), "spans", None),
    "flags-of-two-sequences": (Features(causal_per_sequence=FLAGS[:2]), "causal_per_sequence", None),
    "flags-int64": (Features(causal_per_sequence=FLAGS.long()), "causal_per_sequence", None),
    "tree-not-square": (Features(tree_bias=TREE[:2]), "tree_bias", None),
    "tree-of-nothing": (Features(tree_bias=TREE[:0, :0]), "tree_bias", None),
    "tree-transposed": (Features(tree_bias=torch.arange(9.0).view(3, 3).t()), "tree_bias", None),
    "tree-hides-a-token-from-itself": (Features(tree_bias=TREE.clone().fill_diagonal_(-INF)), "tree_bias", None),
    "tree-nan": (Features(tree_bias=TREE * NAN), "tree_bias", None),
    "invariant-none": (Features(batch_invariant=None), "batch_invariant", None),
    "scale-without-fp8": (Features(key_scale=ONE), "key_scale", None),
    "query-scale-without-fp8": (Features(query_scale=ONE), "query_scale", FN),
    "scale-of-three-heads": (Features(key_scale=torch.ones(3)), "key_scale", FN),
    "scale-half": (Features(value_scale=ONE.half()), "value_scale", FN),
    "scale-elsewhere": (Features(value_scale=ONE.to("meta")), "value_scale", FN),
    "scale-of-fewer-pages": (Features(value_scale=torch.ones(2, 8, 2)), "value_scale", FN),
    "scale-zero": (Features(value_scale=ONE * 0), "value_scale", FN),
    "scale-nan": (Features(key_scale=HEADS * NAN), "key_scale", FN),
    "int8-without-scales": (Features(), "key_scale", torch.int8),
    "int8-one-scale": (Features(key_scale=ONE, value_scale=ONE), "key_scale", torch.int8),
    "out-scale-of-heads": (Features(out_scale=HEADS), "out_scale", None),
    "out-scale-infinite": (Features(out_scale=ONE * INF), "out_scale", None),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_features_are_refused_by_name(case):
    features, argument, kv_dtype = MALFORMED[case]
    with pytest.raises(SpecError) as refused:
        validate(batch_of(kv_dtype), features)
    assert refused.value.argument.partition("[")[0] == argument


@pytest.mark.parametrize(
    "case", ["slopes-infinite", "spans-overlapping", "tree-nan", "scale-zero", "out-scale-infinite"]
)
def test_values_are_refused_on_the_device_too(case):
    features, argument, kv_dtype = MALFORMED[case]
    batch = batch_of(kv_dtype)
    validate(batch, features, values=False)
    with pytest.raises(SpecError) as refused:
        check_values(batch, features)
    assert refused.value.argument.startswith(f"{argument}[")


def test_a_cross_attention_may_have_fewer_keys_than_queries_and_no_new_ones():
    batch = batch_of(lens=[(5, 3), (2, 0), (1, 9)])
    for check in (validate, check_values):
        check(batch, Features(False, cross=True))
    with pytest.raises(SpecError, match="cross beside key and value"):
        validate(batch_of(new_kv=True), Features(False, cross=True))


def test_an_fp8_query_has_caches_of_its_type_and_scales_of_heads():
    batch = batch_of(FN, FN)
    validate(batch, Features(query_scale=ONE, key_scale=HEADS))
    for argument, features in (
        ("key_scale", Features(key_scale=tokens(batch))),
        ("query_scale", Features(query_scale=HEADS)),
    ):
        with pytest.raises(SpecError) as refused:
            validate(batch, features)
        assert refused.value.argument == argument
    other = batch.replace(**{name: getattr(batch, name).to(FNUZ) for name in ("key_cache", "value_cache")})
    with pytest.raises(SpecError, match="key_cache"):
        validate(other, Features())
    new = torch.zeros(batch.num_tokens, 2, 16)
    with pytest.raises(SpecError, match="key beside an fp8 query"):
        validate(batch.replace(key=new, value=new.clone()), Features())


OUTPUTS = {  # dtype of the query -> with out_scale -> the dtypes that `out` may have
    torch.float16: ({torch.float16}, {FN, FNUZ}),
    FN: ({torch.float16, torch.bfloat16, torch.float32}, {FN, FNUZ}),
}


@pytest.mark.parametrize("query", OUTPUTS, ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_output_has_a_dtype_that_its_scale_asks_for(query, scaled):
    batch = batch_of(FN, query)
    features = Features(out_scale=ONE if scaled else None)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, *FP8):
        out = torch.empty(batch.query.shape, dtype=dtype)
        if dtype in OUTPUTS[query][scaled]:
            validate_output(batch, out, None, features)
        else:
            with pytest.raises(SpecError, match=f"out: found {dtype}"):
                validate_output(batch, out, None, features)


def test_the_output_has_the_lanes_of_v():
    for layout in Layout:
        batch = make_batch(LENS, AttentionShape(4, 2, 16, 8, torch.float16, 24), layout=layout)
        validate_output(batch, torch.empty(batch.num_tokens, 4, 24, dtype=torch.float16))
        with pytest.raises(SpecError, match="lanes of value_cache"):
            validate_output(batch, torch.empty_like(batch.query))


def test_what_tensors_ask_of_a_kernel():
    def asked(shape, **features):
        return asked_of(make_batch([(1, 9)], shape), Features(**features)) - {"causal"}

    head = AttentionShape(4, 2, 16, 8)
    assert asked(head) == set()
    assert asked(AttentionShape(4, 2, 16, 8, torch.float16, 16)) == set(), "V is as wide as K"
    assert asked(AttentionShape(4, 2, 16, 8, torch.float16, 24)) == {"value_size"}
    assert asked(AttentionShape(4, 2, 264, 8)) == {"head_size_512"}
    assert asked(AttentionShape(4, 2, 64, 8, torch.float16, 512)) == {"head_size_512", "value_size"}
    assert asked(AttentionShape(4, 2, 16, 8, torch.float16, None, E5M2)) == {"fp8_kv"}
    assert asked(AttentionShape(4, 2, 16, 8, torch.float16, None, torch.int8)) == {"int8_kv"}
    assert asked(AttentionShape(4, 2, 16, 8, FN), out_scale=ONE) == {"fp8_kv", "fp8_query", "fp8_out"}
    assert asked(head, alibi_slopes=SLOPES, alibi_sqrt=True, chunk=3) == {"alibi_sqrt", "chunked_local"}
    assert {"value_size", "head_size_512", "alibi_sqrt", "chunked_local", "fp8_out"} < MEMBERS


def test_a_shape_has_one_form_and_survives_json():
    shape = AttentionShape(4, 2, 16, 8, torch.float16, 24, FN)
    assert AttentionShape.from_dict(shape.to_dict()) == shape
    assert AttentionShape(4, 2, 16, 8, torch.float16, 16, torch.float16) == SHAPE
    assert SHAPE.to_dict() == {
        "num_query_heads": 4, "num_kv_heads": 2, "head_size": 16, "block_size": 8, "dtype": "float16"
    }  # fmt: skip
    assert (shape.value_lanes, shape.cache_dtype, shape.quantised) == (24, FN, True)
    assert (SHAPE.value_lanes, SHAPE.cache_dtype, SHAPE.quantised) == (16, torch.float16, False)
