"""The named suites: which rows a run measures."""

import fnmatch
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from common.cases.ask import ENCODERS
from common.spec import AttentionShape
from compare.exits import nearest
from compare.workloads.cost import cost
from compare.workloads.workload import LLAMA_3_8B, SPECULATIVE_MAX, Ask, GrammarError, Workload, parse_lens, vary

# The suite `features`: three plain rows, and each of them again under one feature at a time.


FEATURE_KERNELS = tuple(
    f"{dsl}/{name}" for dsl in ("triton", "helion") for name in ("q_block", "parallel_softmax", "auto")
)
PLAIN = {"decode": "32q1s4k~", "verification": "32q8s4k", "prompts": "4q2k"}  # a figure's name: the row's label
MARK = "+"  # between a plain row's label and a feature's name
_FP8, _INT8 = torch.float8_e4m3fn, torch.int8

# name: what is asked, and what differs in the shape
_LOGITS = {
    "softcap": (Ask(softcap=30.0), {}), "sinks": (Ask(sinks="drawn"), {}), "alibi": (Ask(alibi="linear"), {}),
    "alibi-sqrt": (Ask(alibi="sqrt"), {}),
}  # fmt: skip
_MASKS = {
    **{f"window-{size}": (Ask(sliding_window=size), {}) for size in (256, 1024, 2048)},
    "chunk-1024": (Ask(chunk=1024), {}), "encoders": (Ask(non_causal=ENCODERS), {}), "cross": (Ask(cross=True), {}),
}  # fmt: skip
_STORED = {
    "fp8-kv": (Ask(scales="one"), {"kv_dtype": _FP8}), "fp8-kv-heads": (Ask(scales="heads"), {"kv_dtype": _FP8}),
    "fp8-kv-tokens": (Ask(scales="tokens"), {"kv_dtype": _FP8}),
    "int8-kv-tokens": (Ask(scales="tokens"), {"kv_dtype": _INT8}),
    "fp8-query": (Ask(scales="one"), {"dtype": _FP8}), "fp8-out": (Ask(out_dtype=_FP8), {}),
    "value-64": (Ask(), {"value_size": 64}), "batch-invariant": (Ask(batch_invariant=True), {}),
}  # fmt: skip
ASKED = {
    "decode": _LOGITS | _MASKS | _STORED,
    "verification": {"tree-8": (Ask(tree=8), {}), "fp8-kv": _STORED["fp8-kv"]},
    "prompts": _LOGITS | _MASKS | {"spans-576": (Ask(spans=576), {})} | _STORED,  # 576 tokens: an image of 24 x 24
}


def rows() -> list[Workload]:
    """Each plain row, then the row with each feature."""
    made = []
    for name, label in PLAIN.items():
        plain = Workload(label, parse_lens(label))
        made.append(plain)
        for feature, (ask, sizes) in ASKED[name].items():
            shape = replace(LLAMA_3_8B, **sizes)
            made.append(replace(plain, label=f"{label}{MARK}{feature}", shape=shape, ask=ask))
    return made


def wide(seed: int = 0) -> tuple[Workload, ...]:
    """What few kernels of others take on Hopper: heads of 512 lanes, as Gemma 4's global layers have them, and caches
    and queries of 8 bits, each beside the row of 16 bits that it is compared with."""
    gemma, other = replace(LLAMA_3_8B, num_kv_heads=4, head_size=512), AttentionShape(16, 8, 512)
    rows = [(text, gemma, Ask(), "@32:4:512") for text in ("32q1s4k~", "4q2k", "16q1s2k~_4q512s1536")]
    rows += [(text, other, Ask(), "@16:8:512") for text in ("32q1s4k~", "2q1ks8k")]
    for text in ("32q1s4k~", "32q4s4k", "4q2k", "q8k"):
        rows.append((text, LLAMA_3_8B, Ask(), ""))
        for name in ("fp8-kv", "fp8-query"):
            ask, sizes = _STORED[name]
            rows.append((text, replace(LLAMA_3_8B, **sizes), ask, MARK + name))
    return _seeded((Workload(text + name, parse_lens(text), shape, ask) for text, shape, ask, name in rows), seed)


# The suites of the paper's Figures 6 to 9: their rows, and the kernels that each figure compares.
#
# Llama-3-8B's shape in bf16 (paper 7.1). Sequences of a batch have different lengths: the shares of the longest that
# the paper's benchmark repeats, 1, 0.2, 0.1, 0.4, 0.5, the longest first so that every batch has one. Decodes come
# before prompts, as engines order them; the prompts of a batch have no context.


PATTERN = (1.0, 0.2, 0.1, 0.4, 0.5)
LENGTHS, BATCHES, SHARES = (256, 1024, 4096), (1, 8, 32), (0, 50, 100)  # 6: tokens, sequences, percent of decodes
PAGES, SIZE = (16, 64, 544), (16, 4096)  # 7: 544, to which hybrid models align pages, is no tile
PROMPTS, PROMPT_BATCHES = (128, 512, 1024, 2048, 4096, 8192), (1, 4)  # 8: Listing 2 changes at 4096 tokens on average
PROMPT, OUTPUTS = 500, (10, 100, 400, 800, 1600, 3200, 6400, 12800)  # 9: tokens, as in the end-to-end runs

_DSLS, _FA3 = ("triton", "helion"), ("baseline/flash_attn3",)


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{dsl}/{name}" for dsl in _DSLS for name in names)


FIGURE_KERNELS = {
    "fig6": (*_both("naive", "q_block", "parallel_softmax"), *_FA3),
    "fig7": (*_both("q_block@page", "parallel_softmax@page", "adjustable_tile"), *_FA3),
    "fig8": (*_both("q_block@fixed", "q_block@paper", "q_block@tree", "auto@tree"), *_FA3),
    "fig9": (*_both("naive", "q_block", "parallel_softmax", "static_grid"), *_FA3),
}


def varied(count: int, longest: int) -> list[int]:
    """The lengths of `count` sequences, at least 1 each."""
    return [max(math.ceil(longest * PATTERN[i % len(PATTERN)]), 1) for i in range(count)]


def batch(count: int, longest: int, share: int) -> Workload:
    """`share` percent of `count` sequences decode; each part repeats the pattern of lengths."""
    decodes = math.ceil(count * share / 100)
    lens = [(1, n) for n in varied(decodes, longest)] + [(n, n) for n in varied(count - decodes, longest)]
    return Workload(f"{count}x{longest}-{share}%decode", tuple(lens))


def fig6() -> list[Workload]:
    """The optimisation steps by sequence length and by decode share; one sequence has no half."""
    grid = [(n, s, c) for n in LENGTHS for s in SHARES for c in BATCHES if not (s == 50 and c == 1)]
    return [batch(count, longest, share) for longest, share, count in grid]


def fig7() -> list[Workload]:
    """Tiles of a page against tiles of another size, by page and decode share."""
    rows = [(page, batch(*SIZE, share)) for page in PAGES for share in SHARES]
    return [replace(r, label=f"{r.label}@page{p}", shape=replace(LLAMA_3_8B, block_size=p)) for p, r in rows]


def fig8() -> list[Workload]:
    """Prompts only, by length: what a tuned choice changes."""
    return [batch(count, longest, 0) for count in PROMPT_BATCHES for longest in PROMPTS]


def fig9() -> list[Workload]:
    """The last decode of a request of 500 prompt tokens and a growing output, at batch 1."""
    return [Workload(f"q1s{PROMPT + tokens}", ((1, PROMPT + tokens),)) for tokens in OUTPUTS]


# The rows that trees are fitted to: a log-uniform draw of batch sizes, query and context lengths and decode shares.
#
# Drawn once, with a seed of their own, and bounded, so that any GPU of the table holds a row and a slow kernel still
# ends soon. The suites by which kernels are judged have other lengths.


ROWS, SEED = 48, 20_000
MAX_SEQS, MAX_QUERY, MAX_CONTEXT = 512, 16 * 1024, 128 * 1024
TILE = 128  # keys: contexts are log-uniform behind it, for below a tile their length changes nothing
# A row needs at most 3 ms of an H200 at what it was measured to reach: 4,570 GB/s of K and V, 793 TFLOP/s of products.
# A kernel at a seventh of both ends in 21 ms. K and V then take less than 14 GB, query and out less than 1.1 GB.
MAX_MS, GBPS, TFLOPS, MAX_TOKENS = 3.0, 4570, 793, 32 * 1024

_Asked = tuple[AttentionShape, Ask]
_KINDS = ("decode", "prefill", "mixed", "speculative")
_OTHERS = (  # shapes of every third round of the classes
    (AttentionShape(64, 8, 128, 32), Ask()),
    (AttentionShape(28, 4, 128, 16), Ask()),
    (AttentionShape(16, 1, 128, 64), Ask()),
    (AttentionShape(64, 8, 64, 16), Ask(sliding_window=1024, sinks="drawn")),
)


def _log_uniform(generator: torch.Generator, low: float, high: float) -> int:
    """An integer of low .. high whose logarithm is uniform."""
    share = float(torch.rand((), generator=generator, dtype=torch.float64))
    return min(int(high), max(int(low), round(math.exp(math.log(low) + share * math.log(high / low)))))


def _context(generator: torch.Generator) -> int:
    """0 .. MAX_CONTEXT."""
    return _log_uniform(generator, TILE, MAX_CONTEXT + TILE) - TILE


def lengths(generator: torch.Generator, count: int, query: int, context: int) -> list[tuple[int, int]]:
    """`count` sequences of `query` new tokens; contexts uniform in [0.5, 1] of `context`, which the first has."""
    shares = torch.rand(count, generator=generator, dtype=torch.float64) * 0.5 + 0.5
    contexts = [context, *shares.mul(context).long().tolist()[1:]]
    return [(query, query + held) for held in contexts]


def _lens(generator: torch.Generator, kind: str) -> list[tuple[int, int]]:
    """One draw of a class; decodes come first, as engines order them."""
    count = _log_uniform(generator, 1 if kind != "mixed" else 2, MAX_SEQS)
    context = _context(generator)
    if kind == "decode":
        return lengths(generator, count, 1, context)
    if kind == "speculative":
        return lengths(generator, count, _log_uniform(generator, 2, SPECULATIVE_MAX), context)
    query = _log_uniform(generator, SPECULATIVE_MAX + 1, MAX_QUERY)
    whole = float(torch.rand((), generator=generator)) < 0.5  # half of the prompts have no context
    held = 0 if whole else _context(generator)
    if kind == "prefill":
        return lengths(generator, count, query, held)
    share = float(torch.rand((), generator=generator))
    decodes = min(max(round(share * count), 1), count - 1)
    return [*lengths(generator, decodes, 1, context), *lengths(generator, count - decodes, query, held)]


def least_ms(row: Workload) -> float:
    """Milliseconds that the row needs of an H200 at its measured rates; a kernel takes two to seven times as long."""
    needed = cost(row)
    return max(needed.kv_bytes / GBPS, needed.flops / TFLOPS / 1e3) / 1e6


def fits(row: Workload) -> bool:
    """Whether the row is within the bounds above."""
    return least_ms(row) <= MAX_MS and row.stats.num_tokens <= MAX_TOKENS


def _label(number: int, row: Workload) -> str:
    stats = row.stats
    return f"t{number:02}-{row.kind}-{stats.num_seqs}x{stats.max_query_len}of{stats.max_seq_len}"


def _drawn(generator: torch.Generator, count: int, asked: Callable[[int], _Asked]) -> list[Workload]:
    """`count` rows: the classes take turns, so that any leading part has all of them; rows out of bounds are
    redrawn. asked: the shape and the features of a row, by its number."""
    rows: list[Workload] = []
    while len(rows) < count:
        number = len(rows)
        row = Workload("", tuple(_lens(generator, _KINDS[number % len(_KINDS)])), *asked(number))
        if fits(row):
            rows.append(replace(row, label=_label(number, row)))
    return rows


def _tuned(number: int) -> _Asked:
    turn = number // len(_KINDS)
    return _OTHERS[turn // 3 % len(_OTHERS)] if turn % 3 == 2 else (LLAMA_3_8B, Ask())


def draw() -> list[Workload]:
    """The rows of `tuning`."""
    return _drawn(torch.Generator().manual_seed(SEED), ROWS, _tuned)


# Rows that nobody fits to: shapes and batches drawn by the run's seed, so that a new seed is a new test.
# What is fitted, tuned or written by hand may look at no row of it; the times of a seed that was looked at say what was
# learnt, not what carries over. `compare study regret` measures what the committed choice loses there.


UNSEEN_ROWS, UNSEEN_SHAPES = 100, 12
_RATIOS, _KV_HEADS, _QUERY_HEADS = (1, 2, 4, 4, 5, 6, 7, 8, 8, 16), (1, 2, 4, 8, 8, 16, 32), range(8, 129)
_HEAD_SIZES, _PAGES = (64, 80, 96, 128, 128, 128, 128, 256), (16, 16, 16, 32, 64, 128)
_WINDOWS = (None, None, None, None, None, 512, 1024, 4096)
_DTYPES = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16)
_CACHES = (None, None, None, None, None, _FP8)


def _one_of(generator: torch.Generator, values: tuple | range):
    return values[int(torch.randint(len(values), (), generator=generator))]


def _unseen_shape(generator: torch.Generator) -> _Asked:
    """8 to 128 query heads, 1 to 16 of them a KV head; heads of 64 to 256, pages of 16 to 128."""
    heads = 0
    while heads not in _QUERY_HEADS:
        ratio, kv_heads = _one_of(generator, _RATIOS), _one_of(generator, _KV_HEADS)
        heads = ratio * kv_heads
    sizes = _one_of(generator, _HEAD_SIZES), _one_of(generator, _PAGES), _one_of(generator, _DTYPES)
    window, cache = _one_of(generator, _WINDOWS), _one_of(generator, _CACHES)
    ask = Ask(sliding_window=window, scales="one") if cache else Ask(sliding_window=window)
    return AttentionShape(heads, kv_heads, *sizes, None, cache), ask


def unseen(seed: int = 0, count: int = UNSEEN_ROWS) -> tuple[Workload, ...]:
    """`count` rows over 12 shapes, both drawn by `seed`; classes and shapes take turns.

    Lengths are drawn and bounded as those of `tuning`.
    """
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1))
    shapes: dict[_Asked, None] = {}
    while len(shapes) < UNSEEN_SHAPES:
        shapes[_unseen_shape(generator)] = None
    # one shape on in each round of the classes, for there are as many classes as divide the shapes
    rows = _drawn(generator, count, lambda n: list(shapes)[(n + n // UNSEEN_SHAPES) % UNSEEN_SHAPES])
    heads = (f"{s.num_query_heads}:{s.num_kv_heads}:{s.head_size}" for s in (row.shape for row in rows))
    return _seeded([replace(row, label=f"u{row.label[1:]}@{of}") for row, of in zip(rows, heads, strict=True)], seed)


_KB = 1024


def smoke(seed: int = 0) -> tuple[Workload, ...]:
    """Eight cells small enough for an interpreter on two cores, which together have every dtype."""
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
    return _seeded(rows, seed)


def static(seed: int = 0) -> tuple[Workload, ...]:
    """The rows for an absent GPU beside smoke: a decode and a prompt at the head sizes that smoke lacks."""
    rows = []
    for head in (128, 256):
        shape = AttentionShape(4, 1, head, 16, torch.bfloat16)
        rows.append(Workload(f"decode-head-{head}", ((1, 70), (1, 33)), shape))
        rows.append(Workload(f"prefill-head-{head}", ((20, 20),), shape))
    return _seeded(rows, seed)


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
    return _seeded([*decode, verify, *prompts, mixed], seed)


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
    ("64:8:64+window128+sinks", (64, 8, 64), Ask(sliding_window=128, sinks="drawn")),
    ("16:8:256", (16, 8, 256), Ask()),
)


def _serving_row(number: int, text: str, shape: AttentionShape, ask: Ask, name: str) -> Workload:
    """Row `number`, from 0. A group of several sequences with a context varies in [0.5, 1] of the length it names."""
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
    """What an engine sends: prompts over contexts, mixtures, verification of drafts, large decodes; and one row of each
    class with other heads and pages. Rows over fp8 caches are in `features`."""
    plain = [(text, LLAMA_3_8B, Ask(), "") for text in (*_EXTEND, *_MIXED, *_VERIFY, *_DECODE)]
    variants = [(name, AttentionShape(*heads), ask) for name, heads, ask in _HEADS]
    variants += [(f"page{page}", replace(LLAMA_3_8B, block_size=page), Ask()) for page in (64, 128)]
    others = [(text, shape, ask, name) for name, shape, ask in variants for text in _ONE_A_CLASS]
    rows = [_serving_row(number, *row) for number, row in enumerate([*plain, *others])]
    return _seeded(rows, seed)


def _seeded(rows: Iterable[Workload], seed: int) -> tuple[Workload, ...]:
    """The rows with values seeded by run and row; the lengths do not depend on the seed."""
    return tuple(replace(row, seed=seed * 1000 + number) for number, row in enumerate(rows))


SUITES: dict[str, Callable[[int], tuple[Workload, ...]]] = {
    "smoke": smoke,
    "static": static,
    "peers": peers,
    "serving": serving,
    "tuning": lambda seed: _seeded(draw(), seed),  # what choices are fitted to; no other suite shares a row
    "unseen": unseen,
    "fig6": lambda seed: _seeded(fig6(), seed),
    "fig7": lambda seed: _seeded(fig7(), seed),
    "fig8": lambda seed: _seeded(fig8(), seed),
    "fig9": lambda seed: _seeded(fig9(), seed),
    "features": lambda seed: _seeded(rows(), seed),
    "wide": wide,
}


def suite(name: str, seed: int = 0) -> tuple[Workload, ...]:
    """The rows of a suite. Raises GrammarError with the nearest names."""
    if name not in SUITES:
        raise GrammarError(f"suite: found {name!r}, allowed {', '.join(SUITES)}{nearest(name, SUITES)}")
    return SUITES[name](seed)


def named(label: str, seed: int) -> Workload | None:
    """The row of that name in the first suite that has it; None where none has."""
    return next((row for make in SUITES.values() for row in make(seed) if row.label == label), None)


def pick(rows: tuple[Workload, ...], patterns: str | None) -> tuple[Workload, ...]:
    """The rows whose label matches one of the comma-separated globs; all for None. Raises GrammarError where one
    matches none, with the nearest."""
    if patterns is None:
        return rows
    labels = [row.label for row in rows]
    chosen: set[str] = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = fnmatch.filter(labels, pattern)
        if not found:
            allowed = f"globs of {', '.join(labels)}{nearest(pattern, labels)}"
            raise GrammarError(f"workload: found {pattern!r}, allowed {allowed}")
        chosen.update(found)
    return tuple(row for row in rows if row.label in chosen)
