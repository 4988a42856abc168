"""docs/cases.md: the 100 corners at which attention kernels are known to break, and the named cases for each.

`python -m compare pages features --write` writes it; a test compares the two.
"""

import tomllib
from pathlib import Path

from common.cases.axes import AXES, MASKS
from common.cases.by_axes import num_smoke
from common.cases.fills import FILLS
from common.cases.named import CASES, Case
from common.cases.random_cases import num_feature_pairs, num_pairs, num_triples
from common.mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cases.md"
_WRITTEN = tomllib.loads((Path(__file__).parent / "templates" / "cases.toml").read_text(encoding="utf-8"))
CORNERS: tuple[str, ...] = tuple(_WRITTEN["corners"])
ELSEWHERE: dict[int, str] = {int(number): where for number, where in _WRITTEN["elsewhere"].items()}  # without a batch


def cases_of(number: int) -> list[Case]:
    return [case for case in CASES if number in case.numbers]


def _word(case: Case) -> str:
    return f"`{case.name}`" + (" (GPU)" if case.large else "") + (" (refused)" if case.refused else "")


def render() -> str:
    """docs/cases.md."""
    rows = []
    for number, corner in enumerate(CORNERS, 1):
        where = ", ".join(_word(case) for case in cases_of(number)) or ELSEWHERE[number]
        rows.append(f"| {number} | {corner} | {where} |")
    counts = {
        "cases": len(CASES), "large": sum(case.large for case in CASES), "corners": len(CORNERS),
        "covered": sum(bool(cases_of(number)) for number in range(1, len(CORNERS) + 1)),
        "last_pair": num_pairs() - 1, "triples": num_triples(), "feature_pairs": num_feature_pairs(),
        "axes": len(AXES), "masks": len(MASKS), "last_smoke": num_smoke() - 1, "mutants": len(MUTANTS),
        "fills": len(FILLS),
    }  # fmt: skip
    others = ", ".join(_word(case) for case in CASES if not case.numbers)
    return _WRITTEN["page"].format(**counts, rows="\n".join(rows), others=others)


def texts() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: render()}
