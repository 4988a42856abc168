"""Our kernels inside vLLM: the paper's Figure 9 (500 tokens in, N out) and a trace of requests, every token checked.

    python -m compare study engine [--engines fa3:full,triton/auto:full,...] [--trace FILE] [--out DIR]
    python -m compare study engine --parts start --caches DIR
    python -m compare study engine --model gemma-4-512 --parts logprobs,latency --out DIR
    python -m compare study engine --lengths 12800 --max-tokens 2048 --prefix-caching --out DIR
    python -m compare study engine --engines fa3:full,triton/q_block:full,... --at-once --max-seqs 8 --cache 2 --out DIR
    python -m compare study engine --render

An engine is NAME:GRAPHS: a kernel's id (triton/auto, triton/native.auto, helion/auto, ...), fa3 or vllm_triton, with
full, always (full ones of any mixture), partial or eager graphs. Each is a vLLM in a process of its own, one at the GPU
at a time; the next one imports meanwhile. With new --caches its start is a first one, with the same again a second.
They write Python's bytecode, whatever PYTHONDONTWRITEBYTECODE says: a start reads it where a package was installed.
--at-once starts all of them beside each other, which has no start to tell, and measures them one by one.
docs/results/<gpu>/engine has one row for each measurement, figures and a page of them; another scenario (model, limits,
trace, prefix caching) belongs into another folder. What was measured is not measured again: of our kernels while their
sources are the same, of fa3 and vllm_triton while the versions are.
Exit codes: 0; 1 a token was wrong, or an engine broke; 2 usage; 3 no GPU; 5 vLLM is not installed.
"""

import argparse
import importlib.util
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from common.engines.options import kernel_of
from common.process import Child, Lost
from common.spec import SpecError
from compare.exits import NO_GPU, NOTHING, OK, WRONG, refusing, terminable
from compare.identity import code
from compare.plan.situation import situation
from compare.process import children
from compare.record import folder as run_folder
from compare.record.store import Lines
from compare.studies.engine import child, page
from compare.studies.engine.child import BACKENDS, GRAPHS
from compare.studies.engine.model import SIZES
from compare.workloads import trace
from compare.workloads.numbers import integer, positive

HELP = "our kernels inside vLLM: latency by output length, a trace of requests, every token checked"
ENGINES = (
    "fa3:full,triton/auto:full,triton/native.auto:full,vllm_triton:full,fa3:partial,triton/auto:partial,"
    "helion/auto:full,vllm_triton:partial,helion/auto:partial"
)
LENGTHS = "100,400,800,1600,3200,6400"
PARTS = ("start", "logprobs", "mixed", "latency", "serving")
LINES = "engine.jsonl"
OURS = ("common", "dsl_triton", "dsl_helion")  # rows of other sources of these do not count as measured
MODEL = "llama-3-8b"
LARGE = (MODEL, "llama-3-70b-tp8", "gpt-oss-20b")  # models of a server's size; the others are for tokens alone
CACHE_GIB, SMALL_CACHE_GIB = 40, 2  # of K and V: said, so that engines have as much whatever else is on the GPU
SEQS, SMALL_SEQS = 256, 64  # sequences beside each other: fewer graphs, and code for them, where tokens are checked
USUAL = {"max_seq_len": 8192, "max_tokens": 8192, "max_seqs": None, "prefix_caching": False}  # a row has what differs
PROMPT, MOST_SEQ_LEN = 500, 131072  # tokens
PASSES = 2  # over the requests of a trace
REPEATS = 3  # passes up to 800 tokens out
REQUESTS = 300  # of a trace
ROW_S = 3.0  # that a row of an interrupted engine may take
LOG_TAIL = 2500  # characters of a lost engine's output: the error is above its frames
SERVING_LIMIT_S = 120.0  # of one pass over them


def engines_of(text: str) -> list[tuple[str, str]]:
    """(name, graphs) of each engine. Raises SpecError naming an unknown one."""
    found = []
    for one in filter(None, map(str.strip, text.split(","))):
        name, _, graphs = one.partition(":")
        if graphs not in GRAPHS:
            raise SpecError("--engines", repr(one), f"NAME:{', NAME:'.join(GRAPHS)}")
        if name not in BACKENDS:
            kernel_of(name)
        found.append((name, graphs))
    if not found:
        raise SpecError("--engines", repr(text), "at least one NAME:GRAPHS")
    return found


def requests_of(path: Path, count: int, longest: int) -> list[tuple[int, int]]:
    """(prompt, generated) of the first requests of a trace that fit. Raises GrammarError."""
    fitting = [(one.prompt, one.generated) for one in trace.read(path) if one.prompt + one.generated <= longest]
    return [one for one in fitting if min(one) > 0][:count]


def versions() -> dict[str, str]:
    """The versions that identify rows of vLLM's own backends."""
    found = {name: metadata.version(name) for name in ("vllm", "triton") if importlib.util.find_spec(name)}
    return found | {"torch": torch.__version__}


class Run(Lines):
    """The rows of a folder, and which steps are still to be measured."""

    def __init__(self, out: Path, source: str, made_by: dict[str, str]) -> None:
        super().__init__(out / LINES)
        self.source, self._made_by = source, made_by
        self.rows = page.read(out / LINES)
        self._mutex = threading.Lock()

    def left(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """The task with its unmeasured steps; None if all are measured with these sources and versions."""
        mine = [row for row in self.rows if self._counts(row, task)]
        steps = [one for one in (_left(mine, task, *step) for step in child.steps(task)) if one is not None]
        return task | {"steps": steps} if steps else None

    def _counts(self, row: dict[str, Any], task: dict[str, Any]) -> bool:
        """Whether a row was measured on the task's engine with the present sources or versions."""
        if (row["engine"], row["graphs"]) != (task["name"], task["graphs"]) or row["part"] in page.STATES:
            return False
        if any(row.get(name, task[name]) != task[name] for name in ("model", "kv_dtype")):
            return False
        if any(row.get(name) != task["scenario"].get(name) for name in USUAL):
            return False
        if task["name"] in BACKENDS:
            return all(row.get(name) == version for name, version in self._made_by.items())
        return row.get("source") == self.source

    def add(self, row: dict[str, Any]) -> None:
        with self._mutex:
            line = row | {"source": self.source}
            self.append(json.dumps(line, separators=(",", ":")))
            self.rows.append(line)


def _left(rows: Sequence[dict[str, Any]], task: dict[str, Any], part: str, number: int, lengths: list[int]) -> Any:
    """The part of a step (child.steps) that no row answers; None where all of it is answered. The passes over requests
    belong together: the second measures an engine that has served the first."""
    mine = [row for row in rows if row["part"] == part]
    if part == "start" and task["caches"]:
        mine = [row for row in mine if row["caches"] == "second"]
    if part == "latency":
        there = {row["n"] for row in mine if row["pass"] == number}
        lengths = [n for n in lengths if n not in there]
        done = not lengths
    elif part == "serving":
        alike = [row for row in mine if row.get("trace", task["trace"]) == task["trace"]]
        there = {row["pass"] for row in alike if row["requests"] == len(task["requests"])}
        done = there >= set(range(task["serving_passes"]))
    else:
        done = bool(mine)
    return None if done else (part, number, lengths)


def named(task: dict[str, Any]) -> str:
    return f"{task['name']}:{task['graphs']}"


def one_engine(
    run: Run, task: dict[str, Any], process: Child, deadline: float, began: threading.Event, stopped: threading.Event,
    said: Callable[[str], None],
) -> None:  # fmt: skip
    """Give an engine's process its task, keep its rows, end it. began: set at its first row or at its end. stopped: set
    where all processes are killed from outside."""
    name = named(task)
    try:
        process.send(json.dumps(task).encode())
        while True:
            row = json.loads(process.line(max(deadline - time.time(), 1.0)))
            began.set()
            run.add(row)
            said(f"{name}: {page.told(row)}")
    except Lost as lost:
        who = {"engine": task["name"], "graphs": task["graphs"]}
        if lost.code == 0:
            run.add({"part": "end", "parts": task["parts"]} | who)
            return
        tail = lost.log_tail[-LOG_TAIL:]
        if stopped.is_set() or time.time() >= deadline:
            why = "the call was interrupted" if stopped.is_set() else "the time given by --budget was over"
            run.add({"part": "cut", "status": "cut", "reason": why, "log": tail} | who)
            said(f"{name}: cut: {why}; the next call goes on with what is left")
        else:
            run.add({"part": "lost", "status": lost.status, "reason": lost.reason, "log": tail} | who)
            said(f"{name}: {lost.status}: {lost.reason}\n{tail}")
    finally:
        process.end()
        began.set()


def all_engines(
    run: Run, tasks: Sequence[dict[str, Any]], deadline: float, command: Sequence[str], at_once: bool = False
) -> None:
    """Measure the engines one after another; the next process imports while one measures, or with at_once all start
    now. Interrupted, it ends the processes and keeps a row of each that says where it was."""
    threads, processes, stopped = [], [], threading.Event()
    try:
        for task in tasks:
            if time.time() > deadline:
                print(f"left out: {named(task)}", file=sys.stderr)
                continue
            began, said = threading.Event(), lambda text: print(text, file=sys.stderr, flush=True)
            processes.append(Child(command, os.environ | {"PYTHONDONTWRITEBYTECODE": ""}, name=named(task)))
            arguments = (run, task, processes[-1], deadline, began, stopped, said)
            threads.append(threading.Thread(target=one_engine, args=arguments, daemon=True))
            threads[-1].start()
            while not (at_once or began.wait(0.2)):
                pass
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        stopped.set()
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join(ROW_S)
        raise


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", default=ENGINES, metavar="LIST", help=f"NAME:GRAPHS,... (default {ENGINES})")
    parser.add_argument("--model", default=MODEL, choices=SIZES, help=f"(default {MODEL})")
    parser.add_argument("--kv-dtype", default="auto", choices=page.KV, help="of K and V in pages (default: bf16)")
    parser.add_argument(
        "--caches", type=Path, metavar="DIR", help="folders of compiled code, by engine; new ones give a first start"
    )
    parser.add_argument(
        "--cache",
        type=positive,
        metavar="GIB",
        help=f"of K and V (default {CACHE_GIB}; {SMALL_CACHE_GIB} for small models)",
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default all)")
    parser.add_argument("--lengths", default=LENGTHS, help=f"tokens out (default {LENGTHS})")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="requests to serve; without it that part is left out"
    )
    parser.add_argument(
        "--max-seqs", type=integer(1, 1024), metavar="N",
        help=f"beside each other, graphs no larger (default {SEQS}; {SMALL_SEQS} for small models)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=integer(1, MOST_SEQ_LEN), default=USUAL["max_tokens"], metavar="N",
        help="of a step; longer prompts come in chunks (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--prefix-caching", action="store_true", help="the second pass over a trace then finds its prompts in the cache"
    )
    parser.add_argument(
        "--repeats", type=integer(1, 100), default=REPEATS, help="passes up to 800 tokens (default %(default)s)"
    )
    parser.add_argument(
        "--passes", type=integer(1, 100), default=PASSES, help="over a trace's requests (default %(default)s)"
    )
    parser.add_argument("--at-once", action="store_true", help="start all beside each other, measure one by one")
    parser.add_argument("--budget", type=positive, default=math.inf, metavar="S", help="all ends after so many s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default docs/results/<gpu>/engine)")
    parser.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    parser.add_argument("--render", action="store_true", help="figures and page from the rows that are there; no GPU")


def tasks_of(asked: argparse.Namespace, engines: Sequence[tuple[str, str]], lock: Path) -> list[dict[str, Any]]:
    """The tasks of all engines' processes. Raises SpecError, GrammarError, ValueError."""
    lengths = sorted({int(n) for n in asked.lengths.split(",")})
    parts = [part.strip() for part in asked.parts.split(",")]
    for part in parts:
        if part not in PARTS:
            raise SpecError("--parts", repr(part), ", ".join(PARTS))
    if lengths[0] < 1 or lengths[-1] + PROMPT > MOST_SEQ_LEN:
        raise SpecError("--lengths", asked.lengths, f"1 to {MOST_SEQ_LEN - PROMPT}")
    max_seq_len = USUAL["max_seq_len"]
    while max_seq_len < lengths[-1] + PROMPT:
        max_seq_len *= 2
    requests = []
    if asked.trace is not None:
        requests = requests_of(asked.trace, REQUESTS, max_seq_len)
    parts = [part for part in parts if part != "serving" or requests]
    large = asked.model in LARGE
    found = {"max_seq_len": max_seq_len, **{name: getattr(asked, name) for name in list(USUAL)[1:]}}
    return [
        {
            "name": name, "graphs": graphs, "parts": parts, "lengths": lengths, "repeats": asked.repeats,
            "at_once": asked.at_once, "scenario": {key: one for key, one in found.items() if one != USUAL[key]},
            "trace": asked.trace and asked.trace.stem, "requests": requests, "serving_passes": asked.passes,
            "serving_limit_s": SERVING_LIMIT_S, "model": asked.model, "kv_dtype": asked.kv_dtype,
            "caches": asked.caches and str(asked.caches.resolve()),
            "lock": str(lock), **found, "max_seqs": asked.max_seqs or (SEQS if large else SMALL_SEQS),
            "most_captured": asked.max_seqs or child.CAPTURED[-1],
            "cache_gib": asked.cache or (CACHE_GIB if large else SMALL_CACHE_GIB),
        }
        for name, graphs in engines
    ]  # fmt: skip


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    begin, now = time.time(), situation(asked.gpu, None)
    out = asked.out or run_folder.ROOT / "docs" / "results" / (now.name if now.target else "h200") / "engine"
    tasks = [] if asked.render else tasks_of(asked, engines_of(asked.engines), out / "gpu.lock")
    if not asked.render and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: `pip install vllm` beside a GPU; --render needs none", file=sys.stderr)
        return NOTHING
    if not asked.render and not now.measure:
        print(f"{now.line}; --render needs no GPU", file=sys.stderr)
        return NO_GPU
    run_folder.ensure_writable(out)
    run = Run(out, code(OURS), versions())
    try:
        with terminable():
            left = [one for one in map(run.left, tasks) if one is not None]
            deadline = begin + min(asked.budget, 10**9)
            all_engines(run, left, deadline, children.command(children.ENGINE), asked.at_once)
    finally:
        run.close()
        (out / "gpu.lock").unlink(missing_ok=True)
        print(page.write(out, run.rows))
    return WRONG if page.bad(run.rows) else OK
