"""What the committed runs say of the DSLs: docs/choosing-a-dsl.md.

    python -m compare pages choosing [--write]

Fills the blocks `<!-- evidence: NAME -->` .. `<!-- end -->` of docs/choosing-a-dsl.md from the committed runs of one
GPU, which its first block names; what was not measured says so and how to. There is no score: a reader weighs the rows.
Exit codes: 0; 1 where a page says something else and --write is not given; 2 for a run that is none.
"""

import argparse
import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.analysis import merge, verdict
from compare.analysis.markup import table
from compare.analysis.runs import RunData, read
from compare.analysis.standing import standings
from compare.analysis.verdict import Outcome
from compare.competitors import registry
from compare.exits import refusing
from compare.pages import add_write, settle
from compare.record import folder as run_folder
from compare.record.folder import NotARun
from compare.studies import capability
from compare.studies import sizes as source_sizes


def missing(command: str) -> str:
    return f"*Not measured yet.* `{command}`"


@dataclass(frozen=True)
class Committed:
    """The committed results of one GPU. names: the run folders whose times count."""

    results: Path
    names: tuple[str, ...]

    @cached_property
    def runs(self) -> list[RunData]:
        """The named runs that exist. Raises NotARun for a broken one."""
        return [merge.as_one(read(self.results / name)) for name in self.names if (self.results / name).is_dir()]

    @cached_property
    def costs(self) -> list[dict[str, Any]]:
        """Compile times: what `study costs` measured while there was one."""
        path = self.results / "costs" / "costs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def cost(self, part: str) -> list[dict[str, Any]]:
        return [row for row in self.costs if row["cost"] == part and row["status"] == "ok"]

    @cached_property
    def hosts(self) -> list[dict[str, Any]]:
        """Host times of calls: the lines of `study host`."""
        path = self.results / "host" / "host.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


COMMAND = "study costs --gpu {} --out DIR` at commit `6090ccfd"
DSLS = registry.DSLS


def of_dsl(rows: Iterable[dict[str, Any]], dsl: str) -> list[dict[str, Any]]:
    """The rows of one DSL, which they name themselves, in their kernel or as their arm."""
    return [row for row in rows if dsl in (row.get("dsl"), row.get("arm"), row.get("kernel", "").split("/")[0])]


# The blocks of docs/choosing-a-dsl.md as markdown, each a function of one GPU's committed results. Every block names
# the command that repeats it, or says that it is not measured yet.


_OUT = re.compile(r" --out \S+")


def _spread(found: Sequence[verdict.Verdict]) -> str:
    values = sorted(v.speed.ratio for v in found)
    return f"{values[0]:.2f} to {values[-1]:.2f}"


def _twins(run: RunData) -> tuple[list[verdict.Verdict], list[Any]]:
    pairs = verdict.twin_pairs(run.raw)
    found = verdict.judge(run.raw, pairs)
    return found, standings(run.raw, found, pairs)


def speed(had: Committed) -> str:
    """Helion against Triton, rung by rung, on the rows of each run; `auto` has its figures in the table of results."""
    parts = []
    for run in had.runs:
        found, stood = _twins(run)
        rows = []
        for one in (s for s in stood if s.group == "all" and s.compared and s.kernel != "helion/auto"):
            mine = [v for v in found if v.kernel == one.kernel]
            tally = [str(one.outcomes.get(outcome, 0)) for outcome in Outcome]
            mean = f"{one.speed.ratio:.3f} [{one.speed.low:.3f}, {one.speed.high:.3f}]"
            rows.append(
                [f"`{one.kernel.split('/')[1]}`", mean, _spread(mine), *tally, f"{one.compared} of {one.cells}"]
            )
        header = ["rung", "Triton's time / Helion's", "row by row", *(str(o) for o in Outcome), "rows"]
        parts += [f"Run `{run.folder.name}`, {_about(run)}: {_made(run)}", table(header, rows)]
    return "\n\n".join(parts) or missing("python -m compare.run --gpu h200 --suite peers")


def _made(run: RunData) -> str:
    """The command that repeats the run; for a merged run, its parts."""
    if parts := run.manifest.get("parts"):
        return f"merged of `{'`, `'.join(parts)}`"
    command = _OUT.sub("", run.manifest.get("command", "")).replace(" && ", "`, then `")
    return f"`{command}`"


def _about(run: RunData) -> str:
    """Where its kernels' configs came from, how many processes, which commit."""
    own = [r for r in run.records if r.kernel.split("/")[0] in ("triton", "helion")]
    origins = sorted({r.config_origin for r in own if r.config_origin})
    names = {"heuristics": "untuned", "tree": "measured", "paper": "the paper's"}
    processes = max(Counter(r.cell_id for r in run.raw).values(), default=0)
    said = " and ".join(names.get(origin, origin) for origin in origins)
    planned, finished = run.manifest.get("planned", 0), run.manifest.get("finished", 0)
    cells = f"{planned} cells" if finished >= planned else f"{finished} of {planned} cells"
    each = f"{processes} process{'es' if processes > 1 else ''} a cell"
    of_parts = [part.manifest.get("commit", "?").split(", ") for part in merge.parts(run)]
    commits = ", ".join(dict.fromkeys(one[:8] for of in of_parts for one in of))
    return f"{said} configs, {cells}, {each}, commit {commits}"


def host(had: Committed) -> str:
    """Host time to enqueue a call of each DSL's public function."""
    command = f"python -m compare study host --gpu {had.results.name}"
    found = had.hosts
    if not found:
        return missing(command)
    columns, commits = ("call", "plan", "launch", "graph"), sorted({row["commit"][:8] for row in found})
    body = [[row["dsl"], f"`{row['workload']}`", *(f"{row[c]:.1f}" for c in columns)] for row in found]
    return f"`{command}`, µs, commit {', '.join(commits)}:\n\n" + table(["DSL", "batch", *columns], body)


def compiling(had: Committed) -> str:
    """Cold and warm compile time."""
    command = COMMAND.format(had.results.name)
    found = had.cost("compile")
    if not found:
        return missing(command)
    body = []
    for dsl, state in itertools.product(DSLS, ("cold", "warm")):
        mine = [r for r in found if r["kernel"].startswith(dsl) and r["state"] == state]
        if mine:
            sums = [f"{statistics.median(r[f'{s}_cpu_s'] for r in mine):.2f}" for s in ("import", "first", "next")]
            body.append([f"{dsl}, {state}", *sums, str(len(mine))])
    header = ["", "import", "first call", "one more dtype", "kernels"]
    said = f"`{command}`, seconds of a core, medians over the kernels; {found[0]['ran_on']}:"
    return f"{said}\n\n{table(header, body)}"


def sizes(had: Committed) -> str:
    """Sizes of the device code, between kernels of equal capability."""
    found = source_pairs()
    if not found:
        return missing("make test ARGS='--conformance-out docs/results/conformance/cells.jsonl'")
    body = []
    for row in found:
        both = [f"{row[f'triton_{n}']} / {row[f'helion_{n}']}" for n in ("tokens", "lines", "cyclomatic")]
        ratio = f"{row['ratio_tokens']:.2f}" if row["ratio_tokens"] else f"not compared: {row['unequal']}"
        body.append([f"`{row['rung']}`", *both, ratio])
    header = ["rung, Triton / Helion", "tokens", "logical lines", "cyclomatic", "tokens, Helion over Triton"]
    escapes = {k: len(source_sizes.of_kernel(k).escapes) for k in registry.OWN if source_sizes.of_kernel(k).escapes}
    said = ", ".join(f"`{kernel}` {count}" for kernel, count in escapes.items()) or "none"
    return (
        "`python -m compare study sizes`:\n\n"
        + table(header, body)
        + f"\n\nEscapes from the portable language: {said}."
    )


def source_pairs() -> list[dict[str, Any]]:
    """Sizes of each rung in both DSLs, as in `study sizes`; empty where no conformance run is committed."""
    try:
        return source_sizes.pairs(capability.read(capability.RESULTS))
    except capability.NoResults:
        return []


BLOCKS: dict[str, Callable[[Committed], str]] = {
    "speed": speed, "host": host, "compile": compiling, "size": sizes,
}  # fmt: skip


HELP = "docs/choosing-a-dsl.md: what the committed runs say of the DSLs"
PAGE = run_folder.ROOT / "docs" / "choosing-a-dsl.md"
RESULTS = run_folder.ROOT / "docs" / "results" / "h200"
BLOCK = re.compile(r"<!-- evidence: (?P<name>[a-z]+)(?P<runs> [\w,-]+)? -->\n.*?<!-- end -->", re.DOTALL)


def render(text: str, results: Path) -> str:
    """The page with every block filled from the runs that its first block names. Raises KeyError for an unknown block,
    NotARun for a broken run."""
    first = BLOCK.search(text)
    had = Committed(results, tuple((first["runs"] or "").strip().split(",")) if first else ())

    def fill(found: re.Match) -> str:
        return f"<!-- evidence: {found['name']}{found['runs'] or ''} -->\n{BLOCKS[found['name']](had)}\n<!-- end -->"

    return BLOCK.sub(fill, text)


options = add_write


@refusing(NotARun, ValueError)
def main(asked: argparse.Namespace) -> int:
    return settle(PAGE, render(PAGE.read_text(encoding="utf-8"), RESULTS), "choosing", write=asked.write)
