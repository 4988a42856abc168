"""From logs to a learned choice (common/choice/learned.py): points, trees, a portfolio, and what is lost held out.

    python -m compare tune --learn docs/results/h200/regret_* docs/results/h200/tuning/*

Every candidate of a log is a point: batch, kernel, config, and log(time / least time of its row), at most CLIP. What
spills, does not fit or was hopeless is a point at CLIP. Points of other GPUs are learned from too: the columns say what
a GPU has. Judged are rows of this GPU, each by trees that saw nothing of its seed, or nothing of its shape: a pick is
made among what was timed on the row.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from common.choice import columns
from common.choice.learned import LABEL, MOST_CONFIGS, ONE_LAUNCH, WIDTH
from common.choice.model import Trees, losses
from common.gpus import Gpu, resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.analysis import regret
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.tune import fit, learned, records

CLIP = 0.7  # log: what is twice as slow as the best is as bad as any
REFUSED = ("spills", "shared_memory", "hopeless", "raced")
TREES, RATE, DEPTH, LEAF = 300, 0.06, 6, 8
FOLDS, SEED = 5, 0
LEAST = 8  # candidates of a row that is judged
CONFIGS = 12  # of a portfolio, a kernel
NEAR, SEEN = 1.02, 3  # of a row's best time, and rows: what a portfolio may have
SAMPLE = 150  # rows that a portfolio is chosen on
FIRST = (1, 3, 5)


@dataclass(frozen=True)
class Point:
    """A candidate of a row. us: None where it was refused. rules: that `auto`'s rules of the day took it."""

    row: tuple[str, str]  # folder, label
    seed: int
    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu
    kernel: str
    config: Mapping[str, Any]
    us: float | None
    rules: bool


def points(folders: Iterable[Path], dsl: str) -> list[Point]:
    """Of the logs of these runs; of a config with several lines the second time, or the least. Raises NotThisRun."""
    found: dict[tuple[Any, ...], Point] = {}
    for folder in folders:
        manifest = records.manifest(folder, ["gpu", "rows"])
        gpu, rows = resolve(manifest["gpu"]), {row.label: row for row in records.workloads(manifest)}
        told = {label: learned.asked(row)[1] for label, row in rows.items() if row.shape.value_size is None}
        final: dict[tuple[Any, ...], bool] = {}
        for line in records.read(folder / "candidates.jsonl"):
            named = _named(line, dsl)
            if named is None or line["row"] not in told:
                continue
            kernel, config, chosen = named
            us = line.get("final_us", line.get("screen_us")) if line["status"] == "ok" else None
            if us is None and line["status"] not in REFUSED:
                continue
            at = (str(folder), line["row"], kernel, json.dumps(config, sort_keys=True))
            before, second = found.get(at), "final_us" in line
            if before and before.us is not None and us is not None:
                if final[at] and not second:
                    us = before.us
                elif final[at] == second:
                    us = min(us, before.us)
            chosen = chosen or bool(before and before.rules)
            final[at] = second or final.get(at, False)
            shape = rows[line["row"]].shape
            row, of = (str(folder), line["row"]), (shape, told[line["row"]], gpu)
            found[at] = Point(row, manifest.get("seed", -1), *of, kernel, config, us, chosen)
    return list(found.values())


def _named(line: Mapping[str, Any], dsl: str) -> tuple[str, Mapping[str, Any], bool] | None:
    """Kernel, config, and whether `auto` took it; None for what the model does not know."""
    family, _, kernel = line["kernel"].partition("/")
    config, chosen = line.get("config"), kernel == "auto"
    if family != dsl or line.get("done") or config is None:
        return None
    if kernel.endswith("auto"):
        kernel, config = config["kernel"], config["config"]
    return (kernel, config, chosen) if kernel in columns.KERNELS else None


class Data:
    """Points as arrays. loss: log(time / least of the row), at most CLIP."""

    def __init__(self, points: Sequence[Point]) -> None:
        timed = {point.row for point in points if point.us is not None}
        self.points = [point for point in points if point.row in timed]
        self.table = columns.table(
            columns.batches([(p.shape, p.stats, p.gpu) for p in self.points]),
            columns.configs([(p.kernel, p.config) for p in self.points]),
        )
        number = {row: i for i, row in enumerate(dict.fromkeys(p.row for p in self.points))}
        self.row = np.array([number[p.row] for p in self.points])
        self.us = np.array([np.inf if p.us is None else p.us for p in self.points])
        least = np.full(len(number), np.inf)
        np.minimum.at(least, self.row, self.us)
        self.loss = np.minimum(np.log(self.us / least[self.row]), CLIP)

    def fit(self, at: np.ndarray) -> Trees:
        """Trees over these points. Raises ImportError without scikit-learn."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(
            max_iter=TREES, learning_rate=RATE, max_depth=DEPTH, min_samples_leaf=LEAF, random_state=SEED
        )
        return exported(model.fit(self.table[at], self.loss[at]))


def exported(model: Any) -> Trees:
    """scikit-learn's trees as arrays; the mean that they begin at is left out, for a rank needs none."""
    grown = [one[0].nodes for one in model._predictors]
    roots = np.cumsum([0, *(len(nodes) for nodes in grown[:-1])])
    leaf = np.concatenate([nodes["is_leaf"].astype(bool) for nodes in grown])

    def joined(name: str, of_leaves: bool, shift: bool = False) -> np.ndarray:
        parts = [nodes[name].astype(float) + root * shift for nodes, root in zip(grown, roots, strict=True)]
        return np.where(leaf == of_leaves, np.concatenate(parts), 0.0)

    feature = np.where(leaf, -1, np.concatenate([nodes["feature_idx"] for nodes in grown]))
    left, right = (joined(name, False, True).astype(int) for name in ("left", "right"))
    return Trees(roots, feature, joined("num_threshold", False).round(4), left, right, joined("value", True).round(5))


def held_out(data: Data, gpu: Gpu, fold: Callable[[Point], str]) -> dict[str, list[float]]:
    """Regrets of `rules` (what `auto` took that day), `first pick`, `best of the first 3` and `5` on the rows of a GPU
    that are judged, portable kernels alone, each by trees without its fold (by seed, by shape)."""
    groups = sorted({fold(p) for p in data.points if p.gpu == gpu})
    random.Random(SEED).shuffle(groups)
    number = {name: i % FOLDS for i, name in enumerate(groups)}
    here = np.array([p.gpu == gpu for p in data.points])
    folds = np.array([number.get(fold(p), -1) if at else -1 for p, at in zip(data.points, here, strict=True)])
    portable = np.array([not p.kernel.startswith("native") for p in data.points])
    found: dict[str, list[float]] = defaultdict(list)
    for which in range(min(FOLDS, len(groups))):
        out, others = np.flatnonzero(folds == which), np.flatnonzero(folds != which)
        if not len(others):  # one seed, or one shape: nothing is held out
            break
        trees = data.fit(others)
        lost = trees.predict(data.table[out])
        for row in np.unique(data.row[out]):
            at = np.flatnonzero((data.row[out] == row) & np.isfinite(data.us[out]) & portable[out])
            taken = [i for i in at if data.points[out[i]].rules]
            if len(at) < LEAST or not taken:
                continue
            us, order = data.us[out], at[np.argsort(lost[at], kind="stable")]
            best = us[at].min()
            found["rules"].append(regret.of(us[taken].min(), best))
            for first in FIRST:
                name = "first pick" if first == 1 else f"best of the first {first}"
                found[name].append(regret.of(us[order[:first]].min(), best))
    return found


def portfolio(data: Data, trees: Trees, dsl: str) -> dict[str, list[dict[str, Any]]]:
    """CONFIGS configs a kernel, without numbers of segments: of those that were near a row's best, by turns the one
    that lowers the mean loss most over a sample of rows, as the trees have it."""
    near: dict[str, Counter[str]] = defaultdict(Counter)
    met: dict[str, Counter[str]] = defaultdict(Counter)
    for point, loss in zip(data.points, data.loss, strict=True):
        part = _part(point.kernel, point.config)
        if point.kernel.startswith("native") or part.keys() != _fields(dsl, point.kernel):
            continue
        part = json.dumps(part, sort_keys=True)
        met[point.kernel][part] += 1
        near[point.kernel][part] += loss <= np.log(NEAR)
    firsts = list({p.row: p for p in data.points}.values())
    sample = random.Random(SEED).sample(firsts, min(SAMPLE, len(firsts)))
    batch = columns.batches([(p.shape, p.stats, p.gpu) for p in sample])
    found = {}
    for kernel in (kernel for kernel in columns.KERNELS if kernel in near):
        names = [part for part, n in near[kernel].most_common() if n and met[kernel][part] >= SEEN]
        names = names[: 10 * MOST_CONFIGS] or [part for part, _ in met[kernel].most_common(CONFIGS)]
        parts = [json.loads(part) for part in names]
        asked = [(kernel, part | {"num_segments": n}) for part in parts for n in (1, 4, 16, 64)]
        if "num_segments" not in parts[0]:
            asked = [(kernel, part) for part in parts]
        made = {name: value[None, :] for name, value in columns.configs(asked).items()}
        wide = {name: value[:, None] for name, value in batch.items()}
        lost = losses(trees, columns.table(wide, made), len(asked)).reshape(len(sample), len(parts), -1).min(axis=2)
        found[kernel] = [parts[i] for i in _covering(lost, CONFIGS)]
    return found


@lru_cache(16)
def _fields(dsl: str, kernel: str) -> frozenset[str]:
    """Of what a portfolio has: a config of an older log lacks some."""
    return frozenset(_part(kernel, registry.config_dict(registry.load(f"{dsl}/{kernel}").DEFAULT)))


def _covering(lost: np.ndarray, count: int) -> list[int]:
    """Columns of [row, config], by turns the one that lowers the mean of the rows' least most."""
    chosen: list[int] = []
    least = np.full(len(lost), np.inf)
    while len(chosen) < min(count, lost.shape[1]):
        after = np.minimum(least[:, None], lost).mean(axis=0)
        after[chosen] = np.inf
        chosen.append(int(np.argmin(after)))
        least = np.minimum(least, lost[:, chosen[-1]])
    return chosen


def _part(kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a portfolio has of a config: the part of long queries, or all of it, its segments as one."""
    part = dict(config if kernel in ONE_LAUNCH else config["prefill"])
    return part | {"num_segments": 1} if "num_segments" in part else part


def by_seed(point: Point) -> str:
    return f"{point.row[0] if point.seed < 0 else point.seed}"


def by_shape(point: Point) -> str:
    return str(point.shape)


def content(data: Data, dsl: str, gpu: Gpu, sources: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content; told: of the logs. What is lost held out is part of it."""
    held = {"seed": held_out(data, gpu, by_seed), "shape": held_out(data, gpu, by_shape)}
    trees = data.fit(np.arange(len(data.points)))
    rows = {p.row for p in data.points if p.gpu == gpu}
    timed = sum(p.us is not None for p in data.points if p.gpu == gpu)
    return {
        "label": LABEL, "dsl": dsl, "gpu": gpu.name, "sources": dict(sources), "columns": WIDTH,
        "provenance": dict(told) | {"rows": len(rows), "candidates": timed, "points of all GPUs": len(data.points)},
        "held_out": {by: _told(regrets) for by, regrets in held.items() if regrets},
        "portfolio": portfolio(data, trees, dsl),
        "trees": trees.plain(),
    }  # fmt: skip


def _told(regrets: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {"rows": len(regrets["rules"])} | {decider: regret.spread(found) for decider, found in regrets.items()}


def write(folders: Sequence[Path], kernels: Sequence[str], install: bool, out: Path | None) -> int:
    """The learned choices of each DSL of `kernels` on each GPU of the runs, to `out` and where the tuner reads them.
    Returns the exit code. Raises NotThisRun, CannotWrite."""
    folders = sorted(folders)  # sums of floats in another order are other trees
    manifests = [records.manifest(folder, ["gpu", "rows"]) for folder in folders]
    gpus = {manifest["gpu"]: resolve(manifest["gpu"]) for manifest in manifests}
    latest = max(manifests, key=lambda manifest: manifest.get("started", ""))
    told = {"runs": len(folders), "latest": latest.get("started", "")[:10], "versions": latest.get("versions", {})}
    pages = []
    for dsl in (name for name in dict.fromkeys(kernel.split("/")[0] for kernel in kernels) if name in registry.DSLS):
        data = Data(points(folders, dsl))
        for name, gpu in gpus.items():
            if not any(p.gpu == gpu and p.us is not None for p in data.points):
                print(f"{dsl} on {name}: nothing was timed")
                continue
            plain = content(data, dsl, gpu, fit.stamps([f"{dsl}/{kernel}" for kernel in columns.KERNELS]), told)
            if install:
                fit.write(registry.load(f"{dsl}/auto").FAMILY.learned_path(gpu), text(plain))
            pages.append(page(plain))
            print("\n".join([f"{dsl} on {name}:", *pages[-1]]))
    if out and pages:
        heading = ["# What logs teach", "", f"Made by `python -m compare tune --learn` of {len(folders)} runs.", ""]
        fit.write(out / "learned.md", "\n".join([*heading, "## Held out", "", *pages[0], *_bodies(pages[1:])]) + "\n")
    return OK if pages else NOTHING


def _bodies(pages: Sequence[Sequence[str]]) -> list[str]:
    return [line for page in pages for line in page[2:]]


def text(plain: Mapping[str, Any]) -> str:
    """JSON with a member a line."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in plain.items()) + "\n}\n"


def page(plain: Mapping[str, Any]) -> list[str]:
    """Markdown: what is lost on rows held out."""
    lines = [
        "| DSL | GPU | candidates | held out by | rows | decider | regret: mean % | p90 % | worst % |",
        "|---" * 9 + "|",
    ]
    of = f"{plain['dsl']} | {plain['gpu']} | {plain['provenance']['candidates']:,}"
    for by, found in plain["held_out"].items():
        lines += [
            f"| {of} | {by} | {found['rows']} | {name} | {told} |" for name, told in found.items() if name != "rows"
        ]
    return lines
