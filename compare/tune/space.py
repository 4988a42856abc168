"""The candidates of the tuner: policies, each of which gives every batch one config of a kernel.

A policy is a fixed config of the kernel's `space`, or the default (the first of what logs teach) with one field set,
doubled or halved, or with one part drawn anew. The second kind keeps what the default computes from a batch: its
segments follow the number of programs. The default itself is always the first policy.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.choice.learned import Question
from common.choice.legal import MOST_SEGMENTS
from common.gpus import Gpu
from common.serving.choice import Choice
from common.serving.winners import built
from common.spec.cdna import LEVERS, Cdna
from compare.competitors import registry
from compare.tune import learned
from compare.workloads import Workload

SCALED = "num_segments"  # a field whose default is computed from the batch: doubled and halved, not set


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{`tile_size`: 64} or, for a part of a nested config, {`decode.tile_size`: 64}."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = value
    return flat


def changed(config: Any, values: dict[str, Any]) -> Any:
    """The config with flat fields replaced, nested ones too. Raises TypeError for a field that it has not."""
    own = {name: value for name, value in values.items() if "." not in name}
    for part in sorted({name.split(".")[0] for name in values if "." in name}):
        inside = {name.split(".", 1)[1]: v for name, v in values.items() if name.startswith(part + ".")}
        own[part] = changed(getattr(config, part), inside)
    return dataclasses.replace(config, **own)


@dataclass(frozen=True)
class Policy:
    """base: `default` (of the batch), `fixed` (every field is in `set`), `tree` (what a user gets on this GPU) or
    `model N` (the N-th that the learned choice of this GPU has for the batch, of the kernel or, of `auto`, of all).

    times: fields multiplied, 2 or 0.5.
    """

    base: str = "default"
    set: tuple[tuple[str, Any], ...] = ()
    times: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        words = [f"{field}={value}" for field, value in self.set]
        words += [f"{field}*{factor:g}" for field, factor in self.times]
        return " ".join([self.base, *words])

    @property
    def heuristics(self) -> str:
        """The `heuristics` of registry.default_config whose config it starts from."""
        return "tree" if self.base == "tree" else "learned"

    def config(self, default: Any) -> Any:
        """The config for a batch whose default is `default`."""
        flat = flatten(default)
        scaled = {f: max(1, min(int(flat[f] * factor), MOST_SEGMENTS)) for f, factor in self.times}
        return changed(default, dict(self.set) | scaled)

    def to_dict(self) -> dict[str, Any]:
        return {"base": self.base, "set": [list(p) for p in self.set], "times": [list(p) for p in self.times]}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Policy:
        return cls(plain["base"], tuple(map(tuple, plain["set"])), tuple(map(tuple, plain["times"])))


DEFAULT = Policy()
TREE = Policy("tree")
MODEL = "model "


def model(number: int) -> Policy:
    """The rank in the learned choice, from 1."""
    return Policy(f"{MODEL}{number}")


def levers(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Every combination worth trying on a GPU, the plain one first; that one alone on others than CDNA.

    Which waves make a kernel spill only its code tells: the tuner compiles first, and drops it.
    """
    axes: dict[str, tuple[Any, ...]] = {name: (getattr(Cdna(), name),) for name in LEVERS}
    if gpu.mfma:
        axes |= {
            "matrix_instr": (0, 16, 32),
            "waves_per_eu": (0, 1, 2, 3, 4),
            "stream": (False, True),
            "ilp": (False, True),
        }
        axes |= {"xcds": tuple(dict.fromkeys((1, gpu.xcds))), "transposed_keys": (False, not gpu.turns_on_read)}
    for values in itertools.product(*(dict.fromkeys(axis) for axis in axes.values())):
        yield dict(zip(axes, values, strict=True))


def _each(config: Any, gpu: Gpu) -> Iterator[Any]:
    """The config, then with each combination of levers, in one part after another."""
    yield config
    if isinstance(config, Cdna):
        yield from (dataclasses.replace(config, **found) for found in itertools.islice(levers(gpu), 1, None))
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(part := getattr(config, field.name)):
            others = itertools.islice(_each(part, gpu), 1, None)
            yield from (dataclasses.replace(config, **{field.name: other}) for other in others)


def with_levers(configs: Iterable[Any], gpu: Gpu) -> Iterator[Any]:
    """A kernel's space, its first config also with every combination of levers: they are an axis apart, for tiles and
    levers hang little on each other, and their product would be thousands."""
    rest = iter(configs)
    for first in itertools.islice(rest, 1):
        yield from _each(first, gpu)
    yield from rest


class Space:
    """The configs that a kernel calls worth trying, and whether a changed default is one of them.

    The parts of a nested config (prefill, decode), and the levers of each (common.spec.Cdna), are looked at one by one:
    whether one fits does not hang on another.
    """

    def __init__(self, configs: Iterable[Any]) -> None:
        self.configs = list(configs)
        self._flat = [flatten(config) for config in self.configs]
        names = list(self._flat[0]) if self._flat else []
        self.axes = {n: sorted({f[n] for f in self._flat}, key=lambda v: (str(type(v)), v)) for n in names}
        self.parts: dict[str, list[str]] = {}
        for name in names:
            prefix, _, field = name.rpartition(".")
            apart = field in LEVERS and len(self.axes[name]) > 1
            self.parts.setdefault(f"{prefix}.levers" if apart else prefix, []).append(name)
        self._projected: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}

    def allows(self, config: Any, default: Any) -> bool:
        """Whether what differs from the default lies in the space, but for computed fields (49 segments).

        A part that is the default's own is the kernel's author's choice, in the space or not.
        """
        flat, own = flatten(config), flatten(default)
        for names in self.parts.values():
            if all(flat[name] == own[name] for name in names):
                continue
            on_axis = tuple(name for name in names if flat.get(name) in self.axes[name])
            if on_axis not in self._projected:
                self._projected[on_axis] = {tuple(f[name] for name in on_axis) for f in self._flat}
            if tuple(flat[name] for name in on_axis) not in self._projected[on_axis]:
                return False
        return True


def start(policy: Policy, kernel_id: str, kernel: Any, row: Workload, gpu: Gpu) -> Any:
    """The config that a policy departs from on a row. Raises ValueError for `model N` where nothing was learned, or
    fewer than N fit."""
    if policy.base.startswith(MODEL):
        return modelled(kernel_id, row, gpu, int(policy.base.removeprefix(MODEL)))
    asked = (kernel_id, kernel, row.shape, row.stats, gpu, policy.heuristics, row.ask.members(row.shape), row.ask.sees)
    return registry.default_config(*asked)[0]


def modelled(kernel_id: str, row: Workload, gpu: Gpu, number: int) -> Any:
    """The number-th best for a row (from 1) of the learned choice, as the kernel's Config or `auto`'s Choice."""
    dsl, _, name = kernel_id.partition("/")
    known = learned.of(dsl, gpu)
    if known is None:
        raise ValueError(f"{MODEL}{number}: nothing was learned for {dsl} on {gpu.name}")
    shape, stats = learned.asked(row)
    found = known.first(Question(shape, gpu, None if name == "auto" else (name,)), stats, number)
    if len(found) < number:
        raise ValueError(f"{MODEL}{number}: only {len(found)} candidates fit {row.label}")
    one = found[-1]
    config = built(registry.load(f"{dsl}/{one.kernel}").DEFAULT, one.config, older=True)
    return Choice(one.kernel, config, f"heuristics/learned/{gpu.name}.json") if name == "auto" else config


def _is_scaled(name: str) -> bool:
    return name.rpartition(".")[2] == SCALED


def _neighbours(space: Space, defaults: Sequence[Any]) -> list[Policy]:
    """The default with one field changed, where that is allowed for every batch and changes it for one."""
    found = []
    for name, values in space.axes.items():
        if _is_scaled(name):
            candidates = [Policy(times=((name, factor),)) for factor in (2.0, 0.5)]
        else:
            candidates = [Policy(set=((name, value),)) for value in values]
        for policy in candidates:
            configs = [policy.config(default) for default in defaults]
            moved = any(config != default for config, default in zip(configs, defaults, strict=True))
            if moved and all(map(space.allows, configs, defaults)):
                found.append(policy)
    return found


def _drawn(space: Space, config: Any, number: int) -> Policy:
    """A config of the space as a policy: all of it, or one part of a nested one, by turns; computed fields stay so."""
    parts = space.parts
    names = parts[sorted(parts)[number % len(parts)]]
    values = tuple((name, value) for name, value in flatten(config).items() if name in names and not _is_scaled(name))
    return Policy("fixed" if len(values) == len(flatten(config)) else "default", values)


def policies(configs: Iterable[Any], defaults: Sequence[Any], count: int, seed: int) -> list[Policy]:
    """At most `count` policies: the default, then by turns two neighbours of it and a drawn config, seeded."""
    space, draw = Space(configs), random.Random(seed)
    near = _neighbours(space, list(dict.fromkeys(defaults)))
    draw.shuffle(near)
    sample = draw.sample(space.configs, min(count, len(space.configs)))
    far = [_drawn(space, config, number) for number, config in enumerate(sample)]
    mixed = [DEFAULT]
    while near or far:
        mixed += [*near[:2], *far[:1]]
        near, far = near[2:], far[1:]
    return list(dict.fromkeys(mixed))[: max(count, 1)]


# Policies that the tuner tries first on a GPU where nothing was measured yet: a static ranking, not run on hardware.
#
# `compare.tune.rank` writes the file; the tuner reads it, times its policies like any other, and trusts none of its
# figures.


LABEL = "static ranking, not run on hardware"
FOLDER = Path(__file__).parent / "rankings"


def path(gpu: str) -> Path:
    """The path of the static ranking for a GPU."""
    return FOLDER / f"{gpu}.json"


def of(gpu: str, kernel_id: str) -> list[Policy]:
    """The ranked policies of a kernel, best first; empty without a ranking."""
    if not path(gpu).exists():
        return []
    ranked = read(gpu)["kernels"].get(kernel_id, [])
    return [Policy.from_dict(one["policy"]) for one in ranked]


def read(gpu: str) -> dict[str, Any]:
    """The content of a ranking file. Raises ValueError if it is not labelled a static ranking."""
    found = json.loads(path(gpu).read_text())
    if found.get("label") != LABEL:
        raise ValueError(f"{path(gpu).name}: found label {found.get('label')!r}, allowed {LABEL!r}")
    return found
