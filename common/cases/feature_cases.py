"""Named cases of what engines ask beyond plain causal rows: biases, masks, trees, sizes, quantised caches and outputs.

Every launch of a case asks for the LSE as well. The numbers are those of `common.cases.named`.
"""

from __future__ import annotations

import torch

from common.cases import layouts
from common.cases.case import MIXED, ONE_HEAD, RAGGED, Case, decodes, named, prompts
from common.cases.fills import FILLS, holes
from common.spec import Layout
from common.spec.paged_batch import FP8

H, F = torch.float16, torch.float32  # the others are bfloat16
FN, FNUZ, E5M2, INT8 = *FP8, torch.int8
_LONG = ((1, 300), (33, 90), (5, 40))
_TREE = (-1, 0, 0, 1, 1, 2, 2, 5)  # eight draft tokens, branches at the first, second and third
_QUANTISED = ((1, 45), (5, 20), (18, 18), (0, 0))


def _alibi(name: str, *numbers: int, **options: object) -> Case:
    return named(f"alibi-{name}", 92, *numbers, **{"alibi": "linear"} | options)


def _chunk(name: str, chunk: int, lookback: int = 0, **options: object) -> Case:
    return named(f"chunk-{name}", chunk=chunk, chunk_lookback=lookback, **{"lens": _LONG, "heads": (2, 1)} | options)


def _spans(name: str, *spans: tuple[tuple[int, int], ...], **options: object) -> Case:
    return named(f"spans-{name}", spans=spans, **{"lens": _LONG, "heads": (2, 1)} | options)


def _stored(name: str, kv_dtype: torch.dtype, *numbers: int, **options: object) -> Case:
    return named(name, *numbers, kv_dtype=kv_dtype, **{"lens": _QUANTISED} | options)


def _fp8_query(name: str, dtype: torch.dtype, fp8: torch.dtype, **options: object) -> Case:
    return named(f"fp8-query-{name}", 97, dtype=dtype, fp8_query=fp8, **{"lens": _QUANTISED} | options)


_BIASES: tuple[Case, ...] = (
    _alibi("slopes-of-4-heads"),
    _alibi("slopes-of-32-heads", lens=((1, 40), (3, 20)), heads=(32, 8), dtype=H),
    _alibi("slopes-of-12-heads", lens=((1, 130), (3, 20)), heads=(12, 4), dtype=F),
    _alibi("with-sinks-and-softcap", sinks="near", softcap=15.0, dtype=H),
    _alibi("with-window", lens=_LONG, heads=(2, 1), sliding_window=21, sinks="near"),
    _alibi("to-both-sides", lens=MIXED, causal=False, dtype=H),
    _alibi("over-1200-keys", lens=((1, 1200), (2, 30)), heads=(8, 1), head_size=16, block_size=64),
    _alibi("of-zero-slopes", alibi="zero", dtype=F),
    _alibi("sqrt", alibi="sqrt", dtype=H),
    _alibi("sqrt-to-both-sides", alibi="sqrt", lens=MIXED, causal=False, sinks="near"),
    _alibi("sqrt-slopes-of-12-heads", alibi="sqrt", lens=((1, 130), (3, 20)), heads=(12, 4), dtype=F),
    named("tree-of-8", lens=((8, 40), (8, 8), (8, 23)), tree=_TREE),
    named("tree-smaller-than-the-query", lens=((8, 40), (12, 30)), tree=_TREE[:5], dtype=H),
    named("tree-larger-than-the-query", lens=((3, 40), (1, 9), (0, 5)), tree=_TREE, apart=True, dtype=F),
    named("tree-over-a-page-and-a-tile", lens=((8, 20), (8, 68), (8, 36)), tree=_TREE, tile_size=32, dtype=H),
    named("tree-with-window-and-sinks", lens=((8, 90), (8, 30)), tree=_TREE, sliding_window=9, sinks="near"),
    named("tree-with-alibi-and-softcap", lens=((8, 90), (5, 30)), tree=_TREE, alibi="linear", softcap=15.0, dtype=H),
    named("tree-of-1", lens=((1, 40), (2, 17)), tree=(-1,)),
)  # fmt: skip
_MASKS: tuple[Case, ...] = (
    _chunk("of-16", 16),
    _chunk("of-16-lookback-1", 16, 1, dtype=H),
    _chunk("of-10-lookback-2", 10, 2, dtype=F),
    _chunk("no-multiple-of-a-page", 24, lens=((1, 49), (1, 48), (1, 47), (30, 60))),
    _chunk("larger-than-the-sequences", 400, dtype=H),
    _chunk("of-1", 1, lens=RAGGED),
    _chunk("of-1-lookback-1", 1, 1, lens=RAGGED, dtype=H),
    _chunk("hides-leading-segments", 64, lens=((1, 500), (3, 300)), sinks="near", dtype=H),
    _chunk("with-alibi", 16, 1, alibi="linear", heads=(4, 2)),
    _spans("in-a-prompt", (), ((60, 68), (75, 80)), ((0, 12), (20, 37)), dtype=H),
    _spans("over-pages-and-tiles", (), ((57, 89), (10, 20)), ((30, 39),), tile_size=32),
    _spans("with-a-decode-row-inside", ((290, 310),), (), ((2, 3),), dtype=F),
    _spans("of-1-token-and-none", ((299, 299),), ((60, 60), (70, 69)), ((0, 0),)),
    _spans("of-2-tokens", ((298, 299),), ((57, 58), (88, 89)), ((38, 39), (0, 1)), dtype=H),
    _spans("past-the-sequence", (), ((80, 130),), ((36, 45),), dtype=F),
    _spans("of-everything", ((0, 299),), ((0, 89),), ((0, 39),), dtype=H),
    _spans("within-a-window", (), ((60, 70),), ((36, 39),), sliding_window=21),
    _spans("longer-than-the-window", ((250, 299),), ((58, 85),), ((3, 38),), sliding_window=7, dtype=H),
    _spans("left-of-the-window", ((5, 299),), ((2, 89),), ((0, 39),), sliding_window=4, sinks="near"),
    _spans("with-chunks", (), ((60, 85),), ((1, 38),), chunk=16, dtype=H),
    _spans("apart", (), ((60, 80), (84, 87)), ((0, 12),), apart=True, softcap=15.0),
    named("per-sequence-mixed", lens=RAGGED, non_causal=(1,)),
    named("per-sequence-all", lens=MIXED, non_causal=(0, 1, 2, 3), dtype=H),
    named("per-sequence-none", lens=MIXED, non_causal=(), dtype=F),
    named(
        "per-sequence-with-window", lens=((9, 90), (40, 90), (5, 60)), heads=(2, 1), non_causal=(0, 1),
        sliding_window=24,
    ),
    named(
        "per-sequence-with-empty", lens=((0, 9), (3, 0), (20, 41), (17, 17)), non_causal=(1, 2), sinks="near", dtype=H,
    ),
    named("per-sequence-with-spans", lens=_LONG, heads=(2, 1), non_causal=(2,), spans=((), ((60, 80),), ((1, 9),))),
    named("cross", lens=((5, 40), (1, 17), (20, 33)), cross=True),
    named("cross-fewer-keys-than-queries", lens=((20, 3), (33, 16), (5, 40)), cross=True, dtype=H),
    named("cross-0-keys", lens=((3, 0), (1, 20), (18, 0), (0, 0)), cross=True, sinks="near", dtype=F),
    named("cross-1-key", lens=((4, 1), (1, 1), (17, 1)), cross=True, softcap=15.0),
    named("cross-decodes", lens=((1, 300), (1, 5), (1, 64)), heads=(2, 1), cross=True, dtype=H),
)  # fmt: skip
_SIZES: tuple[Case, ...] = (
    named("head-320", 54, head_size=320, heads=(2, 1), dtype=H),
    named("head-512", 54, head_size=512, heads=(2, 1)),
    named("head-512-window-sinks", 54, head_size=512, heads=(2, 1), sliding_window=9, sinks="near", dtype=H),
    named("value-64-head-96", 55, head_size=96, value_size=64),
    named("value-64-head-192", 55, head_size=192, value_size=64, heads=(2, 1), dtype=H),
    named("value-128-head-64", 55, head_size=64, value_size=128, style="interleaved", dtype=F),
    named("value-40-head-32", 55, value_size=40, sinks="near", pad_out=True, dtype=H),
    named("value-512-head-64", 55, head_size=64, value_size=512, heads=(2, 1)),
    named("value-48-x-packed", 55, head_size=64, value_size=48, layout=Layout.X_PACKED, dtype=H),
    named("value-64-new-kv", 55, lens=((1, 40), (18, 18), (20, 45)), value_size=64, new_kv=True, dtype=H),
    named("batch-invariant", lens=MIXED, batch_invariant=True),
)  # fmt: skip
_CACHES: tuple[Case, ...] = (
    _stored("fp8-without-scales", FN, 95),
    _stored("fp8-one-scale", FN, 96, scales="one", scale_factor=0.5, dtype=H),
    _stored("fp8-scales-of-heads", FN, 96, 97, scales="heads", dtype=F),
    _stored("fp8-scales-of-tokens", FN, 97, scales="tokens"),
    _stored("fp8-scales-of-tokens-fp16", FN, 97, scales="tokens", dtype=H),
    _stored("fp8-small-scales-of-tokens-fp16", FN, 97, scales="tokens", scale_factor=2.0**-12, dtype=H),
    _stored(
        "fp8-large-scales-of-tokens-fp16", FN, 97, scales="tokens", scale_factor=2.0**17, out_dtype=FN,
        out_scale=2.0**14, dtype=H,
    ),
    _stored("fp8-scales-of-tokens-sinks", FN, 97, scales="tokens", scale_factor=0.25, sinks="near", dtype=H),
    _stored("fp8-fnuz", FNUZ, 98, scales="one", scale_factor=0.5),
    _stored("fp8-fnuz-scales-of-tokens", FNUZ, 98, scales="tokens", dtype=H),
    _stored("fp8-e5m2", E5M2, 98, scales="one", dtype=F),
    _stored("fp8-e5m2-scales-of-heads", E5M2, 98, scales="heads"),
    _stored("fp8-interleaved-page-24", FN, 97, style="interleaved", block_size=24, scales="tokens", head_size=40),
    _stored("fp8-window-softcap-sinks", FN, 97, scales="heads", sliding_window=17, softcap=15.0, sinks="near", dtype=H),
    _stored("fp8-new-kv", FN, 97, lens=((1, 40), (18, 18), (20, 45)), new_kv=True, scales="one", dtype=H),
    _stored("fp8-x-packed", FN, 97, layout=Layout.X_PACKED, scales="heads"),
    _stored("fp8-value-64-head-96", FN, 97, head_size=96, value_size=64, scales="heads"),
    _stored("fp8-scales-apart", FN, 97, scales="tokens", apart=True, style="hnd", dtype=F),
    _stored("fp8-alibi", FN, 97, scales="tokens", alibi="linear"),
    _stored("fp8-unaligned", FN, 97, scales="one", arrange=layouts.unaligned),
    _stored("fp8-huge-query", FN, 97, scales="heads", arrange=layouts.huge_query),
    _stored("fp8-tiny-query", E5M2, 98, scales="one", arrange=layouts.tiny_query, sinks="near"),
    _stored("fp8-holes-in-values", FN, 97, lens=((1, 45), (5, 20), (18, 90)), scales="one", fill=holes),
    _stored("int8-huge-query", INT8, scales="tokens", arrange=layouts.huge_query),
    _stored("int8", INT8, scales="tokens"),
    _stored("int8-fp16", INT8, scales="tokens", dtype=H),
    _stored("int8-fp32-interleaved", INT8, scales="tokens", style="interleaved", apart=True, dtype=F),
    _stored("int8-window-sinks", INT8, scales="tokens", lens=_LONG, heads=(2, 1), sliding_window=21, sinks="near"),
    _fp8_query("bf16-out", torch.bfloat16, FN),
    _fp8_query("fp16-out-scales", H, FN, scales="one", scale_factor=0.5),
    _fp8_query("fp32-out-scales-of-heads", F, FN, scales="heads", sinks="near"),
    _fp8_query("fnuz", torch.bfloat16, FNUZ, scales="one"),
    _fp8_query("to-fp8", torch.bfloat16, FN, scales="heads", out_dtype=FN, out_scale=0.02),
    _fp8_query("mixed-long", torch.bfloat16, FN, lens=_LONG, heads=(2, 1), scales="one", sliding_window=70),
    _fp8_query("tail-mass", torch.bfloat16, FN, lens=decodes(700, 90), heads=ONE_HEAD, fill=FILLS["tail-mass"]),
    named("fp8-out", out_dtype=FN, out_scale=0.0625),
    named("fp8-out-saturated", lens=decodes(1, 2, 3, 45), out_dtype=FN, out_scale=2.0**-9, dtype=H),
    named("fp8-out-fnuz", out_dtype=FNUZ, out_scale=0.03125, sinks="near", dtype=F),
    named("fp8-out-empty", lens=((3, 0), (1, 20), (0, 0)), out_dtype=FN, out_scale=0.0625, dtype=H),
    named("fp8-in-and-out", lens=prompts(17, 5), kv_dtype=FN, scales="heads", out_dtype=FN, out_scale=0.0625),
    named("fp8-out-many-keys", lens=((1, 700), (2, 300)), heads=ONE_HEAD, out_dtype=FN, out_scale=0.004),
)  # fmt: skip

FEATURE_CASES: tuple[Case, ...] = (*_BIASES, *_MASKS, *_SIZES, *_CACHES)
