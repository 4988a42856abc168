"""Which GPU of a fleet timed what, how much equal GPUs differ, and what was lost."""

from compare.analysis import tables
from compare.analysis.markup import said
from compare.analysis.runs import RunData
from compare.report.blocks import Bullets, Section, Text


def section(run: RunData) -> Section | None:
    """The section; None for a run on one machine. It reads the manifest only, so a merged run shows its part's."""
    fleet = run.manifest.get("fleet")
    if not fleet:
        return None
    seats = fleet["seats"]
    words = "The kernels of a row, and all processes of them, ran on one seat: no comparison is split over two."
    blocks: list = [Text(words)]
    columns = [("seat", False), ("GPU", False), ("records", True)]
    body = [[f"`{name}`", told.get("address") or "none", told["rows"]] for name, told in seats.items()]
    noise = {name: told["noise"] for name, told in seats.items() if told.get("noise")}
    if noise:
        columns += [("noise, mean", True), ("noise, largest", True), ("of cells", True)]
        for line, name in zip(body, seats, strict=True):
            told = noise.get(name)
            line += [_signed(told["mean"]), _signed(told["most"]), told["cells"]] if told else ["", "", ""]
        blocks.append(
            Text(
                "Noise: one row was timed by every seat; a seat's times over the mean of all, geometric mean of its"
                " cells and the cell that deviates most. Above 0 is slower."
            )
        )
    blocks.append(tables.Table(columns, body))
    lost = [f"Lost: {line}." for line in fleet.get("losses", ())]
    lost += [f"`{name}` was left out: {said(why)}." for name, why in fleet.get("unfit", {}).items()]
    return Section("seats", "Which GPU timed what", (*blocks, *([Bullets(tuple(lost))] if lost else [])))


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}%"
