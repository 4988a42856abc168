"""Measure any engine: drive its steps, check its tokens, return rows.

An engine has `add(name, prompt, count, logprobs)` and `step()`, which returns for each request that advanced (name, all
of its tokens so far, their log-probabilities or None).
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from compare.studies.engine.model import expected
from compare.workloads.trace import Request

PROMPT = 500  # the paper's
FIRST = 17  # the first token of a prompt


class Engine(Protocol):
    vocabulary: int

    def add(self, name: str, prompt: list[int], count: int, logprobs: bool) -> None: ...
    def step(self) -> list[tuple[str, Sequence[int], Sequence[float] | None]]: ...


def prompt_of(length: int, vocabulary: int, first: int = FIRST) -> list[int]:
    """Tokens that do not count up, so that copying the last one's predecessor is wrong; all differ up to the
    vocabulary."""
    return [(first + 7919 * place) % vocabulary for place in range(length)]


def wrong(prompt: list[int], found: Sequence[int], vocabulary: int) -> int:
    """How many tokens are not the expected ones after the prompt."""
    wanted = expected(prompt, len(found), vocabulary)
    return sum(one != other for one, other in zip(found, wanted, strict=True))


def latency(
    engine: Engine, lengths: Sequence[int], number: int, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, Any]]:
    """Run one request of PROMPT tokens to the longest of `lengths`; yields a row as soon as each length is reached:
    seconds until its last token."""
    prompt, left = prompt_of(PROMPT, engine.vocabulary), sorted(lengths)
    engine.add(f"latency-{number}-{left[-1]}", prompt, left[-1], False)
    began, times = clock(), []
    while left:
        for _, tokens, _ in engine.step():
            times += [clock() - began] * (len(tokens) - len(times))
        while left and len(times) >= left[0]:
            n = left.pop(0)
            bad = wrong(prompt, list(tokens)[:n], engine.vocabulary)
            yield {"part": "latency", "n": n, "pass": number, "seconds": times[n - 1], "wrong": bad}


def logprobs(engine: Engine) -> dict[str, Any]:
    """The log-probabilities of the tokens after one prompt."""
    tokens, values = _run(engine, {"logprobs": _probe(engine)})["logprobs"]
    return {
        "part": "logprobs", "wrong": wrong(_probe(engine).prompt, tokens, engine.vocabulary),
        "values": [round(float(value), 6) for value in values or ()],
    }  # fmt: skip


def mixed(engine: Engine, others: int = 24) -> dict[str, Any]:
    """Requests that join one by one, so that steps hold prompts beside decodes; the prompt of `logprobs` is among them.

    moved: the largest difference of its log-probabilities from those that it has alone: 0 in a batch-invariant engine.
    """
    asked = {f"mixed-{i}": _Asked(prompt_of(3 + 7 * i, engine.vocabulary, i), 40) for i in range(others)}
    _, alone = _run(engine, {"mixed-alone": _probe(engine)})["mixed-alone"]
    asked["mixed-probe"] = _probe(engine)
    asked |= {f"mixed-late-{i}": _Asked(prompt_of(150 - 5 * i, engine.vocabulary, i), 20) for i in range(others)}
    found = _run(engine, asked)
    beside = found["mixed-probe"][1]
    return {
        "part": "mixed", "requests": len(asked), "tokens_out": sum(len(tokens) for tokens, _ in found.values()),
        "wrong": sum(wrong(asked[name].prompt, tokens, engine.vocabulary) for name, (tokens, _) in found.items()),
        "moved": max(abs(float(a) - float(b)) for a, b in zip(alone or (), beside or (), strict=True)),
    }  # fmt: skip


class _Asked(NamedTuple):
    prompt: list[int]
    count: int
    logprobs: bool = False


def _probe(engine: Engine) -> _Asked:
    return _Asked(prompt_of(PROMPT, engine.vocabulary, 3), 64, True)


def _run(engine: Engine, asked: dict[str, _Asked]) -> dict[str, tuple[Sequence[int], Sequence[float] | None]]:
    """Add a request every other step until all have their tokens; (tokens, log-probabilities) of each."""
    waiting, found = list(asked.items()), {}
    left, odd = set(asked), False
    while left:
        if waiting and not odd:
            name, one = waiting.pop(0)
            engine.add(name, *one)
        odd = not odd
        for name, tokens, values in engine.step():
            found[name] = tokens, values
            if len(tokens) >= asked[name].count:
                left.discard(name)
    return found


def serving(
    engine: Engine, requests: Sequence[Request], number: int, limit_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Serve all requests at once, as many as the engine runs in parallel: throughput, time to first token, time between
    tokens. `done` counts those that ended within limit_s."""
    prompts = {f"{number}-{i}": prompt_of(one.prompt, engine.vocabulary, i) for i, one in enumerate(requests)}
    for (name, prompt), one in zip(prompts.items(), requests, strict=True):
        engine.add(name, prompt, one.generated, False)
    left = {name: one.generated for name, one in zip(prompts, requests, strict=True)}
    seen: dict[str, list[float]] = {name: [] for name in prompts}
    bad, began = 0, clock()
    while left and clock() - began < limit_s:
        for name, tokens, _ in engine.step():
            seen[name] += [clock() - began] * (len(tokens) - len(seen[name]))
            if len(tokens) >= left[name]:
                bad += wrong(prompts[name], tokens, engine.vocabulary)
                del left[name]
    seconds = clock() - began
    between = [later - earlier for times in seen.values() for earlier, later in itertools.pairwise(times)]
    firsts = [times[0] for times in seen.values() if times]
    read = sum(len(prompts[name]) for name, times in seen.items() if times)
    written = sum(map(len, seen.values()))
    return {
        "part": "serving", "pass": number, "requests": len(requests), "done": len(requests) - len(left),
        "tokens_in": read, "tokens_out": written, "seconds": seconds, "tokens_per_s": (read + written) / seconds,
        "ttft_p50_ms": quantile(firsts, 0.5), "ttft_p99_ms": quantile(firsts, 0.99),
        "itl_p50_ms": quantile(between, 0.5), "itl_p99_ms": quantile(between, 0.99), "wrong": bad,
    }  # fmt: skip


def quantile(values: Sequence[float], share: float) -> float | None:
    """The quantile of some seconds, in milliseconds."""
    ordered = sorted(values)
    return round(1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3) if ordered else None
