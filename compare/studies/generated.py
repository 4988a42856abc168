"""The Triton code that Helion generates, kept beside ours, and what the compiler makes of both.

    python -m compare study generated --gpu h200 --out DIR [--workload 32q1s2k,q2k]

For every rung and workload both DSLs are launched into a recorder and compiled for the GPU, which need not be here. DIR
gets `code.jsonl`, a row a kernel launch: registers, spills, shared memory, loads by width, matrix instructions, and of
what Helion generated the size (compare.studies.sizes); and `<rung>.<workload>.txt`, the source that Helion generated,
of every rung. Each DSL has its untuned config: equal work, not equal configs.
Exit codes: 0; 1 where a kernel failed; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common import gpus
from common.gpus import Gpu
from common.spec import Features
from common.spec.kernel import Capacity
from compare.bench.subject import failure
from compare.competitors import registry
from compare.exits import INTERRUPTED, USAGE
from compare.record import folder as run_folder
from compare.static import jit
from compare.static.crosscompile import CannotCompile, claim, compile_launch
from compare.static.helion_target import helion_as
from compare.studies import sizes
from compare.workloads import GrammarError, Workload, parse_lens

HELP = "the Triton code that Helion generates, and what the compiler makes of it and of ours"

WORKLOADS = "32q1s2k,q2k"
RUNGS = tuple(rung for rung in registry.RUNGS if rung != "auto")  # auto has no kernel of its own
HEURISTICS = "default"  # untuned configs: what a GPU without a learned model gets
FACTS = ("registers", "spills", "shared_bytes", "instructions", "num_warps", "num_stages", "pipelined")
_NUMBERS = re.compile(r"_\d+$")  # Helion numbers the kernels of a process


def text_of(function: Any) -> str:
    """The source of a JIT function without its decorator."""
    return textwrap.dedent(function.src)


def _size(source: str) -> dict[str, int]:
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    size = sizes.measure(functions)
    return {"generated_tokens": size.tokens, "generated_lines": size.lines, "generated_cyclomatic": size.cyclomatic}


def of_kernel(kernel_id: str, row: Workload, gpu: Gpu) -> Iterator[tuple[dict[str, Any], str]]:
    """(row, source) for each kernel of a launch, in order. Raises what the kernel and the compiler raise."""
    kernel = registry.load(kernel_id)
    batch = row.batches(1, "cpu", fill=False)[0]
    config, origin = registry.default_config(kernel_id, kernel, row.shape, row.stats, gpu, HEURISTICS)
    workspace = kernel.workspace(row.shape, Capacity.of(batch), config)
    with helion_as(gpu), jit.recorded() as launches:
        kernel.launch(batch, Features(), torch.empty_like(batch.query), config, workspace)
    for launch in launches:
        facts, source = compile_launch(launch, gpu).as_dict(), text_of(launch.function)
        name = _NUMBERS.sub("", facts["kernel"].removeprefix("_helion_"))
        found = {"kernel": kernel_id, "workload": row.label, "launched": name, "status": "ok", "arch": gpu.arch}
        found |= {"config": registry.config_dict(config), "config_origin": origin}
        found |= {fact: facts[fact] for fact in (*FACTS, "loads", "matrix", "grid")}
        found |= _size(source) if kernel_id.startswith("helion/") else {}
        yield found, source


def rows(workloads: Sequence[Workload], gpu: Gpu) -> Iterator[tuple[dict[str, Any], str]]:
    """(row, source) for every rung and workload of both DSLs; a failure becomes a row with its reason. Raises
    CannotCompile before the first."""
    claim(gpu.arch)
    for row in workloads:
        for rung in RUNGS:
            for dsl in ("triton", "helion"):
                try:
                    yield from of_kernel(f"{dsl}/{rung}", row, gpu)
                except Exception as error:  # whatever a compiler raises is this kernel's row
                    said = failure(error)
                    found = {"kernel": f"{dsl}/{rung}", "workload": row.label, "status": str(said["status"])}
                    yield found | {"reason": said["reason"]}, ""


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(found.items())) or "none"


def _is(row: dict[str, Any], rung: str, workload: str) -> bool:
    return (row["kernel"].split("/")[1], row["workload"]) == (rung, workload)


def pairs(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each rung and workload, Triton beside Helion: sums and worst values over the launch's kernels.

    tokens: of the device code that a person wrote, helpers included; generated_tokens: of what Helion makes of it. A
    failed side has its reason in `<dsl>_failed`.
    """
    table = []
    for rung, workload in dict.fromkeys((row["kernel"].split("/")[1], row["workload"]) for row in found):
        line: dict[str, Any] = {"rung": rung, "workload": workload}
        for dsl in ("triton", "helion"):
            mine = [r for r in found if (r["kernel"], r["workload"]) == (f"{dsl}/{rung}", workload)]
            fine = [row for row in mine if row["status"] == "ok"]
            if len(fine) < len(mine) or not mine:
                line[f"{dsl}_failed"] = next((r["reason"] for r in mine if r["status"] != "ok"), "not compiled")
                continue
            line |= {
                f"{dsl}_kernels": len(fine),
                f"{dsl}_registers": max(row["registers"] for row in fine),
                f"{dsl}_spills": sum(row["spills"] for row in fine),
                f"{dsl}_shared_bytes": max(row["shared_bytes"] for row in fine),
                f"{dsl}_instructions": sum(row["instructions"] for row in fine),
                f"{dsl}_loads": "; ".join(_counts(row["loads"]) for row in fine),
                f"{dsl}_matrix": "; ".join(_counts(row["matrix"]) for row in fine),
                f"{dsl}_tokens": sizes.of_kernel(f"{dsl}/{rung}").device.tokens,
            }
        line["generated_tokens"] = sum(row.get("generated_tokens", 0) for row in found if _is(row, rung, workload))
        table.append(line)
    return table


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of DIR/code.jsonl, without its first line, which describes the run."""
    lines = (folder / "code.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", required=True, help="the GPU to compile for")
    new.add_argument("--out", type=Path, required=True, metavar="DIR")
    new.add_argument("--workload", default=WORKLOADS)


def main(arguments: argparse.Namespace) -> int:
    """0; 1 where a kernel failed; 2 usage; 130 interrupted."""
    console = Console(stderr=True)
    try:
        gpu = gpus.resolve(arguments.gpu)
        workloads = tuple(Workload(text, parse_lens(text)) for text in arguments.workload.split(","))
        return _write(console, arguments, rows(workloads, gpu))
    except (ValueError, GrammarError, CannotCompile) as error:
        console.print(str(error), markup=False, style="red")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _write(console: Console, arguments: argparse.Namespace, found: Iterator[tuple[dict[str, Any], str]]) -> int:
    """Write rows and sources as they arrive, so that an interrupted run keeps its rows."""
    out, failed, begun = arguments.out, False, set()
    meta = {"commit": run_folder.commit(), "versions": run_folder.versions()}
    meta |= {"heuristics": HEURISTICS, "gpu": arguments.gpu}
    out.mkdir(parents=True, exist_ok=True)
    with (out / "code.jsonl").open("w", encoding="utf-8") as file:
        for row, source in itertools.chain([(meta, "")], found):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if "kernel" not in row:
                continue
            words = row.get("reason", row.get("registers"))
            console.print(f"{row['kernel']} on {row['workload']}: {words}", markup=False, highlight=False)
            failed |= row["status"] != "ok"
            dsl, rung = row["kernel"].split("/")
            if source and dsl == "helion":
                path = out / f"{rung}.{row['workload']}.txt"
                with path.open("a" if path in begun else "w", encoding="utf-8") as text:
                    text.write(f"# {row['launched']}: {json.dumps(row['config'])}\n{source}\n")
                begun.add(path)
    return int(failed)
