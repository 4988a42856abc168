"""One canary per repair: wrong without it (else upstream no longer needs it), right with it."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from common import interpreter  # noqa: E402
from common.interpreter import of_triton  # noqa: E402

pytestmark = pytest.mark.lane

ROOT = Path(__file__).parents[3]
UNNEEDED = "triton {} gives the right answer without the repair {!r}: delete it from common/interpreter"


@pytest.fixture(autouse=True)
def installed():
    interpreter.install()


def expect_needed(name, is_right):
    """`is_right()` says whether the interpreter computes rightly; an exception counts as wrong."""
    with interpreter.without(name):
        try:
            right = is_right()
        except Exception:  # whatever the interpreter raises: the operation does not work
            right = False
    assert not right, UNNEEDED.format(triton.__version__, name)
    assert is_right()


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def test_bf16_dot():
    a, b = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()

    def is_right():
        c = torch.empty(16, 16)
        dot_kernel[(1,)](a, b, c, 16)
        return torch.allclose(c, a.float() @ b.float(), atol=1e-5, rtol=0)

    expect_needed("bf16_dot", is_right)


@triton.jit
def cast_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


# ties in both directions, both zeros, the largest float32 (rounds to inf), a subnormal, and what must pass unchanged
EDGES = [1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, 3.4028235e38, 1e-40, float("inf"), float("-inf"), float("nan")]


def drawn(count):
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
CODES, NEAR = torch.arange(256, dtype=torch.int16).to(torch.uint8), torch.tensor([31.75, -7.84, 1.95, 0.0])
CASTS = [  # the repair that it takes, what is cast: of 8 and 16 bits every pattern
    (torch.bfloat16, "bf16_rounding", torch.cat([torch.tensor(EDGES), drawn(54)])),
    (torch.bfloat16, "bf16_rounding", CODES.view(torch.int8)),
    (torch.float32, None, torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)),
    *((to, "fp8_casts", CODES.view(fp8)) for to in (torch.float32, torch.float16, torch.bfloat16) for fp8 in FP8),
    *((fp8, "fp8_casts", torch.cat([NEAR, drawn(124)])) for fp8 in FP8),
]


@pytest.mark.parametrize(("to", "repair", "x"), CASTS, ids=lambda one: getattr(one, "dtype", one))
def test_a_cast_is_torchs(to, repair, x):
    def is_right():
        y = torch.empty(len(x), dtype=to)
        cast_kernel[(1,)](x, y, len(x))
        found, wanted = y.float(), x.to(to).float()
        alike = torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True)
        return alike and torch.equal(found.signbit()[~wanted.isnan()], wanted.signbit()[~wanted.isnan()])

    if repair:
        expect_needed(repair, is_right)
    assert is_right()


def test_spread_truth():
    """One truth over a block is truths: the type of what was compared is no longer theirs."""
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    compared = TensorHandle(np.array([True]), tl.int32)

    def is_right():
        spread = interpreter_builder.create_splat(tl.block_type(tl.int1, [4]), compared)
        return spread.data.dtype == np.bool_ and spread.data.tolist() == [True] * 4 and spread.dtype == tl.int1

    expect_needed("spread_truth", is_right)


@triton.jit
def masked_kernel(x, y, n, N: tl.constexpr):
    i = tl.arange(0, N)
    some = (i < N // 2) & (tl.load(n) > 0)
    tl.store(y + i, tl.load(x + i, mask=some, other=7.0))


@pytest.mark.parametrize("n", [0, 1])
def test_a_mask_may_hold_the_result_of_a_comparison_of_scalars(n):
    y = torch.empty(8)
    masked_kernel[(1,)](torch.arange(8.0), y, torch.tensor([n], dtype=torch.int32), 8)
    assert y.tolist() == ([0.0, 1.0, 2.0, 3.0] if n else [7.0] * 4) + [7.0] * 4


def test_constexpr_rmod():
    expect_needed("constexpr_rmod", lambda: (7 % tl.constexpr(4)).value == 3)


@triton.jit
def exp2_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, libdevice.exp2(tl.load(x + i)))


@triton.jit
def tanh_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, libdevice.tanh(tl.load(x + i)))


@pytest.mark.parametrize(
    "kernel, function", [(exp2_kernel, torch.exp2), (tanh_kernel, torch.tanh)], ids=["exp2", "tanh"]
)
def test_libdevice(kernel, function):
    x = torch.linspace(-100, 100, 64)

    def is_right():
        y = torch.empty(64)
        kernel[(1,)](x, y, 64)
        return torch.allclose(y, function(x), rtol=1e-6, atol=1e-7)

    expect_needed("libdevice", is_right)


@triton.jit
def dependent_kernel(y):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    tl.store(y, 1.0)


def test_dependent_launch():
    def is_right():
        y = torch.zeros(1)
        dependent_kernel[(1,)](y)
        return y.item() == 1.0

    expect_needed("dependent_launch", is_right)


@triton.jit
def twice(x):
    return x + x


@triton.jit
def nested_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, twice(twice(tl.load(x + i))))


def test_patch_once(monkeypatch):
    from triton.runtime import interpreter as upstream

    original, add = upstream._patch_builtin, tl.core.tensor.__add__
    packages = []
    monkeypatch.setattr(upstream, "_patch_builtin", lambda pkg, *rest: (packages.append(pkg), original(pkg, *rest)))

    def is_right():
        packages.clear()
        x, y = torch.arange(4.0), torch.empty(4)
        nested_kernel[(2,)](x, y, 4)
        assert torch.equal(y, 4 * x)
        return packages.count(tl) == 1

    expect_needed("patch_once", is_right)
    assert tl.core.tensor.__add__ is add, "a launch must leave triton.language as it was"


@triton.jit
def place_kernel(x):
    tl.store(x + tl.program_id(0), tl.program_id(0))


def test_one_launch():
    """A launch of another thread waits. Two at once would leave triton.language patched for all tests behind this."""

    def is_right():
        x = torch.full((4,), -1)
        thread = Thread(target=lambda: place_kernel[(4,)](x))
        with of_triton.LOCK:
            thread.start()
            thread.join(2.0)
            waited = thread.is_alive()
        thread.join()
        assert torch.equal(x, torch.arange(4))
        return waited

    expect_needed("one_launch", is_right)


@triton.jit
def sum_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) + tl.load(y + i))


def test_unseen_overflow(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

    original, sums = InterpreterBuilder.create_add, []
    monkeypatch.setattr(InterpreterBuilder, "create_add", lambda *args: (sums.append(args), original(*args))[1])
    assert not interpreter_builder.options.debug

    def is_right():
        sums.clear()
        x = torch.tensor([1, 2, 2**31 - 1, -(2**31)], dtype=torch.int32)
        y = torch.tensor([1, -2, 1, -1], dtype=torch.int32)
        sum_kernel[(1,)](x, expected := y.clone(), 4)
        assert torch.equal(expected, x + y)  # wraps around, with the repair and without
        return len(sums) == 1

    expect_needed("unseen_overflow", is_right)


def test_an_overflow_is_seen_where_assertions_are_asked_for(monkeypatch):
    from triton.runtime.interpreter import InterpreterError, InterpreterOptions, interpreter_builder

    monkeypatch.setattr(interpreter_builder, "options", InterpreterOptions(debug=True))
    ((_, _, options),) = interpreter.REPAIRS["unseen_overflow"]()
    monkeypatch.setattr(interpreter_builder, "options", options)
    with pytest.raises(InterpreterError, match="int32 overflow detected"):
        sum_kernel[(1,)](torch.full((1,), 2**31 - 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32), 1)


@triton.jit
def shapes_kernel(y, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tl.store(y + m[:, None] * N + n[None, :], (m[:, None] * 100 + n[None, :]).to(tl.float32))


def test_known_shapes():
    def is_right():
        y = torch.empty(4, 8)
        shapes_kernel[(1,)](y, 4, 8)
        assert torch.equal(y, torch.arange(4)[:, None] * 100.0 + torch.arange(8))
        return tl.block_type(tl.int32, [4, 8]).shape is tl.block_type(tl.int32, [4, 8]).shape

    expect_needed("known_shapes", is_right)


def test_known_shapes_are_those_of_upstream():
    pointers = [tl.pointer_type(tl.int32), tl.pointer_type(tl.int32, const=True), tl.pointer_type(tl.int32, 3)]
    kinds = [tl.int32, tl.int1, tl.bfloat16, *pointers]
    shapes = [[1], [4], [8, 1], [1, 8], [tl.constexpr(4), 2], tl.tuple([4, 2])]

    def seen():
        blocks = [tl.block_type(kind, shape) for kind in kinds for shape in shapes * 2]
        values = [tl.tensor(None, kind) for kind in (*blocks, *kinds)]
        listed = [(b.name, str(b), b.numel, list(b.shape), type(b.shape), b.element_ty, b.scalar) for b in blocks]
        listed += [(str(v), v.numel.value, [s.value for s in v.shape], type(v.shape), v.type, v.dtype) for v in values]
        return listed, [[bool(a == b) for a in blocks] for b in blocks]

    with interpreter.without("known_shapes"):
        expected = seen()
    assert seen() == expected


@pytest.mark.parametrize("shape", [[3], [2.0], [], [4, 2.0], [2**20, 2]], ids=str)
def test_a_wrong_shape_is_refused_as_upstream_refuses_it(shape):
    tl.block_type(tl.int32, [2]), tl.block_type(tl.int32, [4, 2])
    with interpreter.without("known_shapes"), pytest.raises((ValueError, TypeError)) as expected:
        tl.block_type(tl.int32, shape)
    with pytest.raises(expected.type) as found:
        tl.block_type(tl.int32, shape)
    assert str(found.value) == str(expected.value)


def test_install_twice_wraps_once():
    from triton.runtime.interpreter import InterpreterBuilder

    once = InterpreterBuilder.create_dot
    interpreter.install()
    assert InterpreterBuilder.create_dot is once


def test_install_is_a_no_op_when_compiling():
    code = (
        "import sys; from common import interpreter; interpreter.install(); "
        "assert 'triton' not in sys.modules and 'helion' not in sys.modules and not interpreter._originals"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "0"}, check=True, timeout=300, cwd=ROOT
    )
