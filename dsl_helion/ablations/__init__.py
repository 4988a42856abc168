"""Ideas that were tried and lost, or that lose today: one file each, one thing changed against the rung that it varies.

They fulfil common.spec.kernel.Kernel and pass its cases; nothing chooses them. docs/ablations.md holds the evidence.
"""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

# Nothing serves with them, so they are held to what the evidence needs.
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})


def with_nouns(module: ModuleType, name: str, **nouns: Callable) -> ModuleType:
    """`module` a second time, as `name`, with other functions behind some of its names; not a line is written again.

    A copy of a function would do, but Helion looks a kernel's names up in the module that its globals belong to.
    """
    spec = importlib.util.spec_from_file_location(name, module.__file__)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[name] = copy
    spec.loader.exec_module(copy)
    for noun, function in nouns.items():
        setattr(copy, noun, function)
    return copy
