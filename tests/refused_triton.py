"""Kernels that Triton refuses, one construct each: compare.constructs says what each wanted.

Run as a script with a name: compiles that kernel for sm_90 and prints how the refusal begins. A process that interprets
cannot, so tests start it with TRITON_INTERPRET unset.
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


def refusal(name: str) -> str:
    """Type and first line of the deepest error, or that there was none."""
    source = ASTSource(globals()[name], {"pointer": "*fp32"}, {})
    try:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception as error:  # whatever the compiler says is the answer
        while error.__cause__ is not None:
            error = error.__cause__
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[-1].strip()}"
    return "compiled"


if __name__ == "__main__":
    print(refusal(sys.argv[1]))
