"""Measure a server's start and steps without a server: a plan's warm-up, and the calls after it.

A process makes the plan of a Llama-3-8B server and warms up decodes of POINTS: with empty caches (`cold`), then another
process with the caches that the first one left (`warm`), as a restarted server. It then makes a call at every length
where a choice may change, for every number of sequences of the points: `later` counts code that these calls compiled,
generated or read from disk, `unmet` counts calls that the plan had not warmed up; both are 0 where no step waits for a
compiler. `worst_ms` is the slowest of these calls on the host, `host_us` the host time of a call through the plan, by
length (compare.studies.host).

A DSL that has both rows of this commit is skipped.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from common.gpus import Gpu
from compare.process import children
from compare.studies.costs.compile import STATES, Watch, fresh_process

LIMIT_S = 200.0  # of one process; Helion's cold one took 75 s on an H200
SIZES = (1, 2, 4, 8, 16, 32, 64)  # sequences
LENGTHS = (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)  # keys; with SIZES 56 points
TIMED = (1024, 2048, 4096, 8192)  # keys of the calls that are timed, one sequence each
CALLS = 200


def left(rows: Sequence[dict[str, Any]], dsls: Sequence[str], commit: str, gpu: Gpu) -> list[str]:
    """The DSLs without rows of this commit and GPU."""
    there = {
        (row["kernel"], row["state"]) for row in rows
        if row["cost"] == "server" and (row["status"], row["commit"], row["target"]) == ("ok", commit, gpu.name)
    }  # fmt: skip
    return [dsl for dsl in dsls if not there >= {(f"{dsl}/auto", state) for state in STATES}]


def measure(dsl: str, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Yield the cold and the warm row of a DSL; no second row if the first process fails."""
    task = {"kernel": f"{dsl}/auto", "device": "cuda", "sizes": SIZES, "lengths": LENGTHS, "timed": TIMED}
    with tempfile.TemporaryDirectory() as folder:
        for state in STATES:
            said = fresh_process(children.COST_SERVER, task | {"calls": CALLS}, folder, LIMIT_S)
            row = {"cost": "server", "kernel": task["kernel"], "state": state, "target": gpu.name}
            yield row | said | {"status": "failed" if "reason" in said else "ok"}
            if "reason" in said:
                return


class Compilers:
    """Counts since the last `lap`: what Triton compiled or read from its cache, and what Helion generated."""

    def __init__(self) -> None:
        from triton import knobs

        from dsl_helion.kept import counts

        self._compiled, self._read, self._counts = 0, 0, counts
        knobs.compilation.listener = self._heard
        self._last = self._now()

    def _heard(self, *, cache_hit: bool, **others: Any) -> None:
        self._read += cache_hit
        self._compiled += not cache_hit

    def _now(self) -> dict[str, int]:
        of_helion = {name: self._counts[name] for name in ("generated", "loaded")}
        return of_helion | {"compiled": self._compiled, "read": self._read}

    def lap(self) -> dict[str, int]:
        now, before = self._now(), self._last
        self._last = now
        return {name: count - before[name] for name, count in now.items()}


class Decodes:
    """Decode calls through a plan; all sequences share one page."""

    def __init__(self, module: Any, task: dict[str, Any]) -> None:
        import torch

        from common.serving.points import points
        from common.spec import AttentionShape
        from common.spec.metadata import cdiv

        seqs, keys, device = max(task["sizes"]), max(task["lengths"]), task["device"]
        self.shape = AttentionShape()
        self.plan = module.plan_paged_attention(self.shape, keys, seqs, keys, device, typical_seq_len=keys)
        shape, width = self.shape, cdiv(keys, self.shape.block_size)
        page = (1, 2, shape.block_size, shape.num_kv_heads, shape.head_size)
        self.caches = torch.zeros(page, dtype=shape.dtype, device=device).unbind(1)
        self.table = torch.zeros(seqs, width, dtype=torch.int32, device=device)
        self.starts = torch.arange(seqs + 1, dtype=torch.int32, device=device)
        self.lens = torch.ones(seqs, dtype=torch.int32, device=device)
        self.query = torch.zeros(seqs, shape.num_query_heads, shape.head_size, dtype=shape.dtype, device=device)
        self.out = torch.empty_like(self.query)
        self.points = list(points(task["sizes"], task["lengths"]))

    def warm_up(self) -> int:
        key_cache, value_cache = self.caches
        return self.plan.warmup(
            points=self.points, key_cache=key_cache, value_cache=value_cache, block_table=self.table
        )

    def call(self, seqs: int, keys: int) -> Callable[[], Any]:
        """A function that runs a step of `seqs` sequences of `keys` keys."""
        self.lens.fill_(keys)
        query, out = self.query[:seqs], self.out[:seqs]
        table, starts, lens = self.table[:seqs], self.starts[: seqs + 1], self.lens[:seqs]
        hints = {"max_query_len": 1, "max_seq_len": keys, "num_decodes": seqs, "total_seq_len": seqs * keys}
        return lambda: self.plan(query, *self.caches, table, starts, lens, out=out, **hints)


def steps(decodes: Decodes, task: dict[str, Any]) -> Iterator[float]:
    """Yield the host seconds of a call at each length where a choice may change."""
    from common.serving.grid import KEYS

    first, last = min(task["lengths"]), max(task["lengths"])
    for keys in sorted({n + more for n in KEYS if first <= n < last for more in (0, 1)} | {last}):
        for seqs in task["sizes"]:
            call = decodes.call(seqs, keys)
            began = time.perf_counter()
            call()
            yield time.perf_counter() - began


def answer(task: dict[str, Any], enqueue: Callable[[Callable, int], float]) -> dict[str, Any]:
    """The child's answer to its task. enqueue(call, calls): host microseconds of a call."""
    watch = Watch()
    from compare.competitors import registry

    module = registry.load(task["kernel"])
    said: dict[str, Any] = {"import_s": round(watch.lap("import")["import_s"], 3)}
    compilers = Compilers()
    decodes = Decodes(module, task)
    watch.lap("plan")
    said |= {"points": len(decodes.points), "launches": decodes.warm_up()}
    said["warm_s"] = round(watch.lap("warm")["warm_s"], 3)
    met = compilers.lap()
    said |= {name: met[name] for name in ("generated", "loaded", "compiled")}
    took = list(steps(decodes, task))
    said |= {"calls": len(took), "later": sum(compilers.lap().values()), "unmet": decodes.plan.unmet}
    said["worst_ms"] = round(1e3 * max(took), 3)
    timed = {keys: round(enqueue(decodes.call(1, keys), task["calls"]), 2) for keys in task["timed"]}
    return said | {"host_us": round(statistics.median(timed.values()), 2), "host_us_by_keys": timed}


def main() -> None:
    """The child process: reads a task from stdin and prints the answer."""
    import torch

    from compare.studies.host import enqueue_us

    task = json.loads(sys.stdin.read())
    torch.zeros(1, device=task["device"])  # do not count the driver's start
    print(json.dumps(answer(task, enqueue_us)), flush=True)


if __name__ == "__main__":
    main()
