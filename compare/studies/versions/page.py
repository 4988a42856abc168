"""Changes for the worse between releases of Triton, and the page that lists them. Pure functions of plain lines."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

# Chosen on naive, split and static_grid at head size 128, gfx942 and sm_90, 3.6.0 to 3.7.1, where nothing is known to
# be slower: registers move by a third, 13 more spilled ones in static_grid held at 168. Frozen before the rebuilt
# regressions went through them; their spills (197 to 344, 164 to 485) were known, and no threshold is near.
SPILLS_MORE, SPILLS_FACTOR = 16, 1.25  # registers a thread, and times; where there were none, any number counts
REDUNDANT_MORE = 1.05  # times the matrix work
WIDTH_LESS = 0.8  # times the mean bits of a load

_BITS = {"tma": 1024}  # a descriptor's load moves a whole tile


def load_width(loads: Mapping[str, int]) -> float:
    """Mean bits of a load of one lane; 0 without loads."""
    count = sum(loads.values())
    return sum((_BITS.get(bits) or int(bits)) * n for bits, n in loads.items()) / count if count else 0.0


def worse(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What got worse from one launch's facts to the next's, in words; nothing where nothing did."""
    found = []
    before, after = old["spills"], new["spills"]
    if (not before and after) or (after >= before + SPILLS_MORE and after >= SPILLS_FACTOR * before):
        found.append(f"spills {before} to {after}")
    if old["programs"] and new["programs"] is not None and new["programs"] < old["programs"]:
        found.append(f"programs a unit {old['programs']} to {new['programs']}")
    if old["redundancy"] and new["redundancy"] and new["redundancy"] > REDUNDANT_MORE * old["redundancy"]:
        found.append(f"matrix work {old['redundancy']:.2f} to {new['redundancy']:.2f} times what is needed")
    if old["matrix"] and not new["matrix"]:
        found.append("no matrix instruction left")
    if load_width(new["loads"]) < WIDTH_LESS * load_width(old["loads"]):
        found.append(f"bits a load {load_width(old['loads']):.0f} to {load_width(new['loads']):.0f}")
    return found


def flags(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(kernel symbol, what got worse) between two lines of one subject and target."""
    if old["status"] == "ok" and new["status"] != "ok":
        return [("", f"does not compile: {new['status']}: {new['reason']}")]
    pairs = zip(old["launches"], new["launches"], strict=False)
    return [(a["kernel"], what) for a, b in pairs if a["kernel"] == b["kernel"] for what in worse(a, b)]


Key = tuple[str, str]  # target, subject


def by_subject(lines: Sequence[Mapping[str, Any]]) -> dict[Key, dict[str, Mapping[str, Any]]]:
    """(target, subject) -> release -> line."""
    found: dict[Key, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for line in lines:
        if line["id"]:
            found[line["target"], line["id"]][line["triton"]] = line
    order = sorted(found, key=lambda key: (key[0], next(iter(found[key].values()))["kernel"]))
    return {key: found[key] for key in order}


def _config(line: Mapping[str, Any]) -> str:
    def short(value: Any) -> str:
        if isinstance(value, dict):
            return "(" + " ".join(f"{k}={short(v)}" for k, v in value.items()) + ")"
        return str(value)

    parts = line["config"] | line["options"]
    return f"{line['shape']} " + " ".join(f"{k}={short(v)}" for k, v in parts.items())


def _flag_rows(found: Mapping[Key, Mapping[str, Mapping]], releases: Sequence[str]) -> list[str]:
    rows = []
    for (target, _), lines in found.items():
        had = [release for release in releases if release in lines]
        for a, b in itertools.pairwise(had):
            for symbol, what in flags(lines[a], lines[b]):
                one = lines[b]
                name = one["rebuilt"] or "config"
                rows.append(
                    f"| {a} to {b} | {target} | {one['kernel']} | {symbol} | {what} | {name} | {_config(one)} |"
                )
    return rows


def _totals(
    lines: Sequence[Mapping[str, Any]], releases: Sequence[str], wanted: Mapping[str, Sequence[str]]
) -> list[str]:
    rows = [
        "| triton | target | configs | compiled | failed | not yet | launches with spills | spilled registers, sum |"
    ]
    rows.append("|" + "---|" * 8)
    for release in releases:
        for target, ids in wanted.items():
            mine = [line for line in lines if line["triton"] == release and line["target"] == target]
            mine = [line for line in mine if line["id"] in set(ids)]
            ok = [line for line in mine if line["status"] == "ok"]
            spills = [launch["spills"] for line in ok for launch in line["launches"] if launch["spills"]]
            counts = (len(ids), len(ok), len(mine) - len(ok), len(ids) - len(mine), len(spills), sum(spills))
            rows.append(f"| {release} | {target} | " + " | ".join(map(str, counts)) + " |")
    return rows


def _facts(launch: Mapping[str, Any]) -> str:
    red = launch["redundancy"]
    work = f", matrix {red:.2f}" if red else ""
    return (
        f"{launch['registers']} r, {launch['spills']} sp, {launch['shared_bytes']} B, {launch['programs']} a unit{work}"
    )


def _diff_rows(found: Mapping[Key, Mapping[str, Mapping]], releases: Sequence[str]) -> list[str]:
    """A row a launch whose facts differ between releases."""
    head = "| target | kernel | launch | " + " | ".join(releases) + " | config |"
    rows = [head, "|" + "---|" * (head.count("|") - 1)]
    for (target, _), lines in found.items():
        ok = {release: line for release, line in lines.items() if line["status"] == "ok" and release in releases}
        most = max((len(line["launches"]) for line in ok.values()), default=0)
        for at in range(most):
            told = {release: _facts(line["launches"][at]) for release, line in ok.items() if at < len(line["launches"])}
            if len(set(told.values())) > 1:
                one = next(iter(ok.values()))
                cells = " | ".join(told.get(release, "") for release in releases)
                rows.append(
                    f"| {target} | {one['kernel']} | {one['launches'][at]['kernel']} | {cells} | {_config(one)} |"
                )
    return rows


def unflagged(found: Mapping[Key, Mapping[str, Mapping]], releases: Sequence[str]) -> list[str]:
    """Rebuilt regressions that both sides of some step compiled and that no step flagged."""
    missed = []
    for lines in found.values():
        one = next(iter(lines.values()))
        had = [release for release in releases if release in lines]
        steps = list(itertools.pairwise(had))
        if one["rebuilt"] and steps and not any(flags(lines[a], lines[b]) for a, b in steps):
            missed.append(one["rebuilt"])
    return missed


def render(
    lines: Sequence[Mapping[str, Any]], releases: Sequence[str], wanted: Mapping[str, Sequence[str]]
) -> tuple[str, list[str]]:
    """The page, and the rebuilt regressions that it should have flagged and did not.

    wanted: ids of the subjects of each target; one without a line makes the page say that it is partial.
    """
    found = by_subject(lines)
    gone = {line["triton"]: line["reason"] for line in lines if line["status"] == "unavailable" and not line["id"]}
    had = {(line["triton"], line["target"], line["id"]) for line in lines}
    left = sum((r, t, i) not in had for r in releases for t, ids in wanted.items() for i in ids if r not in gone)
    total = len(releases) * sum(len(ids) for ids in wanted.values())
    flagged = _flag_rows(found, releases)
    page = [
        "# The same configs over Triton releases",
        "",
        f"Written by `python -m compare study versions --triton {','.join(releases)}"
        f" --targets {','.join(wanted)}`. Compiled, not run: no line of this page is a time.",
        "",
        f"**Partial**: {left} of {total} configs are not compiled yet; the command goes on where it stopped."
        if left
        else f"Complete: {total} configs.",
        "",
        *(f"Triton {release} is unavailable: {reason}" for release, reason in gone.items()),
        *_totals(lines, releases, wanted),
        "",
        "## What got worse",
        "",
        f"Flagged are: spills where there were none, or {SPILLS_MORE} more and {SPILLS_FACTOR} times as many; fewer "
        f"programs a unit; matrix work {REDUNDANT_MORE} times as redundant, or none left; loads {WIDTH_LESS} times as "
        "wide; what compiles no more. Two published regressions, rebuilt as configs of `q_block`, go through the same "
        "rules under the name of their report.",
        "",
    ]
    if flagged:
        page += ["| step | target | kernel | launch | what | stands for | config |", "|" + "---|" * 7, *flagged]
    else:
        page += ["Nothing."]
    page += ["", "## What differs", "", "r: registers, sp: spilled ones, B: shared memory of a program.", ""]
    return "\n".join([*page, *_diff_rows(found, releases)]) + "\n", unflagged(found, releases)
