"""Named cases of the kernels that serve: tiles against pages, the step's new K and V, x-packed pages, short queries
beside long ones, work that is hard to deal out evenly.

The numbered cases of `common.cases.named` hold for these kernels too; these are the corners that the numbers do not
reach.
"""

from __future__ import annotations

import torch

from common.cases import layouts
from common.cases.case import MIXED, ONE_HEAD, RAGGED, Case, decodes, named, prompts
from common.spec import Layout

H, F = torch.float16, torch.float32  # the others are bfloat16
_FEW = {"heads": (2, 1)}
_CHUNKS = ((1, 40), (18, 18), (20, 45))


def _tiled(page: int, tile: int, dtype: torch.dtype, **options: object) -> Case:
    """Sequences that end one key before, at and behind an edge of a page and of a tile; a prompt over both."""
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
