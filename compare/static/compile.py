"""Cross-compile in a child process per target: a compiler that crashes, hangs or floods costs one row and no more.

The parent writes one JSON job a line; the child answers with one event a job (compare.process.channel), and a
compiler's prints go to the log. A child that dies or exceeds a job's time limit is replaced after that job. Between two
jobs it waits for its next line.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from common.gpus import Gpu
from common.process import Child, Lost
from common.spec import SpecError
from common.spec.kernel import asked_of
from compare.process import children
from compare.process.channel import Channel
from compare.process.crew import environment
from compare.workloads import Workload

LOG_TAIL = 2000  # characters of a trace that an error keeps
START_LIMIT_S = 90.0  # imports on a busy 2-core machine took up to 20 s


@dataclass(frozen=True)
class Compilation:
    """A launch to compile. `kernel`: an id of the registry. config None: what an untuned user of the GPU gets. lse:
    with such a tensor. large_cache: K and V in tensors above 2 GiB."""

    workload: Workload
    kernel: str
    config: dict[str, Any] | None = None
    lse: bool = False
    large_cache: bool = False
    heuristics: str = "tree"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self) | {"workload": self.workload.to_dict()})

    @classmethod
    def from_json(cls, line: str) -> "Compilation":
        plain = json.loads(line)
        return cls(**plain | {"workload": Workload.from_dict(plain["workload"])})


@dataclass(frozen=True)
class Outcome:
    """`status`: ok, unsupported (a typed refusal, as of a feature by the kernel or of an fp8 type for the target),
    unavailable (an import failed), compile_error, crash or timeout; `facts` one dict per kernel of the launch;
    `config` and its origin as in a Record."""

    job: Compilation
    status: str
    config: dict[str, Any] | None = None
    config_origin: str = ""
    facts: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    log_tail: str = ""


def compile_in_child(jobs: Iterable[Compilation], gpu: Gpu, *, limit_s: float = 120.0) -> Iterator[Outcome]:
    """Compile every job for `gpu`, in order, and yield each outcome as it comes. `limit_s`: of one job.

    A job is taken from `jobs` when the previous one has its outcome, so the iterator may be slow.
    """
    waiting = iter(jobs)
    for job in waiting:
        yield from _one_child(itertools.chain([job], waiting), gpu, limit_s)


def _one_child(jobs: Iterable[Compilation], gpu: Gpu, limit_s: float) -> Iterator[Outcome]:
    """Outcomes of one child; ends early, with a crash or timeout as the last outcome, when the child does."""
    child = Child(children.command(children.COMPILE), environment("compile"), flood=math.inf)
    limit = limit_s + START_LIMIT_S
    try:
        with contextlib.suppress(Lost):  # it died at once: the first job reports it
            child.send(json.dumps(dataclasses.asdict(gpu)).encode())
        for job in jobs:
            try:
                child.send(job.to_json().encode())
                answer = json.loads(child.line(limit))
            except Lost as lost:
                took = f"compiling took more than {limit:.0f} s"
                reason = took if lost.status == "timeout" else f"the compiling process ended with {lost.code}"
                status = "timeout" if lost.status == "timeout" else "crash"
                yield Outcome(job, status, reason=reason, log_tail=lost.log_tail)
                return
            del answer["event"], answer["logged"]
            yield Outcome(job, **answer | {"facts": tuple(answer.get("facts", ()))})
            limit = limit_s
    finally:
        child.end()


def _compile(job: Compilation, gpu: Gpu) -> dict[str, Any]:
    """The answer to one job, as plain values. Typed refusals and compiler errors are answers, not crashes."""
    from compare.competitors import registry
    from compare.static.crosscompile import static_facts

    row = job.workload
    batch = row.batches(1, "cpu", fill=False)[0]
    features = row.features(batch)
    lse = torch.empty(batch.query.shape[:2], dtype=torch.float32) if job.lse else None
    answer: dict[str, Any] = {}
    try:
        kernel = registry.load(job.kernel)
        asked = (job.kernel, kernel, row.shape, batch.stats, gpu, job.heuristics, asked_of(batch, features))
        config, origin = registry.default_config(*asked, features.sees)
        if job.config is not None:
            config, origin = registry.config_from(config, job.config), "given"
        answer = {"config": registry.config_dict(config), "config_origin": origin}
        how = {"lse": lse, "large_cache": job.large_cache}
        facts = static_facts(kernel, batch, features, config, gpu, **how)
    except registry.Unavailable as error:
        return {"status": "unavailable", "reason": str(error)}
    except SpecError as error:
        return answer | {"status": "unsupported", "reason": str(error)}
    except Exception as error:  # any compiler error is this job's answer, with its trace
        tail = traceback.format_exc()[-LOG_TAIL:]
        return answer | {"status": "compile_error", "reason": _reason(error), "log_tail": tail}
    return answer | _verdict([kernel.as_dict() for kernel in facts], gpu)


def _reason(error: BaseException) -> str:
    """The type and the first line; behind what Triton wraps, as it quotes the source of each caller, the fault."""
    told, inner = (str(error).strip().splitlines() or [""])[0], error
    while below := inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__):
        inner = below
    fault = getattr(inner, "error_message", None) or ("" if inner is error else str(inner))
    fault = (fault.strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {told if fault in told else f'{told} {fault}'}"[:300]


def _verdict(facts: list[dict[str, Any]], gpu: Gpu) -> dict[str, Any]:
    """ok, or compile_error for code that compiled but cannot be launched; the facts are kept in either case."""
    for fact in facts:
        if fact["shared_bytes"] > gpu.shared_bytes:
            needs = f"{fact['kernel']} needs {fact['shared_bytes']} B of shared memory"
            reason = f"{needs}, {gpu.name} has {gpu.shared_bytes} for a program: it would not launch"
            return {"status": "compile_error", "reason": reason, "facts": facts}
    return {"status": "ok", "facts": facts}


def main() -> None:
    channel = Channel()  # a compiler's prints go to the log
    gpu = Gpu(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        channel.send("compiled", **_compile(Compilation.from_json(line), gpu))


if __name__ == "__main__":
    main()
