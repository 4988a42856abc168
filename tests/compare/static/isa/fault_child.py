"""Compiles one kernel for gfx942, plants faults in its code or its inputs, and prints what the model says of each.

A process of its own: one that interprets cannot compile. Argument: JSON with kernel, row, drops (random instructions),
seed and `others`, kernels that run as they are on a prefill. Prints JSON: {fault: verdict}, a verdict being `ok` (not
noticed), `incorrect`, `fault` or `refused`.
"""

import contextlib
import copy
import json
import random
import sys
from dataclasses import replace

from common.gpus import resolve
from compare.bench import gate
from compare.bench.arena import Arena
from compare.bench.subject import Subject
from compare.static.crosscompile import executing
from compare.static.isa import machine
from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.execute import execute
from compare.static.isa.machine import Program
from compare.workloads import suites

MI300 = resolve("mi300")


class Bench:
    """One kernel on one row of the smoke suite; `verdict` runs it once and judges it."""

    def __init__(self, kernel, row):
        (workload,) = suites.pick(suites.smoke(), row)
        self.arena = Arena(workload, 1, "cpu", 3)
        self.kernel, self.ran, self.programs = kernel, set(), {}

    def verdict(self, mutate=lambda program: program):
        def run(compiled):
            key = compiled.assembly
            if key not in self.programs:
                self.programs[key] = Program(key)
            execute(compiled, mutate(self.programs[key]))

        try:
            with executing(MI300, run):
                subject = Subject(self.kernel, self.arena, MI300)
                gate.once(self.arena, lambda: subject.launch(0), [0], subject.kernel.CONTRACT)
        except gate.Rejected:
            return "incorrect"
        except Fault:
            return "fault"
        except NotExecutable:
            return "refused"
        return "ok"

    @contextlib.contextmanager
    def noting_blocks(self):
        original = machine._Batch._block

        def noting(batch, begin):
            self.ran.add((id(batch.program), begin))
            return original(batch, begin)

        machine._Batch._block = noting
        yield
        machine._Batch._block = original


def without(dropped):
    """A mutation: the program without the instructions for which dropped(program, instruction) holds."""

    def mutate(program):
        changed = copy.copy(program)
        changed.blocks = {begin: _thinner(program, block, dropped) for begin, block in program.blocks.items()}
        return changed

    return mutate


def _thinner(program, block, dropped):
    steps = tuple((step, one) for step, one in block.steps if not dropped(program, one))
    last = None if block.last is not None and dropped(program, block.last) else block.last
    return replace(block, steps=steps, last=last)


def instructions(bench):
    """(program, instruction) of every block that ran."""
    for program in bench.programs.values():
        for begin, block in program.blocks.items():
            if (id(program), begin) in bench.ran:
                yield from ((program, one) for _, one in block.steps)
                if block.last is not None and block.last.mnemonic == "s_barrier":
                    yield program, block.last


def one_by_one(bench, name, chosen):
    for number, (owner, victim) in enumerate(chosen):
        yield (
            f"{name} {number}: {victim.mnemonic} {', '.join(victim.operands)}",
            bench.verdict(without(lambda program, one, o=owner, v=victim: program is o and one is v)),
        )


def code_faults(bench, drops, rng):
    every = list(instructions(bench))
    named = {name: [pair for pair in every if pair[1].mnemonic == f"s_{name}"] for name in ("barrier", "waitcnt")}
    for name, pairs in named.items():
        if pairs:
            yield f"every {name}", bench.verdict(without(lambda program, one, n=name: one.mnemonic == f"s_{n}"))
    yield from one_by_one(bench, "barrier", named["barrier"])
    yield from one_by_one(bench, "waitcnt", rng.sample(named["waitcnt"], min(drops, len(named["waitcnt"]))))
    others = [pair for pair in every if pair[1].mnemonic not in ("s_barrier", "s_waitcnt")]
    yield from one_by_one(bench, "instruction", rng.sample(others, drops))


def input_faults(bench):
    batch, arena = bench.arena.batches[0], bench.arena
    arena.compute_expected()  # what is right must not follow the planted change
    for name, tensor, where, value in (
        ("bad block table", batch.block_table, (0, 1), 10_000_000),
        ("block of another sequence", batch.block_table, (0, 1), int(batch.block_table[0, 0])),
        ("context length one page too long", batch.seq_lens, (0,), int(batch.seq_lens[0]) + batch.shape.block_size),
        ("context length one too long", batch.seq_lens, (0,), int(batch.seq_lens[0]) + 1),
    ):
        kept = int(tensor[where])
        tensor[where], arena._intact = value, None  # else the gate says that the kernel changed it
        yield name, bench.verdict()
        tensor[where], arena._intact = kept, None


def main(asked):
    bench, rng = Bench(asked["kernel"], asked["row"]), random.Random(asked["seed"])
    with bench.noting_blocks():
        found = {"nothing": bench.verdict()}
    found |= dict(input_faults(bench))
    if asked["drops"]:
        found |= dict(code_faults(bench, asked["drops"], rng))
    for kernel in asked.get("others", ()):
        found[kernel] = Bench(kernel, "prefill-33").verdict()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
