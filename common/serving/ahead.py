"""Compile a warm-up's launches on all cores before the first of them runs.

In: calls that launch kernels through Triton's JIT. Out: the same kernels, compiled and loaded. Triton's own
asynchronous mode compiles in threads, which leave Python's lock in all passes but the first. Helion generates code
in the calling thread, beside the threads that compile what it generated before.

What an engine will warm up is known before its weights are there. `Children` are processes that compile it meanwhile
into the caches of Triton and of what Helion generated, for a GPU that they do not see: one imports and plans, the
others are its forks, and each takes the next kernel that no other has taken. What they do not get done is compiled by
the warm-up.
"""

import contextlib
import hashlib
import importlib
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common import absent, gpus
from common.gpus import Gpu
from common.process import Child, Lost, cores
from common.serving import reach, tape
from common.serving.pack import made_for
from common.serving.points import Point
from common.serving.whole import triton_cache
from common.spec import AttentionShape, Features
from common.spec.features import tensors_of, without_tensors

MOST_THREADS = 32  # each compilation holds about 100 MB
LONGEST_S = 60.0  # that a warm-up waits for its children


class _Threads(ThreadPoolExecutor):
    """Runs what compiles a kernel, then loads the kernel onto `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(min(cores(), MOST_THREADS), initializer=tape.begin_thread, initargs=(device,))

    def submit(self, compiling: Callable[[], Any], *args: Any, **kwargs: Any) -> Future:
        return super().submit(lambda: tape.loaded(compiling(*args, **kwargs)))


@contextmanager
def compiled_only(device: torch.device) -> Iterator[set[int] | None]:
    """In this context this thread's launches compile and do not run; at its end all kernels are compiled and loaded.

    Yields the kernels that were met so far, by identity; None where launches run as always: kernels are interpreted, or
    this Triton cannot compile asynchronously. A kernel that cannot be compiled raises at its first real launch.
    """
    jit = sys.modules.get("triton.runtime.jit")
    mode = getattr(sys.modules.get("triton.runtime._async_compile"), "AsyncCompileMode", None)
    if jit is None or mode is None or not tape.has_jit(device):
        yield None
        return
    me, original, met = threading.get_ident(), jit.JITFunction.run, {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if threading.get_ident() != me:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        met[id(kernel)] = kernel
        return kernel

    with tape.patching, _Threads(device) as threads, tape.untaped(), mode(threads, ignore_errors=True):
        jit.JITFunction.run = run
        try:
            yield met.keys()
        finally:
            jit.JITFunction.run = original


def keeper_of(planner: str) -> str | None:
    """The module that keeps generated code for a module's package; None where Triton's cache holds all."""
    names = planner.split(".")
    packages = [importlib.import_module(".".join(names[:count])) for count in range(1, len(names))]
    return next((package.KEEPS_CODE for package in packages if hasattr(package, "KEEPS_CODE")), None)


def is_kept(planner: str) -> bool:
    """Whether another process finds what a module's package generates."""
    keeper = keeper_of(planner)
    return keeper is None or importlib.import_module(keeper).folder() is not None


class _OfAnother(Exception):
    """Another process compiles this kernel."""


class _Claims:
    """Divides keys among processes by empty files in a folder: who creates the file of a key has the key."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, {}

    def __call__(self, key: str) -> bool:
        if key not in self._known:
            self._known[key] = True
            try:
                (self._folder / hashlib.sha256(key.encode()).hexdigest()).touch(exist_ok=False)
            except FileExistsError:
                self._known[key] = False
        return self._known[key]


@dataclass(frozen=True)
class Work:
    """A warm-up to compile for an absent GPU. planner: the module with plan_paged_attention. limits: tokens, sequences,
    keys. columns: of block tables. stated: points of calls, and whether these bring K and V. slack: of the plan.
    beside: K and V of a page lie beside each other."""

    planner: str
    kernel: str | None
    shape: AttentionShape
    features: Features
    limits: tuple[int, int, int]
    columns: int
    stated: Sequence[tuple[list[Point], bool]]
    gpu: Gpu
    slack: float = 0.0
    beside: bool = True

    @property
    def key(self) -> str:
        """What its code follows from, beside sources."""
        tensors = {name: (tuple(t.shape), t.dtype) for name, t in tensors_of(self.features).items()}
        plain = without_tensors(self.features)
        said = repr((replace(self, features=plain), sorted(tensors.items()), sorted(made_for(self.gpu).items())))
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def prepared(self) -> Callable[[], None]:
        """The warm-up of its plan, over tensors of the CPU."""
        plan = importlib.import_module(self.planner).plan_paged_attention(
            self.shape, *self.limits, "cpu",
            features=self.features, kernel=self.kernel, one_config=False, slack=self.slack,
        )  # fmt: skip
        shape = self.shape
        tensors = dict(zip(("key_cache", "value_cache"), stand_in_caches(shape, self.beside), strict=True))
        table = torch.zeros(self.limits[1], self.columns, dtype=torch.int32)

        def warm_up() -> None:
            for points, new_kv in self.stated:
                plan.warmup(points=points, new_kv=new_kv, block_table=table, **tensors)

        return warm_up


def stand_in_caches(shape: AttentionShape, beside: bool, device: Any = "cpu") -> Sequence[torch.Tensor]:
    """K and V of a few pages, where each page holds both, or in a tensor each."""
    few = (4, 2) if beside else (2, 4)
    sizes = shape.block_size, shape.num_kv_heads, shape.head_size
    return torch.zeros(*few, *sizes, dtype=shape.cache_dtype, device=device).unbind(1 if beside else 0)


def stand_ins(features: Features) -> Features | None:
    """The features with zeros of the CPU as tensors; None where one has an entry per page, sequence or token pair."""
    given = tensors_of(features)
    if any(tensor.dim() != 1 or name == "causal_per_sequence" for name, tensor in given.items()):
        return None
    return replace(features, **{name: torch.zeros_like(tensor, device="cpu") for name, tensor in given.items()})


def compile_all(works: Sequence[Work], mine: Callable[[str], bool], forks: int = 0) -> None:
    """Compile the kernels whose key is `mine`, in this process, which launches nothing any more, and in forks.

    works: of one GPU and one planner. Forks do what follows the imports and the choice of all configs. Raises
    RuntimeError if one of them fails.
    """
    gpu, planner = works[0].gpu, works[0].planner
    importlib.import_module(planner)
    if keeper := keeper_of(planner):
        importlib.import_module(keeper).generate_for(gpu, mine)
    with absent.helion_as(gpu):
        _compile_from_now_on(gpu, mine)
        warm_ups = [work.prepared() for work in works]
        _in_forks(lambda: [warm_up() for warm_up in warm_ups], forks)


def _in_forks(work: Callable[[], None], forks: int) -> None:
    """Do some work here and in as many forks of this process, which has no thread beside this one."""
    begun = []
    for _ in range(forks):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)  # skip the clean-up that belongs to the parent process
        begun.append(pid)
    work()
    if failed := sum(os.waitpid(pid, 0)[1] != 0 for pid in begun):
        raise RuntimeError(f"{failed} of {forks} forks failed")


def _compile_from_now_on(gpu: Gpu, mine: Callable[[str], bool]) -> None:
    """Let each launch of this process compile for an absent GPU what is `mine`, and do nothing more."""
    from triton.backends.nvidia.driver import CudaDriver
    from triton.compiler import compile as compile_source
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    def compile_mine(source: Any, *, options: dict[str, Any], **target: Any) -> Any:
        if not mine(absent.code_key(source, options)):
            raise _OfAnother
        return compile_source(source, options=options, **target)

    def run(function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        with contextlib.suppress(_OfAnother):
            return original(function, *args, warmup=True, **kwargs)

    here, original = CudaDriver.__new__(CudaDriver), JITFunction.run
    here.get_current_target = lambda: absent.gpu_target(gpu.arch)
    here.get_current_device, here.get_current_stream = lambda: 0, lambda device: 0
    driver.set_active(here)
    JITFunction.compile = property(lambda function: compile_mine, lambda function, _: None)
    JITFunction.run = run
    reach.gpu_of = gpus.gpu_of  # which `helion_as` has replaced


class Children:
    """Up to `count` processes that share the warm-ups of an engine. The first begins with the first `add`. Work that an
    earlier start has done is left out."""

    def __init__(self, count: int) -> None:
        self._count, self._marks, self._folder = count, [], None
        self._first: Child | None = None

    def add(self, work: Work) -> None:
        """Share this work too. It is done if it is added before the process has imported what it needs; else the
        engine's warm-up compiles it, as where generated code is not kept."""
        mark = triton_cache() / "diptych_ahead" / work.key
        if mark.exists() or not is_kept(work.planner):
            return
        self._marks.append(mark)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="diptych_ahead_")
        file = Path(self._folder.name, f"{len(self._marks):04}.unfinished")
        file.write_bytes(pickle.dumps(work))
        file.rename(file.with_suffix(".work"))
        if self._first is None:
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_INTERPRET": "0"}
            environment |= {"CUDA_VISIBLE_DEVICES": ""} | dict.fromkeys(
                ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
            )
            words = [sys.executable, "-W", "ignore", "-m", __name__, self._folder.name, str(self._count - 1)]
            self._first = Child(words, environment, name="the compiling process")

    def end(self, longest_s: float = LONGEST_S) -> bool:
        """Wait up to longest_s seconds until all are done, then end them; returns whether all work is done."""
        done = True
        if self._first is not None:
            try:
                self._first.line(longest_s)  # ends when the process does, which prints nothing
            except Lost as lost:
                done = lost.code == 0
            self._first.end()  # with its forks, which are of its session
            self._first = None
            self._folder.cleanup()
        return done

    def keep(self) -> None:
        """Note on the disk that the works are done: their warm-ups have ended."""
        for mark in self._marks:
            with contextlib.suppress(OSError):  # then the next start begins processes again
                mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                mark.touch()


def main() -> None:
    folder, forks = Path(sys.argv[1]), int(sys.argv[2])
    os.nice(5)  # an engine that loads its weights goes first
    first = pickle.loads((folder / "0001.work").read_bytes())
    importlib.import_module(first.planner)  # meanwhile the engine admits its other layers
    works = [pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.work"))]
    compile_all(works, _Claims(folder), forks)


if __name__ == "__main__":
    main()
