"""Helion is imported by who needs it alone, and repaired as soon as it is; a canary for each repair."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

triton = pytest.importorskip("triton")
helpers = pytest.importorskip("helion.runtime.triton.helpers")
import triton.language as tl  # noqa: E402

from common import interpreter  # noqa: E402
from common.kit.isolate import Isolated  # noqa: E402
from tests.common.interpreter.test_interpreter import expect_needed  # noqa: E402

pytestmark = pytest.mark.lane

ROOT = Path(__file__).parents[3]
INSTALL = "import sys; from common import interpreter; interpreter.install(); "


@pytest.fixture(autouse=True)
def installed():
    interpreter.install()


def run(code: str, *, lacking: bool = False) -> None:
    """In a process of its own, behind install(). lacking: where Helion cannot be imported."""
    before = "import sys; sys.modules['helion'] = None; " if lacking else ""
    subprocess.run([sys.executable, "-c", before + INSTALL + code], check=True, timeout=300, cwd=ROOT)


def test_helion_units():
    runtime = pytest.importorskip("helion.runtime")
    expect_needed("helion_units", lambda: runtime.get_num_sm(torch.device("cpu")) == 1)
    with interpreter.units(3):
        assert runtime.get_num_sm(torch.device("cpu")) == interpreter.num_units() == 3
    assert runtime.get_num_sm(torch.device("cpu")) == interpreter.num_units() == 1


def test_helion_products():
    compat = pytest.importorskip("helion._compat")
    of_8_bits = torch.device("cpu"), torch.float8_e4m3fn, torch.float8_e4m3fn
    expect_needed("helion_products", lambda: compat.min_dot_size(*of_8_bits)[2] == 32)


@triton.jit
def extrema_kernel(x, largest, smallest, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, K: tl.constexpr):
    values = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(largest + tl.arange(0, K), helpers.max_propagate_nan(values, AXIS))
    tl.store(smallest + tl.arange(0, K), helpers.min_propagate_nan(values, AXIS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_helion_extrema(axis, dtype, monkeypatch):
    """NaN where any element is NaN, an infinity as a number: numpy's are those of two elements at a time."""
    from triton.runtime.interpreter import ReduceOps

    slow, original = [], ReduceOps.generic_reduce
    monkeypatch.setattr(ReduceOps, "generic_reduce", lambda *args: (slow.append(args), original(*args))[1])
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).mul(100).to(dtype)
    if dtype.is_floating_point:
        x[1], x[2], x[3, 5], x[4, 0], x[5, 15] = -torch.inf, torch.inf, torch.nan, torch.nan, torch.nan
        x[6, ::2], x[7, 1::2] = -torch.inf, torch.inf
        x[:, 7], x[:, 8] = -torch.inf, torch.nan
        x[1, 8] = x[2, 8] = x[6, 8] = x[7, 8] = 0
    seen = []

    def is_right():
        slow.clear()
        found = torch.empty(2, x.shape[1 - axis], dtype=dtype)
        extrema_kernel[(1,)](x, *found, *x.shape, axis, found.shape[1])
        seen.append(found)
        assert torch.equal(found.nan_to_num(nan=7777), torch.stack([x.amax(axis), x.amin(axis)]).nan_to_num(nan=7777))
        return not slow

    expect_needed("helion_extrema", is_right)
    assert len(seen) == 2
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_helion_is_repaired_once_it_is_imported():
    """And imported without scikit-learn. Where only the last line fails, Helion leaves it for later by itself, and
    light_import has nothing to hide."""
    run(
        "import importlib.util, torch; assert importlib.util.find_spec('helion') and 'helion' not in sys.modules; "
        "import helion.language, helion.runtime; "
        "assert helion.runtime.get_num_sm(torch.device('cpu')) == 1 and set(interpreter._originals) == "
        "set(interpreter.REPAIRS) and not any(isinstance(f, interpreter._OnceImported) for f in sys.meta_path); "
        "import gc; from helion.autotuner import surrogate_pattern_search as searches; "
        "assert gc.isenabled() and 'sklearn' not in sys.modules; "
        "assert not importlib.util.find_spec('sklearn') or not searches.HAS_ML_DEPS"
    )


@pytest.mark.slow
def test_helion_is_repaired_where_it_came_first():
    code = "import helion.runtime, torch; " + INSTALL + "assert helion.runtime.get_num_sm(torch.device('cpu')) == 1"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=ROOT)


def test_install_without_helion():
    run("assert 'bf16_dot' in interpreter._originals and 'helion_units' not in interpreter._originals", lacking=True)


# What the children of the tests, of the kit and of compare's crew import beside the kernel.
MODULES = ("common.kit.kit", "common.kit.isolated", "compare.process.crew", "compare.bench.worker", "kernel_cases")


def test_a_triton_kernel_imports_no_helion():
    run(
        "sys.path[:0] = ['tests/support', 'tests/conformance']; "
        + "".join(f"import {module}; assert 'helion' not in sys.modules, '{module}'; " for module in MODULES)
        + "from compare.competitors import registry; "
        "registry.load('triton/split'); interpreter.install(); assert 'helion' not in sys.modules"
    )


def test_an_isolated_child_has_helion_repaired_where_the_kernel_imports_it(tmp_path, monkeypatch):
    """By a package that it runs by its path."""
    said = "SUPPORTS = [str(helion.runtime.get_num_sm(torch.device('cpu')))]"
    source = f"import helion.runtime, sys, torch\nassert 'triton' in sys.modules\n{said}\ndef call(*inputs): ...\n"
    (tmp_path / "somebody.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(Isolated(interpret=True)) as child:
        reply = child.ask({"ask": "describe", "kernel": "somebody:call", "adapter": "auto"})
    assert (reply.status, reply.said.get("supports")) == ("ok", ["1"]), reply.reason
