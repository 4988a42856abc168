"""The project on such a machine: numbers that a CPU could not wait for, and a list of what was asked of NVIDIA."""

import contextlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

from rocm_graphs import STATE

ABSENT = {"pynvml", "flash_attn_interface", "flashinfer"}
TOOLS = {"nvidia-smi", "cuobjdump", "nvdisasm", "ptxas", "compute-sanitizer"}
LOG = "WALK_LOG"


def note(what):
    """A line for each thing that only an NVIDIA machine has."""
    if LOG in os.environ:
        with open(os.environ[LOG], "a") as file:
            file.write(f"{what}\n")


def begin():
    original = subprocess.Popen.__init__

    def init(self, args, *rest, **how):
        name = Path(args if isinstance(args, str) else os.fspath(args[0])).name
        if name in TOOLS:
            note(f"run {name}")
            raise FileNotFoundError(2, "No such file or directory", name)
        original(self, args, *rest, **how)

    subprocess.Popen.__init__ = init


def arena(module):
    module.MAX_SETS = 2


def timing(module):
    """Calls of one graph, what empties a cache, and a clock: interpreting a kernel takes seconds that are no time."""
    module.REPLAY_US, module.FLUSH_BYTES = 1.0, 1024
    module.time = SimpleNamespace(perf_counter=lambda: STATE.now_us * 1e-6)


def jit(module):
    """What is compiled ahead launches nothing here either: there is no JIT in an interpreter."""
    compiled_only = module.compiled_only

    @contextlib.contextmanager
    def without_launches():
        before, STATE.ahead = STATE.ahead, True
        try:
            with compiled_only():
                yield
        finally:
            STATE.ahead = before

    module.compiled_only = without_launches


def tune(module):
    from compare.workloads import suites

    module.pick_rows = lambda count: suites.suite("smoke")[: count or None]


AFTER = {
    "compare.bench.arena": arena,
    "compare.bench.timing": timing,
    "compare.static.jit": jit,
    "compare.tune.tune": tune,
}
