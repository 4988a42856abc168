"""The cases of the kit's level `first`: of those that the mutation score asked, what rejects most a second.

`candidates` are cheap cases, which `study mutation --first` asks. The level has all that hold each value with a short
case (`levels.quick`); behind them `chosen` takes the one with most new kills a second of an interpreted kernel, again
and again. `written` is common/kit/first.json.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from common.cases.case import Case
from common.cases.swept import sweep
from common.kit import levels
from common.spec import SpecError

MOST_S, QUICK_S = 5.0, 2.5  # of a case: the budget is for many; of one with all its calls, or that was made slim
FAR_S = 12.0  # of one of MANY or LONG
FEW = 20  # keys of a sequence of such a one
ENOUGH = 3  # cases that reject a kernel: it is not asked of others
# Many values in few calls.
MANY = (
    "swept-window@lens=1/40@heads=2/1", "swept-chunk@lens=1/40@heads=2/1",
    f"lengths-1-to-200@lens={'.'.join(f'1/{keys}' for keys in range(1, 35))}@heads=2/1",
    # queries of whole tiles, and hundreds of tokens; counts of pages
    f"window-page@lens={'.'.join(f'{n}/{n + 30}' for n in (32, 40, 48, 64, 96, 128))}@heads=2/1@brief=true",
    f"batch-1@lens={'.'.join(f'1/{8 * n}' for n in (24, 32, 48, 64, 100))}@block_size=8@extra_columns=0@brief=true",
    "window-page@lens=600/640@heads=2/1@brief=true", "window-page@lens=1540/1560@heads=1/1@brief=true",
)  # fmt: skip
# Of faults that begin behind thousands of keys, in few steps.
LONG = (
    "keys-4500@lens=1/2605", "keys-4500@lens=1/2605@heads=1/1@dtype=float32@softcap=2.0@sinks=near",
    "keys-4500@lens=1/2605.1/40@heads=1/1@dtype=float16@sliding_window=2200",
    "keys-4500-planted@lens=1/2605@heads=1/1", "keys-4500@lens=2/2305@heads=1/1@block_size=24",
    "keys-4500@lens=1/8300@heads=4/2@brief=true", "keys-4500@lens=2/16500@heads=2/1@brief=true",
    "keys-4500@lens=1/40001@heads=2/1@brief=true",
)  # fmt: skip
# Of a naive Triton kernel, interpreted: a program a query token and head, 32 keys a step.
STEP_S, CALL_S, CALLS, KEYS, BESIDE = 4e-3, 0.075, 4, 32, 2


def seconds(case: Case) -> float:
    """Processor time of a case: of an interpreted kernel's steps, in all calls."""
    most = min(case.ask.sliding_window or math.inf, (case.ask.chunk or math.inf) * (1 + case.ask.chunk_lookback))
    each = [(query_len, min(seq_len, most) / KEYS + BESIDE) for query_len, seq_len in case.lens if query_len]
    steps = sum(query_len * steps for query_len, steps in each) * case.heads[0]
    if case.brief:
        again = any(query_len > 1 for query_len, _ in each)
        return (1 + again) * CALL_S + STEP_S * (steps + again * sum(steps for _, steps in each) * case.heads[0])
    calls = CALLS + (len(list(sweep(case, case.features()))) if case.sweep else 0)
    return calls * (CALL_S + STEP_S * steps)


def slim(case: Case) -> Iterator[Case]:
    """The case with its longest sequence as it is, and the others of a token and few keys; then with few heads too."""
    longest = max(range(len(case.lens)), key=lambda seq: case.lens[seq][1], default=0)
    lens = tuple(one if seq == longest else (min(one[0], 1), min(one[1], FEW)) for seq, one in enumerate(case.lens))
    yield case.but(lens=lens)
    ratio, kv_heads = min(2, case.heads[0] // case.heads[1]), min(2, case.heads[1])
    yield case.but(lens=lens, heads=(ratio * kv_heads, kv_heads))


def _slim(case: Case) -> str | None:
    """The first of `slim` that is quick and possible."""
    for one in slim(case):
        if seconds(one) <= QUICK_S:
            with contextlib.suppress(SpecError):
                name = levels.write(one)
                levels.read(name)
                return name
    return None


def candidates() -> list[str]:
    """Cheap cases of smoke, with all their calls and brief, dearer ones made slim, LONG and MANY; the quick ones first,
    then the cheapest."""
    cases = {name: levels.read(name) for name in (*levels.level("smoke"), *LONG, *MANY)}
    cases = {name: case for name, case in cases.items() if not case.large}
    whole = {name: seconds(case) for name, case in cases.items()}
    few = (case.but(brief=True) for case in cases.values() if not (case.brief or case.sweep or case.company))
    cost = {name: cost for name, cost in whole.items() if cost <= (FAR_S if name in (*MANY, *LONG) else QUICK_S)}
    cost |= {levels.write(case): seconds(case) for case in few if seconds(case) <= MOST_S}
    dear = (case for name, case in cases.items() if whole[name] > QUICK_S and not case.sweep)
    cost |= {name: seconds(levels.read(name)) for name in filter(None, map(_slim, dear))}
    first = levels.quick()
    return [*first, *sorted(cost.keys() - {*first}, key=lambda name: (cost[name], name))]


def chosen(
    kills: Mapping[str, Set[int]], cost: Mapping[str, float], most_s: float, begin: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """(case, how many it rejects that none before it does): those of `begin`, then the best first, in `most_s`
    together. Of cases that reject nothing new that with most kills: one that was rejected before counts half as much
    each time."""
    left, times, found = dict(kills), Counter(), []

    def new(name: str) -> int:
        return sum(not times[one] for one in kills[name])

    def gain(name: str) -> tuple[float, float, str]:
        return new(name) / cost[name], sum(0.5 ** times[one] for one in kills[name]) / cost[name], name

    def take(name: str) -> float:
        found.append((name, new(name)))
        times.update(left.pop(name))
        return cost[name]

    spent = sum(map(take, begin))
    while left := {name: by for name, by in left.items() if by and spent + cost[name] <= most_s}:
        spent += take(max(left, key=gain))
    return found


def kept(name: str) -> tuple[str, dict[str, str] | None]:
    """A case under a name that stays its own, whatever becomes of the axes: with its fields, where it has no name."""
    case = levels.read(name)
    if levels.write(case) in levels.BY_NAME:
        return name, None
    told = levels.frozen(case)
    return f"first-{zlib.crc32(json.dumps(told, sort_keys=True).encode()):08x}", told


def written(command: str, kills: Mapping[str, Set[int]], most_s: float) -> dict[str, Any]:
    """What common/kit/first.json holds: the cases, what each rejects that none before it does, and how they were
    chosen from which `kills`: numbers of wrong kernels by case."""
    cost = {name: seconds(levels.read(name)) for name in kills}
    values = levels.quick()
    best = chosen(kills, cost, most_s, values)
    names = {name: kept(name) for name, _ in best[len(values) :]}
    return {
        "chosen_by": command,
        "of_cases": len(kills),
        "of_values": len(values),
        "of_wrong_kernels_that_one_of_them_rejects": len(set().union(*kills.values())),
        "rejected": sum(new for _, new in best),
        "seconds_of_a_naive_interpreted_kernel": round(sum(cost[name] for name, _ in best)),
        "new_kills": {names[name][0]: new for name, new in best[len(values) :]},
        "cases": dict(names.values()),
    }


def told() -> str:
    """What the level is, in a sentence."""
    of = levels.CHOSEN
    rejected, every = of["rejected"], of["of_wrong_kernels_that_one_of_them_rejects"]
    return (
        f"It is {of['of_values']} cases that hold each value with a short one, and {len(of['cases'])} of"
        f" {of['of_cases'] - of['of_values']} others; they reject {rejected} of the {every} wrong kernels that any of"
        f" these does (`{of['chosen_by']}`)."
    )
