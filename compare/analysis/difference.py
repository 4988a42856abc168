"""Run against run: what became slower, faster, wrong, new or gone, and what changed that might be why.

Times of two runs never ran side by side, so they are resampled each on their own. A change is REGRESS or IMPROVED where
its whole 99% interval lies beyond the threshold, SAME where all of it lies within, AMBIGUOUS otherwise. The threshold
is the largest of the relative one, the absolute one over the time before, and the noise floor between processes: what
identical code was seen to differ by is no regression.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare import stats
from compare.analysis import merge, verdict
from compare.analysis.runs import RunData
from compare.analysis.thresholds import Incomparable, Thresholds
from compare.analysis.verdict import Outcome, Series
from compare.plan.fingerprint import changed, pairs_that_differ
from compare.record.records import Record, Status, WorkloadInfo
from compare.stats import Ratio


class Change(enum.StrEnum):
    """In the order in which a reader wants them."""

    REGRESS = "REGRESS"
    STATUS_CHANGED = "STATUS_CHANGED"
    REMOVED = "REMOVED"
    AMBIGUOUS = "AMBIGUOUS"
    IMPROVED = "IMPROVED"
    NEW = "NEW"
    SAME = "SAME"


_OF_OUTCOME = {
    Outcome.FASTER: Change.IMPROVED,
    Outcome.SLOWER: Change.REGRESS,
    Outcome.SAME: Change.SAME,
    Outcome.AMBIGUOUS: Change.AMBIGUOUS,
}


@dataclass(frozen=True)
class Difference:
    """One cell. before, after: how it ended, None where the run has no such cell. ratio: time after over before.

    why: what changed of the cell itself, "source 1a2b -> 3c4d", "tile_size 64 -> 128".
    """

    gpu: str
    workload: WorkloadInfo
    kernel: str
    change: Change
    before: Status | None
    after: Status | None
    before_us: float | None = None
    after_us: float | None = None
    ratio: Ratio | None = None
    why: tuple[str, ...] = ()
    same_fingerprint: bool = False

    @property
    def is_regression(self) -> bool:
        """Slower, or it was right and now fails."""
        broken = self.before is Status.OK and self.after is not None and self.after.is_failure
        return self.change is Change.REGRESS or broken


def ensure_comparable(before: RunData, after: RunData) -> None:
    """Raise Incomparable unless both runs have one spec, one timing contract and a GPU in common."""
    for what, of in (("timing contract", lambda run: run.contract), ("spec", lambda run: run.manifest.get("spec", ""))):
        if of(before) != of(after):
            both = f"{before.folder} under {of(before) or 'none'} and {after.folder} under {of(after) or 'none'}"
            raise Incomparable(f"{what}: found {both}; allowed runs of one {what}")
    gpus = [{part.gpu for part in merge.parts(run)} for run in (before, after)]
    if not gpus[0] & gpus[1]:
        names = [", ".join(sorted(names)) for names in gpus]
        both = f"{before.folder} of {names[0]} and {after.folder} of {names[1]}"
        raise Incomparable(f"GPU: found {both}; allowed runs that have one in common")


def differences(
    before: RunData, after: RunData, thresholds: Thresholds | None = None, unit: str | None = None
) -> list[Difference]:
    """Every cell of either run, in the order of the runs. unit: compare times over that kernel's of the same run, row
    by row, so that a machine that is slower altogether is not a regression. Raises Incomparable."""
    ensure_comparable(before, after)
    thresholds = thresholds or Thresholds()
    found = []
    old, new = ({part.gpu: part.raw for part in merge.parts(run)} for run in (before, after))
    for gpu in dict.fromkeys([*old, *new]):
        found += _of_gpu(gpu, old.get(gpu, []), new.get(gpu, []), thresholds, unit)
    return found


_Key = tuple[str, str]


def _of_gpu(
    gpu: str, before: Sequence[Record], after: Sequence[Record], thresholds: Thresholds, unit: str | None
) -> list[Difference]:
    old, new = _rows(before), _rows(after)
    times = verdict.series(before), verdict.series(after)
    found = []
    for key in dict.fromkeys([*old, *new]):
        rows = old.get(key), new.get(key)
        if rows[0] is None or rows[1] is None:
            here = rows[0] or rows[1]
            change = Change.REMOVED if rows[1] is None else Change.NEW
            found.append(Difference(gpu, here.workload, key[1], change, *(r.status if r else None for r in rows)))
        else:
            found.append(_of_cell(gpu, rows, times, thresholds, None if key[1] == unit else unit))
    return found


def _rows(records: Sequence[Record]) -> dict[_Key, Record]:
    """One row a cell: the first that is not ok, else the first."""
    found: dict[_Key, Record] = {}
    for record in records:
        key = record.workload.id, record.kernel
        if key not in found or (found[key].status is Status.OK and record.status is not Status.OK):
            found[key] = record
    return found


def _of_cell(
    gpu: str,
    rows: tuple[Record, Record],
    times: tuple[Mapping[_Key, Series], Mapping[_Key, Series]],
    thresholds: Thresholds,
    unit: str | None,
) -> Difference:
    """A cell that both runs have."""
    old, new = rows
    same = old.fingerprint == new.fingerprint != ""
    known = {"gpu": gpu, "workload": new.workload, "kernel": new.kernel, "before": old.status, "after": new.status}
    known |= {"why": changed(old, new), "same_fingerprint": same}
    if old.status is not new.status:
        return Difference(change=Change.STATUS_CHANGED, **known)
    key = new.workload.id, new.kernel
    before, after = (of.get(key) for of in times)
    if before is None or after is None:  # checked and not timed, in one of them at least
        change = Change.SAME if before is after else Change.STATUS_CHANGED
        return Difference(change=change, **known)
    samples = [_samples(series, of, unit) for series, of in ((before, times[0]), (after, times[1]))]
    few = min(sum(map(len, each)) for each in samples) < stats.FEW
    ratio = (stats.few_ratio if few else stats.unpaired_ratio)(samples[1], samples[0])
    outcome = verdict.decide(ratio.inverse(), thresholds.of(before.median_us))
    us = {"before_us": before.median_us, "after_us": after.median_us}
    return Difference(change=_OF_OUTCOME[outcome], ratio=ratio, **us, **known)


def _samples(series: Series, times: Mapping[_Key, Series], unit: str | None) -> list[Sequence[float]]:
    """samples[process][round]: times, or times over the unit's of the same round where a unit is asked for and there.

    Raises Incomparable where the unit was not timed on this workload.
    """
    if unit is None:
        return list(series.samples.values())
    other = times.get((series.workload.id, unit))
    if other is None:
        raise Incomparable(f"unit: found no time of {unit} on {series.workload.label}, allowed a kernel timed on it")
    mine, theirs, pairs = verdict.shared(series, other)
    if pairs:
        return [[a / b for a, b in zip(x, y, strict=True)] for x, y in zip(mine, theirs, strict=True)]
    return [[a / other.median_us for a in rounds] for rounds in mine]


def surroundings(before: RunData, after: RunData) -> list[tuple[str, Any, Any]]:
    """(name, before, after) of what differs between two runs as a whole: commit, versions, GPU, whose configs."""
    return pairs_that_differ(*(_surroundings(run.manifest) for run in (before, after)))


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    gpu, machine = manifest.get("gpu") or {}, manifest.get("machine") or {}
    dirty = " with local changes" if manifest.get("dirty") else ""
    return {
        "commit": f"{manifest.get('commit', 'unknown')}{dirty}",
        "GPU": gpu.get("title", "none"),
        "system": machine.get("system", "unknown"),
        "heuristics": manifest.get("heuristics", "tree"),
        **(manifest.get("versions") or {}),
    }
