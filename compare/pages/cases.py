"""docs/cases.md: the 100 corners at which attention kernels are known to break, and the named cases for each.

`python -m compare pages features --write` writes it; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from common.cases.axes import AXES, MASKS
from common.cases.by_axes import num_smoke
from common.cases.fills import FILLS
from common.cases.named import CASES, Case
from common.cases.random_cases import num_feature_pairs, num_pairs, num_triples
from common.mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cases.md"
CORNERS: tuple[str, ...] = (
    "query length 0", "query length 1", "query length 2", "query length 3", "query lengths 15, 16, 17",
    "query lengths 127, 128, 129", "a chunk of 1,000 tokens", "all of one token but one prompt of 512",
    "query lengths 2 to 9, speculative", "context 0", "context 1", "context around a page",
    "context no multiple of a page", "sequence ends at a page", "sequence ends at a tile",
    "sequence ends at a segment", "sequence of 1 key", "sequence of 65,536 keys", "sequence of 131,072 keys and more",
    "one empty sequence in a batch", "all sequences empty", "a cache without pages", "batch of 0", "batch of 1",
    "sequences but no tokens", "batch of 257", "batch of 1,024", "batch of 4,096, ragged", "decode only",
    "prefill only", "mixed, in three orders", "one long sequence among 255 short", "page 1", "page 8", "page 16",
    "page 24", "page 32", "page 48", "page 64", "page 128", "page 256", "page 544", "page 784, 528, 2048", "head 32",
    "head 40", "head 64", "head 80", "head 96", "head 112", "head 120", "head 128", "head 192", "head 256",
    "head 512", "value size other than key size", "1 query head a KV head", "2 query heads a KV head",
    "3 query heads a KV head", "4 query heads a KV head", "5 query heads a KV head", "6 query heads a KV head",
    "7 query heads a KV head", "8 query heads a KV head", "12 query heads a KV head", "16 query heads a KV head",
    "17, 24, 64 query heads a KV head", "1 KV head, and odd numbers", "block table permuted", "block table reversed",
    "pages shared, and twice in one sequence", "garbage or freed pages behind the table's used part",
    "a table exactly as wide as used, at a guard", "a slice as table, int32 and int64", "page id past 16 bits",
    "page offset past 2^31 bytes", "page offset past 2^31 elements", "query and out past 2^31 elements",
    "query inside fused QKV", "heads of query and out padded", "K and V in one tensor", "pages NHD", "pages HND",
    "x-packed K", "base not at 16 bytes, strides odd and 1", "window 1", "window around a page",
    "window of the sequence and more", "window 4096 of 5000", "window that leaves leading segments or tiles empty",
    "softcap with normal logits", "softcap with logits past 4,400", "ALiBi, powers of two or not, and its root",
    "sinks near the mass, split or not, with window", "sinks of -inf", "fp8, scale 1", "fp8, scales 0.5 and 0.25",
    "fp8, a scale per head; query in bf16 and fp8", "e4m3fnuz against e4m3fn; e5m2",
    "a graph replayed with smaller and larger batches", "scratch kept over batches of other sizes",
)  # fmt: skip
ELSEWHERE: dict[int, str] = {  # corners that no batch can be -> where they are tested
    99: "not one batch: captured and replayed in `tests/gpu/test_gpu_static_grid.py` and, before any time, by "
    "`compare.bench.gate`",
    100: "not one batch: the mutant `scratch_not_cleared`; the kit's cases `scratch-after-longer` and "
    "`scratch-after-more`",
}


def cases_of(number: int) -> list[Case]:
    return [case for case in CASES if number in case.numbers]


def _word(case: Case) -> str:
    return f"`{case.name}`" + (" (GPU)" if case.large else "") + (" (refused)" if case.refused else "")


def _summary() -> list[str]:
    large = sum(case.large for case in CASES)
    covered = sum(bool(cases_of(number)) for number in range(1, len(CORNERS) + 1))
    return [
        f"- {len(CASES)} named cases (`common/cases/named.py`), {large} of them for a GPU alone.",
        "  (GPU): too long or large for an interpreter.",
        "  (refused): the typed error is checked.",
        f"- {covered} of the {len(CORNERS)} corners have named cases; the others say where they are tested.",
        f"- Random cases (`common/cases/random_cases.py`): seeds 0 to {num_pairs() - 1} hold every pair of axis values",
        f"  that may go together, the {num_triples()} behind them every triple of page, context, query and ratio, the",
        f"  {num_feature_pairs()} behind those every pair with a value of a feature.",
        f"- Cases of {len(AXES)} axes (`common/cases/axes.py`): numbers 0 to {num_smoke() - 1} hold every value",
        f"  of each and every pair of {len(MASKS)} that concern masks, those behind them every triple",
        "  of these and every pair of all; `drawn-SEED-NUMBER` has values that a seed draws. The kit asks them,",
        "  without what a kernel does not declare.",
        "- Relations that hold bit for bit, with no reference (`tests/conformance/test_relations_of_kernels.py`).",
        f"- {len(MUTANTS)} mutants (`common/mutants/`), each of which the checker must reject.",
        f"- {len(FILLS)} fills of adversarial values (`common/cases/fills.py`).",
    ]


def render() -> str:
    """docs/cases.md."""
    rows = []
    for number, corner in enumerate(CORNERS, 1):
        where = ", ".join(_word(case) for case in cases_of(number)) or ELSEWHERE[number]
        rows.append(f"| {number} | {corner} | {where} |")
    others = [case for case in CASES if not case.numbers]
    return "\n".join(
        [
            "# Cases", "",
            "Generated by `python -m compare pages features --write`; a test compares the two.", "",
            *_summary(), "",
            "## The corners", "",
            "| # | corner | named cases |", "|---|---|---|", *rows, "",
            "## Named cases beside the corners", "",
            ", ".join(_word(case) for case in others) + ".", "",
        ]
    )  # fmt: skip


def texts() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: render()}
