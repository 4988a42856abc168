"""Tables over several runs, of which the later counts where two have a row: `report RUN... --print features|times`."""

from collections.abc import Iterable, Mapping

from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.competitors.registry import in_order
from compare.record.records import Record
from compare.workloads.suites import ASKED, MARK, PLAIN

BY_FLOPS = ("prefill", "mixed")  # classes whose rate is TFLOP/s; that of the others is GB/s
Costs = Mapping[tuple[str, str, str], float]  # (class of row, kernel, feature): time over the plain row's


def costs(runs: Iterable[RunData]) -> Costs:
    """What each feature costs: the time of a row with it over that of the plain row, of the same kernel and run."""
    found: dict[tuple[str, str, str], float] = {}
    for run in runs:
        us = {(one.workload.label, one.kernel): one.timing.median_us for one in run.records if one.timing}
        for name, label in PLAIN.items():
            for kernel, plain in ((kernel, time) for (row, kernel), time in us.items() if row == label):
                for feature in ASKED[name]:
                    if own := us.get((f"{label}{MARK}{feature}", kernel)):
                        found[name, kernel, feature] = own / plain
    return found


def of_costs(found: Costs) -> Table:
    """One line for each feature, in the suite's order; one column for each plain row and kernel."""
    names = [name for name in PLAIN if any(name == at[0] for at in found)]
    columns = [(name, kernel) for name in names for kernel in in_order(at[1] for at in found if at[0] == name)]
    features = dict.fromkeys(feature for name in names for feature in ASKED[name])
    body = [
        [feature, *(f"{found[at]:.2f}" if (at := (*column, feature)) in found else "" for column in columns)]
        for feature in features
        if any(at[2] == feature for at in found)
    ]
    titles = [(f"{PLAIN[name]} `{kernel}`", True) for name, kernel in columns]
    return Table([("feature", False), *titles], body)


def features(runs: Iterable[RunData]) -> str:
    """Markdown; empty where no row with a feature has its plain row's time."""
    return of_costs(found).markdown if (found := costs(runs)) else ""


def _entry(record: Record | None, notes: dict[str, int]) -> str:
    """Time and rate; else the number of the note that says why there is none."""
    if record is None:
        return ""
    if record.timing is None:
        said = f"`{record.kernel}`, {record.status.value}: {record.reason}"
        return f"[{notes.setdefault(said, len(notes) + 1)}]"
    rate = record.derived.tflops if record.workload.kind in BY_FLOPS else record.derived.gbps
    unit = "TFLOP/s" if record.workload.kind in BY_FLOPS else "GB/s"
    us = record.timing.median_us
    return f"{us:.1f}, {rate:,.0f} {unit}" if us < 1000 else f"{us:,.0f}, {rate:,.0f} {unit}"


def times(runs: Iterable[RunData]) -> str:
    """Markdown: rows in the order of the runs, kernels in the registry's, and notes on what has no time; empty where
    nothing is timed."""
    found = {(one.workload.label, one.kernel): one for run in runs for one in run.records}
    if not any(one.timing for one in found.values()):
        return ""
    rows, kernels = dict.fromkeys(row for row, _ in found), in_order(kernel for _, kernel in found)
    notes: dict[str, int] = {}
    body = [[row, *(_entry(found.get((row, kernel)), notes) for kernel in kernels)] for row in rows]
    made = Table([("us and rate", False), *((f"`{kernel}`", True) for kernel in kernels)], body)
    return "\n".join([made.markdown, "", *(f"- [{number}] {note}" for number, note in enumerate(notes, 1))]).rstrip()
