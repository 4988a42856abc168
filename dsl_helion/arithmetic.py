"""Integer division, and functions that a query of 16 bits does not need to the last bit.

Kernels multiply by the reciprocal of a constant float and do not divide by it: torch turns such a division into that
product for tensors on a GPU alone, so code that is generated without one would differ.
"""

import helion.language as hl
import torch

TWICE_LOG2E = 2.8853900817779268


def int32(n):
    """A size or a loop's number as an int32 tensor without axes.

    Beside tensors Helion counts with either in 64 bits, and with all that follows from it. On sm_90 that doubles the
    instructions that compare positions in a masked tile.
    """
    return hl.full([], n, dtype=torch.int32)


def div(a, b):
    """a // b of a tensor that is not negative, in one operation. torch's // takes more, to round negatives down."""
    return torch.div(a, _beside(b), rounding_mode="trunc")


def mod(a, b):
    """a % b of a tensor that is not negative."""
    return torch.fmod(a, _beside(b))


def quotient_and_rest(a, b):
    """(a // b, a % b) of an int32 tensor that is not negative and a constant; a shift and a mask where b is a power of
    two. A quotient without sign: behind a shift Triton no longer sees that 16 neighbours share a page id, and loads it
    twice."""
    if b & (b - 1) == 0:
        return div(a.to(torch.uint32), b).to(torch.int32), a & (b - 1)
    else:
        return div(a, b), mod(a, b)


def cdiv(a, b):
    b = _beside(b)
    return div(a + b - 1, b)


def _beside(n):
    return int32(n) if isinstance(n, torch.SymInt) else n


def tanh(y, query_dtype):
    """tanh(y), float32: the device library's beside a float32 query, else 1 - 2 / (exp(2y) + 1) as in dsl_triton.

    The formula cancels for small y, which a float32 query would feel. It saturates to +-1, where a quotient of
    exponentials would become inf / inf.
    """
    if query_dtype == torch.float32:
        return torch.tanh(y)
    else:
        return 1.0 - 2.0 / (torch.exp2(y * TWICE_LOG2E) + 1.0)


def square_root(x, query_dtype):
    """sqrt(x), float32, of x that is 0 or at least 1: exact beside a float32 query, else by the approximate 1 / sqrt.

    Helion has no approximate root, and torch.sqrt costs eight times as many instructions on sm_90.
    """
    if query_dtype == torch.float32:
        return torch.sqrt(x)
    else:
        return x * torch.rsqrt(x + 2.0**-60)  # which 1 and more do not feel; 0 * 2^30 is 0
