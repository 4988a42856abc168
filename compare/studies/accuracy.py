"""Error of attention over 8-bit caches by the length of the context, against float64 of the same stored values.

    python -m compare study accuracy [--gpu auto] [--out accuracy.jsonl]
    python -m compare study accuracy --table RUN.jsonl ...

Every value of V is positive, so that what a sum loses is not averaged away. A row per kernel, query dtype, count of
query tokens and length; `relative` is |error| / |output| over the call, `bias` the mean of error / output. On a GPU
that is not here the kernels are compiled and executed in the ISA model, with one KV head.
Exit codes: 0; 1 where an error is beyond RELATIVE or a bias beyond BIAS; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common import gpus
from common.cases.ask import Ask
from common.gpus import Gpu
from common.oracle.reference import reference
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, asked_of
from compare.competitors import registry
from compare.exits import INTERRUPTED, OK, USAGE, WRONG, say
from compare.static.crosscompile import executing
from compare.static.isa.execute import execute
from compare.workloads import Workload
from compare.workloads.workload import empty_output

HELP = "error of attention over 8-bit caches by the length of the context"
KERNELS = ("triton/auto", "helion/auto")
KEYS = (2048, 16384, 131072)
QUERY_TOKENS = (1, 64)
HEADS = (8, 2, 128)
MODEL_HEADS = (2, 1, 128)  # of the ISA model, which executes some thousand instructions a second
RELATIVE, BIAS = 0.005, 0.001
FIELDS = {"kernel", "gpu", "evidence", "query", "cache", "query_len", "keys", "relative", "bias"}


def workload(gpu: Gpu, query_is_fp8: bool, query_len: int, keys: int, heads: tuple[int, int, int]) -> Workload:
    """One sequence over a cache in the GPU's own e4m3, with one scale each for K and V, and for an fp8 Q."""
    fp8 = torch.float8_e4m3fnuz if gpu.arch == "gfx942" else torch.float8_e4m3fn
    dtype = fp8 if query_is_fp8 else torch.bfloat16
    shape = AttentionShape(*heads, 16, dtype, kv_dtype=None if query_is_fp8 else fp8)
    return Workload(f"q{query_len}s{keys}", ((query_len, keys),), shape, Ask(scales="one"))


def inputs(row: Workload, device: torch.device | str) -> tuple[PagedBatch, Features]:
    """The batch and features of `row`, with |V|."""
    batch = row.batches(1, device)[0]
    features = row.features(batch)
    bits = batch.value_cache.view(torch.uint8)
    bits.bitwise_and_(0x7F)  # the sign bit; NaN in slots that nobody owns may become a number
    return batch, features


def errors(out: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """|out - expected| / |expected| over all elements, and the mean of (out - expected) / expected."""
    error = out.double() - expected
    return float(error.norm() / expected.norm()), float((error / expected).mean())


def measured(kernel_id: str, row: Workload, gpu: Gpu, here: bool) -> dict[str, Any]:
    """One row: launched where the GPU is `here`, else executed in the ISA model."""
    kernel = registry.load(kernel_id)
    batch, features = inputs(row, "cuda" if here else "cpu")
    config, _ = registry.default_config(kernel_id, kernel, row.shape, row.stats, gpu, needs=asked_of(batch, features))
    out = empty_output(batch, features)
    workspace = kernel.workspace(row.shape, Capacity.of(batch), config)
    if here:
        kernel.launch(batch, features, out, config, workspace)
    else:
        with executing(gpu, execute):
            kernel.launch(batch, features, out, config, workspace)
    relative, bias = errors(out, reference(batch, features).out)
    [(query_len, keys)] = row.lens
    return {
        "kernel": kernel_id,
        "gpu": gpu.name,
        "evidence": "measured" if here else "executed-in-model",
        "query": str(row.shape.dtype).removeprefix("torch."),
        "cache": str(row.shape.cache_dtype).removeprefix("torch."),
        "query_len": query_len,
        "keys": keys,
        "relative": relative,
        "bias": bias,
    }


def rows(gpu: Gpu, here: bool) -> Iterator[Workload]:
    heads = HEADS if here else MODEL_HEADS
    for query_is_fp8, query_len, length in itertools.product((True, False), QUERY_TOKENS, KEYS):
        yield workload(gpu, query_is_fp8, query_len, length, heads)


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of files that `--out` wrote. Raises OSError; ValueError, with file and line, for another file."""
    found = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines() or [""], 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not row.keys() >= FIELDS:
                raise ValueError(f"found {line[:80]!r} in line {number} of {file}, allowed files that --out wrote")
            found.append(row)
    return found


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: a line a query and length, a column a kernel and GPU."""
    columns = list(dict.fromkeys((one["kernel"], one["gpu"], one["evidence"]) for one in found))
    heads = [f"{kernel}, {gpu}" + ("" if evidence == "measured" else ", executed") for kernel, gpu, evidence in columns]
    lines = [
        f"| query | tokens | keys | {' | '.join(heads)} |",
        "|---|---:|---:|" + "---:|" * len(columns),
    ]
    known = {(_line(one), (one["kernel"], one["gpu"], one["evidence"])): one for one in found}
    for line in sorted({_line(one) for one in found}):
        cells = [known.get((line, column)) for column in columns]
        told = [f"{one['relative']:.2%}, {one['bias']:+.3%}" if one else "" for one in cells]
        lines.append(f"| {line[0]} | {line[1]} | {line[2]:,} | {' | '.join(told)} |")
    return lines


def _line(one: dict[str, Any]) -> tuple[str, int, int]:
    return "fp8" if one["query"].startswith("float8") else "bf16", one["query_len"], one["keys"]


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="h200, mi300, ...; auto (default): the one that is here")
    new.add_argument("--kernels", default=",".join(KERNELS), help=f"default {','.join(KERNELS)}")
    new.add_argument("--out", type=Path, help="a file that gets a JSON object a row")
    new.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print the table of such files; run nothing")


def main(asked: argparse.Namespace) -> int:
    if asked.table:
        try:
            print("\n".join(table(read(asked.table))))
        except (OSError, ValueError) as error:
            say(f"--table: {error}")
            return USAGE
        return OK
    try:
        here = gpus.detect()
        gpu = here if asked.gpu == "auto" else gpus.resolve(asked.gpu)
        if gpu is None:
            say("--gpu: found auto without a GPU here, allowed the name of one whose code is executed, as mi300")
            return USAGE
        kernels = [name.strip() for name in asked.kernels.split(",")]
        for name in kernels:
            registry.load(name)
    except (gpus.UnknownGpu, registry.UnknownKernel) as error:
        say(error)
        return USAGE
    return _run(kernels, gpu, here is not None and here.name == gpu.name, asked)


def _run(kernels: Sequence[str], gpu: Gpu, here: bool, asked: argparse.Namespace) -> int:
    console, wrong = Console(stderr=True), False
    console.print(f"{gpu.name}: {'measured' if here else 'executed in the ISA model'}")
    try:
        for row, kernel in itertools.product(rows(gpu, here), kernels):
            found = measured(kernel, row, gpu, here)
            beyond = found["relative"] > RELATIVE or abs(found["bias"]) > BIAS
            wrong |= beyond
            text = f"{kernel}  {found['query']} over {found['cache']}, {row.label}"
            print(
                f"{text}: relative {found['relative']:.4%}, bias {found['bias']:+.4%}{'  BEYOND' * beyond}", flush=True
            )
            if asked.out:
                with asked.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    except KeyboardInterrupt:
        return INTERRUPTED
    return WRONG if wrong else OK
