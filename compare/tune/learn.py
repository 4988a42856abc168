"""From logs to a learned choice (common/choice/learned.py): points, a net, a portfolio, and what is lost held out.

    python -m compare tune --fit docs/results/h200/regret_* docs/results/h200/tuning/*

Every candidate of a log is a point: batch, kernel, config, and log(time / least time of its row), at most CLIP. What
spills, does not fit or was hopeless is a point at CLIP. Points of other GPUs are learned from too: the columns say what
a GPU has. Judged are rows of this GPU, each by a net that saw nothing of its seed, or nothing of its shape: a pick is
made among what was timed on the row.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.choice import columns, cost
from common.choice.learned import LABEL, WIDTH, apart
from common.choice.model import LIMIT, Net
from common.choice.portfolio import MOST_CONFIGS, ONE_LAUNCH, SHORT
from common.choice.table import table
from common.gpus import Gpu, resolve
from common.serving.winners import Winner
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats
from compare.analysis import regret
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.record.whole import put
from compare.tune import learned, records, won

CLIP = 0.7  # log: what is twice as slow as the best is as bad as any
REFUSED = ("spills", "shared_memory", "hopeless", "raced")
NETS, HIDDEN, EPOCHS, ROWS = 4, 64, 60, 16  # rows of a step
RATE, DECAY, BETA = 3e-3, 0.01, 0.05
NEARNESS = 3  # a point that is a third slower than the best counts 0.4 of it
FOLDS, SEED = 5, 0
LEAST = 8  # candidates of a row that is judged
CONFIGS = 24  # of a portfolio, a kernel
NEAR, SEEN = 1.02, 3  # of a row's best time, and rows: what a portfolio may have
SAMPLE = 150  # rows that a portfolio is chosen on
FIRST = (1, 3, 5)


@dataclass(frozen=True)
class Point:
    """A candidate of a row. us: None where it was refused. rules: that `auto`'s rules of the day took it."""

    row: tuple[str, str, str]  # DSL, folder, label
    seed: int
    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu
    kernel: str
    config: Mapping[str, Any]
    us: float | None
    rules: bool

    def of(self, dsl: str, gpu: Gpu) -> bool:
        return self.row[0] == dsl and self.gpu == gpu


def points(folders: Sequence[Path], dsl: str) -> list[Point]:
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
            if told[line["row"]].max_query_len <= SHORT_QUERY and kernel not in ONE_LAUNCH and "decode" in config:
                kernel, config = SHORT, config["decode"]  # whose launch it is, and the only one
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
            row, of = (dsl, str(folder), line["row"]), (shape, told[line["row"]], gpu)
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
    """Points as arrays. loss: log(time / least of the row), at most CLIP. constants: of the formula
    (common/choice/cost.py)."""

    def __init__(self, points: Sequence[Point]) -> None:
        timed = {point.row for point in points if point.us is not None}
        self.points = [point for point in points if point.row in timed]
        batches = columns.batches([(p.shape, p.stats, p.gpu) for p in self.points])
        of_each = [columns.configs([(p.kernel, p.config)], p.row[0]) for p in self.points]
        configs = {name: np.concatenate([one[name] for one in of_each]) for name in of_each[0]}
        number = {row: i for i, row in enumerate(dict.fromkeys(p.row for p in self.points))}
        self.row = np.array([number[p.row] for p in self.points])
        self.us = np.array([np.inf if p.us is None else p.us for p in self.points])
        least = np.full(len(number), np.inf)
        np.minimum.at(least, self.row, self.us)
        self.loss = np.minimum(np.log(self.us / least[self.row]), CLIP)
        self.constants = constants(cost.terms(batches, configs), self.us)
        self.table = table(batches, configs, self.constants)

    def fit(self, at: np.ndarray) -> Net:
        """A net over these points."""
        mean, scale = self.table[at].mean(axis=0), self.table[at].std(axis=0) + 1e-3
        x = np.clip((self.table[at] - mean) / scale, -LIMIT, LIMIT)
        members = [trained(x, self.loss[at], self.row[at], SEED + number) for number in range(NETS)]
        return Net(mean, scale, tuple(members))


def constants(terms: np.ndarray, us: np.ndarray) -> np.ndarray:
    """Of the formula's terms, by least squares of log(predicted / time); a point far off counts as its distance, not as
    the square."""
    from scipy.optimize import least_squares

    timed = np.isfinite(us)

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(cost.parted(np.exp(logs), terms[timed]).sum(axis=1) / us[timed])

    return np.exp(least_squares(off, np.zeros(len(cost.TERMS)), loss="soft_l1", f_scale=0.1).x).round(4)


def trained(x: np.ndarray, loss: np.ndarray, row: np.ndarray, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The layers of one perceptron. What a row's points have in common costs nothing: only their differences are
    learned, of near ones most."""
    draw, torch_draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    of_row = [np.flatnonzero(row == number) for number in np.unique(row)]
    inputs, wanted = torch.tensor(x, dtype=torch.float32), torch.tensor(loss, dtype=torch.float32)
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
        off = _answers(inputs[at], layers) - wanted[at]
        mean = torch.zeros(rows).index_add(0, group, off) / torch.tensor([len(one) for one in chosen])
        far = torch.nn.functional.smooth_l1_loss(off - mean[group], torch.zeros_like(off), beta=BETA, reduction="none")
        optimiser.zero_grad()
        (torch.exp(-NEARNESS * wanted[at]) * far).mean().backward()
        optimiser.step()
        schedule.step()
    return tuple((weights.detach().numpy(), biases.detach().numpy()) for weights, biases in layers)


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


def unseen(data: Data, fold: Callable[[Point], str]) -> np.ndarray:
    """What each point is told to lose by a net that saw nothing of its fold, in any DSL and on any GPU."""
    groups = sorted({fold(p) for p in data.points})
    random.Random(SEED).shuffle(groups)
    number = {name: i % FOLDS for i, name in enumerate(groups)}
    folds, found = np.array([number[fold(p)] for p in data.points]), np.full(len(data.points), np.nan)
    for which in range(FOLDS):
        out, others = np.flatnonzero(folds == which), np.flatnonzero(folds != which)
        if len(out) and len(others):  # one seed, or one shape: nothing is held out
            found[out] = data.fit(others).losses(data.table[out])
    return found


def held_out(data: Data, dsl: str, gpu: Gpu, lost: np.ndarray) -> dict[str, list[float]]:
    """Regrets of `rules` (what `auto` took that day), `first pick`, `best of the first 3` and `5` on the rows of a DSL
    and GPU that are judged, portable kernels alone. lost: as `unseen`."""
    judged = np.array([p.of(dsl, gpu) and not p.kernel.startswith("native") for p in data.points])
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
    return found


def _kind(point: Point) -> tuple[str, Any]:
    config = point.config if point.kernel in ONE_LAUNCH else point.config["prefill"]
    return point.kernel, config.get("block_m")


def portfolio(data: Data, net: Net, dsl: str) -> dict[str, list[dict[str, Any]]]:
    """CONFIGS configs a kernel, without numbers of segments: of those that were near a row's best, by turns the one
    that lowers the mean loss most over a sample of rows, as the net has it."""
    near: dict[str, Counter[str]] = defaultdict(Counter)
    met: dict[str, Counter[str]] = defaultdict(Counter)
    for point, loss in zip(data.points, data.loss, strict=True):
        if point.row[0] != dsl:
            continue
        part = _part(point.kernel, point.config)
        whole = {} if point.kernel.startswith("native") else _default(dsl, point.kernel)
        if not part.keys() <= whole.keys():  # of a kernel for one GPU, or with a field that is gone
            continue
        part = json.dumps(whole | part, sort_keys=True)
        met[point.kernel][part] += 1
        near[point.kernel][part] += loss <= np.log(NEAR)
    firsts = list({p.row: p for p in data.points if p.row[0] == dsl}.values())
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
        made = {name: value[None, :] for name, value in columns.configs(asked, dsl).items()}
        wide = {name: value[:, None] for name, value in batch.items()}
        lost = net.losses(table(wide, made, data.constants)).reshape(len(sample), len(parts), -1).min(axis=2)
        found[kernel] = [parts[i] for i in _covering(lost, CONFIGS)]
    return found


@lru_cache(16)
def _default(dsl: str, kernel: str) -> dict[str, Any]:
    """What a portfolio would have of the kernel's DEFAULT: of this are the fields that an older log lacks."""
    return _part(kernel, registry.config_dict(registry.load(f"{dsl}/{kernel}").DEFAULT))


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
        "label": LABEL, "dsl": dsl, "gpu": gpu.name, "sources": dict(sources), "columns": WIDTH,
        "provenance": dict(told) | counts,
        "held_out": {by: _told(regrets) for by, regrets in held.items() if regrets},
        "constants": data.constants.tolist(),
        "winners": [asdict(one) for one in kept],
        "portfolio": portfolio(data, net, dsl),
        "net": net.plain(),
    }  # fmt: skip


def _told(regrets: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {"rows": len(regrets["rules"])} | {decider: regret.spread(found) for decider, found in regrets.items()}


def write(folders: Sequence[Path], kernels: Sequence[str], install: bool, out: Path | None) -> int:
    """The learned choices of each DSL of `kernels` on each GPU of the runs, to `out` and where the tuner reads them.
    Returns the exit code. Raises NotThisRun, CannotWrite."""
    folders = sorted(folders)  # sums of floats in another order is another net
    manifests = [records.manifest(folder, ["gpu", "rows"]) for folder in folders]
    gpus = {manifest["gpu"]: resolve(manifest["gpu"]) for manifest in manifests}
    latest = max(manifests, key=lambda manifest: manifest.get("started", ""))
    told = {"runs": len(folders), "latest": latest.get("started", "")[:10], "versions": latest.get("versions", {})}
    pages: list[list[str]] = []
    data = Data([point for dsl in registry.DSLS for point in points(folders, dsl)])
    net, lost = None, {}
    for dsl in (name for name in dict.fromkeys(kernel.split("/")[0] for kernel in kernels) if name in registry.DSLS):
        for name, gpu in gpus.items():
            if not any(p.of(dsl, gpu) and p.us is not None for p in data.points):
                print(f"{dsl} on {name}: nothing was timed")
                continue
            sources = won.stamps([f"{dsl}/{kernel}" for kernel in columns.KERNELS])
            if net is None:
                net = data.fit(np.arange(len(data.points)))
                lost = {"seed": unseen(data, by_seed), "shape": unseen(data, by_shape)}
            plain = content(data, net, lost, dsl, gpu, sources, told, _fresh(folders, dsl, gpu, sources))
            if install:
                _put(registry.load(f"{dsl}/auto").FAMILY.learned_path(gpu), text(plain))
            pages.append(page(plain))
            print("\n".join([f"{dsl} on {name}:", *pages[-1]]))
    if out and pages:
        heading = ["# What logs teach", "", f"Made by `python -m compare tune --fit` of {len(folders)} runs.", ""]
        _put(out / "learned.md", "\n".join([*heading, "## Held out", "", *pages[0], *_bodies(pages[1:])]) + "\n")
    return OK if pages else NOTHING


def _fresh(folders: Sequence[Path], dsl: str, gpu: Gpu, sources: Mapping[str, str]) -> list[Winner]:
    """The winners of these runs on a GPU that were timed with the code that is here; of a key the later's."""
    found: dict[tuple[str, str], Winner] = {}
    for folder in folders:
        manifest = records.manifest(folder, ["gpu"])
        here = {kernel for kernel, code in manifest.get("sources", {}).items() if sources.get(kernel) == code}
        if manifest["gpu"] == gpu.name and here and "policies" in manifest:
            for one in won.of_run(folder, (dsl,)):
                found |= {at: winner for at, winner in one.winners.items() if f"{dsl}/{winner.kernel}" in here}
    return sorted(found.values(), key=lambda one: (one.key, one.of))


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, content)


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
