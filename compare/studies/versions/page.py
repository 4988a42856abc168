"""Changes for the worse between releases of Triton and Helion, and the page that lists them. Pure functions of plain
lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.studies.versions.subjects import Pair, Step, pairs, steps

# Chosen on naive, split and static_grid at head size 128, gfx942 and sm_90, 3.6.0 to 3.7.1, where nothing is known to
# be slower: registers move by a third, 13 more spilled ones in static_grid held at 168. Frozen before the rebuilt
# regressions went through them; their spills (197 to 344, 164 to 485) were known, and no threshold is near.
SPILLS_MORE, SPILLS_FACTOR = 16, 1.25  # registers a thread, and times; where there were none, any number counts
REDUNDANT_MORE = 1.05  # times the matrix work
WIDTH_LESS = 0.8  # times the mean bits of a load
REFUSED, SPILLS, PROGRAMS, REDUNDANT, MATRIX, WIDTH = (
    "does not compile", "spills", "programs a unit", "matrix work", "matrix instructions", "bits a load",
)  # fmt: skip

_BITS = {"tma": 1024}  # a descriptor's load moves a whole tile
_LONGEST = 140  # characters of a compiler's words in a cell
Line = Mapping[str, Any]


def load_width(loads: Mapping[str, int]) -> float:
    """Mean bits of a load of one lane; 0 without loads."""
    count = sum(loads.values())
    return sum((_BITS.get(bits) or int(bits)) * n for bits, n in loads.items()) / count if count else 0.0


@dataclass(frozen=True)
class Change:
    """One thing that got worse. what: SPILLS and its like. by: how much, larger is worse. launch: the kernel symbol."""

    what: str
    told: str
    by: float
    launch: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.told}"


def worse(old: Line, new: Line) -> list[Change]:
    """What got worse from one launch's facts to the next's; nothing where nothing did."""
    found = []

    def add(what: str, told: str, by: float) -> None:
        found.append(Change(what, told, by, new["kernel"]))

    before, after = old["spills"], new["spills"]
    if (not before and after) or (after >= before + SPILLS_MORE and after >= SPILLS_FACTOR * before):
        add(SPILLS, f"{before} to {after}", after - before)
    if old["programs"] and new["programs"] is not None and new["programs"] < old["programs"]:
        add(PROGRAMS, f"{old['programs']} to {new['programs']}", 1 - new["programs"] / old["programs"])
    if old["redundancy"] and new["redundancy"] and new["redundancy"] > REDUNDANT_MORE * old["redundancy"]:
        add(REDUNDANT, f"{old['redundancy']:.2f} to {new['redundancy']:.2f} times what is needed",
            new["redundancy"] / old["redundancy"])  # fmt: skip
    if old["matrix"] and not new["matrix"]:
        add(MATRIX, f"{sum(old['matrix'].values())} to none: no matrix instruction is left", 1.0)
    widths = load_width(old["loads"]), load_width(new["loads"])
    if widths[1] < WIDTH_LESS * widths[0]:
        add(WIDTH, f"{widths[0]:.0f} to {widths[1]:.0f}", 1 - widths[1] / widths[0])
    return found


def changes(old: Line, new: Line) -> list[Change]:
    """What got worse between two lines of one subject and target."""
    if old["status"] == "ok" and new["status"] != "ok":
        return [Change(REFUSED, f"{new['status']}: {new['reason']}", 1.0)]
    both = zip(old["launches"], new["launches"], strict=False)
    return [change for a, b in both if a["kernel"] == b["kernel"] for change in worse(a, b)]


Key = tuple[str, str]  # target, subject


def by_subject(lines: Sequence[Line]) -> dict[Key, dict[Pair, Line]]:
    """(target, subject) -> what compiled it -> line."""
    found: dict[Key, dict[Pair, Line]] = defaultdict(dict)
    for line in lines:
        if line["id"]:
            found[line["target"], line["id"]][Pair(line["triton"], line.get("helion", ""))] = line
    order = sorted(found, key=lambda key: (key[0], next(iter(found[key].values()))["kernel"]))
    return {key: found[key] for key in order}


@dataclass(frozen=True)
class Regression:
    """What got worse of one kernel's configs for one target in one step: how often, and the worst of them.

    before, after: the worst one's lines. rebuilt: the report that the config stands for, as in Subject.
    """

    step: Step
    target: str
    kernel: str
    rebuilt: str
    what: str
    count: int
    worst: Change
    before: Line
    after: Line

    @property
    def kind(self) -> tuple[str, str, str]:
        """What has one cause, as far as one can guess: the step, what got worse, the vendor."""
        return str(self.step), self.what, self.target.partition("_")[0].rstrip("0123456789")


def regressions(found: Mapping[Key, Mapping[Pair, Line]], asked: Sequence[Step]) -> list[Regression]:
    """The newest step first, within it by what got worse, target and kernel."""
    groups: dict[tuple, list[tuple[Change, Line, Line]]] = defaultdict(list)
    for number, step in enumerate(asked):
        for (target, _), lines in found.items():
            one = next(iter(lines.values()))
            a, b = step.of(one["kernel"].startswith("helion/"))
            for change in changes(lines[a], lines[b]) if a in lines and b in lines and a != b else ():
                name = number, change.what, target, one["kernel"], one["rebuilt"]
                groups[name].append((change, lines[a], lines[b]))
    made = []
    for (number, what, target, kernel, rebuilt), group in sorted(groups.items(), key=lambda pair: pair[0]):
        worst, before, after = max(group, key=lambda one: one[0].by)
        count = len({after["id"] for _, _, after in group})
        made.append(Regression(asked[number], target, kernel, rebuilt, what, count, worst, before, after))
    return made


def worst_of_kinds(found: Sequence[Regression]) -> dict[tuple[str, str, str], Regression]:
    """The worst of each kind: what a script reproduces. A published regression stands back behind a config of ours."""
    kinds: dict[tuple[str, str, str], Regression] = {}
    for one in found:
        best = kinds.get(one.kind)
        if best is None or (not one.rebuilt, one.worst.by) > (not best.rebuilt, best.worst.by):
            kinds[one.kind] = one
    return kinds


def _rows(found: Sequence[Regression], scripts: Mapping[tuple[str, str, str], str]) -> list[str]:
    rows = []
    for one in found:
        told = one.worst.told.replace("|", "\\|")
        told = told if len(told) <= _LONGEST else told[:_LONGEST] + "..."
        launch = f"`{one.worst.launch}`" if one.worst.launch else ""
        stands = f" ({one.rebuilt})" if one.rebuilt else ""
        script = f"`python {scripts[one.kind]}`" if one.kind in scripts else ""
        cells = str(one.step), one.what, one.target, one.kernel + stands, launch, told, one.count, script
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return rows


def _totals(lines: Sequence[Line], asked: Sequence[Pair], wanted: Mapping[str, Mapping[str, bool]]) -> list[str]:
    head = ("triton", "helion", "target", "configs", "compiled", "failed", "not yet", "launches with spills",
            "spilled registers, sum")  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for pair in sorted(asked, key=lambda one: _numbers(one.triton) + _numbers(one.helion), reverse=True):
        for is_helion in (True, False):
            if not is_helion and pair.helion != asked[0].helion:
                continue  # no Helion: as by the newest one
            key = pair if is_helion else Pair(pair.triton)
            for target, ids in wanted.items():
                mine = {name for name, helion in ids.items() if helion == is_helion}
                had = [line for line in lines if line["id"] in mine and line["target"] == target]
                had = [line for line in had if (line["triton"], line.get("helion", "")) == (key.triton, key.helion)]
                if not mine:
                    continue
                ok = [line for line in had if line["status"] == "ok"]
                spills = [launch["spills"] for line in ok for launch in line["launches"] if launch["spills"]]
                counts = len(mine), len(ok), len(had) - len(ok), len(mine) - len(had), len(spills), sum(spills)
                cells = key.triton, key.helion or "none", target, *counts
                rows.append("| " + " | ".join(map(str, cells)) + " |")
    return rows


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def unflagged(found: Mapping[Key, Mapping[Pair, Line]], asked: Sequence[Step]) -> list[str]:
    """Rebuilt regressions that both sides of some step compiled and that no step flagged."""
    flagged = {one.rebuilt for one in regressions(found, asked)}
    missed = []
    for lines in found.values():
        rebuilt = next(iter(lines.values()))["rebuilt"]
        met = any(set(step.of(False)) <= set(lines) for step in asked if step.package == "triton")
        if rebuilt and met and rebuilt not in flagged:
            missed.append(rebuilt)
    return missed


def left(lines: Sequence[Line], asked: Sequence[Pair], wanted: Mapping[str, Mapping[str, bool]]) -> tuple[int, int]:
    """Configs without a line by some pair that could be had, and all that should have one."""
    had = {(Pair(line["triton"], line.get("helion", "")), line["target"], line["id"]) for line in lines}
    gone = unavailable(lines)
    want = {
        (pair if helion else Pair(pair.triton), target, name)
        for pair in asked
        for target, ids in wanted.items()
        for name, helion in ids.items()
    }
    could = [one for one in want if one[0].triton not in gone and one[0].helion not in gone]
    return sum(one not in had for one in could), len(want)


def unavailable(lines: Sequence[Line]) -> dict[str, str]:
    """Releases that could not be had, and why."""
    return {
        line["helion"] or line["triton"]: line["reason"]
        for line in lines
        if line["status"] == "unavailable" and not line["id"]
    }


def render(
    lines: Sequence[Line],
    releases: Sequence[str],
    helions: Sequence[str],
    wanted: Mapping[str, Mapping[str, bool]],
    scripts: Mapping[tuple[str, str, str], str],
) -> str:
    """wanted: of each target the ids of its subjects, and whether they are Helion's; one without a line makes the page
    say that it is partial. scripts: by Regression.kind what reproduces it."""
    asked = pairs(releases, helions)
    missing, total = left(lines, asked, wanted)
    found = regressions(by_subject(lines), steps(releases, helions))
    head = "step", "what", "target", "kernel", "launch", "the worst", "configs", "without this project"
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *_rows(found, scripts)]
    command = f"--triton {','.join(releases)} --helion {','.join(helions)} --targets {','.join(wanted)}"
    return "\n".join([
        "# The same configs over releases of Triton and Helion",
        "",
        f"Written by `python -m compare study versions {command}`. Compiled, not run: no line of this page is a time.",
        "",
        f"**Partial**: {missing} of {total} configs are not compiled yet; the command goes on where it stopped."
        if missing
        else f"Complete: {total} configs.",
        "",
        *(f"{release} is unavailable: {reason}\n" for release, reason in unavailable(lines).items()),
        "## What got worse",
        "",
        f"Newest first. Flagged are: spills where there were none, or {SPILLS_MORE} more and {SPILLS_FACTOR} times as "
        f"many; fewer programs a unit; matrix work {REDUNDANT_MORE} times as redundant, or none left; loads "
        f"{WIDTH_LESS} times as wide; what compiles no more. A row is a kernel for a target: the worst of so many "
        "configs. Its last column is for those who make the compiler: a script that holds the worst case of this kind "
        "and compiles it by whatever Triton is installed; both were tried, and the script's first lines say what came "
        "out. Where there is none, the same IR gives the same code by both releases: the front end made another. Two "
        "published regressions, rebuilt as configs of `q_block`, go through the same rules under the name of their "
        "report.",
        "",
        *(table if found else ["Nothing."]),
        "",
        "## What was compiled",
        "",
        "A row a pair: each Triton by the newest Helion, the newest Triton by the others; `none` are kernels without "
        "Helion.",
        "",
        *_totals(lines, asked, wanted),
        "",
    ])  # fmt: skip
