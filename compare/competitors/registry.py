"""The competitors: kernel ids and the modules behind them, imported only when one is asked for."""

import contextlib
import dataclasses
import fnmatch
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.interpreter import light_import
from common.serving import winners
from common.serving.choice import Choice
from common.serving.grid import seen
from common.spec import AttentionShape, UnsupportedFeature
from common.spec.cdna import Cdna
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.precision import Precision
from common.versions import ensure
from compare.competitors.functions import Function
from compare.competitors.planning import Planning
from compare.exits import nearest

RUNGS = ("naive", "q_block", "parallel_softmax", "adjustable_tile", "static_grid", "split", "unpaged", "auto")
DSLS = ("triton", "helion")
OWN: tuple[str, ...] = tuple(f"{dsl}/{rung}" for dsl in DSLS for rung in RUNGS)
BASELINES: tuple[str, ...] = ("baseline/sdpa", "baseline/sdpa_dense", "baseline/flash_attn3", "baseline/vllm_triton")
ON_REQUEST: tuple[str, ...] = (  # only where --kernels names them: most compile for each row, or need a package
    "baseline/flashinfer_decode",
    "baseline/flashinfer_fa2",
    "baseline/flashinfer_fa3",
    "baseline/flashinfer_pod",
    "baseline/cudnn",
    "baseline/cudnn_dense",
    "baseline/flex",
    "baseline/flag_gems",
    "baseline/aiter_triton",
    "baseline/sglang",
    "baseline/lmdeploy",
    "baseline/vllm_chunked",
    "baseline/conch",
    "baseline/conch_decode",
    "baseline/aiter_decode",
    "baseline/xformers_splitk",
)
CALLED = tuple(f"{dsl}/auto" for dsl in DSLS)  # what an engine calls: it chooses among the rungs
KERNELS: tuple[str, ...] = OWN + BASELINES + ON_REQUEST
# And the rung that it varies; no glob takes one that does not name the folder.
ABLATIONS: dict[str, str] = {"helion/ablations.idiomatic": "q_block"}
# Source for one vendor's machine, in a column of its own, and the rung whose short queries it takes (`native.auto`
# chooses by itself); as ablations, only where a glob names the folder.
NATIVE: dict[str, str] = {"triton/native.sm90_prefill": "unpaged", "triton/native.auto": "auto"}
_DERIVED = ABLATIONS | NATIVE  # their configs come from those of the rung
_PACKAGES = {"triton": "dsl_triton", "helion": "dsl_helion", "baseline": "compare.competitors.baselines"}
HEURISTICS = ("tree", "default", "paper", "learned")  # whose configs a run takes
_PAPER = "heuristics/paper/listing2.py"  # as a family names it
PLANNING = "planning"  # behind any id's `@`: the plan of a step is made by every call, inside the time
VARIANTS = (*HEURISTICS, "fixed", "page")  # behind an own id's `@`: whose configs that one kernel takes
# Labelled bounds: they do not solve the paged problem, so they do not rank.
BOUNDS = frozenset({"baseline/sdpa_dense", "baseline/cudnn_dense"})


class UnknownKernel(ValueError):
    """A kernel id outside the registry; the message holds the ids most like it."""

    def __init__(self, found: str) -> None:
        variants = f"all with @{PLANNING}, the own ones with @{', @'.join(VARIANTS)}"
        allowed = f"{', '.join(KERNELS)}, globs of these, {variants}, or package.module[:name]"
        super().__init__(f"kernel: found {found!r}, allowed {allowed}{nearest(found, (*KERNELS, *_DERIVED))}")


class Unavailable(ImportError):
    """The kernel cannot run here: an import is missing; the message is the reason."""


def _is_outsider(name: str) -> bool:
    """`package.module[:name]`: a path of identifiers, never an id (ids have a slash). A name alone is one where there
    is such a module, and else a slip of an id."""
    module, _, attribute = name.partition(":")
    parts = module.split(".") + ([attribute] if attribute else [])
    if "/" in name or not all(part.isidentifier() for part in parts):
        return False
    return len(parts) > 1 or importlib.util.find_spec(module) is not None


def split(kernel_id: str) -> tuple[str, str | None]:
    """`triton/auto@paper` -> (triton/auto, paper): the kernel and whose configs it takes; None where the run says."""
    base, at, variant = kernel_id.partition("@")
    return base, variant if at else None


def base(kernel_id: str) -> str:
    """The id without its variant."""
    return split(kernel_id)[0]


def in_order(kernels: Iterable[str]) -> list[str]:
    """Without repeats, in the registry's order, variants behind their kernel, outsiders last."""
    ranks = {kernel: rank for rank, kernel in enumerate(KERNELS)}
    present = dict.fromkeys(kernels)
    return sorted(present, key=lambda kernel: (ranks.get(split(kernel)[0], len(ranks)), kernel))


def is_own(kernel_id: str) -> bool:
    """Whether it is a kernel of the two DSL folders, in whatever variant; ablations and native ones are."""
    return base(kernel_id) in OWN or base(kernel_id) in _DERIVED


def families(kernels: Iterable[str]) -> list[str]:
    """The families of these ids, each once: `triton`, `helion`, `baseline`."""
    return list(dict.fromkeys(kernel_id.split("/")[0] for kernel_id in kernels))


def keeps_code(kernel_id: str) -> bool:
    """Whether a process with the GPU leaves generated code of this kernel on the disk for others."""
    return is_own(kernel_id) and hasattr(importlib.import_module(package(kernel_id.split("/")[0])), "KEEPS_CODE")


def select(patterns: str) -> tuple[str, ...]:
    """Kernel ids for comma-separated ids, globs of ids or outsiders, without repeats; `@variant` behind those of the
    DSL folders, `@planning` behind any. Raises UnknownKernel."""
    chosen: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        name, variant = split(pattern)
        folder = next((ids for part, ids in (("/ablation", ABLATIONS), ("/native", NATIVE)) if part in name), None)
        known = folder or (KERNELS if variant in (None, PLANNING) else OWN)
        found = fnmatch.filter(known, name) or ([pattern] if _is_outsider(pattern) else [])
        if not found or variant not in (None, PLANNING, *VARIANTS):
            raise UnknownKernel(pattern)
        chosen |= dict.fromkeys(found if variant is None else (f"{kernel}@{variant}" for kernel in found))
    return tuple(chosen)


def package(family: str) -> str:
    """The package of a family: `triton` is dsl_triton."""
    return _PACKAGES[family]


def module_path(kernel_id: str) -> tuple[str, str | None]:
    """(module, attribute or None) behind a kernel id. Raises UnknownKernel."""
    kernel_id = base(kernel_id)
    if kernel_id in KERNELS or kernel_id in _DERIVED:
        family, name = kernel_id.split("/")
        return f"{_PACKAGES[family]}.{name}", None
    if not _is_outsider(kernel_id):
        raise UnknownKernel(kernel_id)
    module, _, attribute = kernel_id.partition(":")
    return module, attribute or None


def load(kernel_id: str) -> Any:
    """The kernel, imported now; a plain function as one; `@planning` as planning.Planning.

    Raises Unavailable where an import fails, or a package is absent or too old, TypeError for what is no kernel,
    SpecError where a function declares what means nothing.
    """
    path, attribute = module_path(kernel_id)
    try:
        own = is_own(kernel_id)
        if own:
            ensure(kernel_id.split("/")[0])
        with light_import() if own else contextlib.nullcontext():  # somebody else's may need scikit-learn
            kernel = importlib.import_module(path)
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    if attribute:
        if not hasattr(kernel, attribute):
            raise Unavailable(f"{path} has no {attribute}")
        kernel = getattr(kernel, attribute)
    if callable(kernel) and not isinstance(kernel, type) and not hasattr(kernel, "launch"):
        return Function(kernel_id, kernel)
    missing = [name for name in ("SUPPORTS", "CONTRACT", "DEFAULT", "workspace", "launch") if not hasattr(kernel, name)]
    if missing:
        raise TypeError(f"{kernel_id}: found no {', '.join(missing)}, allowed what common.spec.kernel.Kernel defines")
    if not isinstance(kernel.CONTRACT, Precision):
        found = type(kernel.CONTRACT).__name__
        raise TypeError(f"{kernel_id}: CONTRACT: found a {found}, allowed a common.spec.precision.Precision")
    return Planning(kernel) if split(kernel_id)[1] == PLANNING else kernel


def default_config(
    kernel_id: str,
    kernel: Any,
    shape: AttentionShape,
    stats: BatchStats,
    gpu: Gpu | None,
    heuristics: str = "tree",
    needs: frozenset[str] = frozenset(),
    sees: int = EVERY_KEY,
) -> tuple[Any, str]:
    """The config that a user gets who names none, and where it is from: tree, paper, heuristics or DEFAULT.

    heuristics: `tree` asks the measured winners of the GPU first (common/serving/winners.py), `learned` what logs
    teach (`heuristics/learned/<gpu>.json`), `paper` the paper's Listing 2; all then, and `default` at once, the
    kernel's DEFAULT made to fit: `Family.named` says which. Without a GPU the kernel's DEFAULT. An ablation takes what
    its rung would, as its `of_rung` makes it fit. A variant of the id (`@paper`) wins over the run's: `@fixed`
    is the kernel's DEFAULT on every batch, `@page` the default with tiles of a page, as before the paper's 4.6. Raises
    UnsupportedFeature where the kernel has no tile of a page's size. needs: what the batch asks of a kernel
    (`common.spec.kernel.asked_of`), which a kernel that picks another, as `auto`, has to know. sees: keys that a query
    token sees at most (`Features.sees`): batches over longer sequences take the config for so many.
    """
    kernel_id, variant = split(kernel_id)
    if variant == "page":
        config, _ = default_config(kernel_id, kernel, shape, stats, gpu, "default", sees=sees)
        return _of_a_page(kernel_id, config, shape), "page"
    if variant == "fixed":
        return kernel.DEFAULT, "DEFAULT"
    heuristics = heuristics if variant in (None, PLANNING) else variant
    if gpu is not None and hasattr(kernel, "choose"):
        choice = kernel.choose(shape, stats, gpu, needs, heuristics, sees)
        return choice, "tree" if choice.measured else "heuristics"
    if gpu is not None and (kernel_id in OWN or kernel_id in _DERIVED):
        stats = seen(stats, sees)
        dsl, name = kernel_id.split("/")
        auto = "native.auto" if kernel_id in NATIVE else "auto"
        family = importlib.import_module(f"{_PACKAGES[dsl]}.{auto}").FAMILY
        choice: Choice = family.named(ABLATIONS.get(kernel_id, name), shape, stats, gpu, heuristics)
        origin = "tree" if choice.measured else "paper" if choice.path.startswith(_PAPER) else "heuristics"
        origin = "DEFAULT" if choice.path == "DEFAULT" else origin
        return kernel.of_rung(choice.config) if kernel_id in ABLATIONS else choice.config, origin
    return kernel.DEFAULT, "DEFAULT"


def config_words(plain: Mapping[str, Any]) -> str:
    """`block_m=16, tile_size=64; decode: ...`: a config's plain values; levers of CDNA as the compiler has them are
    left out."""
    usual = dataclasses.asdict(Cdna())
    own = {k: v for k, v in plain.items() if not isinstance(v, Mapping) and usual.get(k, ...) != v}
    parts = [f"{name}: {config_words(part)}" for name, part in plain.items() if isinstance(part, Mapping)]
    return "; ".join([", ".join(f"{name}={value}" for name, value in own.items()), *parts]).removeprefix("; ")


def winners_file(dsl: str, gpu: Gpu) -> Path | None:
    """The measured winners of this user; None for nowhere."""
    return winners.path(dsl, gpu)


def _of_a_page(kernel_id: str, config: Any, shape: AttentionShape) -> Any:
    """The config with tiles as long as a page."""
    page = shape.block_size
    if not hasattr(config, "tile_size"):
        raise UnsupportedFeature(f"{kernel_id}@page", "tiles of a page", "kernels with one tile_size")
    if page < 16 or page & (page - 1):
        raise UnsupportedFeature(f"{kernel_id}@page", f"block_size {page}", "a power of two from 16 on, as a tile is")
    return dataclasses.replace(config, tile_size=page)


def config_dict(config: Any) -> dict[str, Any] | None:
    """A config as plain values for a record; None stays None."""
    if config is None:
        return None
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config)


def config_from(like: Any, plain: dict[str, Any]) -> Any:
    """The config that `config_dict` made plain; like: one of the same type, with parts of the same types."""
    parts = {name: getattr(like, name) for name in plain}
    made = {k: config_from(v, plain[k]) if dataclasses.is_dataclass(v) else plain[k] for k, v in parts.items()}
    return dataclasses.replace(like, **made)
