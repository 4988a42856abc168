"""Ideas that were tried and lost, or that lose today: one file each, one thing changed against the rung that it varies.

They fulfil common.spec.kernel.Kernel and pass its cases; nothing chooses them. docs/ablations.md holds the evidence.
"""

import types
from typing import Any

import triton

# Nothing serves with them, so they are held to what the evidence needs.
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})


def with_nouns(function: triton.JITFunction, **nouns: triton.JITFunction) -> triton.JITFunction:
    """`function` with other functions behind some of the names that it calls; not a line of it is written again."""
    plain: Any = function.fn
    namespace = plain.__globals__ | nouns
    copy = types.FunctionType(plain.__code__, namespace, plain.__name__, plain.__defaults__, plain.__closure__)
    copy.__qualname__, copy.__annotations__ = plain.__qualname__, plain.__annotations__
    return triton.jit(copy, do_not_specialize=getattr(function, "do_not_specialize", None))
