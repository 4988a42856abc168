"""The suites of the paper's Figures 6 to 9: their rows, and the kernels that each figure compares.

Llama-3-8B's shape in bf16 (paper 7.1). Sequences of a batch have different lengths: the shares of the longest that the
paper's benchmark repeats, 1, 0.2, 0.1, 0.4, 0.5, the longest first so that every batch has one. Decodes come before
prompts, as engines order them; the prompts of a batch have no context.
"""

from __future__ import annotations

import math
from dataclasses import replace

from compare.workloads.workload import LLAMA_3_8B, Workload

PATTERN = (1.0, 0.2, 0.1, 0.4, 0.5)
LENGTHS, BATCHES, SHARES = (256, 1024, 4096), (1, 8, 32), (0, 50, 100)  # 6: tokens, sequences, percent of decodes
PAGES, SIZE = (16, 64, 544), (16, 4096)  # 7: 544 is what a hybrid model aligns its pages to; a page is no tile there
PROMPTS, PROMPT_BATCHES = (128, 512, 1024, 2048, 4096, 8192), (1, 4)  # 8: Listing 2 changes at 4096 tokens on average
PROMPT, OUTPUTS = 500, (10, 100, 400, 800, 1600, 3200, 6400, 12800)  # 9: tokens, as in the end-to-end runs

_DSLS, _FA3 = ("triton", "helion"), ("baseline/flash_attn3",)


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{dsl}/{name}" for dsl in _DSLS for name in names)


KERNELS = {
    "fig6": (*_both("naive", "q_block", "parallel_softmax"), *_FA3),
    "fig7": (*_both("q_block@page", "parallel_softmax@page", "adjustable_tile"), *_FA3),
    "fig8": (*_both("q_block@fixed", "q_block@paper", "q_block@tree", "auto@tree"), *_FA3),
    "fig9": (*_both("naive", "q_block", "parallel_softmax", "static_grid"), *_FA3),
}


def varied(count: int, longest: int) -> list[int]:
    """The lengths of `count` sequences, at least 1."""
    return [max(math.ceil(longest * PATTERN[i % len(PATTERN)]), 1) for i in range(count)]


def batch(count: int, longest: int, share: int) -> Workload:
    """`share` percent of `count` sequences decode; either part has the pattern of its own."""
    decodes = math.ceil(count * share / 100)
    lens = [(1, n) for n in varied(decodes, longest)] + [(n, n) for n in varied(count - decodes, longest)]
    return Workload(f"{count}x{longest}-{share}%decode", tuple(lens))


def fig6() -> list[Workload]:
    """The optimisation steps by sequence length and by decode share; one sequence is no half."""
    grid = [(n, s, c) for n in LENGTHS for s in SHARES for c in BATCHES if not (s == 50 and c == 1)]
    return [batch(count, longest, share) for longest, share, count in grid]


def fig7() -> list[Workload]:
    """Tiles of a page against tiles of their own, by page and decode share."""
    rows = [(page, batch(*SIZE, share)) for page in PAGES for share in SHARES]
    return [replace(r, label=f"{r.label}@page{p}", shape=replace(LLAMA_3_8B, block_size=p)) for p, r in rows]


def fig8() -> list[Workload]:
    """Prompts alone, by length: what a tuned choice changes."""
    return [batch(count, longest, 0) for count in PROMPT_BATCHES for longest in PROMPTS]


def fig9() -> list[Workload]:
    """The last decode of a request of 500 prompt tokens and a growing output, at batch 1."""
    return [Workload(f"q1s{PROMPT + tokens}", ((1, PROMPT + tokens),)) for tokens in OUTPUTS]
