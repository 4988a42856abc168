"""compare/static/isa/COVERAGE.md: every mnemonic that the model knows, the tests that execute it, the kernels that
contain it.

`python tests/compare/static/isa/coverage.py` writes it anew and keeps the column of kernels; with `--compile` that
column is found by compiling every kernel of both DSLs for the smoke suite (about ten minutes of two cores).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
PAGE = ROOT / "compare" / "static" / "isa" / "COVERAGE.md"
GPUS = ("mi300", "mi350")
HEAD = """# What the ISA model knows

Written by `python tests/compare/static/isa/coverage.py`; the last column by
`python tests/compare/static/isa/coverage.py --compile`, from every kernel of both DSLs as compiled for gfx942 and
gfx950 on the smoke suite (untuned configs, triton {triton}). A mnemonic stands for all its encodings (`_e32`, `_e64`,
`_sdwa`, `_dpp`).

**{known} mnemonics known, {used} of them in kernels, {tested} of those executed by a test of their own.**

| mnemonic | tests | kernels |
|---|---|---|
"""


def tests() -> dict[str, list[str]]:
    """Mnemonic -> names of the test files that execute it."""
    sys.path[:0] = [str(ROOT), str(HERE)]
    from compare.static.isa import machine
    from tests.compare.static.isa import test_matrix
    from tests.compare.static.isa import test_pseudocode as held

    found: dict[str, set[str]] = defaultdict(set)
    for names in (held.VECTOR, held.COMPARES, held.CARRIES, held.SCALAR, held.SCALAR_COMPARES):
        for name in names:
            found[name].add("pseudocode")
    for kind in ("fp8", "bf8"):
        for name in (f"cvt_f32_{kind}", f"cvt_pk_f32_{kind}", f"cvt_pk_{kind}_f32", f"cvt_scalef32_pk_{kind}_f32"):
            found[f"v_{name}"].add("fp8")
        for to in ("f32", "f16", "bf16"):
            found[f"v_cvt_scalef32_pk_{to}_{kind}"].add("fp8")
    for name in ("v_mad_u64_u32", "v_mad_i64_i32", "v_div_scale_f32"):
        found[name].add("pseudocode")
    for name in test_matrix.matrix.MNEMONICS:
        found[name].add("matrix")
    for name, family in _families():
        found[name].add(family)
    for path in sorted(HERE.glob("test_*.py")):
        words = set(re.findall(r"\b[a-z]\w*_\w+\b", path.read_text()))
        for name in machine.known():
            if words & {name, *(f"{name}_{form}" for form in ("e32", "e64", "sdwa", "dpp"))}:
                found[name].add(path.stem.removeprefix("test_"))
    return {name: sorted(files) for name, files in found.items()}


def _families() -> Iterable[tuple[str, str]]:
    """Names that tests put together from parts."""
    for kind in ("dword", "dwordx2", "dwordx3", "dwordx4"):
        yield from ((f"{space}_{way}_{kind}", "access") for space in ("global", "buffer") for way in ("load", "store"))
    yield from ((f"ds_{way}_{size}", "lds") for way in ("read", "write") for size in ("b32", "b64", "b96", "b128"))
    yield from (
        (f"ds_{way}2{st}_b{size}", "lds") for way in ("read", "write") for st in ("", "st64") for size in (32, 64)
    )
    yield from ((f"v_bitop3_b{size}", "vector") for size in (16, 32))
    yield from ((f"v_fma_mix{part}_f16", "vector") for part in ("lo", "hi"))
    yield from ((f"s_{name}_saveexec_b64", "scalar") for name in ("and", "or", "andn2"))
    orders = ("eq", "lg", "gt", "ge", "lt", "le")
    yield from ((f"s_cmpk_{name}_{kind}", "scalar") for name in orders for kind in ("i32", "u32"))
    atomics = ("add", "sub", "swap", "or", "and", "xor", "umax", "umin", "smax", "smin")
    yield from ((f"global_atomic_{name}", "access") for name in atomics)


def kernels_of(page: str) -> dict[str, str]:
    """Mnemonic -> the column of kernels as it stands."""
    return {row[1]: row[2] for row in re.finditer(r"^\| `(\w+)` \|[^|]*\| ?(.*?) ?\|$", page, re.M)}


def render(kernels: dict[str, str], triton: str) -> str:
    from compare.static.isa import machine

    by_test, known = tests(), machine.known()
    used = [name for name in known if kernels.get(name)]
    tested = [name for name in used if by_test.get(name)]
    page = HEAD.format(triton=triton, known=len(known), used=len(used), tested=len(tested))
    rows = (f"| `{name}` | {' '.join(by_test.get(name, ()))} | {kernels.get(name, '')} |" for name in known)
    return page + "\n".join(rows) + "\n"


def compiled_for(gpu_name: str) -> dict[str, list[str]]:
    """Mnemonic -> ids of the kernels whose code for this GPU has it. In a process of its own."""
    import torch

    from common.cases.batch import make_batch
    from common.gpus import resolve
    from common.spec.kernel import Capacity
    from compare.competitors import registry
    from compare.static import amd_code, crosscompile, jit
    from compare.static.helion_target import helion_as
    from compare.workloads import suites

    gpu, found, known = resolve(gpu_name), defaultdict(set), {}
    for row in suites.smoke():
        batch = make_batch(row.lens, row.shape, style=row.style, fill=False)
        for kernel_id in registry.OWN:
            kernel = registry.load(kernel_id)
            config, _ = registry.default_config(kernel_id, kernel, row.shape, batch.stats, gpu, "tree")
            workspace = kernel.workspace(row.shape, Capacity.of(batch), config)
            with helion_as(gpu), jit.recorded() as launches:
                out = torch.empty_like(batch.query)
                kernel.launch(batch, row.features(batch), out, config, workspace)
            for launch in launches:
                code = crosscompile.compiled_launch(launch, gpu, known)
                for mnemonic, _ in amd_code.parse(code.assembly).instructions:
                    found[re.sub(r"_(e32|e64|sdwa|dpp)$", "", mnemonic)].add(kernel_id)
    return {name: sorted(ids) for name, ids in found.items()}


def short(ids: set[str], every: Iterable[str]) -> str:
    every = set(every)
    return "all" if ids == every else ", ".join(sorted(ids)) if len(ids) <= 4 else f"{len(ids)} of {len(every)}"


def compile_all() -> dict[str, str]:
    """The column of kernels, found anew."""
    from compare.competitors import registry
    from compare.static.isa import machine

    found: dict[str, set[str]] = defaultdict(set)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "HELION_DISALLOW_AUTOTUNING": "1"}
    for gpu in GPUS:
        done = subprocess.run([sys.executable, __file__, "--of", gpu], env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        for name, ids in json.loads(done.stdout.splitlines()[-1]).items():
            found[name] |= set(ids)
    unknown = sorted(set(found) - set(machine.known()))
    if unknown:
        print("kernels contain what the model does not know: " + ", ".join(unknown))
    return {name: short(ids, registry.OWN) for name, ids in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.of:
        print(json.dumps(compiled_for(asked.of)))
        return
    from compare.record import folder as run_folder

    old = PAGE.read_text() if PAGE.exists() else ""
    version = re.search(r"triton ([\w.]+)\)", old)
    triton = run_folder.versions()["triton"] if asked.compile or not version else version[1]
    PAGE.write_text(render(compile_all() if asked.compile else kernels_of(old), triton))


if __name__ == "__main__":
    main()
