"""What kernels can do: docs/features.md, docs/capability.md and docs/cases.md.

    python -m compare pages features [--write]

Fills two kinds of block of docs/features.md: `<!-- matrix -->` from the kernels' own declarations, to which
tests/conformance/test_conformance.py holds them, and `<!-- refused -->` from compare.studies.constructs.
Exit codes: 0; 1 where a page is out of date and --write is not given; 2 for a conformance run that cannot be read.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from common.cases.axes import AXES, MASKS
from common.cases.by_axes import num_smoke
from common.cases.fills import FILLS
from common.cases.named import BY_NAME, CASES, Case
from common.cases.random_cases import num_feature_pairs, num_pairs, num_triples
from common.mutants import MUTANTS
from compare.analysis import markup
from compare.competitors import registry
from compare.exits import refusing
from compare.pages import add_write, settle_all
from compare.record import folder as run_folder
from compare.studies import capability
from compare.studies.capability import NoResults
from compare.studies.constructs import CONSTRUCTS

HELP = "docs/features.md, capability.md, cases.md: what kernels can do, and on which cases"
PAGE, ABLE, CASED = (run_folder.ROOT / "docs" / name for name in ("features.md", "capability.md", "cases.md"))
BLOCK = re.compile(r"<!-- (?P<name>matrix|refused) -->\n.*?<!-- end -->", re.DOTALL)
# Members of SUPPORTS in the page's order; every case asks for `lse`, so its cases are not counted.
MEMBERS = (
    "causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "alibi", "alibi_sqrt", "chunked_local",
    "prefix_lm", "causal_per_sequence", "cross", "tree_bias", "value_size", "head_size_512", "fp8_kv", "int8_kv",
    "fp8_query", "fp8_out", "batch_invariant", "x_packed", "full_graph",
)  # fmt: skip


def supports() -> dict[str, frozenset[str]]:
    """SUPPORTS of every kernel of both DSLs, by id, in the ladder's order."""
    return {kernel: registry.load(kernel).SUPPORTS for kernel in registry.OWN}


def counted(member: str) -> str:
    """How many named cases ask for a member."""
    return str(sum(member in case.asked for case in BY_NAME.values() if case.refused is None) or "")


def _table(declared: Mapping[str, frozenset[str]], dsl: str) -> str:
    kernels = [kernel for kernel in declared if kernel.startswith(f"{dsl}/")]
    body = [
        [f"`{member}`", counted(member), *("yes" if member in declared[kernel] else "-" for kernel in kernels)]
        for member in MEMBERS
    ]
    return markup.table(["", "cases", *(kernel.split("/")[1] for kernel in kernels)], body, len(kernels) + 2)


def matrix(declared: Mapping[str, frozenset[str]]) -> str:
    """A table a DSL, or one for both where they are equal. Raises KeyError for an unknown member."""
    if unknown := set().union(*declared.values()) - set(MEMBERS):
        raise KeyError(f"SUPPORTS: found {', '.join(sorted(unknown))}, allowed {', '.join(MEMBERS)}")
    tables = {name: _table(declared, name.lower()) for name in ("Triton", "Helion")}
    if tables["Triton"] == tables["Helion"]:
        tables = {"Triton and Helion alike": tables["Triton"]}
    return "".join(f"### {title}\n\n{table}\n\n" for title, table in tables.items())


def refused() -> str:
    """A table of what a DSL lacks and a feature needed: the error, what the kernels do instead, what it costs."""
    rows = ((c.what, f"`{c.error}`", c.instead, c.cost) for c in CONSTRUCTS if c.cost)
    return markup.table(["wanted", "the error", "instead", "cost"], rows, 4) + "\n"


def render(text: str) -> str:
    blocks = {"matrix": matrix(supports()), "refused": refused()}
    return BLOCK.sub(lambda found: f"<!-- {found['name']} -->\n{blocks[found['name']]}<!-- end -->", text)


_WRITTEN = tomllib.loads((Path(__file__).parent / "templates" / "cases.toml").read_text(encoding="utf-8"))
# docs/cases.md: the 100 corners at which attention kernels are known to break, and the named cases for each.
CORNERS: tuple[str, ...] = tuple(_WRITTEN["corners"])
ELSEWHERE: dict[int, str] = {int(number): where for number, where in _WRITTEN["elsewhere"].items()}  # without a batch


def cases_of(number: int) -> list[Case]:
    return [case for case in CASES if number in case.numbers]


def _word(case: Case) -> str:
    return f"`{case.name}`" + (" (GPU)" if case.large else "") + (" (refused)" if case.refused else "")


def corners() -> str:
    """The text of docs/cases.md."""
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
    """docs/features.md, docs/capability.md and docs/cases.md. Raises NoResults."""
    able = capability.render(capability.read(capability.RESULTS))
    return {PAGE: render(PAGE.read_text(encoding="utf-8")), ABLE: able, CASED: corners()}


options = add_write


@refusing(NoResults)
def main(asked: argparse.Namespace) -> int:
    return settle_all(texts(), "features", write=asked.write)
