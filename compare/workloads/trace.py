"""Real serving load: requests of a trace through a continuous-batching scheduler, and the steps worth keeping.

The trace says when a request came, how long its prompt was and how many tokens were generated. The scheduler is the
usual one: decodes first, then chunks of waiting prompts in order of arrival, within limits on sequences and tokens a
step. A request's first token comes with the last chunk of its prompt, each later one with a step.
"""

import csv
import datetime
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.spec import AttentionShape
from common.spec.refusals import expect_file
from compare.workloads.workload import Ask, GrammarError, Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 2**20  # of a prompt or an answer: each token generated is a step to simulate


@dataclass(frozen=True)
class Request:
    """arrival in seconds from the first line; prompt and generated in tokens."""

    arrival: float
    prompt: int
    generated: int


@dataclass(frozen=True)
class Rule:
    """How requests become steps. A step lasts `step_ms` + `token_us` per scheduled token."""

    batches: int = 16
    step_ms: float = 5.0
    token_us: float = 25.0
    max_seqs: int = 256
    max_tokens: int = 8192

    def assumptions(self) -> tuple[str, ...]:
        """What is assumed and not in the trace, as sentences."""
        return (
            f"a step lasts {self.step_ms:g} ms + {self.token_us:g} us per scheduled token",
            f"decodes first, then chunks of waiting prompts in order of arrival; at most {self.max_seqs} sequences "
            f"and {self.max_tokens} tokens a step",
            f"{self.batches} steps kept, at even quantiles of their KV tokens",
        )


def _shown(values: Iterable[object]) -> str:
    """A line of the file for a terminal: at most 80 characters, none of which moves its cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in ",".join(map(str, values)))[:80]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row) of the file. Raises GrammarError for a file or header that cannot be read, SpecError
    for a device."""
    expect_file(path, "trace", "a file of CSV")
    try:
        file = open(path, newline="", encoding="utf-8-sig", errors="replace")  # noqa: SIM115 - closed by the with below
    except OSError as error:
        raise GrammarError(f"trace: found {path}, which cannot be read: {error.strerror}") from error
    with file:
        reader = csv.DictReader(file)
        try:
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                found = _shown(reader.fieldnames or ()) or "nothing"
                raise GrammarError(f"{path}, line 1: found {found}, allowed a header with {', '.join(COLUMNS)}")
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise GrammarError(f"{path}, line {reader.line_num + 1}: found {error}, allowed CSV") from error


def read(path: Path) -> list[Request]:
    """The requests of a trace in order of arrival. Raises GrammarError naming the line."""
    found = []
    for line, row in _rows(path):
        try:
            moment = datetime.datetime.fromisoformat((row["TIMESTAMP"] or "").strip())
            arrival = moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp()
            prompt, generated = int(row["ContextTokens"] or ""), int(row["GeneratedTokens"] or "")
        except (ValueError, TypeError):
            values = _shown(row[name] for name in COLUMNS)
            raise GrammarError(f"{path}, line {line}: found {values}, allowed a time stamp and two integers") from None
        if not (0 <= prompt <= MOST_TOKENS and 0 <= generated <= MOST_TOKENS):
            raise GrammarError(
                f"{path}, line {line}: found {prompt} and {generated} tokens, allowed 0 to {MOST_TOKENS}"
            )
        if prompt and generated:
            found.append(Request(arrival, prompt, generated))
    if not found:
        raise GrammarError(f"{path}, line 1: found no request with tokens, allowed at least one")
    first = min(request.arrival for request in found)
    moved = [Request(request.arrival - first, request.prompt, request.generated) for request in found]
    return sorted(moved, key=lambda request: request.arrival)


@dataclass
class _Running:
    prompt: int
    left: int  # tokens to generate
    done: int = 0  # tokens in the KV cache


@dataclass(frozen=True)
class Step:
    """A step: when it began, and its (query_len, seq_len) pairs, decodes first."""

    start: float
    lens: tuple[tuple[int, int], ...]

    @property
    def kv_tokens(self) -> int:
        return sum(seq_len for _, seq_len in self.lens)

    @property
    def has_chunk(self) -> bool:
        return any(query_len > 1 for query_len, _ in self.lens)


def _schedule(running: list[_Running], rule: Rule) -> list[tuple[_Running, int]]:
    """(request, query tokens) of the next step: every decode, then chunks of prompts while tokens are left."""
    decoding = [(request, 1) for request in running if request.done >= request.prompt]
    budget = rule.max_tokens - len(decoding)
    chunks = []
    for request in running:
        if budget <= 0:
            break
        if request.done < request.prompt:
            query_len = min(request.prompt - request.done, budget)
            chunks.append((request, query_len))
            budget -= query_len
    return decoding + chunks


def simulate(requests: Iterable[Request], rule: Rule) -> Iterator[Step]:
    """Every step until all requests are served."""
    waiting = deque(requests)
    running: list[_Running] = []
    clock = 0.0
    while waiting or running:
        if not running:
            clock = max(clock, waiting[0].arrival)
        while waiting and waiting[0].arrival <= clock and len(running) < rule.max_seqs:
            request = waiting.popleft()
            running.append(_Running(request.prompt, request.generated))
        chosen = _schedule(running, rule)
        lens = []
        for request, query_len in chosen:
            request.done += query_len
            lens.append((query_len, request.done))
            if request.done >= request.prompt:
                request.left -= 1
        yield Step(clock, tuple(lens))
        running = [request for request in running if request.left > 0]
        clock += rule.step_ms * 1e-3 + rule.token_us * 1e-6 * sum(query_len for query_len, _ in lens)


def keep(steps: Iterable[Step], count: int) -> list[Step]:
    """`count` steps at even quantiles of KV tokens, least first: the middle of each of `count` equal parts."""
    ordered = sorted(steps, key=lambda step: step.kv_tokens)
    if len(ordered) <= count:
        return ordered
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def workloads(
    path: str, rule: Rule, shape: AttentionShape, ask: Ask, seed: int
) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """The kept steps as rows, labelled by number, sequences and KV tokens; and their description. Raises
    GrammarError."""
    if rule.batches < 1:
        raise GrammarError(f"batches: found {rule.batches}, allowed at least 1")
    for name in ("step_ms", "token_us"):
        if not 0.0 <= getattr(rule, name) < float("inf"):
            raise GrammarError(f"{name}: found {getattr(rule, name):g}, allowed a finite number of at least 0")
    requests = read(Path(path))
    steps = list(simulate(requests, rule))
    kept = keep(steps, rule.batches)
    chunked = sum(step.has_chunk for step in steps)
    rows = tuple(
        Workload(f"step-{i:02d}-{len(step.lens)}seqs-{step.kv_tokens}kv", step.lens, shape, ask, seed=seed * 1000 + i)
        for i, step in enumerate(kept)
    )
    counted = (
        f"{len(requests)} requests of {Path(path).name} make {len(steps)} steps; {chunked / len(steps):.1%} of these "
        f"hold a chunk of a prompt, {sum(step.has_chunk for step in kept)} of the {len(kept)} kept"
    )
    return rows, (counted, *rule.assumptions())
