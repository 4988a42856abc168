"""The paper's Figures 6 to 9 for both DSLs and FlashAttention 3, drawn from a run of that suite.

They show microseconds instead of the paper's normalised latency, so that figures of two GPUs can be compared. An
unmeasured point ends its line; the report's tables say why.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.analysis.summary import FA3
from compare.competitors.registry import in_order, split
from compare.record.records import Record, WorkloadInfo
from compare.report.style import WIDTH_IN, label, legend, line, plain_log, plain_steps, pyplot, save
from compare.stats import geomean
from compare.workloads.suites import PROMPT

UNTUNED = "fixed"  # the variant that Figure 8 is relative to


@dataclass(frozen=True)
class Point:
    """A timed cell: workload, kernel, microseconds and, where several processes measured it, their interval."""

    load: WorkloadInfo
    kernel: str
    us: float
    low_us: float | None = None
    high_us: float | None = None

    @property
    def share(self) -> int:
        """Percent of the sequences that decode."""
        return round(100 * self.load.num_decodes / max(self.load.num_seqs, 1))

    @property
    def product(self) -> int:
        """Sequences times the longest length."""
        return self.load.num_seqs * self.load.max_seq_len


def points(records: Sequence[Record]) -> list[Point]:
    """The timed cells, in their order."""
    timed = [(r, r.timing) for r in records if r.timing is not None]
    return [Point(r.workload, r.kernel, t.median_us, t.low_us, t.high_us) for r, t in timed]


def _panels(titles: Sequence[str], rows: int = 1, height: float = 4.4) -> tuple[Any, Any]:
    """Panels in `rows` rows that share their y axes, with a title above each column."""
    figure, panels = pyplot().subplots(
        rows, len(titles), figsize=(WIDTH_IN, height), sharey="row", sharex="col", layout="constrained", squeeze=False
    )
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title)
    return figure, panels


def _curve(axes: Any, kernel: str, of: dict[float, Sequence[Point]]) -> None:
    """Draw a kernel's line: at each x the geometric mean over its points; a single point with its interval."""
    xs = sorted(of)
    axes.plot(xs, [geomean([p.us for p in of[x]]) for x in xs], **line(kernel))
    for x, found in of.items():
        (first, *more) = found
        if not more and first.low_us is not None:
            axes.vlines(x, first.low_us, first.high_us, color=line(kernel)["color"], linewidth=1.0)


def _curves(axes: Any, found: Sequence[Point], x: Callable[[Point], float]) -> None:
    """Draw one line for each kernel over `x`, in microseconds."""
    for kernel in in_order(p.kernel for p in found):
        of: dict[float, list[Point]] = {}
        for point in (p for p in found if p.kernel == kernel):
            of.setdefault(x(point), []).append(point)
        _curve(axes, kernel, of)


def _finish(figure: Any, panels: Any, words: str) -> None:
    """Finish a figure: log microseconds at the left, one label below, one legend above."""
    plain_log(panels[0][0])
    panels[0][0].set_ylabel("median latency, µs\n(lower is faster)")
    figure.supxlabel(words, fontsize=10)
    legend(figure, panels.flat)


def by_length(found: Sequence[Point], path: Path) -> Path | None:
    """6a, 6b: one panel for each length, batch sizes below. The mean is over decode shares that every batch size has;
    None where there is none, as in an interrupted run."""
    batches = sorted({p.load.num_seqs for p in found})
    shares = set.intersection(*({p.share for p in found if p.load.num_seqs == count} for count in batches))
    lengths = sorted({p.load.max_seq_len for p in found if p.share in shares})
    if not lengths:
        return None
    figure, panels = _panels([f"longest sequence {n:,}" for n in lengths])
    for axes, longest in zip(panels[0], lengths, strict=True):
        mine = [p for p in found if p.load.max_seq_len == longest and p.share in shares]
        _curves(axes, mine, lambda p: p.load.num_seqs)
        plain_steps(axes, batches)
    how = ", ".join(f"{share}%" for share in sorted(shares))
    _finish(figure, panels, f"sequences in the batch (geometric mean over decode shares {how})")
    return save(figure, path)


def by_share(found: Sequence[Point], path: Path) -> Path:
    """6c, 6d: one panel for each decode share, sequences times the longest below. A line joins batches with the same
    longest sequence: one sequence of 4096 is different work from eight of 1024."""
    shares = sorted({p.share for p in found})
    figure, panels = _panels([f"{share}% decodes" for share in shares])
    for axes, share in zip(panels[0], shares, strict=True):
        mine = [p for p in found if p.share == share]
        for longest in sorted({p.load.max_seq_len for p in mine}):
            _curves(axes, [p for p in mine if p.load.max_seq_len == longest], lambda p: p.product)
        plain_steps(axes, [p.product for p in mine], rotation=45)
    _finish(figure, panels, "sequences × longest sequence, tokens; one line for each longest sequence")
    return save(figure, path)


def by_page(found: Sequence[Point], path: Path) -> Path:
    """7: one panel for each decode share, page sizes below; dashed: tiles as long as a page."""
    shares = sorted({p.share for p in found})
    figure, panels = _panels([f"{share}% decodes" for share in shares])
    for axes, share in zip(panels[0], shares, strict=True):
        _curves(axes, [p for p in found if p.share == share], lambda p: p.load.block_size)
        plain_steps(axes, [p.load.block_size for p in found])
    _finish(figure, panels, "page size, tokens; dashed: a tile is a page, which 544 tokens cannot be")
    return save(figure, path)


def by_choice(found: Sequence[Point], path: Path) -> Path:
    """8: one panel for each batch size, prompt lengths below; microseconds above, then the speed relative to the
    untuned."""
    batches = sorted({p.load.num_seqs for p in found})
    titles = [f"{count} prompt{'s' if count > 1 else ''}" for count in batches]
    figure, panels = _panels(titles, rows=2, height=7.0)
    untuned = {(_family(p), p.load.id): p.us for p in found if split(p.kernel)[1] == UNTUNED}
    for column, count in enumerate(batches):
        mine = [p for p in found if p.load.num_seqs == count]
        _curves(panels[0][column], mine, lambda p: p.load.max_seq_len)
        lower = panels[1][column]
        for kernel in in_order(p.kernel for p in mine if (_family(p), p.load.id) in untuned):
            own = sorted((p for p in mine if p.kernel == kernel), key=lambda p: p.load.max_seq_len)
            known = [p for p in own if (_family(p), p.load.id) in untuned]
            speeds = [untuned[_family(p), p.load.id] / p.us for p in known]
            lower.plot([p.load.max_seq_len for p in known], speeds, **line(kernel))
        lower.set_ylim(bottom=0)
        lower.yaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
        plain_steps(lower, [p.load.max_seq_len for p in mine], rotation=45)
    panels[1][0].set_ylabel("speed, the same DSL's\nq_block untuned = 1×\n(higher is faster)")
    _finish(figure, panels, "longest prompt, tokens")
    return save(figure, path)


def _family(point: Point) -> str:
    return point.kernel.split("/")[0]


def summed_us(found: Iterable[Point], tokens: int) -> float:
    """Microseconds of all decodes that generate `tokens` after the prompt: the measured steps, linear between them.

    Steps before the first measured one count as that one. nan where the measurements end earlier.
    """
    steps = sorted((p.load.max_seq_len - PROMPT, p.us) for p in found)
    if not steps or steps[-1][0] < tokens:
        return math.nan
    total, before = 0.0, (0, steps[0][1])
    for at, us in steps:
        if at > tokens:
            break
        total += (at - before[0]) * (us + before[1]) / 2
        before = (at, us)
    return total


def by_output(found: Sequence[Point], path: Path) -> Path:
    """9, the attention of one layer: microseconds of the step after so many tokens, and the time of all steps relative
    to the yardstick.

    The yardstick is FlashAttention 3, or the fastest kernel of the longest output where it is absent.
    """
    last = max(p.load.max_seq_len for p in found)
    fastest = min((p for p in found if p.load.max_seq_len == last), key=lambda p: p.us).kernel
    unit = FA3 if any(p.kernel == FA3 for p in found) else fastest
    figure, (upper, lower) = pyplot().subplots(2, 1, figsize=(WIDTH_IN, 7.0), sharex=True, layout="constrained")
    _curves(upper, found, lambda p: p.load.max_seq_len - PROMPT)
    for kernel in in_order(p.kernel for p in found):
        mine = [p for p in found if p.kernel == kernel]
        outputs = sorted(p.load.max_seq_len - PROMPT for p in mine)
        sums = [(n, summed_us([p for p in found if p.kernel == unit], n) / summed_us(mine, n)) for n in outputs]
        known = [(n, 100 * share) for n, share in sums if math.isfinite(share)]
        lower.plot([n for n, _ in known], [share for _, share in known], **line(kernel))
    lower.set_ylim(bottom=0)
    lower.set_ylabel(f"speed over all steps so far,\n{label(unit)} = 100%\n(higher is faster)")
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:.10g}%")
    plain_steps(lower, [p.load.max_seq_len - PROMPT for p in found])
    plain_log(upper)
    upper.set_ylabel("median latency of the step, µs\n(lower is faster)")
    lower.set_xlabel(f"tokens generated behind a prompt of {PROMPT}, one sequence")
    legend(figure, [upper])
    return save(figure, path)


FIGURES: dict[str, dict[str, Callable[[Sequence[Point], Path], Path | None]]] = {
    "fig6": {"fig6-by-length": by_length, "fig6-by-share": by_share},
    "fig7": {"fig7-by-page": by_page},
    "fig8": {"fig8-by-choice": by_choice},
    "fig9": {"fig9-by-output": by_output},
}
CAPTIONS = {
    "fig6-by-length": "Figure 6a, 6b of the paper: the steps of optimisation by sequence length",
    "fig6-by-share": "Figure 6c, 6d of the paper: the same cells by the share of sequences that decode",
    "fig7-by-page": "Figure 7 of the paper: tiles of a page against tiles of their own",
    "fig8-by-choice": "Figure 8 of the paper: untuned, the paper's tree (Listing 2) and ours, on prompts",
    "fig9-by-output": "Figure 9 of the paper, the attention of one layer alone: decode behind a growing output",
}


def draw(suite: str, records: Sequence[Record], folder: Path) -> dict[str, Path]:
    """Draw the suite's own figures, by name; none where no cell has a time."""
    found = points(records)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = FIGURES.get(suite, {}) if found else {}
    made = {name: make(found, folder / f"{name}.svg") for name, make in wanted.items()}
    return {name: path for name, path in made.items() if path}
