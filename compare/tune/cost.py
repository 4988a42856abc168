"""What a launch of attention costs, by a formula of a few constants fitted to times: it ranks configs for the tuner.

    launch + peak(span * tile + waves * program, bytes / (memory * peak of HBM))        peak(x, y) = (x^4 + y^4)^(1/4)
    tile = peak(instructions * issue + latency / (stages in flight + 1) + products, together * products)

span: tiles of the busiest of the slots that hold programs, dealt in launch order (list scheduling, Graham 1969); waves:
programs of that slot. A launch that merges segments, and one that copies pages, are bytes and a constant. Instructions
and residents are of a config's sizes alone, so nothing is compiled. The residual, boosted trees over log(time /
formula), is data too (`Residual`); outside of the range it was fitted on the formula answers alone.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from common.gpus import Gpu
from common.spec import AttentionShape
from compare.static.estimate_work import Work, works
from compare.workloads import Workload

CONSTANTS = ("launch", "program", "issue", "latency", "matrix", "memory", "merge")
# microseconds, microseconds, nanoseconds, microseconds, shares of the peaks, microseconds: what the H200's fit began at
PRIOR = np.array([2.0, 3.0, 3.0, 0.5, 1.0, 0.8, 2.0])
STRENGTH = 0.3  # of the prior, in residuals a factor of e
NEAR = 0.1  # soft_l1: beyond a tenth an error counts linearly
MMA_SHARE = 0.6  # of a unit's peak, by products whose operands pass through registers: under 64 rows a warp group
MOST_DEALT = 2048  # programs that are dealt one by one; more are even enough
TREES, DEPTH, RATE = 60, 4, 0.1  # of the residual
REGISTERS, LANES = 65536, 32
DATA = Path(__file__).parent / "constants.json"


@dataclass(frozen=True)
class Launch:
    """One launch, as the formula needs it. products: microseconds of a tile at a unit's peak; bytes_us: at HBM's."""

    span: float
    waves: float
    instructions: float
    ahead: int
    products: float
    together: float
    bytes_us: float
    merges: bool


def residents(work: Work, warps: int, stages: int, shape: AttentionShape, gpu: Gpu) -> int:
    """Programs of a launch that a unit holds, by registers of the sums and shared memory of the tiles."""
    lanes, head = warps * LANES, shape.head_size
    registers = min(40 + (work.rows * (shape.value_lanes + work.keys) + work.keys * head // 2) // lanes, 255)
    shared = work.tile_bytes * max(stages - 1, 1) + work.rows * head * shape.dtype.itemsize
    return max(min(REGISTERS // (registers * lanes), (gpu.shared_bytes + 1024) // max(shared, 1), 16), 1)


def _instructions(work: Work, warps: int, value_lanes: int) -> float:
    """Of a warp in the loop over tiles, about: softmax an element, loads of 16 bytes, products, rescaling of sums."""
    lanes = warps * LANES
    loads = work.tile_bytes / 16 / lanes * 4
    return 60 + 7 * work.rows * work.keys / lanes + loads + 2 * work.rows * value_lanes / lanes


@lru_cache(256)
def _dealt(tiles: tuple[int, ...], slots: int) -> tuple[float, float]:
    """(tiles, programs) of the slot that ends last."""
    if not tiles:
        return 0.0, 0.0
    if len(tiles) <= slots:
        return max(tiles), 1
    if len(tiles) > MOST_DEALT:
        return sum(tiles) / slots + max(tiles) / 2, len(tiles) / slots + 0.5
    heap = [(0, 0)] * slots
    for n in tiles:
        ends, held = heap[0]
        heapq.heapreplace(heap, (ends + n, held + 1))
    return max(heap)


def _launch(work: Work, part: Mapping[str, Any], row: Workload, gpu: Gpu) -> Launch:
    warps, stages = part["num_warps"], part["num_stages"]
    held = residents(work, warps, stages, row.shape, gpu)
    span, waves = _dealt(work.tiles, held * gpu.units)
    peak = gpu.bf16_tflops * 1e6 / gpu.units  # FLOPs a microsecond
    products = work.tile_flops / (peak * (1.0 if work.rows >= 64 and gpu.wgmma else MMA_SHARE))
    together = min(held, max(math.ceil(len(work.tiles) / gpu.units), 1))
    moved = (work.read_bytes + work.write_bytes) / (gpu.hbm_gbps * 1e3)
    instructions = _instructions(work, warps, row.shape.value_lanes)
    return Launch(span, waves, instructions, max(stages - 1, 0), products, together, moved, False)


def symbols(name: str, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(symbol, part) of the launches of a call, in launch order."""
    if name == "q_block":
        return [("_q_block_kernel", "")]
    short = [("_segments_kernel", "decode" if "decode" in config else "")]
    part = config.get("decode", config)
    short += [("_reduce_segments_kernel", "")] if part["num_segments"] > 1 else []
    if name == "parallel_softmax":
        return short
    long = {"adjustable_tile": ["_long_queries_kernel"], "unpaged": ["_copy_kernel", "_unpaged_kernel"]}[name]
    return [(symbol, "prefill") for symbol in long] + short


KERNELS = ("q_block", "parallel_softmax", "adjustable_tile", "unpaged")


def launches(name: str, config: Mapping[str, Any], row: Workload, gpu: Gpu) -> list[Launch]:
    """The launches of one call that have anything to do."""
    found = []
    named = symbols(name, config)
    made = works(f"triton/{name}", config, [symbol for symbol, _ in named], row)
    for (symbol, part), work in zip(named, made, strict=True):
        moved = (work.read_bytes + work.write_bytes) / (gpu.hbm_gbps * 1e3)
        if symbol in ("_reduce_segments_kernel", "_copy_kernel"):
            if moved:
                found.append(Launch(0.0, 0.0, 0.0, 0, 0.0, 1.0, moved, True))
        elif work.tiles:
            found.append(_launch(work, config[part] if part else config, row, gpu))
    return found


def _peak(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x**4 + y**4) ** 0.25


class Points:
    """Launches of many calls as columns; `us` sums each call's."""

    def __init__(self, calls: Sequence[Sequence[Launch]]) -> None:
        flat = [(i, one) for i, call in enumerate(calls) for one in call]
        self.count, self.call = len(calls), np.array([i for i, _ in flat], dtype=int)
        names = ("span", "waves", "instructions", "ahead", "products", "together", "bytes_us", "merges")
        self._of = {name: np.array([float(getattr(one, name)) for _, one in flat]) for name in names}

    def us(self, constants: np.ndarray) -> np.ndarray:
        launch, program, issue, latency, matrix, memory, merge = constants
        of = self._of
        products = of["products"] / matrix
        alone = of["instructions"] * issue * 1e-3 + latency / (of["ahead"] + 1) + products
        tile = _peak(alone, of["together"] * products)
        moved = of["bytes_us"] / memory
        took = np.where(
            of["merges"] > 0, merge + moved, launch + _peak(of["span"] * tile + of["waves"] * program, moved)
        )
        return np.maximum(np.bincount(self.call, took, self.count), 1e-3)


@dataclass
class Model:
    """constants: by kernel, in the order of CONSTANTS. residual: of log(time / formula), or None."""

    constants: dict[str, np.ndarray]
    residual: dict[str, Any] = field(default_factory=dict)

    def us(self, name: str, points: Points, features: np.ndarray | None = None) -> np.ndarray:
        """Microseconds of each call; with features the residual's too."""
        found = points.us(self.constants[name])
        tree = self.residual.get(name)
        return found if tree is None or features is None else found * np.exp(tree.predict(features))


def fit_constants(points: Points, us: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Least squares on log time, robust, drawn to PRIOR: a kernel that was hardly measured keeps it."""
    from scipy.optimize import least_squares

    root = np.sqrt(weight)

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([root * np.log(points.us(np.exp(logs)) / us), STRENGTH * (logs - np.log(PRIOR))])

    return np.exp(least_squares(errors, np.log(PRIOR), loss="soft_l1", f_scale=NEAR).x)


@dataclass(frozen=True)
class Residual:
    """Boosted trees as arrays: node i asks whether `feature[i]` is at most `threshold[i]` and goes `left` or `right`;
    a leaf has feature -1 and adds its `value`. least, most: of each feature where it was fitted."""

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    least: np.ndarray
    most: np.ndarray

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Of each row of features; 0 for one out of range."""
        at = np.tile(self.roots, (len(features), 1))
        while (inner := self.feature[at] >= 0).any():
            asked = np.take_along_axis(features, np.maximum(self.feature[at], 0), axis=1)
            at = np.where(inner, np.where(asked <= self.threshold[at], self.left[at], self.right[at]), at)
        known = ((features >= self.least) & (features <= self.most)).all(axis=1)
        return np.where(known, self.value[at].sum(axis=1), 0.0)

    def plain(self) -> dict[str, list[float]]:
        return {one.name: getattr(self, one.name).round(4).tolist() for one in fields(self)}

    @classmethod
    def of(cls, plain: Mapping[str, Sequence[float]]) -> Residual:
        return cls(**{name: np.array(values) for name, values in plain.items()})


def boosted(features: np.ndarray, residual: np.ndarray, weight: np.ndarray) -> Residual:
    """TREES trees of depth DEPTH over what the formula leaves. Raises ImportError without scikit-learn."""
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(
        init="zero", n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, min_samples_leaf=5, random_state=0
    ).fit(features, residual, sample_weight=weight)
    grown = [one.tree_ for one in model.estimators_[:, 0]]
    roots = np.cumsum([0, *(one.node_count for one in grown[:-1])])

    def joined(name: str, shift: bool = False) -> np.ndarray:
        return np.concatenate(
            [getattr(one, name).reshape(-1) + (root if shift else 0) for one, root in zip(grown, roots, strict=True)]
        )

    feature = np.maximum(joined("feature"), -1)
    sides = [np.where(feature < 0, 0, joined(name, shift=True)) for name in ("children_left", "children_right")]
    leaf = np.where(feature < 0, RATE * joined("value"), 0.0)
    bounds = np.floor(1e4 * features.min(axis=0)) / 1e4, np.ceil(1e4 * features.max(axis=0)) / 1e4  # as written down
    return Residual(roots, feature, joined("threshold").round(4), *sides, leaf, *bounds)


@lru_cache(4096)
def _of_row(row: Workload) -> tuple[float, ...]:
    stats = row.stats
    shape = row.shape
    sizes = (stats.num_seqs, stats.num_tokens, stats.num_decodes + 1, stats.max_query_len, stats.max_seq_len)
    mean = stats.total_seq_len / max(stats.num_seqs * stats.max_seq_len, 1)
    return (*map(math.log2, map(float, sizes)), mean, shape.queries_per_kv, shape.num_kv_heads, shape.head_size)


def features(config: Mapping[str, Any], row: Workload, calls: Sequence[Launch]) -> list[float]:
    """What the residual sees of one call: the batch, the config's numbers, and the busiest launch."""
    parts = [part for part in config.values() if isinstance(part, Mapping)] or [config]
    named = ("block_m", "tile_size", "num_warps", "num_stages", "num_segments")
    sizes = [float(part.get(name) or 0) for part in parts[:2] for name in named]
    sizes += [0.0] * (2 * len(named) - len(sizes))
    busy = max(calls, key=lambda one: one.span * one.instructions, default=None)
    seen = (busy.span, busy.waves, busy.instructions, busy.together) if busy else (0.0,) * 4
    return [*_of_row(row), *sizes, *seen, float(len(calls))]


# The tuner's prior: which of a kernel's policies to try first.


@lru_cache(1)
def fitted() -> Model:
    """The committed model, of an H200: times at other peaks follow from the peaks."""
    plain = json.loads(DATA.read_text())
    constants = {name: np.array(values) for name, values in plain["constants"].items()}
    return Model(constants, {name: Residual.of(one) for name, one in plain["residual"].items()})


def ranked(kernel_id: str, configs: Sequence[Sequence[Any]], rows: Sequence[Workload], gpu: Gpu) -> list[int]:
    """The order of candidates by their mean predicted time over the row's best; as given where nothing is predicted.

    configs: of each candidate one a row, as plain values. Kernels and GPUs that the formula does not know (Helion's, no
    stated peaks) stay in their order.
    """
    family, _, name = kernel_id.partition("/")
    if family != "triton" or name not in KERNELS or not (gpu.bf16_tflops and gpu.hbm_gbps):
        return list(range(len(configs)))
    asked = [(one, row) for mine in configs for one, row in zip(mine, rows, strict=True)]
    calls = [launches(name, one, row, gpu) for one, row in asked]
    seen = np.array([features(one, row, call) for (one, row), call in zip(asked, calls, strict=True)])
    times = fitted().us(name, Points(calls), seen).reshape(len(configs), len(rows))
    return list(np.argsort((times / times.min(axis=0)).mean(axis=1), kind="stable"))
