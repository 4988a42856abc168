"""From logs to a learned choice (common/choice/learned.py): points, a net, a portfolio, and what is lost held out.

    python -m compare tune --fit docs/results

Every candidate of a log is a point: batch, kernel, config, and log(time / least time of its row), at most CLIP. What
does not fit or was hopeless is a point at CLIP. Points of other GPUs are learned from too: the columns say what
a GPU has. Judged are rows of this GPU, each by a net that saw nothing of its seed, or nothing of its shape: a pick is
made among what was timed on the row.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch

from common.choice import columns, cost
from common.choice.learned import LABEL, apart
from common.choice.model import LIMIT, Net, doubted
from common.choice.portfolio import BOUND, CUT, ONE_LAUNCH, cut, longest, per_slot
from common.choice.table import FORMULA, table, width
from common.gpus import Gpu, resolve
from common.serving.winners import Winner
from common.spec.metadata import power_of_two
from compare.analysis import regret
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.record.whole import put
from compare.tune import won
from compare.tune.points import Point, manifest_of, points, runs_in

CLIP = 0.7  # log: what is twice as slow as the best is as bad as any
NETS, HIDDEN, EPOCHS, ROWS = 4, 64, 120, 16  # rows of a step
SILENT = 1e9  # scale of a column that no log varies, as an SM's shared memory: on another GPU it has to say nothing
RATE, DECAY, BETA = 3e-3, 0.01, 0.05
SOFT, SHARE = 0.05, 0.3  # log of time in which a pick is soft; its loss beside that of the points
NEARNESS = 3  # a point that is a third slower than the best counts 0.4 of it
FOLDS, SEED = 5, 0
LEAST = 8  # candidates of a row that is judged
CONFIGS = 16  # of a portfolio, a kernel
NEAR, SEEN = 1.03, 2  # of a row's best time, and rows: what a portfolio has
SHARES, FEWER = 7, 1.1  # of the slots; numbers of segments less than this apart are as good
FIRST, ALONE = (1, 3, 5), "first pick of each kernel by its name"
COLUMNS = "| DSL | GPU | candidates | held out by | rows | decider | regret: mean % | p90 % | worst % |"
HEADER = COLUMNS, "|---" * 9 + "|"
FOLLOWS = ("copy_programs", "descriptors", "new_kv", "overlap")  # from batch and GPU, as Family._of_logs has it


class Data:
    """Points as arrays. loss: log(time / least of the row), at most CLIP; behind: the same of the points of its kernel
    alone, for `auto` is not all that asks. constants: of the formula (common/choice/cost.py)."""

    def __init__(self, points: Sequence[Point]) -> None:
        timed = {point.row for point in points if point.us is not None}
        self.points = _without_native([point for point in points if point.row in timed])
        batches = columns.batches([(p.shape, p.stats, p.gpu) for p in self.points])
        of_each = [columns.configs([p.launched], p.dsl) for p in self.points]
        configs = {name: np.concatenate([one[name] for one in of_each]) for name in of_each[0]}
        number = {row: i for i, row in enumerate(dict.fromkeys(p.row for p in self.points))}
        self.row = np.array([number[p.row] for p in self.points])
        self.us = np.array([np.inf if p.us is None else p.us for p in self.points])
        self.loss = _lost(self.us, self.row)
        of = {one: i for i, one in enumerate(dict.fromkeys((p.row, p.dsl, p.kernel) for p in self.points))}
        self.kernel = np.array([of[p.row, p.dsl, p.kernel] for p in self.points])
        self.behind = _lost(self.us, self.kernel)
        undivided = columns.whole(batches, configs)
        launched = columns.launches(batches, configs, undivided)
        self.constants = constants(cost.terms(batches, configs, launched), self.us)
        self.table = table(batches, configs, self.constants, launched)
        self.over = self._over()
        whole = np.isin(configs["kernel"], [columns.KERNELS.index(name) for name in ONE_LAUNCH])
        self.slots, self.most = per_slot(batches, undivided, whole), longest(undivided, whole)
        self.cut = configs["long_num_segments"]

    def fit(self, parts: Sequence[np.ndarray], pool: Executor) -> list[Net]:
        """A net over the points of each part; their members are trained beside each other."""
        found, members = [], []
        for at in parts:
            x = self.table[at].astype(np.float64)
            mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-3
            scale[np.ptp(x, axis=0) == 0] = SILENT
            x = np.clip((x - mean) / scale, -LIMIT, LIMIT).astype(np.float32)
            told = self.loss[at], self.behind[at], self.row[at], self.kernel[at]
            members.append([pool.submit(trained, x, *told, SEED + number) for number in range(NETS)])
            found.append((mean, scale))
        return [Net(*scaled, tuple(one.result() for one in own)) for scaled, own in zip(found, members, strict=True)]

    def told(self, net: Net, at: np.ndarray) -> np.ndarray:
        """What a net says that these points lose, which are whole rows, as Learned has it."""
        answers, row = net.answers(self.table[at]), self.row[at]
        count = np.maximum(np.bincount(row), 1)
        level = np.stack([(np.bincount(row, weights=one) / count)[row] for one in answers])
        return doubted(answers, level, self.over[at])

    def _over(self) -> np.ndarray:
        """log2 of the formula's time over the least of the row; 0 of a kernel with a plan, as Learned has it."""
        portable = np.array([not point.native for point in self.points])
        least, over = np.full(self.row.max() + 1, np.inf), np.zeros(len(self.row))
        np.minimum.at(least, self.row[portable], self.table[portable, FORMULA])
        over[portable] = self.table[portable, FORMULA] - least[self.row[portable]]
        return over


def _lost(us: np.ndarray, group: np.ndarray) -> np.ndarray:
    """log(time / least of its group), at most CLIP; 0 in a group of which nothing was timed."""
    least = np.full(group.max() + 1, np.inf)
    np.minimum.at(least, group, us)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.minimum(np.log(us / least[group]), CLIP))


def _without_native(points: Sequence[Point]) -> list[Point]:
    """All points; and of each row with a native kernel its other candidates again as a row of their own, because who
    may not take the native kernel wants the best of the others."""
    rows = {point.row for point in points if point.native}
    others = [point for point in points if point.row in rows and not point.native]
    timed = Counter(point.row for point in others if point.us is not None)
    again = [replace(p, row=(*p.row[:2], f"{p.row[2]}, portable"), rules=False) for p in others if timed[p.row] > 1]
    return [*points, *again]


def constants(terms: np.ndarray, us: np.ndarray) -> np.ndarray:
    """Of the formula's terms, by least squares of log(predicted / time); a point far off counts as its distance, not as
    the square."""
    from scipy.optimize import least_squares

    timed = np.isfinite(us)

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(cost.parted(np.exp(logs), terms[timed]).sum(axis=1) / us[timed])

    return np.exp(least_squares(off, np.zeros(len(cost.TERMS)), loss="soft_l1", f_scale=0.1).x).round(4)


def trained(
    x: np.ndarray, loss: np.ndarray, behind: np.ndarray, row: np.ndarray, kernel: np.ndarray, seed: int
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The layers of one perceptron. What a row's points have in common costs nothing: only their differences are
    learned, of near ones most, and what the net's pick of each row loses, and its pick of each kernel on it."""
    draw, torch_draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    of_row = [np.flatnonzero(row == number) for number in np.unique(row)]
    inputs, wanted, lost = (torch.tensor(one, dtype=torch.float32) for one in (x, loss, behind))
    layers = [_layer(*sizes, torch_draw) for sizes in ((x.shape[1], HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))]
    rows = min(ROWS, len(of_row))
    steps = EPOCHS * (len(of_row) // rows)
    optimiser = torch.optim.AdamW([one for layer in layers for one in layer], RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    order: list[int] = []
    for _ in range(steps):
        if len(order) < rows:
            order = draw.permutation(len(of_row)).tolist()
        chosen, order = [of_row[i] for i in order[:rows]], order[rows:]
        at = np.concatenate(chosen)
        group = torch.tensor(np.repeat(np.arange(rows), [len(one) for one in chosen]))
        told = _answers(inputs[at], layers)
        off = told - wanted[at]
        mean = torch.zeros(rows).index_add(0, group, off) / torch.tensor([len(one) for one in chosen])
        far = torch.nn.functional.smooth_l1_loss(off - mean[group], torch.zeros_like(off), beta=BETA, reduction="none")
        optimiser.zero_grad()
        near = (torch.exp(-NEARNESS * wanted[at]) * far).mean()
        of, kernels = (torch.tensor(one) for one in np.unique(kernel[at], return_inverse=True))
        picks = (_picked(told, group, rows) * wanted[at]).sum() / rows
        picks = picks + (_picked(told, kernels, len(of)) * lost[at]).sum() / len(of)
        (near + SHARE * picks).backward()
        optimiser.step()
        schedule.step()
    return tuple((weights.detach().numpy(), biases.detach().numpy()) for weights, biases in layers)


def _picked(told: torch.Tensor, group: torch.Tensor, rows: int) -> torch.Tensor:
    """The share of each point in the pick of its row: a softmax over the row."""
    least = torch.full((rows,), torch.inf).scatter_reduce(0, group, told.detach(), "amin")
    weights = torch.exp((least[group] - told) / SOFT)
    return weights / torch.zeros(rows).index_add(0, group, weights)[group]


def _layer(inputs: int, outputs: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform weights and biases within the root of the inputs, as torch.nn.Linear begins."""
    sizes, most = ((inputs, outputs), (outputs,)), inputs**-0.5
    weights, biases = ((2 * torch.rand(size, generator=draw) - 1).mul(most).requires_grad_() for size in sizes)
    return weights, biases


def _answers(x: torch.Tensor, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    for weights, biases in layers[:-1]:
        x = torch.nn.functional.silu(x @ weights + biases)
    weights, biases = layers[-1]
    return (x @ weights + biases)[:, 0]


def unseen(data: Data, fold: Callable[[Point], str], pool: Executor) -> np.ndarray:
    """The loss of each point as a net predicts it that saw nothing of its fold, in any DSL and on any GPU."""
    groups = sorted({fold(p) for p in data.points})
    random.Random(SEED).shuffle(groups)
    number = {name: i % FOLDS for i, name in enumerate(groups)}
    folds, found = np.array([number[fold(p)] for p in data.points]), np.full(len(data.points), np.nan)
    if len(groups) > 1:  # one seed, or one shape: nothing is held out
        parts = [np.flatnonzero(folds == which) for which in range(min(FOLDS, len(groups)))]
        nets = data.fit([np.flatnonzero(folds != which) for which in range(len(parts))], pool)
        for out, net in zip(parts, nets, strict=True):
            found[out] = data.told(net, out)
    return found


def held_out(data: Data, dsl: str, gpu: Gpu, lost: np.ndarray) -> dict[str, list[float]]:
    """Regrets of `rules` (what `auto` took that day), `first pick`, `best of the first 3` and `5` on the rows of a DSL
    and GPU that are judged, portable kernels alone; ALONE: of the pick among a kernel's own candidates against the best
    of them. lost: as `unseen`."""
    judged = np.array([p.of(dsl, gpu) and not p.native for p in data.points])
    judged &= np.isfinite(data.us) & np.isfinite(lost)
    found: dict[str, list[float]] = defaultdict(list)
    for row in np.unique(data.row[judged]):
        at = np.flatnonzero(judged & (data.row == row))
        taken = [i for i in at if data.points[i].rules]
        if len(at) < LEAST or not taken:
            continue
        order = at[apart([_kind(data.points[i]) for i in at], lost[at])]
        best = data.us[at].min()
        found["rules"].append(regret.of(data.us[taken].min(), best))
        for first in FIRST:
            name = "first pick" if first == 1 else f"best of the first {first}"
            found[name].append(regret.of(data.us[order[:first]].min(), best))
        for kernel in np.unique(data.kernel[at]):
            own = at[data.kernel[at] == kernel]
            if len(own) >= LEAST:
                found[ALONE].append(regret.of(data.us[own[lost[own].argmin()]], data.us[own].min()))
    return found


def _kind(point: Point) -> tuple[str, Any]:
    config = point.config if point.kernel in ONE_LAUNCH else point.config["prefill"]
    return point.kernel, config.get("block_m")


def portfolio(data: Data, dsl: str) -> dict[str, list[dict[str, Any]]]:
    """At most CONFIGS configs a kernel, without numbers of segments, chosen greedily (`_covering`) among those that
    were measured near the best of a row: what a net favours is often what it errs on. Configs that were best in the
    other DSL follow, because kernels mirror each other and the other may have more logs."""
    rows = {of: _near_best(data, of, dsl) for of in (dsl, *(other for other in registry.DSLS if other != dsl))}
    found: dict[str, list[dict[str, Any]]] = {}
    for kernel in columns.KERNELS:
        chosen: list[str] = []
        for of_kernel in (near[kernel] for near in rows.values()):
            chosen = _covering(of_kernel, chosen)
        if chosen:
            found[kernel] = [json.loads(part) for part in chosen]
    return found


Rows = Mapping[str, set[tuple[int, int]]]  # (class, row) by the config that was near the best of the row


def _near_best(data: Data, measured: str, dsl: str) -> Mapping[str, Rows]:
    """By kernel, the rows that each config was near the best of in the DSL `measured`, as configs of `dsl`."""
    rows: dict[str, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    timed = np.bincount(data.row[np.isfinite(data.us)], minlength=data.row.max() + 1)
    for point, loss, row in zip(data.points, data.loss, data.row, strict=True):
        if point.dsl != measured or timed[row] < 2 or point.native or loss > np.log(NEAR):
            continue
        part, whole = _part(dsl, point.kernel, point.config), _default(dsl, point.kernel)
        if measured != dsl or part.keys() <= whole.keys():  # without a field that is gone
            part = whole | {name: value for name, value in part.items() if name in _allowed(dsl, point.kernel, value)}
            rows[point.kernel][json.dumps(part, sort_keys=True)].add((power_of_two(point.shape.head_size), row))
    return rows


@lru_cache(16)
def _default(dsl: str, kernel: str) -> dict[str, Any]:
    """What a portfolio would have of the kernel's DEFAULT: of this are the fields that an older log lacks."""
    return _part(dsl, kernel, registry.config_dict(registry.load(f"{dsl}/{kernel}").DEFAULT))


@lru_cache(1024)
def _allowed(dsl: str, kernel: str, value: Any) -> frozenset[str]:
    """Fields of a kernel's config that may have this value, but for those that follow from a batch."""
    default = registry.load(f"{dsl}/{kernel}").DEFAULT
    types = get_type_hints(type(default if kernel in ONE_LAUNCH else default.prefill))
    words = {name: get_args(kind) for name, kind in types.items() if get_origin(kind) is Literal}
    return frozenset(name for name in types if name not in FOLLOWS and value in words.get(name, (value,)))


def _covering(rows: Rows, chosen: Sequence[str]) -> list[str]:
    """`chosen`, extended greedily by the config that covers most rows which none before it covers, while these are at
    least SEEN. An empty `chosen` begins with the best config of each class of rows."""
    found = list(chosen)
    had = set().union(*(rows.get(name, set()) for name in found))
    left = {name: of - had for name, of in rows.items() if name not in found}
    classes = [] if found else sorted({kind for of in rows.values() for kind, _ in of})
    for kind in (*classes, *[None] * (CONFIGS - len(classes) - len(found))):
        of_kind = {name: sum(kind in (None, one) for one, _ in of) for name, of in left.items()}
        name = max(left, key=lambda one: (of_kind[one], len(rows[one]), one), default="")
        if not name or of_kind[name] < (SEEN if kind is None else 1):
            continue
        covered = left.pop(name)
        found.append(name)
        left = {one: of - covered for one, of in left.items()}
    return found


def shares(data: Data) -> list[float]:
    """The shares of the slots that segments may fill, chosen greedily: each time the share whose number of segments is
    within FEWER of most fast configs (within NEAR of their row's best) that no earlier share is near to."""
    at = np.flatnonzero((data.loss <= np.log(NEAR)) & (data.cut > 1) & np.isfinite(data.us))
    slots, most, segments = data.slots[at], data.most[at], data.cut[at]
    offers = np.unique((segments / slots).round(2))
    offers = offers[offers > 0]
    near = np.abs(np.log(cut(slots, offers[:, None], most) / segments)) <= np.log(FEWER)
    found: list[float] = []
    for _ in range(min(SHARES, len(offers))):
        best = near.sum(axis=1).argmax()
        found.append(float(offers[best]))
        near &= ~near[best]
    return sorted(found)


def _part(dsl: str, kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a portfolio has of a config: the part of long queries, or all of it, without what it computes."""
    part = dict(config if kernel in ONE_LAUNCH else config["prefill"])
    return part | {name: value for name, value in _computed(dsl, kernel).items() if name in part}


@lru_cache(16)
def _computed(dsl: str, kernel: str) -> dict[str, int]:
    """What a ranking computes of a kernel's configs, as a portfolio has it."""
    return {CUT: 1} | ({BOUND: 0} if kernel in registry.load(f"{dsl}/auto").FAMILY.bounded else {})


def by_seed(point: Point) -> str:
    return f"{point.row[1] if point.seed < 0 else point.seed}"


def by_shape(point: Point) -> str:
    return str(point.shape)


def content(
    data: Data,
    net: Net,
    lost: Mapping[str, np.ndarray],
    dsl: str,
    gpu: Gpu,
    sources: Mapping[str, str],
    told: Mapping[str, Any],
    kept: Sequence[Winner],
) -> dict[str, Any]:
    """The file's content. lost: by fold, as `unseen`; told: of the logs. kept: winners."""
    held = {by: held_out(data, dsl, gpu, found) for by, found in lost.items()}
    rows = {p.row for p in data.points if p.of(dsl, gpu)}
    timed = sum(p.us is not None for p in data.points if p.of(dsl, gpu))
    counts = {"rows": len(rows), "candidates": timed, "points of both DSLs and all GPUs": len(data.points)}
    return {
        "label": LABEL, "dsl": dsl, "gpu": gpu.name, "sources": dict(sources), "columns": width(),
        "provenance": dict(told) | counts,
        "held_out": {by: _told(regrets) for by, regrets in held.items() if regrets},
        "constants": data.constants.tolist(),
        "winners": [asdict(one) for one in kept],
        "portfolio": portfolio(data, dsl), "shares": shares(data),
        "net": net.plain(),
    }  # fmt: skip


def _told(regrets: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {"rows": len(regrets["rules"])} | {decider: regret.spread(found) for decider, found in regrets.items()}


def write(folders: Sequence[Path], kernels: Sequence[str], install: bool, out: Path | None) -> int:
    """The learned choices of each DSL of `kernels` on each GPU of the runs, to `out` and where the tuner reads them.
    Returns the exit code. Raises NotThisRun, CannotWrite."""
    folders = sorted({run for folder in folders for run in runs_in(folder)})  # sums in another order is another net
    manifests = [manifest_of(folder) for folder in folders]
    gpus = {manifest["gpu"]: resolve(manifest["gpu"]) for manifest in manifests}
    latest = max(manifests, key=lambda manifest: manifest.get("started", ""))
    told = {"runs": len(folders), "latest": latest.get("started", "")[:10], "versions": latest.get("versions", {})}
    rows: list[str] = []
    found = [point for dsl in registry.DSLS for point in points(folders, dsl)]
    if all(point.us is None for point in found):
        print("nothing was timed")
        return NOTHING
    data = Data(found)
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        (net,) = data.fit([np.arange(len(data.points))], pool)
        lost = {"seed": unseen(data, by_seed, pool), "shape": unseen(data, by_shape, pool)}
    for dsl in (name for name in registry.families(kernels) if name in registry.DSLS):
        for name, gpu in gpus.items():
            if not any(p.of(dsl, gpu) and p.us is not None for p in data.points):
                print(f"{dsl} on {name}: nothing was timed")
                continue
            sources = won.stamps([f"{dsl}/{kernel}" for kernel in columns.KERNELS])
            plain = content(data, net, lost, dsl, gpu, sources, told, _fresh(folders, dsl, gpu, sources))
            if install:
                _put(registry.load(f"{dsl}/auto").FAMILY.learned_path(gpu), text(plain))
            found = table_rows(plain)
            rows += found
            print("\n".join([f"{dsl} on {name}:", *HEADER, *found]))
    if out and rows:
        heading = ["# What logs teach", "", f"Made by `python -m compare tune --fit` of {len(folders)} runs.", ""]
        _put(out / "learned.md", "\n".join([*heading, "## Held out", "", *HEADER, *rows]) + "\n")
    return OK if rows else NOTHING


def _fresh(folders: Sequence[Path], dsl: str, gpu: Gpu, sources: Mapping[str, str]) -> list[Winner]:
    """The winners of these runs on a GPU that were timed with the code that is here; of a key the later's."""
    found: dict[tuple[str, str], Winner] = {}
    for folder in folders:
        manifest = manifest_of(folder)
        here = {kernel for kernel, code in manifest.get("sources", {}).items() if sources.get(kernel) == code}
        if manifest["gpu"] == gpu.name and here and "policies" in manifest:
            for one in won.of_run(folder, (dsl,)):
                found |= {at: winner for at, winner in one.winners.items() if f"{dsl}/{winner.kernel}" in here}
    return sorted(found.values(), key=lambda one: (one.key, one.of))


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, content)


def text(plain: Mapping[str, Any]) -> str:
    """JSON with a member a line."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in plain.items()) + "\n}\n"


def table_rows(plain: Mapping[str, Any]) -> list[str]:
    """Markdown under HEADER: what is lost on rows held out."""
    of = f"{plain['dsl']} | {plain['gpu']} | {plain['provenance']['candidates']:,}"
    return [
        f"| {of} | {by} | {found['rows']} | {name} | {told} |"
        for by, found in plain["held_out"].items()
        for name, told in found.items()
        if name != "rows"
    ]
