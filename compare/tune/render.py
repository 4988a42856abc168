"""The fitted trees as readable Python: dsl_*/heuristics/fitted/<gpu>.py, formatted as ruff would."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from compare.tune.space import DEFAULT, MOST_SEGMENTS, Policy
from compare.tune.tree import FEATURES, Bounds, Fit, Tree, rules

WIDTH = 120
_EXPRESSION = {name: expression for name, expression, _ in FEATURES}
_INDENT = "    "


@dataclass(frozen=True)
class KernelTree:
    """A kernel's fit. policies: what the tree's choices index; samples: a config by each of them, for its types.

    default: (mean, worst) regret of the untuned default on the same rows.
    """

    name: str
    fit: Fit
    policies: tuple[Policy, ...]
    samples: tuple[Any, ...]
    default: tuple[float, float]

    @property
    def departs(self) -> bool:
        """Whether some batch gets another config than the default's."""
        return bool(rules(self.fit.tree, self.policies.index(DEFAULT)))


@dataclass(frozen=True)
class AutoTree:
    """Which kernel: the fit's choices index `kernels`, whose first, ``, is what the untuned default takes.

    default: (mean, worst) regret of that on the same rows.
    """

    fit: Fit
    kernels: tuple[str, ...]
    default: tuple[float, float]


def _short(config: Any) -> str:
    return type(config).__module__.split(".")[-1]


def _type(config: Any) -> str:
    return f"{_short(config)}_kernel.{type(config).__qualname__}"


def _modules(config: Any) -> set[str]:
    """Short names of the modules whose Config classes a config is made of."""
    found = {_short(config)}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= _modules(value)
    return found


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _call(head: str, arguments: Sequence[str], indent: str) -> list[str]:
    """`head(arguments)` on one line, or an argument a line where that is too long."""
    line = f"{indent}{head}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{indent}{head}(", *(f"{indent}{_INDENT}{argument}," for argument in arguments), f"{indent})"]


def _config(config: Any, before: str, indent: str, after: str = "") -> list[str]:
    """`before Config(field=value, ...) after`, a field a line where one line is too long, parts likewise."""
    head = f"{before}{_type(config)}"
    line = f"{indent}{head}({', '.join(_words(config))}){after}"
    if len(line) <= WIDTH:
        return [line]
    inside = []
    for field in dataclasses.fields(config):
        value, deeper = getattr(config, field.name), indent + _INDENT
        if dataclasses.is_dataclass(value):
            inside += _config(value, f"{field.name}=", deeper, ",")
        else:
            inside.append(f"{deeper}{field.name}={_value(value)},")
    return [f"{indent}{head}(", *inside, f"{indent}){after}"]


def _words(config: Any) -> list[str]:
    """`field=value` for every field, on one line."""
    words = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        inside = f"{_type(value)}({', '.join(_words(value))})" if dataclasses.is_dataclass(value) else _value(value)
        words.append(f"{field.name}={inside}")
    return words


def _changes(policy: Policy) -> dict[str, list[str]]:
    """Arguments of `replace` by the part of the config that they change, `` for the config itself."""
    words = [(field, _value(value)) for field, value in policy.set]
    for field, factor in policy.times:
        there = f"config.{field}"
        halved, doubled = f"max({there} // 2, 1)", f"min(2 * {there}, {MOST_SEGMENTS})"
        words.append((field, halved if factor < 1 else doubled))
    found: dict[str, list[str]] = {}
    for field, word in words:
        part, _, name = field.rpartition(".")
        found.setdefault(part, []).append(f"{name}={word}")
    return found


def _leaf(tree: KernelTree, choice: int, indent: str) -> list[str]:
    policy = tree.policies[choice]
    fallback = f"default.{tree.name}(shape, stats, gpu)"
    if policy == DEFAULT:
        return [f"{indent}return {fallback}"]
    if policy.base == "fixed":
        return _config(tree.samples[choice], "return ", indent)
    changes = _changes(policy)
    own, parts = changes.pop("", []), sorted(changes)
    lines = [f"{indent}config = {fallback}"]
    for part in parts:
        lines += _call(f"{part} = replace", [f"config.{part}", *changes[part]], indent)
    return lines + _call("return replace", ["config", *own, *(f"{part}={part}" for part in parts)], indent)


def _condition(bounds: Bounds) -> list[str]:
    """`if bounds:`, a bound a line where one line is too long."""
    words = []
    for feature, expression in _EXPRESSION.items():
        above, most = bounds.get(feature, (None, None))
        if (above, most) == (None, None):
            continue
        if above is None:
            words.append(f"{expression} <= {most}")
        elif most is None:
            words.append(f"{expression} > {above}")
        else:
            words.append(f"{above} < {expression} <= {most}")
    line = f"{_INDENT}if {' and '.join(words)}:"
    if len(line) <= WIDTH:
        return [line]
    joined = [f"{2 * _INDENT}{'and ' if number else ''}{word}" for number, word in enumerate(words)]
    return [f"{_INDENT}if (", *joined, f"{_INDENT}):"]


def _branches(tree: Tree, default: int, leaf: Any) -> list[str]:
    """An if for every leaf that departs from the default, and the default behind them."""
    lines = []
    for bounds, choice in rules(tree, default):
        if not bounds:  # the same for all
            return leaf(choice, _INDENT)
        lines += [*_condition(bounds), *leaf(choice, 2 * _INDENT)]
    return [*lines, *leaf(default, _INDENT)]


def share(pair: tuple[float, float]) -> str:
    """Mean and worst of what a tree reaches of the best."""
    return f"{pair[0]:.3f} (worst {pair[1]:.2f})"


def _guard(name: str) -> list[str]:
    return [f"{_INDENT}if not covers(shape, gpu):", f"{_INDENT * 2}return default.{name}(shape, stats, gpu)"]


def _function(tree: KernelTree) -> list[str]:
    returned = f"{_short(tree.samples[0])}_kernel.Config"
    return [
        f"def {tree.name}(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> {returned}:",
        f'{_INDENT}"""Held out {share(tree.fit.held_out)} of the best measured; default {share(tree.default)}."""',
        *(_guard(tree.name) if tree.departs else []),
        *_branches(tree.fit.tree, tree.policies.index(DEFAULT), lambda choice, indent: _leaf(tree, choice, indent)),
    ]


def _auto(auto: AutoTree | None, trees: Sequence[KernelTree]) -> list[str]:
    """Which kernel, and what its function says; the default's kernel too is asked for its config here."""
    words = "The kernel that the untuned default takes, with the config that its function has."
    if auto:
        words = f"Held out {share(auto.fit.held_out)} of the best kernel and config; default {share(auto.default)}."
    departing = [tree.name for tree in trees if tree.departs]

    def leaf(choice: int, indent: str) -> list[str]:
        if auto and (name := auto.kernels[choice]):
            return [f'{indent}return "{name}", {name}(shape, stats, gpu)']
        if not departing:
            return [f"{indent}return default.auto(shape, stats, gpu)"]
        return [
            f"{indent}name, config = default.auto(shape, stats, gpu)",
            f"{indent}return name, TREES[name](shape, stats, gpu) if name in TREES else config",
        ]

    entries = [f'"{name}": {name}' for name in departing]
    return [
        *([*_braces("TREES", entries), "", ""] if departing else []),
        "def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:",
        f'{_INDENT}"""{words}"""',
        *_guard("auto"),
        *(_branches(auto.fit.tree, 0, leaf) if auto else leaf(0, _INDENT)),
    ]


def _table(name: str, values: dict[str, Any]) -> list[str]:
    return [f"{name} = {{", *(f'{_INDENT}"{key}": {_value(value)},' for key, value in values.items()), "}"]


def _braces(name: str, members: Sequence[str]) -> list[str]:
    line = f"{name} = {{{', '.join(members)}}}"
    return [line] if len(line) <= WIDTH else [f"{name} = {{", *(f"{_INDENT}{member}," for member in members), "}"]


def _held_out(trees: Sequence[KernelTree], auto: AutoTree | None) -> dict[str, Any]:
    """Kernel -> (mean, worst)."""
    fits = {tree.name: tree.fit for tree in trees} | ({"auto": auto.fit} if auto else {})
    return {name: tuple(round(value, 3) for value in fit.held_out) for name, fit in fits.items()}


def _used(tree: KernelTree) -> set[str]:
    modules = {_short(tree.samples[0])}
    for choice in tree.fit.tree.choices:
        if tree.policies[choice].base == "fixed":
            modules |= _modules(tree.samples[choice])
    return modules


def _imports(package: str, trees: Sequence[KernelTree], auto: AutoTree | None) -> list[str]:
    replaced = any(
        t.policies[c].base == "default" and t.policies[c] != DEFAULT for t in trees for c in t.fit.tree.choices
    )
    modules = sorted(set().union(*(_used(tree) for tree in trees)))
    return [
        *(["from dataclasses import replace"] if replaced else []),
        "from typing import Any",
        "",
        "import torch",
        "",
        "from common.gpus import Gpu",
        "from common.spec import AttentionShape",
        "from common.spec.metadata import BatchStats",
        *(f"from {package} import {name} as {name}_kernel" for name in modules),
        f"from {package}.heuristics.generic import default",
    ]


def source(
    package: str,
    gpu: Gpu,
    trees: Sequence[KernelTree],
    auto: AutoTree | None,
    measured: Sequence[tuple[int, int, str, str]],
    provenance: dict[str, Any],
) -> str:
    """The module's text. measured: (head size, page, dtype of the query and of the cache as `bfloat16`) of the rows."""
    classes = [f"({head}, {page}, torch.{dtype}, torch.{cache})" for head, page, dtype, cache in measured]
    lines = [
        f'"""Measured choices for the {gpu.title}, written by `python -m compare tune` and reviewed as code.',
        "",
        "The functions answer for the shapes of MEASURED on that GPU; all others get those of `generic`. A regret is a",
        "time over the best of all candidates on a row. HELD_OUT: mean and worst of a kernel's, every row held out of",
        "the fit that chose for it.",
        '"""',
        "",
        *_imports(package, trees, auto),
        "",
        *_table("PROVENANCE", provenance),
        *_table("HELD_OUT", _held_out(trees, auto)),
        "# head size, page, dtype of the query and of the cache",
        *_braces("MEASURED", classes),
        "",
        "",
        "def covers(shape: AttentionShape, gpu: Gpu) -> bool:",
        f'{_INDENT}"""Whether the trees answer for a shape; above 16 query heads a KV head Q Blocks are larger."""',
        f"{_INDENT}known = (shape.head_size, shape.block_size, shape.dtype, shape.cache_dtype) in MEASURED",
        f'{_INDENT}return gpu.name == "{gpu.name}" and known and shape.queries_per_kv <= 16',
    ]
    for block in [*(_function(tree) for tree in trees), _auto(auto, trees)]:
        lines += ["", "", *block]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
