"""Measured winners: heuristics/fitted/<gpu>.json of a DSL, written by `tune`, read here. Nothing in it is executed.

A winner is absolute: the kernel and every field of its Config, under the key of the batch that it was timed on. A key
is the shape and the batch's host integers in steps of at most a quarter (`grid.KEYS`), so that a batch a little larger
finds it too. A table is stamped with a hash of each kernel's code; what was timed on other code is stale, and not used.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.serving.grid import EIGHTHS, decided_by, few_keys
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv

LABEL = "diptych: measured winners"
MEMBERS = ("label", "dsl", "gpu", "provenance", "sources", "winners")


@dataclass(frozen=True)
class Winner:
    """What was fastest on a row. kernel: of all that `auto` may take; None where the rules' is as fast. configs: by
    kernel, where one is faster than the rules' config, as plain values. us, rules_us: `auto`'s time with it, without.
    """

    row: str
    kernel: str | None
    configs: dict[str, dict[str, Any]]
    us: float
    rules_us: float

    def __str__(self) -> str:
        gain = f", {self.us:.1f} us, by the rules {self.rules_us:.1f}" if self.us < self.rules_us else ""
        return f"measured on {self.row}{gain}"


def sizes(shape: AttentionShape) -> str:
    """`32:8:128 16 bfloat16 bfloat16`: heads, page, dtype of the query and of the cache."""
    heads = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size}"
    heads = heads if shape.value_size is None else f"{heads}:{shape.value_size}"
    dtypes = " ".join(str(dtype).removeprefix("torch.") for dtype in (shape.dtype, shape.cache_dtype))
    return f"{heads} {shape.block_size} {dtypes}"


def key(shape: AttentionShape, stats: BatchStats) -> str:
    """`32:8:128 16 bfloat16 bfloat16 | 8 8 8 1 2048 6`: sequences, tokens, decodes, longest query, keys, and all keys
    in eighths of what sequences of the longest would have."""
    told = decided_by(stats)
    eighths = cdiv(EIGHTHS * told.total_seq_len, told.num_seqs * told.max_seq_len)
    counts = told.num_seqs, told.num_tokens, told.num_decodes, told.max_query_len, told.max_seq_len
    return f"{sizes(shape)} | {' '.join(str(n and few_keys(n)) for n in counts)} {eighths}"


def built(like: Any, plain: dict[str, Any]) -> Any:
    """The Config of plain values; like: one of its type. Raises ValueError where fields are missing or unknown."""
    names = {field.name for field in fields(like)}
    if plain.keys() != names:
        raise ValueError(f"found the fields {sorted(plain)} of a {type(like).__name__}, allowed {sorted(names)}")
    parts = {name: built(value, plain[name]) for name in names if is_dataclass(value := getattr(like, name))}
    return replace(like, **plain | parts)


class Table:
    """The winners of one DSL on one GPU. stale: kernels whose code is another than what was timed."""

    def __init__(self, path: Path, dsl: str, gpu: Gpu, kernels: Path) -> None:
        """kernels: the folder of the DSL's modules. Raises ValueError for a file that is no table of this DSL and GPU,
        FileNotFoundError."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plain, dict) or plain.get("label") != LABEL or not set(MEMBERS) <= plain.keys():
            raise ValueError(f"found a file without label {LABEL!r} and {', '.join(MEMBERS[1:])}")
        if (plain["dsl"], plain["gpu"]) != (dsl, gpu.title):
            raise ValueError(f"found a table of {plain['dsl']} on {plain['gpu']}, allowed {dsl} on {gpu.title}")
        self.provenance = ", ".join(f"{name} {value}" for name, value in plain["provenance"].items())
        self.sources: dict[str, str] = plain["sources"]
        self.winners = {name: Winner(**one) for name, one in plain["winners"].items()}
        if bad := [name for name, one in self.winners.items() if one.kernel and one.kernel not in one.configs]:
            raise ValueError(f"found winners without their config: {bad[0]}")
        self.stale = tuple(k for k, stamped in self.sources.items() if stamped != stamp(kernels, k))

    def stats(self, shape: AttentionShape) -> Iterator[BatchStats]:
        """The sizes of a shape's winners, which a plan compiles ahead beside the grid's."""
        for at in self.winners:
            if at.partition(" | ")[0] == sizes(shape):
                *counts, keys, eighths = map(int, at.partition(" | ")[2].split())
                yield BatchStats(*counts, keys, counts[0] * keys * eighths // EIGHTHS)

    def find(self, shape: AttentionShape, stats: BatchStats) -> Winner | None:
        """The winner of a batch's key, without what is stale of it."""
        found = self.winners.get(key(shape, stats))
        if found is None or not self.stale:
            return found
        configs = {kernel: config for kernel, config in found.configs.items() if kernel not in self.stale}
        return replace(found, kernel=None if found.kernel in self.stale else found.kernel, configs=configs)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Modules of the package's own folder that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            parts = node.module.split(".")
            yield from parts[1:2] or [alias.name for alias in node.names]


def _code(node: Any) -> Any:
    """A syntax tree as nested lists, without docstrings and places: the same in every version of Python."""
    if isinstance(node, list):
        kept = [one for one in node if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        return [_code(one) for one in kept]
    if isinstance(node, ast.AST):
        members = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        return [type(node).__name__, *([name, _code(value)] for name, value in sorted(members.items()))]
    return repr(node)


@lru_cache(128)
def _file(path: Path, written_ns: int) -> tuple[str, tuple[str, ...]]:
    """A hash of a module's code, and the modules beside it that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return hashlib.sha256(str(_code(tree)).encode()).hexdigest(), tuple(sorted(set(_imported(tree, path.parent.name))))


def stamp(folder: Path, kernel: str) -> str:
    """16 hex digits over the code of a kernel of a DSL's folder and of all that it imports there; comments and
    docstrings are none of it. Empty for a kernel that is not there."""
    met: dict[str, str] = {}
    left = [kernel]
    while left:
        name = left.pop()
        if name not in met and (path := folder / f"{name}.py").exists():
            met[name], imported = _file(path, path.stat().st_mtime_ns)
            left += imported
    digest = hashlib.sha256(str(sorted(met.items())).encode()).hexdigest()[:16]
    return digest if kernel in met else ""
