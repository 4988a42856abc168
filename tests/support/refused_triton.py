"""Kernels that Triton refuses, one construct each: compare.studies.constructs says what each wanted.

    python -m tests.support.refused_triton [NAME ...]

compiles them for sm_90, all or those named, and prints how each refusal begins. A process that interprets cannot, so
tests start it with TRITON_INTERPRET unset.
"""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def arange_of_24(pointer):
    tl.store(pointer + tl.arange(0, 24), 0.0)


@triton.jit
def leave_a_loop(pointer):
    for i in range(8):
        if tl.load(pointer + i) > 3.0:
            break
        tl.store(pointer + i, 0.0)


@triton.jit
def e4m3fnuz_on_sm_90(pointer):
    at = pointer + tl.arange(0, 16)
    tl.store(at, (tl.load(at).to(tl.float32) * 2.0).to(tl.float8e4b8))


SIGNATURES = {"arange_of_24": "*fp32", "leave_a_loop": "*fp32", "e4m3fnuz_on_sm_90": "*fp8e4b8"}


def refusal(name: str) -> str:
    """Type and first line of the deepest error, or that there was none."""
    source = ASTSource(globals()[name], {"pointer": SIGNATURES[name]}, {})
    try:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception as error:  # whatever the compiler says is the answer
        while error.__cause__ is not None:
            error = error.__cause__
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[-1].strip()}"
    return "compiled"


if __name__ == "__main__":
    for asked in sys.argv[1:] or SIGNATURES:
        print(f"{asked}: {refusal(asked)}")
