"""The named corner cases: small batches at the edges where attention kernels break.

`numbers` place a case in the list of 100 corners that attention kernels are known to break at; `name` is the stable id
that third parties use. A case over 10 s in an interpreter is `large`: for a GPU only, `too_large` on a CPU.
"""

import torch

from common.cases import layouts
from common.cases.case import MIXED, ONE_HEAD, RAGGED, Case, build, config_for, decodes, named, outputs, prompts
from common.cases.fills import FILLS, SEEN, holes
from common.spec import Layout
from common.spec.paged_batch import FP8

__all__ = ["BY_NAME", "CASES", "Case", "build", "config_for", "outputs"]

# Bugs of published kernels, values that break kernels, and further corners. docs/cases.md numbers the corners.


H, F = torch.float16, torch.float32  # the others are bfloat16
_DTYPES = (torch.bfloat16, H, F)
_WINDOWED = {"sliding_window": 19, "lens": ((1, 60), (9, 50), (3, 30)), "pad_tokens": 2}


def _value_cases() -> tuple[Case, ...]:
    """One case for each fill, the dtypes in turn. Fills of unseen keys get a window, so that tiles hold such keys."""
    cases = []
    for turn, (name, fill) in enumerate(FILLS.items()):
        options = dict(_WINDOWED) if name.startswith("unseen") else {"lens": MIXED}
        if "softcap" in name:
            options["softcap"] = 30.0
        dtype = H if "fp16" in name else _DTYPES[turn % 3]
        cases.append(named(f"values-{name}", fill=fill, dtype=dtype, **options))
    return tuple(cases)


def _in_company() -> tuple[Case, ...]:
    """Batches whose sequences are also asked alone: within the precision, or bit for bit where batch_invariant."""
    short = tuple((1, 1 + 13 * n % 40) for n in range(32))
    of = {
        "decodes": {"lens": ((1, 700), *short), "dtype": H},
        "prompt": {"lens": (*short[:16], (33, 300), (4, 50), *short[16:]), "dtype": F},
        "shared-prefix": {"lens": ((1, 310), (3, 290), *decodes(200, 130, 101, 100, 120, 110, 90)), "shared_pages": 5},
    }  # fmt: skip
    every = (("company", False), ("invariant", True))
    return tuple(
        named(f"{word}-{name}", heads=(4, 1), company=True, batch_invariant=bits, **options)
        for word, bits in every
        for name, options in of.items()
    )


EDGES: tuple[Case, ...] = (
    # corners of numbers that other cases stand for in part
    named("page-2048", 43, block_size=2048, lens=((1, 2050), (2, 30)), heads=(2, 1), head_size=16, dtype=H),
    named("table-of-one-column", 67, 84, lens=((1, 16), (3, 9), (1, 1)), extra_columns=0),
    named(
        "table-tail-of-other-sequences", 71, lens=(*decodes(9, 33, 17), (4, 50)), arrange=layouts.stale_tail, dtype=H,
    ),
    named("query-offset-beyond-31-bits", 77, lens=((1, 20), (3, 30)), arrange=layouts.far_query, large=True),
    named("softcap-50", 90, softcap=50.0),
    named("softcap-15-logits-4400", 91, lens=MIXED, softcap=15.0, loud=3000.0, dtype=H),
    named("sinks-off-with-window", 94, lens=((1, 300), (9, 60)), heads=(2, 1), sinks="off", sliding_window=33),
    named("sinks-off-on-every-second-head", 94, lens=((1, 300), (3, 40)), sinks="some", dtype=F),
    named("sinks-of-60", lens=MIXED, sinks="heavy", dtype=H),
    # bugs of published kernels
    named("first-tile-masked-for-late-rows", 89, lens=((33, 90), (17, 130)), heads=(2, 1), sliding_window=5, dtype=F),
    named("empty-segments-beside-full-ones", 89, 20, lens=((1, 700), (1, 3), (2, 0), (1, 1)), heads=(2, 1)),
    named("empty-segments-with-sinks", 89, 93, lens=((1, 700), (1, 3), (1, 0)), heads=(2, 1), sinks="near", dtype=H),
    named("table-ends-at-a-whole-page", 72, lens=((1, 16), (2, 32), (1, 64)), extra_columns=0, dtype=F),
    named("page-larger-than-a-tile", 43, block_size=528, tile_size=16, lens=((1, 530), (17, 60)), head_size=16),
    named("window-to-both-sides-over-tiles", lens=((40, 90), (9, 130)), heads=(2, 1), causal=False, sliding_window=24),
    named("padded-lanes-beside-nan", 49, 79, head_size=40, lens=RAGGED, arrange=layouts.padded_query, pad_out=True),
    *_value_cases(),
    # a NaN or Inf that rows see
    *(named(name, lens=MIXED, fill=SEEN[name], dtype=dtype) for name, dtype in zip(SEEN, (*_DTYPES, F), strict=True)),
    *_in_company(),
)  # fmt: skip


# Corners of the kernels that serve, which the numbered cases below do not reach: tiles against pages, the step's new K
# and V, x-packed pages, short queries beside long ones, uneven work.


_FEW = {"heads": (2, 1)}
_CHUNKS = ((1, 40), (18, 18), (20, 45))


def _tiled(page: int, tile: int, dtype: torch.dtype, **options: object) -> Case:
    """Sequences that end a key before, at and after a page or a tile; a prompt over both."""
    lens = ((1, page + 1), (3, max(page, tile)), (2, page + tile - 1))
    return named(f"page-{page}-tile-{tile}", lens=lens, block_size=page, tile_size=tile, dtype=dtype, **_FEW | options)


def _new(name: str, lens: tuple[tuple[int, int], ...], **options: object) -> Case:
    return named(f"new-kv-{name}", lens=lens, new_kv=True, **options)


def _packed(name: str, **options: object) -> Case:
    return named(f"x-packed-{name}", layout=Layout.X_PACKED, **options)


FAMILY: tuple[Case, ...] = (
    # tiles smaller than a page, equal and larger; in pages of no power of two they straddle
    _tiled(16, 16, H),
    _tiled(16, 64, F),
    _tiled(24, 16, torch.bfloat16),
    _tiled(24, 64, H),
    _tiled(48, 16, F),
    _tiled(48, 64, torch.bfloat16, sliding_window=50),
    _tiled(64, 16, H),
    _tiled(64, 64, torch.bfloat16),
    _tiled(64, 128, F),
    _tiled(128, 32, torch.bfloat16, causal=False),
    _tiled(128, 128, H),
    _tiled(528, 16, F, head_size=16),
    _tiled(528, 32, torch.bfloat16, head_size=16),
    _tiled(544, 64, H, head_size=16),
    _tiled(784, 16, torch.bfloat16, head_size=16),
    _tiled(784, 128, H, head_size=16, sliding_window=300),
    # the new K and V beside the pages
    _new("prompts", prompts(17, 33, 32), dtype=F),
    _new("prompt-of-one-token", ((1, 1), (18, 18), (1, 1)), dtype=H),
    _new("prompt-of-130", ((130, 200),), heads=ONE_HEAD),
    _new("context-a-multiple", ((18, 50), (20, 84)), dtype=F),
    _new("context-not-a-multiple", ((18, 55), (20, 57)), **_FEW),
    _new("context-of-one-key", ((17, 18), (33, 48)), dtype=H),
    _new("page-24", ((20, 50), (17, 41), (18, 18)), block_size=24, dtype=F),
    _new("page-784", ((18, 790), (17, 17)), block_size=784, head_size=16, **_FEW),
    _new("decodes", decodes(3, 45, 17, 32), dtype=H),
    _new("speculative", ((4, 50), (4, 35), (5, 64))),
    _new("mixed", ((1, 40), (18, 18), (1, 17), (20, 45), (0, 0), (0, 9), (2, 2)), dtype=H),
    _new("query-15-16-17", ((15, 40), (16, 16), (17, 42), (16, 41), (17, 17)), dtype=F),
    _new("without-keys", ((3, 0), (18, 30), (20, 0), (17, 17))),
    _new("padded-tokens", (*prompts(18), (1, 9)), pad_tokens=13, dtype=F),
    _new("no-tokens", ((0, 17), (0, 32)), pad_tokens=4, dtype=H),
    _new("window-over-both", ((20, 60), (18, 18)), sliding_window=25),
    _new("window-hides-the-context", ((40, 60), (1, 30)), sliding_window=5, dtype=H),
    _new("non-causal", ((18, 40), (20, 20)), causal=False, dtype=F),
    _new("non-causal-window", ((18, 40), (20, 20)), causal=False, sliding_window=7, dtype=H),
    _new("sinks-and-softcap", _CHUNKS, sinks="near", softcap=15.0, dtype=F),
    _new("head-80-ratio-5", _CHUNKS, heads=(10, 2), head_size=80, style="interleaved"),
    _new("unaligned-cache", _CHUNKS, arrange=layouts.unaligned, dtype=H),
    _new("hints-too-small", _CHUNKS, arrange=layouts.small_hints),
    _new("hints-too-large", _CHUNKS, arrange=layouts.large_hints, dtype=F),
    # x-packed pages
    _packed("decodes", lens=decodes(3, 45, 17, 32), dtype=H),
    _packed("fp32", lens=MIXED, dtype=F),
    _packed("page-24-head-80", lens=RAGGED, block_size=24, head_size=80),
    _packed("new-kv", lens=_CHUNKS, new_kv=True, dtype=H),
    _packed("new-kv-window", lens=_CHUNKS, new_kv=True, sliding_window=21, dtype=F),
    _packed("ratio-5-sinks", lens=_CHUNKS, heads=(5, 1), sinks="near"),
    # the border between short and long queries
    named("query-15-16-17-over-context", lens=((15, 50), (1, 50), (16, 50), (17, 50))),
    named("query-16-alone", lens=((16, 16), (16, 40), (16, 61)), dtype=F),
    named("query-17-alone", lens=((17, 17), (17, 40)), dtype=H),
    named("query-15-with-empty", lens=((15, 15), (0, 0), (15, 0), (15, 33)), dtype=F),
    # nothing to do, and work that is hard to deal out
    named("no-tokens-but-padding", lens=((0, 17), (0, 32)), pad_tokens=4),
    named("no-sequences-but-padding", lens=(), pad_tokens=3, dtype=H),
    named("empty-at-both-ends", lens=((0, 0), (0, 20), (3, 30), (1, 0), (0, 0)), dtype=F),
    named("one-long-among-short", lens=(*decodes(1, 5, 2), (1, 700), *decodes(3, 1, 6, 4, 2)), heads=ONE_HEAD),
    named("prompt-among-decodes", lens=(*decodes(9, 33), (70, 70), *decodes(1, 17, 64)), heads=ONE_HEAD, dtype=H),
)


# What engines ask beyond plain causal rows: biases, masks, trees, sizes, quantised caches and outputs.


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


def _fewer(name: str, **options: object) -> Case:
    lens = ((20, 3), (5, 40), (33, 16), (4, 1), (2, 0))
    return named(f"fewer-keys-{name}", **{"lens": lens, "heads": (2, 1)} | options)


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
    named("tree-larger-than-the-query", lens=((3, 40), (1, 9), (0, 5)), tree=_TREE, apart=True, dtype=F,
          change="operands"),
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
    _spans("apart", (), ((60, 80), (84, 87)), ((0, 12),), apart=True, softcap=15.0, change="operands"),
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
    named("batch-invariant", lens=MIXED, batch_invariant=True, company=True),
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
    _stored("fp8-values-seen-nan", FN, lens=RAGGED, scales="one", fill=SEEN["values-seen-nan"]),
    _stored("fp8-e5m2-values-seen-inf", E5M2, lens=RAGGED, scales="heads", fill=SEEN["values-seen-inf"], dtype=H),
    _fp8_query("values-seen-nan", torch.bfloat16, FN, lens=RAGGED, scales="one", fill=SEEN["values-seen-nan"]),
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
    named("fp8-out-values-seen-nan", out_dtype=FN, out_scale=0.0625, fill=SEEN["values-seen-nan"]),
    named("fp8-out-many-keys", lens=((1, 700), (2, 300)), heads=ONE_HEAD, out_dtype=FN, out_scale=0.004),
)  # fmt: skip

_KEYLESS: tuple[Case, ...] = (
    # fewer keys than queries: the first queries lie before the first key
    _fewer("causal", dtype=H),
    _fewer("non-causal", causal=False),
    _fewer("to-both-sides", lens=((90, 60), (20, 3), (40, 7), (2, 0)), causal=False, sliding_window=24, dtype=F),
    _fewer("per-sequence-window", non_causal=(0, 2), sliding_window=7, sinks="near"),
    _fewer("tree", lens=((8, 3), (12, 30), (8, 8), (20, 5)), tree=_TREE, dtype=H),
    _fewer("new-kv", lens=((20, 3), (18, 18), (5, 2), (20, 45), (33, 16)), new_kv=True),
    # a row of a sink alone has its logit as LSE, of -inf among them
    _fewer("sinks-fp8-query", fp8_query=FN, scales="one", sinks="some"),
    named("sinks-without-keys", 93, 94, lens=((1, 0), (3, 0), (20, 0), (0, 0), (1, 30)), sinks="some", dtype=F),
)  # fmt: skip

FEATURE_CASES: tuple[Case, ...] = (*_BIASES, *_MASKS, *_SIZES, *_CACHES, *_KEYLESS)


_TWO = decodes(45, 20)

_NUMBERED: tuple[Case, ...] = (
    # query lengths
    named("query-0", 1, lens=((0, 20), (3, 20), (0, 5)), dtype=H),
    named("query-1", 2, lens=decodes(3, 20), dtype=F),
    named("query-2", 3, lens=((2, 2), (2, 19))),
    named("query-3", 4, lens=((3, 3), (3, 18)), dtype=H),
    named("query-15-16-17", 5, lens=((15, 20), (16, 16), (17, 40))),
    named("query-127", 6, lens=((127, 130),), heads=ONE_HEAD, block_size=64, dtype=H),
    named("query-128", 6, lens=((128, 128),), heads=ONE_HEAD, block_size=64),
    named("query-129", 6, lens=((129, 140),), heads=ONE_HEAD, block_size=64, dtype=F),
    named("chunk-1000", 7, lens=((1000, 3000), (1, 77)), heads=(8, 2), head_size=128, large=True),
    named("one-prompt-among-decodes", 8, lens=(*decodes(5, 33), (40, 40), *decodes(18)), heads=(2, 1), dtype=H),
    named("one-prompt-of-512-among-decodes", 8, lens=(*decodes(5, 33), (512, 512), *decodes(*[18] * 60)), large=True),
    named("speculative-2-to-9", 9, lens=((2, 30), (5, 41), (9, 33)), heads=(2, 1)),
    # context lengths
    named("context-0", 10, lens=prompts(5, 16, 20)),
    named("context-1", 11, lens=((4, 5), (1, 2), (17, 18)), dtype=H),
    named("context-page-minus-1", 12, lens=((4, 19), (1, 16)), dtype=F),
    named("context-page", 12, lens=((4, 20), (1, 17))),
    named("context-page-plus-1", 12, lens=((4, 21), (1, 18)), dtype=H),
    named("context-not-a-multiple", 13, lens=((7, 44), (3, 26))),
    # sequence lengths at boundaries
    named("sequence-at-page", 14, lens=decodes(15, 16, 17, 31, 32, 33), heads=(2, 1), dtype=H),
    named("sequence-at-tile", 15, lens=decodes(63, 64, 65, 127, 128, 129), heads=(2, 1)),
    named("sequence-at-segment", 16, lens=decodes(127, 128, 129, 255, 256, 257), heads=(1, 1), block_size=32, dtype=F),
    named("prompts-at-segment", 16, lens=((3, 128), (3, 129), (2, 511), (2, 513)), heads=ONE_HEAD, block_size=64),
    named("sequence-1", 17, lens=decodes(1, 1), dtype=H),
    named("sequence-65536", 18, lens=((1, 65536), (3, 65535), (1, 9)), heads=(8, 2), head_size=128, large=True),
    named("sequence-131075", 19, lens=((1, 131075), (2, 131072)), heads=(8, 1), head_size=128, dtype=H, large=True),
    # nothing
    named("one-empty-sequence", 20, lens=((1, 20), (0, 0), (4, 9), (1, 0))),
    named("all-sequences-empty", 21, lens=((1, 0), (3, 0), (0, 0)), dtype=H),
    named("cache-without-pages", 22, lens=((1, 0), (2, 0)), spare_pages=0, extra_columns=0, dtype=F),
    named("batch-0", 23, lens=()),
    named("batch-1", 24, lens=((6, 30),), dtype=F),
    named("no-tokens", 25, lens=((0, 17), (0, 0), (0, 32)), dtype=H),
    # many sequences
    named("batch-257", 26, lens=tuple((1, 1 + i % 9) for i in range(257)), heads=ONE_HEAD, head_size=16, dtype=H),
    named("batch-1024", 27, lens=tuple((1 + (i % 7 == 0) * 5, 9 + 37 * i % 700) for i in range(1024)), large=True),
    named("batch-4096", 28, lens=tuple((1, 1 + 53 * i % 300) for i in range(4096)), dtype=H, large=True),
    # mixtures and their order
    named("all-decode", 29, lens=decodes(3, 45, 17, 32), dtype=F),
    named("all-prefill", 30, lens=prompts(3, 18, 25), heads=(2, 1), dtype=H),
    named("decode-then-prefill", 31, lens=(*decodes(40, 17), *prompts(9, 18))),
    named("prefill-then-decode", 31, lens=(*prompts(9, 18), *decodes(40, 17)), dtype=H),
    named("prefill-and-decode-alternate", 31, lens=MIXED, dtype=F),
    named("one-long-255-short", 32, lens=((1, 32768), *decodes(*[1] * 255)), heads=(8, 2), head_size=128, large=True),
    # page sizes
    named("page-1", 33, block_size=1, refused="block_size"),
    named("page-8", 34, block_size=8),
    named("page-16", 35, block_size=16, dtype=H),
    named("page-24", 36, block_size=24),
    named("page-32", 37, block_size=32, dtype=F),
    named("page-48", 38, block_size=48, lens=((1, 100), (5, 50)), dtype=H),
    named("page-64", 39, block_size=64, lens=((1, 130), (5, 64))),
    named("page-128", 40, block_size=128, lens=((1, 130), (5, 128)), dtype=H),
    named("page-256", 41, block_size=256, lens=((1, 300), (2, 256)), heads=(2, 1)),
    named("page-544", 42, block_size=544, lens=((1, 600), (2, 545)), heads=(2, 1), head_size=16, dtype=H),
    named("page-784", 43, block_size=784, lens=((1, 800), (2, 785)), heads=(2, 1), head_size=16),
    # head sizes
    named("head-32", 44, lens=_TWO, head_size=32, dtype=F),
    named("head-40", 45, head_size=40),
    named("head-64", 46, lens=_TWO, head_size=64, dtype=H),
    named("head-80", 47, head_size=80),
    named("head-96", 48, lens=_TWO, head_size=96, dtype=H),
    named("head-112", 49, lens=_TWO, head_size=112, dtype=F),
    named("head-120", 50, lens=_TWO, head_size=120),
    named("head-128", 51, lens=_TWO, head_size=128),
    named("head-192", 52, lens=_TWO, head_size=192, dtype=H),
    named("head-256", 53, lens=_TWO, head_size=256),
    # query heads per KV head
    named("ratio-1", 56, heads=(2, 2), dtype=H),
    named("ratio-2", 57, heads=(4, 2)),
    named("ratio-3", 58, heads=(3, 1), dtype=F),
    named("ratio-4", 59, lens=MIXED, heads=(4, 1), dtype=H),
    named("ratio-5", 60, lens=MIXED, heads=(10, 2)),
    named("ratio-6", 61, lens=MIXED, heads=(6, 1), dtype=H),
    named("ratio-7", 62, lens=MIXED, heads=(7, 1)),
    named("ratio-8", 63, lens=MIXED, heads=(8, 1), dtype=F),
    named("ratio-12", 64, lens=MIXED, heads=(12, 1), dtype=H),
    named("ratio-16", 65, lens=MIXED, heads=(16, 1)),
    named("ratio-17", 66, lens=((1, 40), (3, 20)), heads=(17, 1), dtype=F),
    named("ratio-24", 66, lens=((1, 40), (3, 20)), heads=(24, 1), dtype=H),
    named("ratio-64", 66, lens=((1, 20), (2, 9)), heads=(64, 1)),
    named("kv-heads-3", 67, lens=((1, 40), (3, 20)), heads=(6, 3), dtype=H),
    named("kv-heads-5", 67, lens=((1, 40), (3, 20)), heads=(5, 5)),
    # pages and the block table
    named("pages-permuted", 68, lens=((1, 90), (5, 60)), block_size=8),
    named("pages-reversed", 69, lens=((1, 60), (5, 40)), block_size=8, dtype=H, arrange=layouts.reversed_pages),
    named("pages-shared", 70, lens=((1, 60), (5, 45), (2, 50), (34, 40), (1, 34)), shared_pages=2,
          arrange=layouts.own_first_page),
    named("page-twice-in-one-sequence", 70, lens=((1, 60), (5, 45)), dtype=F, arrange=layouts.page_twice),
    named("table-tail-garbage", 71, lens=(*decodes(9, 33, 17, 20), (4, 50)), heads=(2, 1), dtype=H),
    named("table-exactly-as-wide-as-used", 72, lens=((3, 20), (1, 64)), extra_columns=0),
    named("table-exactly-as-wide-partial-page", 72, lens=((1, 20), (2, 50)), extra_columns=0, dtype=H),
    named("table-columns-int32", 73, arrange=layouts.table_columns, dtype=F),
    named("table-columns-int64", 73, arrange=layouts.table_columns, table_dtype=torch.int64),
    named("table-rows-int32", 73, arrange=layouts.table_rows, dtype=H),
    named("table-rows-int64", 73, arrange=layouts.table_rows, table_dtype=torch.int64),
    named(
        "page-id-beyond-20-bits", 74, lens=_TWO, heads=(2, 1), head_size=8, block_size=8, arrange=layouts.far_pages,
        brief=True,
    ),
    named(
        "page-offset-beyond-31-bits-of-bytes", 75, lens=_TWO, heads=(16, 8), head_size=128, spare_pages=70000,
        arrange=layouts.last_pages, large=True,
    ),
    named(
        "page-offset-beyond-31-bits-of-elements", 76, lens=RAGGED, heads=(16, 8), head_size=128, spare_pages=140000,
        arrange=layouts.last_pages, large=True,
    ),
    # strides and layouts
    named("query-in-fused-qkv", 78, arrange=layouts.fused_query, new_kv=True),
    named("query-and-out-padded", 79, arrange=layouts.padded_query, pad_out=True, dtype=H),
    named("cache-stacked", 80, style="stacked"),
    named("cache-interleaved", 80, style="interleaved", dtype=H),
    named("cache-nhd", 81, style="nhd", dtype=F),
    named("cache-hnd", 82, style="hnd", dtype=H),
    named("cache-x-packed", 83, layout=Layout.X_PACKED),
    named("unaligned-and-odd-strides", 84, arrange=layouts.unaligned),
    named("key-and-value-of-other-strides", 84, key_style="heads", value_style="transposed", dtype=F),
    named("value-alone-between-garbage", 84, value_style="lanes", dtype=H),
    # windows
    named("window-1", 85, sliding_window=1),
    named("window-page-minus-1", 86, lens=((1, 60), (5, 40)), sliding_window=15, dtype=H),
    named("window-page", 86, lens=((1, 60), (5, 40)), sliding_window=16),
    named("window-page-plus-1", 86, lens=((1, 60), (5, 40)), sliding_window=17, dtype=F),
    named("window-beyond-the-sequence", 87, sliding_window=45),
    named("window-4096-of-5000", 88, lens=((1, 5000),), heads=ONE_HEAD, block_size=64, sliding_window=4096, dtype=H),
    named("window-leaves-leading-segments-empty", 89, lens=((1, 500), (3, 300)), heads=(2, 1), sliding_window=21),
    named("window-starts-inside-a-tile", 89, lens=((9, 90), (1, 75)), heads=(2, 1), sliding_window=40, dtype=H),
    # soft caps and sinks
    named("softcap-15", 90, softcap=15.0, dtype=H),
    named("softcap-50-logits-4400", 91, lens=MIXED, softcap=50.0, loud=3000.0),
    named("softcap-5000-logits-50000", 91, lens=MIXED, softcap=5000.0, loud=3000.0, softmax_scale=2.0),
    named("sinks-near-the-mass", 93, lens=((1, 300), (3, 40)), heads=(4, 1), sinks="near"),
    named("sinks-with-window", 93, lens=((1, 300), (9, 60)), heads=(4, 1), sinks="near", sliding_window=33, dtype=F),
    named("sinks-off", 94, sinks="off", dtype=H),
    # beside the numbered ones
    named("non-causal", causal=False, dtype=H),
    named("non-causal-with-window", lens=((5, 40), (9, 9)), causal=False, sliding_window=7),
    named("padded-tokens", pad_tokens=13),
    named("hints-too-small", lens=((3, 90), (20, 60)), heads=(2, 1), arrange=layouts.small_hints, dtype=H),
    named("hints-too-large", lens=MIXED, arrange=layouts.large_hints),
    named(
        "everything-at-once", lens=(*MIXED, (0, 0)), heads=(10, 2), head_size=40, block_size=24, sliding_window=19,
        softcap=20.0, sinks="near", style="interleaved", pad_tokens=3, dtype=H,
    ),
)  # fmt: skip

CASES: tuple[Case, ...] = (*_NUMBERED, *FAMILY, *EDGES, *FEATURE_CASES)
BY_NAME = {case.name: case for case in CASES}
