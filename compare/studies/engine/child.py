"""The process of one engine: reads its task from stdin, imports vLLM, waits for the GPU, measures, prints rows.

    python -m compare.studies.engine.child < TASK

Importing and configuring take longer than many a row, so the next engine's process does both while the one before it
measures; the lock of a file, taken before a model is loaded, lets one after the other at the GPU. Engines that start at
once share that lock until they have started, and take it alone to measure.
"""

import fcntl
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from compare.studies.engine import measure
from compare.studies.engine.model import SIZES, TWO_SIZES, Sizes, fill
from compare.workloads.trace import Request

BACKENDS = {"fa3": "FLASH_ATTN", "vllm_triton": "TRITON_ATTN"}  # any other name is a kernel's id, served by ours
GRAPHS = {"full": "FULL_AND_PIECEWISE", "always": "FULL", "partial": "PIECEWISE", "eager": "NONE"}
CAPTURED = [1, 2, 4, 8, *range(16, 257, 16)]
WHO = {"engine": "name", "graphs": "graphs", "model": "model", "kv_dtype": "kv_dtype"}  # of a row: its task's
CACHES = ("TRITON_CACHE_DIR", "HELION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "DIPTYCH_CACHE")
FORMAT = "diptych_counter"
LEAST_FREE = 0.01  # of the GPU's memory, without which vLLM does not start; the cache's size is said
SHORT = 800  # tokens out; up to these passes are repeated
LONG = 1  # the number of the pass to the longest length


def say(row: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(row) + "\n")
    sys.__stdout__.flush()


def environment(task: dict[str, Any]) -> dict[str, str]:
    """The environment variables that vLLM and our adapter read."""
    own = {} if task["name"] in BACKENDS else {"DIPTYCH_KERNEL": task["name"]}
    if folder := caches(task):
        own |= {name: str(folder / name) for name in CACHES}
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1", **own,
    }  # fmt: skip


def caches(task: dict[str, Any]) -> Path | None:
    """The folder of an engine's compiled code; None for the user's own."""
    return Path(task["caches"], task["name"].replace("/", "-")) if task.get("caches") else None


def register(sizes: Sizes) -> None:
    """Register our backend and the loader that makes the counting model's weights."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    from common.engines import vllm as plugin

    plugin.register()

    class Loader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            """Download nothing; `load_weights` makes the weights."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            fill(model.named_parameters(), sizes)
            torch.cuda.empty_cache()  # scratch of `fill`: engines that start at once share the GPU's memory

    register_model_loader(FORMAT)(Loader)
    if sizes.sinks:
        _give_sinks()
    if sizes.global_head_size:
        from transformers import AutoConfig, PretrainedConfig

        config = type("Config", (PretrainedConfig,), {"model_type": TWO_SIZES})
        AutoConfig.register(TWO_SIZES, config, exist_ok=True)  # transformers' own hides what vLLM reads


def _give_sinks() -> None:
    """Make vLLM's Llama give each layer's attention a sink for each head, as gpt-oss has them."""
    from vllm.model_executor.models import llama

    class Attention(llama.Attention):
        def __init__(self, num_heads: int, *args: Any, **kwargs: Any) -> None:
            sinks = torch.nn.Parameter(torch.empty(num_heads), requires_grad=False)
            super().__init__(num_heads, *args, sinks=sinks, **kwargs)
            self.sinks = sinks

    llama.Attention = Attention


def settings(task: dict[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM's LLM that a task sets, beside its model's folder."""
    return {
        "load_format": FORMAT, "dtype": "bfloat16", "block_size": 16, "skip_tokenizer_init": True,
        "attention_backend": BACKENDS.get(task["name"], "CUSTOM"), "enable_prefix_caching": task["prefix_caching"],
        "max_model_len": task["max_seq_len"], "max_num_seqs": task["max_seqs"], "kv_cache_dtype": task["kv_dtype"],
        "gpu_memory_utilization": LEAST_FREE, "kv_cache_memory_bytes": int(task["cache_gib"] * 2**30),
        "max_num_batched_tokens": task["max_tokens"], "disable_log_stats": True, "seed": 0,
        "compilation_config": {
            "cudagraph_mode": GRAPHS[task["graphs"]],
            "cudagraph_capture_sizes": [n for n in CAPTURED if n <= task["most_captured"]],
        },
    }  # fmt: skip


class Vllm:
    """vLLM's engine in this process, as a measure.Engine."""

    def __init__(self, task: dict[str, Any], sizes: Sizes) -> None:
        from vllm import LLM

        self.vocabulary = sizes.vocabulary
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(sizes.config(task["max_seq_len"]))
            (Path(folder) / "config.json").write_text(text, encoding="utf-8")
            self._llm = LLM(model=folder, **settings(task))
        self.engine = self._llm.llm_engine

    def add(self, name: str, prompt: list[int], count: int, logprobs: bool) -> None:
        from vllm import SamplingParams

        how = SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=0 if logprobs else None
        )
        self.engine.add_request(name, {"prompt_token_ids": prompt}, how)

    def step(self) -> list[tuple[str, Sequence[int], Sequence[float] | None]]:
        heard = []
        for output in self.engine.step():
            said = output.outputs[0]
            values = None
            if said.logprobs:
                values = [one[token].logprob for one, token in zip(said.logprobs, said.token_ids, strict=True)]
            heard.append((output.request_id, said.token_ids, values))
        return heard


class Compiles:
    """Counts kernels that Triton gives to this process; a warm engine has none.

    count: all of them. made: those that were not on the disk. seconds: of making them, all threads together.
    """

    def __init__(self) -> None:
        self.count, self.made, self.seconds = 0, 0, 0.0
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.compilation.listener = self._heard

    def _heard(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        self.count += 1
        if not cache_hit:
            self.made += 1
            self.seconds += times.total / 1e6


class Phases:
    """Seconds of the parts of vLLM's start, by name; before the first one `turn` waits for the GPU.

    waited: the seconds of that.
    """

    PARTS = ("load_model", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model")

    def __init__(self, turn: Callable[[], None]) -> None:
        from vllm.v1.worker.gpu_worker import Worker

        self.seconds: dict[str, float] = {}
        self.waited = 0.0
        for name in self.PARTS:
            setattr(Worker, name, self._timed(getattr(Worker, name), name))
        setattr(Worker, self.PARTS[0], self._in_turn(getattr(Worker, self.PARTS[0]), turn))
        last = getattr(Worker, self.PARTS[-1])

        def with_graphs(worker: Any) -> Any:
            worker.model_runner.capture_model = self._timed(worker.model_runner.capture_model, "capture_model")
            return last(worker)

        setattr(Worker, self.PARTS[-1], with_graphs)

    def _in_turn(self, function: Callable, turn: Callable[[], None]) -> Callable:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            turn()
            self.waited += time.monotonic() - began
            return function(*args, **kwargs)

        return run

    def _timed(self, function: Callable, name: str) -> Callable:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)

        return run


def about(task: dict[str, Any]) -> dict[str, Any]:
    """The fields of every row: engine, model, GPU, versions."""
    versions = {name: metadata.version(name) for name in ("vllm", "triton")} | {"torch": torch.__version__}
    who = {name: task[key] for name, key in WHO.items()} | task["scenario"]
    return who | {"gpu": torch.cuda.get_device_name()} | versions


def plans() -> dict[str, Any]:
    """Our adapter's warm-up: launches, seconds, and later calls that the warm-up had not met."""
    backend = sys.modules.get("common.engines.vllm_backend")
    servers = [server for _, server in backend._servers.values()] if backend is not None else []
    if not servers:
        return {}
    kept = sys.modules.get("dsl_helion.kept")
    sums = {"warmed": "warmed", "plan_s": "planning", "warm_s": "seconds", "unmet": "unmet"}
    said = {key: round(sum(getattr(one, name) for one in servers), 2) for key, name in sums.items()}
    return dict(kept.counts if kept else {}) | said


def work(task: dict[str, Any]) -> None:
    sizes, folder = SIZES[task["model"]], caches(task)
    which = "" if folder is None else "second" if folder.exists() else "first"
    began = time.monotonic()
    import vllm  # noqa: F401 - the slow half of a start

    register(sizes)
    imported = time.monotonic() - began
    at_once = task["at_once"]
    with open(task["lock"], "a", encoding="utf-8") as lock:
        phases = Phases(lambda: fcntl.flock(lock, fcntl.LOCK_SH if at_once else fcntl.LOCK_EX))
        compiles, began = Compiles(), time.monotonic()
        engine = Vllm(task, sizes)
        said = about(task)
        made = {"compiled": compiles.made, "compiled_s": round(compiles.seconds, 2), "kernels": compiles.count}
        compiles.count = 0
        for _ in measure.latency(engine, [16], -1):
            pass
        start_s = time.monotonic() - began - phases.waited
        start = {"part": "start", "import_s": imported, "start_s": start_s, "caches": which}
        start |= {"at_once": True} if at_once else {}
        say(said | start | phases.seconds | plans() | made | {"first_compiles": compiles.count})
        compiles.count = 0
        fcntl.flock(lock, fcntl.LOCK_EX)
        for row in rows(engine, task):
            say(said | row | plans() | {"compiles": compiles.count})
            compiles.count = 0


def steps(task: dict[str, Any]) -> Iterator[tuple[str, int, list[int]]]:
    """(part, pass, lengths) of a task's measurements, the most informative first, because time may run out.

    Pass LONG goes to the longest length, whatever the number of `repeats` of the short lengths: a later call with more
    repeats continues.
    """
    parts, lengths = task["parts"], task["lengths"]
    short = [n for n in lengths if n <= SHORT]
    if "start" in parts:
        yield "start", 0, []
    for part in ("logprobs", "mixed"):
        if part in parts:
            yield part, 0, []
    numbers = [number for number in range(task["repeats"] + 1) if number != LONG]
    passes = [("latency", number, short) for number in numbers[: task["repeats"]] if short and "latency" in parts]
    yield from passes[:1]
    if "latency" in parts and len(short) < len(lengths):
        yield "latency", LONG, lengths
    if "serving" in parts:
        yield "serving", 0, []
    yield from passes[1:]


def rows(engine: measure.Engine, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the task's remaining steps."""
    for part, number, lengths in task.get("steps", steps(task)):
        if part == "logprobs":
            yield measure.logprobs(engine)
        elif part == "mixed":
            yield measure.mixed(engine)
        elif part == "latency":
            yield from measure.latency(engine, lengths, number)
        elif part == "serving":
            requests = [Request(0.0, *one) for one in task["requests"]]
            for one in range(task["serving_passes"]):
                row = measure.serving(engine, requests, one, task["serving_limit_s"])
                yield row | {"trace": task["trace"]}


def main() -> None:
    """Run the task from stdin; exits with 0 after the last row."""
    task = json.loads(sys.stdin.readline())
    sys.stdout = sys.stderr  # the engine's prints go to the log
    os.environ.update(environment(task))
    work(task)
    sys.__stdout__.flush()
    os._exit(0)  # do not join the engine's threads


if __name__ == "__main__":
    main()
