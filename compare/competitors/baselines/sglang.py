"""SGLang's Triton kernels, called as its Triton backend calls them: decodes by `decode_attention_fwd`, other batches by
`extend_attention_fwd_unified`, which reads the step's own K and V from the pages too (its deterministic mode).

The package imports a server, so its files are loaded alone. They take a list of slots for each sequence, which the
backend makes once a step: `prepare` does. A pool of SGLang is [slots, heads, size]; a cache whose pages do not lie one
behind another becomes one of single slots.
"""

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch

from common.spec import PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity, Precision, launches
from common.spec.metadata import lens_of
from compare.competitors.baselines import bare_files

NAME = "baseline/sglang"
RELEASE = ("sglang", "0.5.23", "2026-10", "Apache-2.0", "Triton", 1256)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
DEFAULT = None
MOST_SPLITS = 8  # --triton-attention-num-kv-splits
_OPS = "sglang.kernels.ops.attention"


def _load() -> tuple[ModuleType, ...]:
    folder = bare_files.folder_of("sglang", [f"kernels/ops/attention/{name}" for name in _FILES])
    cuda = torch.cuda.is_available() and torch.version.cuda is not None
    utils = {
        "is_cuda": lambda: cuda,
        "is_hip": lambda: torch.version.hip is not None,
        "is_gfx95_supported": lambda: False,
        "is_gfx1250_supported": lambda: False,
        "get_device_core_count": lambda _=0: bare_files.units(),
    }
    held = {_OPS: {}, "sglang.srt.environ": {"envs": SimpleNamespace()}, "sglang.srt.utils": utils}
    with bare_files.standing_in(held):
        return tuple(
            bare_files.execute(f"{_OPS}.{name}", folder / f"kernels/ops/attention/{name}.py") for name in _FILES
        )


_FILES = ("score_mod", "decode_attention", "extend_attention", "metadata")
_, _decode, _extend, _metadata = _load()


@dataclass(frozen=True)
class Plan:
    """parts [rows, heads, splits, lanes of V] and sums [rows, heads, splits], fp32: of decodes. The rest is of a step:
    starts [seqs + 1], prefix, window_start, splits [seqs] int32; slots int64: of each sequence's keys in turn."""

    parts: torch.Tensor
    sums: torch.Tensor
    starts: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    prefix: torch.Tensor | None = None
    window_start: torch.Tensor | None = None
    splits: torch.Tensor | None = None
    uneven: torch.Tensor | None = None


def workspace(shape, capacity: Capacity, config) -> Plan:
    """Scratch for as many decodes as there may be sequences."""
    sizes = (capacity.num_seqs, shape.num_query_heads, MOST_SPLITS)
    made = [
        torch.empty(size, dtype=torch.float32, device=capacity.device) for size in ((*sizes, shape.value_lanes), sizes)
    ]
    return Plan(*made)


def prepare(batch: PagedBatch, features, config, workspace: Plan) -> Plan:
    """The step's list of slots, from the first key that any of a sequence's queries sees. Reads lengths and pages."""
    if workspace.slots is not None:
        return workspace
    size, device = batch.shape.block_size, batch.device
    (_, apart), (_, other) = bare_files.pool(NAME, batch.key_cache), bare_files.pool(NAME, batch.value_cache)
    if apart != other:
        raise UnsupportedFeature(NAME, f"pages of K {apart} slots apart, of V {other}", "as many")
    lens = list(lens_of(batch.query_start_loc, batch.seq_lens))
    window = features.sliding_window
    firsts = [0 if window is None else max(0, keys - queries - window + 1) for queries, keys in lens]
    if window is not None and batch.stats.max_query_len == 1:
        firsts = [max(0, keys - window) for _, keys in lens]
    offsets = torch.arange(size, device=device)
    slots = [
        (batch.block_table[i, : -(-keys // size), None].long() * apart + offsets).flatten()[first:keys]
        for i, ((_, keys), first) in enumerate(zip(lens, firsts, strict=True))
    ]
    held = [keys - first for (_, keys), first in zip(lens, firsts, strict=True)]
    ints = {"dtype": torch.int32, "device": device}
    splits, uneven = torch.full((len(lens),), MOST_SPLITS, **ints), torch.zeros(1, **ints)
    heads, groups = batch.shape.num_query_heads, batch.shape.num_kv_heads
    count = max(256, 1 << (len(lens) - 1).bit_length())
    _metadata.get_num_kv_splits_triton[(1,)](
        splits, torch.tensor(held, **ints), len(lens), 1, heads, groups, MOST_SPLITS, bare_files.units(), count, uneven
    )
    prefix = [keys - first - queries for (queries, keys), first in zip(lens, firsts, strict=True)]
    return Plan(
        workspace.parts,
        workspace.sums,
        torch.tensor([0, *held], device=device).cumsum(0).int(),
        torch.cat(slots),
        torch.tensor(prefix, **ints),
        torch.tensor(firsts, **ints),
        splits,
        uneven,
    )


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call of the kernel that SGLang's backend takes, into the live rows of `out`."""
    plan = prepare(batch, features, config, workspace)
    stats, scale, cap = batch.stats, batch.softmax_scale, features.softcap or 0.0
    (keys, apart), (values, _) = bare_files.pool(NAME, batch.key_cache), bare_files.pool(NAME, batch.value_cache)
    live = slice(0, min(stats.num_tokens, batch.num_tokens))
    size = batch.shape.block_size if apart == batch.shape.block_size else 1
    window = features.sliding_window
    if stats.max_query_len == 1 and stats.num_tokens == batch.num_seqs:
        slots = plan.starts, plan.slots, plan.parts[: batch.num_seqs], plan.sums[: batch.num_seqs], plan.splits
        _decode.decode_attention_fwd(
            batch.query[live], keys, values, out[live], *slots, MOST_SPLITS, scale, 1.0, 1.0,
            logit_cap=cap, sinks=features.sinks, page_size=size, uneven_batch=plan.uneven,
        )  # fmt: skip
        return
    if window == 1:
        raise UnsupportedFeature(NAME, "a window of the query's own key", "windows from 2 on: 0 is none")
    _extend.extend_attention_fwd_unified(
        batch.query[live], out[live], keys, values, 1.0, 1.0,
        batch.query_start_loc, plan.starts, plan.slots, plan.prefix, stats.max_query_len,
        sm_scale=scale, logit_cap=cap, is_causal=features.causal, sinks=features.sinks, page_size=size,
        sliding_window_size=-1 if window is None else window - 1, window_start_pos=plan.window_start,
    )  # fmt: skip
