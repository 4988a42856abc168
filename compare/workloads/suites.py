"""The named suites: which rows a run measures."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable
from dataclasses import replace

import torch

from common.spec import AttentionShape
from compare.workloads import feature_suite, figure_suites, tuning_rows
from compare.workloads.workload import LLAMA_3_8B, Ask, Workload, parse_lens, vary

_KB = 1024


class UnknownSuite(ValueError):
    """A suite name outside the table; the message holds the nearest names."""

    def __init__(self, found: str) -> None:
        near = difflib.get_close_matches(found, SUITES, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        super().__init__(f"suite: found {found!r}, allowed {', '.join(SUITES)}{hint}")


class UnknownWorkload(ValueError):
    """A pattern that selects no row; the message holds the nearest labels."""

    def __init__(self, found: str, labels: list[str]) -> None:
        near = difflib.get_close_matches(found, labels, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        super().__init__(f"workload: found {found!r}, allowed globs of {', '.join(labels)}{hint}")


def smoke(seed: int = 0) -> tuple[Workload, ...]:
    """Eight cells small enough for an interpreter on two cores, which together meet every dtype."""
    half, brain, full = torch.float16, torch.bfloat16, torch.float32

    def shape(dtype: torch.dtype, heads: int = 4, kv_heads: int = 2, head: int = 64, page: int = 16) -> AttentionShape:
        return AttentionShape(heads, kv_heads, head, page, dtype)

    decode = ((1, 33), (1, 1), (1, 70), (1, 48), (1, 64))
    rows = (
        Workload("ragged-decode", decode, shape(brain), shared_pages=1),
        Workload("prefill-33", ((33, 33),), shape(half)),
        Workload("chunk-17-over-40", ((17, 57),), shape(brain), style="interleaved"),
        Workload("mixed-with-empty", ((1, 40), (0, 0), (9, 9), (5, 30)), shape(half)),
        Workload("speculative-4", ((4, 50), (4, 35), (4, 64)), shape(brain)),
        Workload("ratio-5-head-80-page-24", ((3, 50), (1, 30)), shape(full, 5, 1, 80, 24)),
        Workload("window-17", ((1, 60), (12, 40)), shape(half), Ask(sliding_window=17)),
        Workload("non-causal", ((9, 30), (6, 6)), shape(full), Ask(causal=False)),
    )
    return tuple(_seeded(rows, seed))


def static(seed: int = 0) -> tuple[Workload, ...]:
    """What is run beside smoke for a GPU that is absent: a decode and a prompt at the head sizes that smoke lacks."""
    rows = []
    for head in (128, 256):
        shape = AttentionShape(4, 1, head, 16, torch.bfloat16)
        rows.append(Workload(f"decode-head-{head}", ((1, 70), (1, 33)), shape))
        rows.append(Workload(f"prefill-head-{head}", ((20, 20),), shape))
    return tuple(_seeded(rows, seed))


def _short(n: int) -> str:
    return f"{n // _KB}k" if n % _KB == 0 else str(n)


def _decode_row(batch: int, longest: int) -> Workload:
    text = f"q1s{_short(longest)}" if batch == 1 else f"{batch}q1s{_short(longest)}~"
    return Workload(text, parse_lens(text))


def peers(seed: int = 0) -> tuple[Workload, ...]:
    """The rows by which other kernels are known: Llama-3-8B's shape, bf16, pages of 16."""
    decode = [_decode_row(b, n) for n in (512, 2048, 8192) for b in (1, 8, 32, 128)]
    decode += [_decode_row(b, 32768) for b in (1, 8, 32)] + [_decode_row(1, 131072)]
    verify = Workload("32q4s4k", parse_lens("32q4s4k"))  # equal lengths: its published floor is 32 x 4096 keys
    prompts = [Workload(f"q{_short(n)}", ((n, n),)) for n in (512, 2048, 8192)]
    prompts.append(Workload("8q1k~", tuple((n, n) for n in vary(8, 1024, 77))))
    prompts.append(Workload("q32k", ((32768, 32768),)))
    mixed = Workload("16q1s2k_16q512s1536", parse_lens("16q1s2k_16q512s1536"))
    return tuple(_seeded([*decode, verify, *prompts, mixed], seed))


_EXTEND = ("q128s8k", "q512s8k", "q512s32k", "q2ks32k", "8q256s4k")
_MIXED = (
    "16q1s2k_16q512s1536", "64q1s2k_2q2ks2k", "255q1s1k_1q2ks8k", "128q1s4k_1q512s16k", "32q1s8k_8q256s4k",
    "240q1s512_4q2ks2k",
)  # fmt: skip
_VERIFY = ("q4s8k", "8q8s4k", "32q4s4k", "128q3s1k")
_DECODE = ("256q1s1k", "1024q1s512")
_ONE_A_CLASS = ("64q1s4k", "16q4s4k", "4q512s2k", "48q1s3k_2q1ks4k")
_HEADS = (  # beside Llama-3-8B: what the row is called, its heads, what it asks
    ("8:1:128", (8, 1, 128), Ask()),
    ("16:1:128", (16, 1, 128), Ask()),
    ("28:4:128", (28, 4, 128), Ask()),
    ("64:8:64+window128+sinks", (64, 8, 64), Ask(sliding_window=128, sinks=True)),
    ("16:8:256", (16, 8, 256), Ask()),
)


def _serving_row(number: int, text: str, shape: AttentionShape, ask: Ask, name: str) -> Workload:
    """Row `number` from 0. A group of several sequences with a context varies in [0.5, 1] of the length it names."""
    lens: list[tuple[int, int]] = []
    words = []
    for part in text.split("_"):
        group = parse_lens(part)
        query_len, seq_len = group[0]
        varied = len(group) > 1 and seq_len > query_len
        lengths = vary(len(group), seq_len, 2000 + number) if varied else [s for _, s in group]
        lens += [(query_len, max(length, query_len)) for length in lengths]
        words.append(part + "~" * varied)
    label = "_".join(words) + (f"@{name}" if name else "")
    return Workload(label, tuple(lens), shape, ask)


def serving(seed: int = 0) -> tuple[Workload, ...]:
    """What an engine sends: prompts over contexts, mixtures, verification of drafts, wide decodes; and one row of each
    class under other heads and pages. Rows over fp8 caches are in `features`.
    """
    plain = [(text, LLAMA_3_8B, Ask(), "") for text in (*_EXTEND, *_MIXED, *_VERIFY, *_DECODE)]
    variants = [(name, AttentionShape(*heads), ask) for name, heads, ask in _HEADS]
    variants += [(f"page{page}", replace(LLAMA_3_8B, block_size=page), Ask()) for page in (64, 128)]
    others = [(text, shape, ask, name) for name, shape, ask in variants for text in _ONE_A_CLASS]
    rows = [_serving_row(number, *row) for number, row in enumerate([*plain, *others])]
    return tuple(_seeded(rows, seed))


def tuning(seed: int = 0) -> tuple[Workload, ...]:
    """The rows that trees are fitted to; no other suite has one of them (`compare.workloads.tuning_rows`)."""
    return tuple(_seeded(tuning_rows.draw(), seed))


def ablations(seed: int = 0) -> tuple[Workload, ...]:
    """Rows of `peers` by which the ablations are judged; without --kernels, on them and the rungs that they vary."""
    return pick(peers(seed), "q1s32k,8q1s2k~,128q1s2k~,q2k,16q1s2k_16q512s1536")


def _seeded(rows: list[Workload] | tuple[Workload, ...], seed: int) -> list[Workload]:
    """Values by run seed and row; the lengths do not move with it."""
    return [replace(row, seed=seed * 1000 + number) for number, row in enumerate(rows)]


SUITES: dict[str, Callable[[int], tuple[Workload, ...]]] = {
    "smoke": smoke,
    "static": static,
    "peers": peers,
    "serving": serving,
    "tuning": tuning,
    "ablations": ablations,
    "fig6": lambda seed: tuple(_seeded(figure_suites.fig6(), seed)),
    "fig7": lambda seed: tuple(_seeded(figure_suites.fig7(), seed)),
    "fig8": lambda seed: tuple(_seeded(figure_suites.fig8(), seed)),
    "fig9": lambda seed: tuple(_seeded(figure_suites.fig9(), seed)),
    "features": lambda seed: tuple(_seeded(feature_suite.rows(), seed)),
}


def suite(name: str, seed: int = 0) -> tuple[Workload, ...]:
    """The rows of a suite. Raises UnknownSuite."""
    if name not in SUITES:
        raise UnknownSuite(name)
    return SUITES[name](seed)


def pick(rows: tuple[Workload, ...], patterns: str | None) -> tuple[Workload, ...]:
    """The rows whose label matches one of the comma-separated globs; all for None. Raises UnknownWorkload where one
    matches none."""
    if patterns is None:
        return rows
    labels = [row.label for row in rows]
    chosen: set[str] = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = fnmatch.filter(labels, pattern)
        if not found:
            raise UnknownWorkload(pattern, labels)
        chosen.update(found)
    return tuple(row for row in rows if row.label in chosen)
