"""Batches whose result is known without a reference and without a tolerance.

needle     every row points at one key and must return that key's V bit for bit: tests addresses and masks.
census     q = 0, so all visible keys weigh the same and e^LSE counts them.
constant   V = c everywhere, so every row is c whatever it sees: tests the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from common.cases.batch import fill_new_tokens, make_batch
from common.oracle.integrity import bits
from common.spec import AttentionShape, Features, PagedBatch, SpecError
from common.spec.metadata import Lens

NEEDLE = 64.0  # q = 64 code: exact in every dtype; a logit of 64 sqrt(head_size) against at most that less 2 per bit
MAX_COUNT = 100_000  # neighbouring counts differ by ten float32 steps of the LSE


@dataclass(frozen=True)
class Oracle:
    """A batch with a known result.

    mistakes(out, lse): a sentence for each way in which a result is wrong; empty when it is right.
    """

    name: str
    batch: PagedBatch
    features: Features
    mistakes: Callable[[Tensor, Tensor | None], list[str]]


def _where(wrong: Tensor) -> str:
    """How many rows are wrong, and the first of them; wrong is bool [tokens, heads]."""
    token, head = wrong.nonzero()[0].tolist()
    return f"{int(wrong.sum())} of {wrong.numel()} rows, the first at token {token}, head {head}"


def _slots(batch: PagedBatch, seq: int, seq_len: int) -> tuple[Tensor, Tensor]:
    """(page, slot) of every key of one sequence."""
    position = torch.arange(seq_len, device=batch.device)
    block_size = batch.shape.block_size
    return batch.block_table[seq].long()[position // block_size], position % block_size


def visible_range(position: int, seq_len: int, features: Features) -> range:
    """The keys that the query at `position` sees."""
    window = features.sliding_window
    first = 0 if window is None else max(0, position - window + 1)
    last = position if features.causal else seq_len - 1
    if window is not None:
        last = min(last, position + window - 1)
    return range(first, min(last, seq_len - 1) + 1)


def _counts(lens: Lens, features: Features) -> list[int]:
    """How many keys each row sees."""
    return [
        len(visible_range(seq_len - query_len + row, seq_len, features))
        for query_len, seq_len in lens
        for row in range(query_len)
    ]


def probes(visible: range, seq_len: int, edges: Iterable[int]) -> list[int]:
    """Keys worth pointing at: the first and last two visible ones, and those around every multiple of every edge.

    edges: page size, tile sizes, segment sizes.
    """
    around = {0, 1, seq_len - 1, visible.start, visible.start + 1, visible.stop - 2, visible.stop - 1}
    for edge in edges:
        multiples = range(visible.start // edge * edge, visible.stop + edge, edge)
        for multiple in (*multiples[:3], *multiples[-3:]):
            around |= {multiple - 1, multiple, multiple + 1}
    return sorted(around & set(visible))


def _codes(seq_len: int, num_heads: int, head_size: int, generator: torch.Generator) -> Tensor:
    """float32 [seq_len, num_heads, head_size] of +-1, all keys different: the leading lanes spell the position."""
    spelled = max(1, (seq_len - 1).bit_length())
    if spelled > head_size:
        raise SpecError("head_size", head_size, f"at least {spelled} to tell {seq_len} keys apart")
    codes = torch.randint(0, 2, (seq_len, num_heads, head_size), generator=generator)
    digits = torch.arange(seq_len)[:, None] >> torch.arange(spelled) & 1
    codes[..., :spelled] = digits[:, None, :]
    return (codes * 2 - 1).float()


def needle(
    lens: Lens,
    shape: AttentionShape,
    features: Features,
    *,
    edges: Iterable[int] = (),
    seed: int = 0,
    **options: object,
) -> Oracle:
    """K = random codes of +-1, q = 64 code(target): P is exactly 1 at the target, so its V must come back bit for bit.

    Each (token, query head) takes the next probe around the edges of pages, of `edges` (tiles, segments), of the window
    and of the causal mask. V lies in +-[1, 2), so that a neighbour's e^-22 cannot move a bit. Softcap must be off.
    options: those of make_batch. Raises SpecError where a head is too small to tell the keys apart.
    """
    if features.softcap is not None:
        raise SpecError("softcap", features.softcap, "None: it would let other keys weigh in")
    batch = make_batch(lens, shape, seed=seed, **options)
    generator = torch.Generator().manual_seed(seed)
    target = torch.zeros_like(batch.query)
    edges = [shape.block_size, *edges]
    token, turn = 0, 0
    for seq, (query_len, seq_len) in enumerate(lens):
        codes = _codes(seq_len, shape.num_kv_heads, shape.head_size, generator).to(batch.device, shape.dtype)
        size = 1 + torch.randint(0, 128, codes.shape, generator=generator) / 128
        sign = torch.randint(0, 2, codes.shape, generator=generator) * 2 - 1
        values = (size * sign).to(batch.device, shape.dtype)
        pages, slots = _slots(batch, seq, seq_len)
        for cache, rows in zip(batch.by_token(), (codes, values), strict=True):
            cache[pages, slots] = rows.view(-1, *cache.shape[2:])
        for row in range(query_len):
            choice = probes(visible_range(seq_len - query_len + row, seq_len, features), seq_len, edges)
            if not choice:
                continue
            heads = torch.arange(shape.num_query_heads)
            key = torch.tensor(choice)[(turn + heads) % len(choice)].to(batch.device)
            kv_head = (heads // shape.queries_per_kv).to(batch.device)
            batch.query[token + row] = NEEDLE * codes[key, kv_head]
            target[token + row] = values[key, kv_head]
            turn += shape.num_query_heads
        token += query_len
    fill_new_tokens([batch])

    def mistakes(out: Tensor, lse: Tensor | None = None) -> list[str]:
        wrong = (bits(out[:token]) != bits(target[:token])).any(-1)
        return [f"needle: not the V that the row points at in {_where(wrong)}"] if bool(wrong.any()) else []

    return Oracle("needle", batch, features, mistakes)


def census(lens: Lens, shape: AttentionShape, features: Features, *, seed: int = 0, **options: object) -> Oracle:
    """q = 0: LSE = ln(number of visible keys), exact up to 100,000 keys. Sinks must be off."""
    if features.sinks is not None:
        raise SpecError("sinks", "given", "None: a sink would be counted too")
    if max((seq_len for _, seq_len in lens), default=0) > MAX_COUNT:
        raise SpecError("seq_len", max(seq_len for _, seq_len in lens), f"at most {MAX_COUNT} to be counted")
    batch = make_batch(lens, shape, seed=seed, **options)
    num_tokens = sum(query_len for query_len, _ in lens)
    batch.query[:num_tokens] = 0
    counts = _counts(lens, features)
    wanted = torch.tensor(counts, device=batch.device)[:, None].expand(-1, shape.num_query_heads)

    def mistakes(out: Tensor, lse: Tensor | None = None) -> list[str]:
        counted = lse[:num_tokens].double().exp()
        wrong = ~((counted - wanted).abs() < 0.5)
        if not bool(wrong.any()):
            return []
        token, head = wrong.nonzero()[0].tolist()
        found = f"counted {float(counted[token, head]):.6g} instead of {counts[token]} keys"
        return [f"census: {found} in {_where(wrong)}"]

    return Oracle("census", batch, features, mistakes)


def constant(
    lens: Lens, shape: AttentionShape, features: Features, *, value: float = 1.0, seed: int = 0, **options: object
) -> Oracle:
    """V = c wherever a token is: every row is c to one unit in the last place. Sinks must be off.

    P is rounded for P.V but not in its sum, so half a unit of P and half a unit of the output may add up. In float32,
    where both sums round, eight units.
    """
    if features.sinks is not None:
        raise SpecError("sinks", "given", "None: a sink takes its share of c")
    batch = make_batch(lens, shape, seed=seed, **options)
    owned = ~batch.value_cache.isnan()
    batch.value_cache[owned] = value
    fill_new_tokens([batch])
    sees = torch.tensor(_counts(lens, features), device=batch.device) > 0
    units = 8 if shape.dtype == torch.float32 else 1
    slack = units * torch.finfo(shape.dtype).eps * 2.0 ** math.floor(math.log2(abs(value)))

    def mistakes(out: Tensor, lse: Tensor | None = None) -> list[str]:
        wanted = torch.where(sees, value, 0.0)[:, None, None]
        wrong = ~((out[: sees.numel()].double() - wanted).abs() <= torch.where(sees, slack, 0.0)[:, None, None]).all(-1)
        return [f"constant: not {value} in {_where(wrong)}"] if bool(wrong.any()) else []

    return Oracle("constant", batch, features, mistakes)
