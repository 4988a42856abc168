"""torch's flex_attention over the keys of a batch, gathered from their pages inside the timed call.

All sequences are one packed row of queries and one of keys; a mask says who may see whom, and its blocks that hold
nothing are skipped. flex_attention could read the cache in place, but its blocks of 128 keys mix pages of different
owners, and it multiplies what a mask hides by zero: a NaN in a slot that nobody owns would come through.
On a GPU it is compiled, once a row; on a CPU it runs uncompiled, for the checker alone.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, Precision, launches
from common.spec.metadata import lens_of

NAME = "baseline/flex"
RELEASE = ("torch", "2.11.0", "", "BSD-3-Clause", "Triton", 0)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap"})  # not full_graph: lengths make the mask
CONTRACT = Precision()


DEFAULT = None  # torch has defaults of its own for each GPU


@dataclass
class Step:
    """What the page sets of a row share, as it follows from the lengths: the mask, and the compiled call."""

    mask: BlockMask | None = None
    attend: Any = None


@dataclass(frozen=True)
class Plan:
    """pages, slots: int64 [keys], where each key of the batch lies; None until `prepare` knows the lengths."""

    step: Step = field(default_factory=Step)
    pages: torch.Tensor | None = None
    slots: torch.Tensor | None = None


def workspace(shape: AttentionShape, capacity: Capacity, config: None) -> Plan:
    """An empty plan. Forgets what was compiled for earlier rows: torch keeps eight and then compiles no more."""
    if capacity.device.type == "cuda":
        torch.compiler.reset()
    return Plan()


def _rows(counts: list[int], firsts: list[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequence, position) of rows that come counts[i] at a time for sequence i, from position firsts[i]; int64."""
    many, first = (torch.tensor(x, dtype=torch.int64, device=device) for x in (counts, firsts))
    sequence = torch.arange(len(counts), device=device).repeat_interleave(many)
    within = torch.arange(len(sequence), device=device) - (many.cumsum(0) - many)[sequence]
    return sequence, first[sequence] + within


Rows = tuple[torch.Tensor, torch.Tensor]


def _mask(queries: Rows, keys: Rows, features: Features) -> BlockMask:
    (query_seq, query_at), (key_seq, key_at) = queries, keys
    window = features.sliding_window

    def visible(_b: Any, _h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen, distance = query_seq[q] == key_seq[k], query_at[q] - key_at[k]
        if features.causal:
            seen = seen & (distance >= 0)
        if window is not None:
            seen = seen & (distance < window) & (distance > -window)
        return seen

    return create_block_mask(visible, None, None, len(query_seq), len(key_seq), device=query_seq.device)


def prepare(batch: PagedBatch, features: Features, config: None, workspace: Plan) -> Plan:
    """Where the keys lie, and once a row the mask. Other values on the same pages need nothing new."""
    if workspace.pages is not None:
        return workspace
    lens = list(lens_of(batch.query_start_loc, batch.seq_lens))
    queries = _rows([q for q, _ in lens], [s - q for q, s in lens], batch.device)
    keys = _rows([s for _, s in lens], [0] * len(lens), batch.device)
    step = workspace.step
    if step.attend is None:
        step.attend = torch.compile(flex_attention, dynamic=False) if batch.device.type == "cuda" else flex_attention
        step.mask = _mask(queries, keys, features) if len(queries[0]) and len(keys[0]) else None
    (key_seq, key_at), size = keys, batch.shape.block_size
    return Plan(step, batch.block_table[key_seq, key_at // size].long(), key_at % size)


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Gather, then attend. Allocates. A plan that nobody prepared is made here, which waits for the device."""
    ready = prepare(batch, features, config, workspace)
    live = slice(0, batch.stats.num_tokens)
    if ready.step.mask is None:
        out[live] = 0.0  # no query, or no key
        return
    softcap = features.softcap

    def capped(score: torch.Tensor, _b: Any, _h: Any, _q: Any, _k: Any) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    key, value = (
        cache[ready.pages, ready.slots].transpose(0, 1)[None] for cache in (batch.key_cache, batch.value_cache)
    )
    found = ready.step.attend(
        batch.query[live].transpose(0, 1)[None],
        key,
        value,
        score_mod=capped if softcap is not None else None,
        block_mask=ready.step.mask,
        scale=batch.softmax_scale,
        enable_gqa=batch.shape.queries_per_kv > 1,
    )
    out[live] = found[0].transpose(0, 1)
