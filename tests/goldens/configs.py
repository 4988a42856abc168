"""F: the config, and `auto`'s kernel, that everybody gets who names none.

Over shapes, batches, GPUs and whose configs are asked. A line is a kernel on a shape; under a GPU and a heuristics it
has where the configs are from and the code of one for each batch of BATCHES in turn, `*3` behind one that three in a
row get. What a code is says the line of its name.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from common.gpus import resolve
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import asked_of_shape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.workloads import parse_lens
from goldens.table import Rows

GPUS = [resolve(name) for name in ("h200", "h100", "mi300", "a100")]
DECODES = "q1s128 q1s32k 8q1s2k~ 128q1s2k~ 256q1s512"
PROMPTS = "q33 q512 q8k 8q1k~ q512s8k"
MIXED = "16q1s2k_16q512s1536 255q1s1k_q2ks8k 4q1s64_q17"
SPECULATIVE = "q4s8k 8q8s4k 128q3s1k"
BATCHES = [BatchStats.of(parse_lens(text)) for text in f"{DECODES} {PROMPTS} {MIXED} {SPECULATIVE}".split()]
BATCHES.append(BatchStats.of(()))

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
E4M3, INT8 = torch.float8_e4m3fn, torch.int8
BASE = [AttentionShape(), AttentionShape(64, 8, 64)]
SHAPES = [AttentionShape(32, 8, head, page) for head in (64, 80, 128, 256) for page in (16, 24, 32, 64)]
SHAPES += [AttentionShape(*heads) for heads in ((8, 1), (28, 4), (32, 32), (64, 2), (64, 8, 64), (16, 8, 256))]
SHAPES += [AttentionShape(32, 8, head, 16, dtype) for head in (64, 128, 256) for dtype in (HALF, FULL)]
SHAPES += [AttentionShape(32, 8, head, 16, BRAIN, None, cache) for head in (64, 128, 256) for cache in (E4M3, INT8)]
SHAPES += [AttentionShape(32, 8, 128, page, BRAIN, None, cache) for page in (32, 64) for cache in (E4M3, INT8)]
SHAPES += [AttentionShape(32, 8, 128, 16, HALF, None, INT8), AttentionShape(32, 8, 128, 16, E4M3)]
SHAPES += [AttentionShape(32, 8, *sizes) for sizes in ((128, 16, BRAIN, 64), (64, 16, BRAIN, 128), (128, 16, HALF, 96))]
SHAPES += [AttentionShape(32, 8, 192, 16, BRAIN, 128), AttentionShape(32, 8, 128, 16, BRAIN, 64, INT8)]
SHAPES += [AttentionShape(16, 1, 512, 16), AttentionShape(32, 8, 128, 544), AttentionShape(16, 1, 64, 16, BRAIN, 512)]

PLAIN = Features()
ASKED = {  # beside plain causal attention: what decides by its name, or by how many keys are seen
    "window 128": Features(sliding_window=128),
    "window 1024": Features(sliding_window=1024),
    "batch invariant": Features(batch_invariant=True),
    "non-causal": Features(causal=False),
}


def rows(shapes: Sequence[AttentionShape] = SHAPES) -> Rows:
    known: dict[str, Any] = {}
    found: Rows = {}
    for kernel_id in registry.OWN:
        for shape in shapes:
            found[f"{kernel_id} {_name(shape)}"] = _chosen(known, kernel_id, shape, registry.HEURISTICS)
        for (name, features), shape in itertools.product(ASKED.items(), BASE):
            found[f"{kernel_id} {_name(shape)} {name}"] = _chosen(
                known, kernel_id, shape, registry.HEURISTICS, features
            )
    derived = {**registry.ABLATIONS, **registry.NATIVE}
    variants = [f"{kernel_id}@{name}" for kernel_id in registry.OWN for name in ("fixed", "page")]
    for kernel_id, shape in itertools.product((*derived, *variants), BASE):
        whose = registry.HEURISTICS if kernel_id in derived else ("tree",)
        found[f"{kernel_id} {_name(shape)}"] = _chosen(known, kernel_id, shape, whose)
    return found | {f"where {code} is": what for code, what in known.items()}


def few() -> Rows:
    """Of every fifth shape, and of all that is asked of two."""
    return rows(SHAPES[::5])


def _name(shape: AttentionShape) -> str:
    words = [f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size}", f"page {shape.block_size}"]
    words += [str(shape.dtype)] + [f"V {shape.value_size}"] * (shape.value_size is not None)
    return " ".join([*words, *[f"cache {shape.kv_dtype}"] * (shape.kv_dtype is not None)]).replace("torch.", "")


def _chosen(
    known: dict[str, Any], kernel_id: str, shape: AttentionShape, whose: tuple[str, ...], features: Features = PLAIN
) -> dict[str, str]:
    """The origins and codes by GPU and heuristics, or before which of them they are those of."""
    kernel, needs = registry.load(kernel_id), features.names() | asked_of_shape(shape)
    found: dict[str, str] = {}
    for gpu, heuristics in [*itertools.product(GPUS, whose), (None, whose[0])]:
        batches = BATCHES if gpu else BATCHES[:1]
        asked = [(kernel_id, kernel, shape, stats, gpu, heuristics, needs, features.sees) for stats in batches]
        origins, codes = zip(*(_choice(known, *one) for one in asked), strict=True)
        words = f"{_short(dict.fromkeys(origins))}: {_short(codes)}"
        same = next((name for name, value in found.items() if value == words), None)
        found[f"{gpu.name} {heuristics}" if gpu else "no GPU"] = f"as {same}" if same else words
    return found


def _short(words: Iterable[str]) -> str:
    runs = [(word, len(list(same))) for word, same in itertools.groupby(words)]
    return " ".join(word if many == 1 else f"{word}*{many}" for word, many in runs)


def _choice(known: dict[str, Any], *asked: Any) -> tuple[str, str]:
    """The origin of one choice and its code, which is put into `known`."""
    try:
        config, origin = registry.default_config(*asked)
    except SpecError as error:
        return "refused", type(error).__name__
    code, plain = _coded(type(config), config)
    assert known.setdefault(code, plain) == plain, "two configs of one code"
    return origin, code


@functools.cache
def _coded(kind: type, config: Any) -> tuple[str, dict[str, Any]]:
    """The code of a config and its plain values. kind: configs of two kernels may be equal."""
    plain = registry.config_dict(config)
    if "provenance" in plain:  # auto's: where it was written is no part of what it is
        plain = {name: plain[name] for name in ("kernel", "config")}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()[:5], plain
