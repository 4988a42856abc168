"""Values that break attention kernels: each fill overwrites a batch's query, K and V in place.

What a fill does not touch keeps the random values of `common.cases.batch`. The fills of INVISIBLE change only what no
row sees, `positive` does not change P, and `rising` leaves all values random; for these the statistical tier still
applies. All other fills make structured values, for which only the worst-case tier applies.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common.cases.batch import fill_new_tokens
from common.oracle.visibility import Sight
from common.spec import Features, PagedBatch
from common.spec.metadata import cdiv, lens_of
from common.spec.quantise import fill_where, quantise

Fill = Callable[[PagedBatch, Features], None]
NARROW = 2.0**12  # fp16: 5 sigma of N(0, 1) times this is below its maximum, 65504
QUERY = 2.0**9
WIDE = 2.0**100  # bf16 and fp32: 1e30, whose square overflows


def _lens(batch: PagedBatch) -> list[tuple[int, int]]:
    return lens_of(batch.query_start_loc, batch.seq_lens)


def _live(batch: PagedBatch) -> Tensor:
    return batch.query[: int(batch.query_start_loc[-1])]


def _slots(batch: PagedBatch, seq: int, keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(page, slot) of some keys of one sequence."""
    position = torch.tensor(keys, dtype=torch.long, device=batch.device)
    return batch.block_table[seq].long()[position // batch.shape.block_size], position % batch.shape.block_size


def _set(cache: Tensor, where: tuple[Tensor, Tensor], values: Tensor) -> None:
    """cache[page, slot] = values [keys, lanes], the same in every head."""
    cache[where] = values.to(cache.dtype).view(-1, 1, *cache.shape[3:]).expand_as(cache[where])


def _eighths(batch: PagedBatch) -> Tensor:
    """[head_size]: a K whose logit with a query of ones is 1, from eight lanes."""
    size = batch.shape.head_size
    return (torch.arange(size, device=batch.device) % (size // 8) == 0).float() / (8 * batch.softmax_scale)


def _logits(logit_of: Callable[[Tensor, int], Tensor]) -> Fill:
    """q = 1, K = logit / (8 scale) in each of eight lanes and 0 in the others: in every row key k of n has the logit
    `logit_of(k, n)`.

    K is rounded to eight bits, so the logit is off by up to 2^-8 of itself, but all sums of products are exact in
    float32, whatever their order: the rounding errors of equal lanes add up and do not cancel. Those of a kernel that
    scales its query first are of eight sums at most, which the budget of a logit holds.
    """

    def fill(batch: PagedBatch, features: Features) -> None:
        _live(batch).fill_(1.0)
        lanes = _eighths(batch)
        for seq, (_, seq_len) in enumerate(_lens(batch)):
            logits = logit_of(torch.arange(seq_len, device=batch.device).float(), seq_len)
            _set(batch.by_token()[0], _slots(batch, seq, range(seq_len)), (logits[:, None] * lanes).bfloat16())
        fill_new_tokens([batch])

    return fill


def _ramp(key: Tensor, seq_len: int) -> Tensor:
    return 80.0 * key / max(1, seq_len - 1) - 40.0


def _equal(logit: float) -> Fill:
    return _logits(lambda key, seq_len: torch.full_like(key, logit))


def _scaled(query: float, key: float, value: float) -> Fill:
    """Multiply query, K and V by a power of two each, which is exact."""

    def fill(batch: PagedBatch, features: Features) -> None:
        for tensor, factor in zip((_live(batch), *batch.by_token()), (query, key, value), strict=True):
            tensor.mul_(factor)
        fill_new_tokens([batch])

    return fill


FAR_BELOW = -4e6  # below what some kernels take for -inf; float32 still tells a logit from the next


def _far_below(batch: PagedBatch, features: Features) -> None:
    """Every logit is FAR_BELOW, and V are at least 1: a kernel whose maximum begins above gives zeros. The query has a
    part of it, for K of fp16."""
    _equal(FAR_BELOW / QUERY)(batch, features)
    _live(batch).fill_(QUERY)
    value = batch.by_token()[1]
    value.abs_().add_(1.0)
    fill_new_tokens([batch])


def _by_dtype(narrow: Fill, wide: Fill) -> Fill:
    def fill(batch: PagedBatch, features: Features) -> None:
        (narrow if batch.query.dtype == torch.float16 else wide)(batch, features)

    return fill


def outlier(batch: PagedBatch, features: Features) -> None:
    """Multiply V of the middle key of every sequence by 1e4."""
    for seq, (_, seq_len) in enumerate(_lens(batch)):
        if seq_len:
            page, slot = _slots(batch, seq, range(seq_len // 2, seq_len // 2 + 1))
            batch.by_token()[1][page, slot] = batch.by_token()[1][page, slot].clamp(-6, 6) * 1e4
    fill_new_tokens([batch])


def minus_zeros(batch: PagedBatch, features: Features) -> None:
    """Turn every negative number of query, K and V into -0.0."""
    for tensor in (_live(batch), *batch.by_token()):
        tensor.masked_fill_(tensor < 0, -0.0)
    fill_new_tokens([batch])


def seen_slots(batch: PagedBatch, features: Features) -> Tensor:
    """bool [num_blocks, block_size]: the slots whose key some row sees."""
    cache = batch.by_token()[0]
    seen = torch.zeros(cache.shape[:2], dtype=torch.bool, device=batch.device)
    for seq, (query_len, seq_len) in enumerate(_lens(batch)):
        if query_len and seq_len:
            sight = Sight.of(features, seq, query_len, seq_len)
            first, last = sight.key_range(seq_len - query_len, seq_len - 1)
            keys = torch.ones(last - first, dtype=torch.bool, device=batch.device)
            if not sight.exact_range:
                positions = torch.arange(seq_len - query_len, seq_len, device=batch.device)
                keys = sight.visible(positions, torch.arange(first, last, device=batch.device)).any(0)
            page, slot = _slots(batch, seq, range(first, last))
            seen[page, slot] |= keys  # pages may be shared
    return seen


def _invisible(key: float, value: float) -> Fill:
    """Overwrite what no row sees: unowned slots, the tail of last pages, keys left of a window, padding rows."""

    def fill(batch: PagedBatch, features: Features) -> None:
        unseen = ~seen_slots(batch, features)
        for cache, poison in zip(batch.by_token(), (key, value), strict=True):
            fill_where(cache, unseen, poison)
        batch.query[int(batch.query_start_loc[-1]) :] = key
        fill_new_tokens([batch])

    return fill


_NOBODY = 3.0  # a finite value in another owner's slot


def holes(batch: PagedBatch, features: Features) -> None:
    """Logits of 40, with a third of V at 0: in such a lane only keys of almost no weight have values."""
    _live(batch).mul_(40.0)
    value = batch.by_token()[1]
    generator = torch.Generator().manual_seed(5)
    hole = torch.rand(value.shape, generator=generator).to(value.device) < 1 / 3
    # compare bytes: torch cannot mask fp8, and zero has the same bytes in every dtype
    value.view(torch.uint8 if value.element_size() == 1 else torch.int16).masked_fill_(hole, 0)


def _edges(seq_len: int, page: int) -> list[int]:
    """All keys, ordered by how likely a kernel loses or repeats them: both ends, edges of pages and of segments of
    whole tiles; then the middle, the quarters, and so on."""
    edges = [0, seq_len, seq_len // page * page, page]
    for tile in (16, 32, 64, 128):
        edges += [cdiv(cdiv(seq_len, tile), parts) * tile * n for parts in (2, 3, 4, 8, 16) for n in (1, parts - 1)]
    found = [key for edge in edges for key in (edge - 1, edge) if 0 <= key < seq_len]
    step = seq_len
    while step > 1:
        step = cdiv(step, 2)
        found += range(step, seq_len, step)
    return list(dict.fromkeys([*found, *range(seq_len)]))


def planted(batch: PagedBatch, features: Features) -> None:
    """All mass lies on a few keys, as many in each KV head as V has lanes, and each has a lane of V to itself.

    So a key that is lost or seen twice is a lane that is wrong by nearly all of itself: under any precision, which lets
    one of 4,500 like keys pass. The heads have other keys, of `_edges`. V is 0 elsewhere: of P = e^-10 alone a kernel
    that rounds P to fp16 behind its division would keep too little (1.3 of the budget).
    """
    _logits(lambda key, seq_len: torch.zeros_like(key))(batch, features)
    heads, lanes = batch.shape.num_kv_heads, batch.shape.value_lanes
    alone = torch.eye(lanes, device=batch.device)
    for seq, (_, seq_len) in enumerate(_lens(batch)):
        keys = _edges(seq_len, batch.shape.block_size)[: heads * lanes]
        _set(batch.by_token()[1], _slots(batch, seq, range(seq_len)), torch.zeros(seq_len, lanes, device=batch.device))
        for head in range(heads):
            page, slot = _slots(batch, seq, keys[head::heads])
            for cache, values in zip(batch.by_token(), (10.0 * _eighths(batch)[None], alone[: len(page)]), strict=True):
                cache[page, slot, head] = values.to(cache.dtype).view(-1, *cache.shape[3:])
    fill_new_tokens([batch])


def positive(batch: PagedBatch, features: Features) -> None:
    """Replace V by its absolute values, which do not cancel; everything else stays random."""
    value = batch.by_token()[1]
    value.copy_(quantise(value.float().abs(), value.dtype) if value.element_size() == 1 else value.abs())
    fill_new_tokens([batch])


def far_tail(batch: PagedBatch, features: Features) -> None:
    """The first key has a logit of 1, the others one from -12 to -11, and V have one sign: 65,541 keys have a fifth of
    the mass there, each less than a rounding of 16 bits, which a kernel that skips small P loses. Logits differ, for
    sums of equal terms round to one side."""
    _logits(lambda key, seq_len: torch.where(key > 0, key * 0.618 % 1.0 - 12.0, 1.0))(batch, features)
    positive(batch, features)


MOST_CODE = 2.0**13  # of e5m2, whose larger ones would pass fp16 in a scaled sum


def every_code(batch: PagedBatch, features: Features) -> None:
    """V of fp8 has every finite code of its type, and so has an fp8 query; beside a query of 16 bits or more K has, and
    the query is as much smaller as K is larger. Drawn, elements have no more than four times their standard deviation,
    and the upper half of the exponents of a type is never read."""
    generator = torch.Generator().manual_seed(0)
    key, value = batch.by_token()
    codes = torch.arange(256, dtype=torch.uint8).view(value.dtype).float()
    codes = codes[codes.isfinite() & (codes.abs() <= MOST_CODE)]
    wide = batch.query.element_size() > 1
    for seq, (_, seq_len) in enumerate(_lens(batch)):
        where = _slots(batch, seq, range(seq_len))
        for cache in (key, value) if wide else (value,):
            drawn = torch.randint(len(codes), cache[where].shape, generator=generator)
            cache[where] = codes[drawn].to(cache.dtype).to(cache.device)
    if wide:
        _live(batch).mul_(2.0 ** -round(math.log2(float(codes.square().mean().sqrt()))))
    else:
        drawn = torch.randint(len(codes), batch.query.shape, generator=generator)
        batch.query.copy_(codes[drawn].to(batch.query.dtype))
    fill_new_tokens([batch])


def rising(batch: PagedBatch, features: Features) -> None:
    """K of the first key of a sequence is a quarter of what was drawn, of the last all of it, and between them it grows
    evenly: in each tile of a few dozen keys the maximum of the logits is nearly always greater than in those before.
    Everything stays random."""
    key = batch.by_token()[0]
    growth = torch.ones(key.shape[:2], device=batch.device)
    for seq, (_, seq_len) in enumerate(_lens(batch)):
        growth[_slots(batch, seq, range(seq_len))] = torch.linspace(0.25, 1.0, seq_len, device=batch.device)
    where = (growth < 1.0).nonzero(as_tuple=True)  # a page may be of several sequences
    grown = key[where].float() * growth[where].view(-1, 1, *[1] * (key.dim() - 3))
    key[where] = quantise(grown, key.dtype) if key.element_size() == 1 else grown.to(key.dtype)
    fill_new_tokens([batch])


def _seen(kind: int, poison: float) -> Fill:
    """One lane of K (0) or V (1) of the first new key of each sequence, in every head; without a window all its rows
    see that key."""

    def fill(batch: PagedBatch, features: Features) -> None:
        cache = batch.by_token()[kind]
        for seq, (query_len, seq_len) in enumerate(_lens(batch)):
            if query_len and seq_len:
                first = max(0, seq_len - query_len)
                page, slot = _slots(batch, seq, range(first, first + 1))
                row = cache[page, slot].float()
                row[..., 1] = poison
                cache[page, slot] = row.to(cache.dtype)
        fill_new_tokens([batch])

    return fill


def _query_nan(batch: PagedBatch, features: Features) -> None:
    """One lane of the query of the last token of each sequence, in its first head: NaN in this row, and in no other."""
    for last in {start - 1 for start in batch.query_start_loc.tolist() if start}:
        batch.query[last, 0, 1] = math.nan


SEEN: dict[str, Fill] = {  # values that must reach the rows that see them
    "values-seen-nan": _seen(1, math.nan), "values-seen-inf": _seen(1, -math.inf), "keys-seen-nan": _seen(0, math.nan),
    "query-nan": _query_nan,
}  # fmt: skip
INVISIBLE: dict[str, Fill] = {
    "unseen-keys-nan": _invisible(math.nan, _NOBODY),
    "unseen-values-nan": _invisible(_NOBODY, math.nan),
    "unseen-nan": _invisible(math.nan, math.nan),
    "unseen-keys-inf": _invisible(math.inf, _NOBODY),
    "unseen-values-inf": _invisible(_NOBODY, -math.inf),
    "unseen-inf": _invisible(math.inf, math.inf),
    "unseen-data": _invisible(_NOBODY, _NOBODY),
}
FILLS: dict[str, Fill] = {
    "logits-times-30": _scaled(30.0, 1.0, 1.0),
    "logits-saturate-a-softcap": _scaled(3000.0, 1.0, 1.0),
    "logits-rising": _logits(_ramp),
    "logits-falling": _logits(lambda key, seq_len: -_ramp(key, seq_len)),
    "logits-peak-at-the-first-key": _logits(lambda key, seq_len: 30.0 * (key == 0)),
    "logits-peak-at-the-last-key": _logits(lambda key, seq_len: 30.0 * (key == seq_len - 1)),
    "logits-equal": _equal(3.0),
    "logits-all-low": _equal(-300.0),
    "tail-mass": _logits(lambda key, seq_len: -7.0 * (key != seq_len // 2)),
    "value-outlier": outlier,
    "values-tiny": _by_dtype(_scaled(1.0, 1.0, 2.0**-20), _scaled(1.0, 1.0, 1.0 / WIDE)),  # fp16: subnormal
    "values-large": _by_dtype(_scaled(1.0, 1.0, NARROW), _scaled(1.0, 1.0, WIDE)),
    "query-large-keys-small": _by_dtype(_scaled(NARROW, 1.0 / NARROW, 1.0), _scaled(WIDE, 1.0 / WIDE, 1.0)),
    "products-past-fp16": _scaled(128.0, 128.0, 1.0),  # the unscaled q.k exceeds 65504
    "minus-zeros": minus_zeros,
} | INVISIBLE
# after the others: dtypes of named cases follow the order
FILLS |= {
    "keys-past-fp16": _by_dtype(_scaled(1.0 / NARROW, NARROW, 1.0), _scaled(2.0**-16, 2.0**16, 1.0)),
    "logits-far-below": _far_below,
}
_RANDOM = frozenset([*INVISIBLE.values(), positive, rising])


def structured(fill: Fill | None) -> bool:
    """Whether the checker must not assume independent rounding errors."""
    return fill is not None and fill not in _RANDOM
