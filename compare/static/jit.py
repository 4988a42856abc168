"""Triton's private hooks, each wrapped once: what a launch passes, how the JIT binds it, compiling without a driver.

`JITFunction.run` is where every launch of both DSLs ends (Helion's generated host function ends in the same call).
`create_function_from_signature` and `JITFunction._pack_args` are the JIT's own binder: it turns integers equal to 1
into constants and makes attributes of pointers and strides divisible by 16 and of tensors below 2 GiB. A signature made
by hand misses them: the gfx942 loop of a 64 x 64 tile then had 63 two-byte loads instead of 8 sixteen-byte ones.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from common.absent import code_key
from compare.static.compiled import Argument


@dataclass(frozen=True)
class Launch:
    """One recorded launch: the JIT function, its grid, its arguments as passed, and the compiler's options."""

    function: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """A launch bound for one target. source: triton's ASTSource; dropped: options that the target does not know."""

    source: Any
    options: dict[str, Any]
    arguments: tuple[Argument, ...]
    dropped: tuple[str, ...]

    @property
    def key(self) -> str:
        """What decides the code: source, specialisation and options."""
        return code_key(self.source, self.options)


def plain_grid(function: Any, grid: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The grid as integers, where a launch gave it as a function."""
    if callable(grid):
        grid = grid(dict(zip((p.name for p in function.params), args, strict=False)) | kwargs)
    return tuple(int(size) for size in grid)


@contextlib.contextmanager
def intercepted(instead: Callable[[Launch], Any]) -> Iterator[None]:
    """In this context every launch of a Triton kernel goes to `instead` and does not run."""
    from triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return instead(Launch(self, plain_grid(self, grid, args, kwargs), args, kwargs))

    with mock.patch.object(JITFunction, "run", run):
        yield


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record every launch of a Triton kernel instead of running it."""
    launches: list[Launch] = []
    with intercepted(launches.append):
        yield launches


@contextlib.contextmanager
def compiled_only() -> Iterator[None]:
    """In this context a launch compiles for the GPU that is here, exactly as it would be launched, and runs nothing."""
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return original(self, *args, grid=grid, warmup=True, **kwargs)

    with mock.patch.object(JITFunction, "run", run):
        yield


def flatten(value: Any) -> list[Any]:
    """The run-time arguments inside one argument: tuples and NamedTuples opened, None dropped."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def _arguments(name: str, value: Any, kind: Any) -> list[Argument]:
    """The leaves of one argument without those that the binder made constant; `kind` is the binder's type of it."""
    if kind == "constexpr" or value is None:
        return []
    if isinstance(value, tuple | list):
        parts = enumerate(zip(value, kind, strict=True))
        return [leaf for i, (item, k) in parts for leaf in _arguments(f"{name}.{i}", item, k)]
    return [Argument(name, kind, value)]


def bind(launch: Launch, target: Any) -> Bound:
    """Triton's own binding of a launch for `target`."""
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    function = launch.function
    backend = make_backend(target)
    known = set(backend.parse_options({}).__dict__) | {p.name for p in function.params}
    kwargs = {name: value for name, value in launch.kwargs.items() if name in known}
    binder = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, options = binder(*launch.args, **kwargs, debug=False)
    options, signature, constants, attributes = function._pack_args(backend, kwargs, bound, specialization, options)
    leaves = [
        leaf
        for (name, value), spec in zip(bound.items(), specialization, strict=True)
        for leaf in _arguments(name, value, spec[0])
    ]
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source = ASTSource(function, signature, constants, attributes)
    return Bound(source, options.__dict__, tuple(leaves), tuple(sorted(set(launch.kwargs) - known)))


def compile_for(bound: Bound, target: Any) -> Any:
    """Triton's CompiledKernel for a target that need not be here. Raises what the compiler raises."""
    import triton

    return triton.compile(bound.source, target=target, options=bound.options)
