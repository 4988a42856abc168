"""What Helion generated, kept on the disk beside Triton's cache: a second process neither traces nor generates.

Helion keeps nothing between processes. A new kernel takes two seconds: one and a half in Helion, the rest in Triton,
which caches the binary. Here each kernel's module lies in a file by what it was generated for: sources of this package,
versions, device, config, and Helion's own key of the arguments. That key is whole only after tracing, when it is known
which sizes the code holds; they are kept beside it (`_facts`) and compared with the arguments of the next process, by
classes at least as fine as Helion's. A file also holds Triton's key of the code, which Triton would otherwise compute
by parsing it.

A file is read where this user alone could have written it and its hash is right; any other is left alone with a
warning, and the kernel is generated. Files are written whole and then named, so that processes may share the folder.
DIPTYCH_HELION_CACHE is another folder, or 0 for none.

The private hooks of Helion are `_base_specialization_key` and a traced kernel's `env`; they are used here alone.
"""

import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._inductor.codecache import PyCodeCache  # as Helion loads what it generated

from common.gpus import Gpu, gpu_of
from common.serving.whole import put_sealed, read_sealed, triton_cache
from common.versions import here

FOLDER = "DIPTYCH_HELION_CACHE"
ALIGNED = 16  # bytes, of a tensor descriptor's base and strides
HELPERS = ("torch._inductor.runtime.triton_helpers", "helion.runtime.triton.helpers")  # what generated code calls
MOST_LANES = 256  # of a descriptor's block along a dimension on NVIDIA: longer dimensions are one class
HEAD = re.compile(r"^@triton\.jit\n(?=def _helion_\w+\((.*)\):$)", re.MULTILINE)
KERNEL = "_helion_"  # how the names of generated kernels begin
SIZE = re.compile(r"\w+_size_\d+")  # of a tensor, as generated code names it
counts: Counter[str] = Counter()  # kernels `generated` by this process, and those `loaded` in their place
_functions: dict[str, Callable] = {}  # by file
_trails: dict[Path, list["Trail"]] = {}  # of files that were read
Trail = tuple[Any, ...]  # of a fact: a parameter, the keys into it, then its kind and a dimension


def folder() -> Path | None:
    """Where files are kept; None for nowhere."""
    said = os.environ.get(FOLDER)
    if said == "0":
        return None
    return Path(said or triton_cache() / "diptych_helion")


def for_any_counts(function: Callable, counts: Collection[str]) -> Callable:
    """What Helion generated, compiled once for all batches: Triton would do so again for sizes and counts that are 1 or
    that 16 divides, and Helion has no word for `do_not_specialize`. Addresses follow from strides, which stay special.
    """

    def head(found: re.Match) -> str:
        names = [name for name in found[1].split(", ") if name in counts or SIZE.fullmatch(name)]
        return f"@triton.jit(do_not_specialize={names})\n"

    source = Path(function.__code__.co_filename).read_text(encoding="utf-8")
    return getattr(PyCodeCache.load(HEAD.sub(head, source)), function.__name__)


class Absent(NamedTuple):
    """An absent GPU that this process generates code for. mine: whether this process, not another one, generates the
    kernel of a key."""

    gpu: Gpu
    mine: Callable[[str], bool]


_absent: list[Absent] = []  # none, or one


def generate_for(gpu: Gpu, mine: Callable[[str], bool]) -> None:
    """Let this process keep code for an absent GPU, of which tensors on the CPU are taken to be (common/absent.py)."""
    _absent[:] = [Absent(gpu, mine)]


def target(device: torch.device) -> str:
    """The GPU that code is generated for, in words; empty in the interpreter, where nothing is kept."""
    gpu = _absent[0].gpu if _absent else gpu_of(device)
    if gpu is None or os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    return f"{gpu.name} {gpu.arch} {gpu.units}"


class Kept:
    """A kernel's place on the disk. words: all of its config; args: its arguments."""

    def __init__(self, kernel: Any, words: dict[str, Any], args: tuple[Any, ...]) -> None:
        self._kernel, self._args, self._base = kernel, args, ""
        self._described = bool(words.get("descriptors"))
        device = next(value.device for value in args if isinstance(value, torch.Tensor))
        self._folder = folder()
        if self._folder is not None and (meant := target(device)) and hasattr(kernel, "_base_specialization_key"):
            said = (kernel.fn.__module__, kernel.name, sorted(words.items()), kernel._base_specialization_key(args))
            self._base = _digest(repr((_made_by(), meant, *said)))

    @property
    def is_others(self) -> bool:
        """Whether another process generates this kernel."""
        return bool(_absent) and not _absent[0].mine(self._base)

    def load(self) -> Callable | None:
        """The kernel's host function, as Helion would return it; None where nothing is kept for these arguments."""
        if not self._base or (paths := self._paths()) is None:
            return None
        name = self._name(paths)
        if name not in _functions:
            source = _read(self._folder / f"{name}.py")
            if source is None:
                return None
            try:
                _functions[name] = getattr(PyCodeCache.load(source), self._kernel.name)
            except Exception as error:  # of another Triton than its name says, or a module that is gone
                _ignored(self._folder / f"{name}.py", f"{type(error).__name__}: {error}")
                return None
            counts["loaded"] += 1
        return _functions[name]

    def keep(self, bound: Any, function: Callable) -> None:
        """Keep what was generated. bound: Helion's traced kernel. Nothing where its code may hold what has no fact."""
        if not self._base or (paths := _facts(self._kernel, bound, self._described)) is None:
            return
        file = self._folder / f"{self._base}.json"
        _trails.pop(file, None)  # another process may have added some
        paths = sorted({*paths, *(self._paths() or ())}, key=repr)
        name = self._name(paths)
        _functions[name] = function
        try:
            put_sealed(self._folder / f"{name}.py", _with_keys(function))
            put_sealed(file, json.dumps(paths))
        except OSError as error:
            _ignored(self._folder, f"cannot be written: {error.strerror or error}")
        _trails.pop(file, None)

    def _paths(self) -> list[Trail] | None:
        """The facts that tell apart what was generated for this key; None where nothing was."""
        file = self._folder / f"{self._base}.json"
        if file not in _trails:
            if (text := _read(file)) is None:
                return None
            try:
                _trails[file] = [tuple(path) for path in json.loads(text)]
            except (ValueError, TypeError) as error:
                return _ignored(file, str(error))
        return _trails[file]

    def _name(self, paths: Iterable[Trail]) -> str:
        named = dict(zip(self._kernel.signature.parameters, self._args, strict=False))
        return f"{self._base}-{_digest(repr([_fact(named, path) for path in paths]))}"


def _with_keys(function: Callable) -> str:
    """The source of a generated module, and Triton's keys of its kernels: their sources', and those of what they call
    (`_made_by`). Triton takes a key that is there for its own."""
    text = Path(function.__code__.co_filename).read_text(encoding="utf-8")
    named = {name: one for name, one in function.__globals__.items() if name.startswith(KERNEL)}
    keys = {name: one.cache_key for name, one in named.items() if hasattr(one, "cache_key")}
    return text + "".join(f"\n{name}.hash = {key!r}" for name, key in keys.items())


def _fact(named: dict[str, Any], path: Trail) -> Any:
    """The value of a fact; None where these arguments have no such fact, which differs from every value."""
    name, *keys, kind, index = path
    value = named.get(name)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if kind == "value":
        return value
    if not isinstance(value, torch.Tensor) or (index is not None and index >= value.dim()):
        return None
    if kind == "size":
        return value.shape[index]
    if kind == "stride":
        return value.stride(index)
    strides = [(stride == 1, stride * value.itemsize % ALIGNED == 0) for stride in value.stride()]
    sizes = [(min(size, MOST_LANES).bit_length(), size < 2**31) for size in value.shape]
    return strides, sizes, value.data_ptr() % ALIGNED == 0, value.storage_offset() == 0


def _facts(kernel: Any, bound: Any, with_descriptors: bool) -> list[Trail] | None:
    """Paths of all that code follows from beside the base key; None where one cannot be told.

    Helion notes what each load would need as a tensor descriptor; it counts where the config asks for descriptors.
    """
    try:
        env, signature = bound.env, bound._base_spec_key
        if env.runtime_input_specializations or kernel._compiler_seed_specialize_extra.get(signature):
            return None
        sources = {env.shape_env.var_to_sources[var][0] for var in env.specialized_vars} | {*env.specialized_strides}
        for fact in getattr(bound, "_guarded_input_facts", list)():
            sources |= {source for _, source in fact.extractor.sources}
        guards = {*env.tensor_descriptor_layout_guards, *getattr(env, "tensor_descriptor_alignment_guards", ())}
        described = guards if with_descriptors else ()
        return [_path(source) for source in sources] + [(*_keys(source), "descriptor", None) for source in described]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        return _ignored(Path(kernel.name), f"this Helion's keys are others: {type(error).__name__}: {error}")


def _path(source: Any) -> Trail:
    kind = getattr(getattr(source, "prop", None), "name", "")
    if kind in ("SIZE", "STRIDE"):
        return (*_keys(source.base), kind.lower(), source.idx)
    return (*_keys(source), "value", None)


def _keys(source: Any) -> Trail:
    """A parameter's name, and the keys into a dict of features."""
    if hasattr(source, "local_name"):
        return (source.local_name,)
    return (*_keys(source.base), source.index)


def _file_of(module: str) -> Path | None:
    """None where this version has no such module, and generated code cannot call it."""
    try:
        return Path(import_module(module).__file__)
    except ModuleNotFoundError:
        return None


@cache
def _made_by() -> tuple[Any, ...]:
    """What any code follows from beside its key: sources of this package and of HELPERS, versions, and Helion's
    settings, but for where it keeps its files."""
    digest = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.rglob("*.py")), *filter(None, map(_file_of, HELPERS))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("HELION_", "TRITON_F32"))}
    settings.pop("HELION_CACHE_DIR", None)
    return digest.hexdigest(), *(here(name) for name in ("helion", "torch", "triton")), sorted(settings.items())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> str | None:
    """The text of a file behind its hash; None where there is none, or where it cannot be trusted."""
    try:
        return read_sealed(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return _ignored(path, str(error))


def _ignored(path: Path, why: str) -> None:
    warnings.warn(f"kept Helion code {path}: {why}; generated instead", stacklevel=3)
