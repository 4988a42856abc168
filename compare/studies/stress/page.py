"""The page of `study stress`, of plain lines: what was launched by which versions, what changed, what was left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from compare.record.records import Status
from compare.studies.stress.child import UNCONCERNED
from compare.studies.stress.subjects import CHOSEN, SAMPLED, Subject

FINE = (Status.OK, UNCONCERNED, Status.UNSUPPORTED, Status.UNAVAILABLE)
VERSIONS = ("torch", "triton", "ptxas")
NAME = "stress.md"
_ABOUT = """\
P.V takes P from registers in the products of sm_90, and two defects of compilers let those registers change while a
product still reads them: Triton's pipelining ([triton#9433](https://github.com/triton-lang/triton/issues/9433), mended
behind 3.6.0) and ptxas below 13.3 ([triton#11781](https://github.com/triton-lang/triton/pull/11781): 12.9 gave 61 for
64). Neither is seen by one launch for certain, so here is one batch with long loops, launched often: the first launch
is judged by the checker, and every other one must leave the same bits in the output and the LSE.

`configs`: those that trees, defaults and Listing 2 give for prompts, and a seeded sample of each kernel's space. `in
registers`: of these the ones whose PTX has a wgmma with its left operand in registers; only they are repeated."""

Key = tuple[str, ...]  # of VERSIONS


def key_of(line: Mapping[str, Any]) -> Key:
    return tuple(line[name] for name in VERSIONS)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".") if part.isdigit()]


def _newest_first(keys: Sequence[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: [_numbers(part) for part in (key[1], key[2], key[0])], reverse=True)


def failed(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["status"] not in FINE]


def _row(key: Key, kernel: str, lines: Sequence[Mapping[str, Any]], left: int) -> str:
    statuses = Counter(line["status"] for line in lines)
    concerned = [line for line in lines if line.get("wgmma", {}).get("register")]
    other = ", ".join(f"{n} {name}" for name, n in sorted(statuses.items()) if name not in (Status.OK, UNCONCERNED))
    launches, differ = (sum(line.get(name, 0) for line in concerned) for name in ("done", "differ"))
    worst = max((line.get("worst", 0.0) for line in concerned), default="")
    cells = *reversed(key), kernel, len(lines), len(concerned), launches, differ, worst, other or "none", left
    return "| " + " | ".join(map(str, cells)) + " |"


def render(
    lines: Sequence[Mapping[str, Any]], gpu: str, wanted: Sequence[Subject], command: str, dropped: int = 0
) -> str:
    """wanted: what a whole run has by each of the versions. dropped: lines of older sources or of other launches."""
    by_key: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        by_key[key_of(line)].append(line)
    keys = _newest_first(list(by_key))
    kernels = list(dict.fromkeys(one.kernel for one in wanted))
    rows, left_out, wrong = [], [], []
    for key in keys:
        done = {line["id"] for line in by_key[key]}
        left = [one for one in wanted if one.id not in done]
        for kernel in kernels:
            mine = [line for line in by_key[key] if line["kernel"] == kernel]
            rows.append(_row(key, kernel, mine, sum(one.kernel == kernel for one in left)))
        counts = Counter(one.origin for one in left)
        told = f"{counts[CHOSEN]} chosen and {counts[SAMPLED]} sampled configs of {len(wanted)}" if left else "nothing"
        left_out.append(f"- {named(key)}: left out {told}.")
        wrong += [
            f"- {named(key)}, `{line['kernel']}` by `{line['config']}`: {line['status']}: {line['reason']}"
            for line in failed(by_key[key])
        ]
    head = ("ptxas", "triton", "torch", "kernel", "configs", "in registers", "launches", "differ",
            "part of its error budget", "other outcomes", "left out")  # fmt: skip
    workloads = ", ".join(dict.fromkeys(f"`{one.workload}` {one.launches} times" for one in wanted))
    more = [f"{dropped} lines of older sources or of other options are not shown.", ""] if dropped else []
    return "\n".join([
        f"# The same launch again: bits on {gpu}", "", f"Written by `{command}`: {workloads}.", "", _ABOUT, "",
        "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows, "", *left_out, "", *more,
        "## What failed", "", *(wrong or ["Nothing."]), "",
    ])  # fmt: skip


def named(key: Key) -> str:
    torch, triton, ptxas = key
    return f"triton {triton} with ptxas {ptxas or 'unknown'} on torch {torch}"
