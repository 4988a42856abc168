"""The calls of one case: the same addresses, and what lies there changed between them.

1. values A.  2. query, V and every second key negated.  3. A, but for one thing alone: K, V, the query, the table, the
lengths, whose rows the queries are, the features' tensors or a number beside them.  4. A again. What a kernel keeps
from an earlier call is wrong in one of them: also what it made of K alone, and found again by its address. Lengths
shrink in some cases and grow in others.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.cases.batch import fill_new_tokens
from common.cases.case import Case
from common.cases.company import decode_step, in_company, orders
from common.cases.swept import sweep
from common.oracle.integrity import differing, inputs_of
from common.spec import Features, PagedBatch, is_per_token
from common.spec.metadata import cdiv, lens_of, seq_lens
from common.spec.quantise import negate

Inputs = tuple[PagedBatch, Features]
_FACTORS = ("alibi_slopes", "tree_bias", "key_scale", "value_scale", "query_scale", "out_scale")


@dataclass(frozen=True)
class Call:
    """What a kernel is called on, in place; until the next one. again: it must give the bits of the first call. rows:
    those of the first call that its own stand for, where it has some of the sequences, in other company."""

    name: str
    batch: PagedBatch
    features: Features
    again: bool = False
    rows: Tensor | None = None

    def unlike(self, first: dict[str, Tensor], found: dict[str, Tensor], deterministic: bool = True) -> tuple[str, str]:
        """A status and a sentence where the bits are others than the first call's and must not be; else two empty."""
        number = self.name.split(",")[0]
        if self.again and deterministic and (names := differing(first, found)):
            return "nondeterministic", f"{number} gave other bits of {names[0]} than call 1 for the same values"
        if self.rows is not None and self.features.batch_invariant:
            wanted = {name: tensor[self.rows] for name, tensor in first.items()}
            if names := differing(wanted, found):
                return (
                    "incorrect",
                    f"{self.name}: other bits of {names[0]} than in call 1, which batch_invariant forbids",
                )
        return "", ""


def _negate(*names: str) -> Callable[[PagedBatch, Features], Inputs]:
    def change(batch: PagedBatch, features: Features) -> Inputs:
        for name in names:
            if (tensor := getattr(batch, name)) is not None:
                negate(tensor)
        return batch, features

    return change


def _others(batch: PagedBatch, features: Features) -> Inputs:
    """One kept from before, Q or K alone, gives other logits than both together."""
    key, value = batch.by_token()
    for tensor in (batch.query, value, key[:, 1::2]):
        negate(tensor)
    fill_new_tokens([batch])
    return batch, features


def _table(batch: PagedBatch, features: Features) -> Inputs:
    seq, column, spare = _place(batch)
    batch.block_table[seq, column] = spare
    return batch, features


def _lengths(batch: PagedBatch, features: Features) -> Inputs:
    """About a third of the context of every sequence is gone, and with it the last keys."""
    for seq, (query_len, seq_len) in enumerate(lens_of(batch.query_start_loc, batch.seq_lens)):
        batch.seq_lens[seq] = seq_len - cdiv(max(0, seq_len - max(1, query_len)), 3)
    return batch, features


def _grows(change: str, batch: PagedBatch) -> bool:
    """Whether the lengths of the first call are the short ones, in turn by the tokens: else a grid or scratch for its
    longest sequence is large enough in every call."""
    return change == "lengths" and batch.num_tokens % 2 > 0


def _moved(batch: PagedBatch) -> list[int]:
    """`query_start_loc` where one of two neighbours has given the other a row, wherever that leaves the taker no more
    rows than it has keys, or than the longest had."""
    lens, most = lens_of(batch.query_start_loc, batch.seq_lens), batch.stats.max_query_len
    starts, rows = batch.query_start_loc.tolist(), [query_len for query_len, _ in lens]
    for seq in range(len(lens) - 1):
        for giver, taker, step in ((seq, seq + 1, -1), (seq + 1, seq, 1)):
            if rows[giver] and rows[taker] < min(most, lens[taker][1]):
                rows[giver], rows[taker] = rows[giver] - 1, rows[taker] + 1
                starts[seq + 1] += step
                break
    return starts


def _starts(batch: PagedBatch, features: Features) -> Inputs:
    batch.query_start_loc.copy_(torch.tensor(_moved(batch), dtype=torch.int32))
    decodes = int((batch.query_start_loc.diff() == 1).sum())
    return batch.replace(stats=replace(batch.stats, num_decodes=decodes)), features


def _operands(batch: PagedBatch, features: Features) -> Inputs:
    for name in _FACTORS:
        if (tensor := getattr(features, name)) is not None:
            tensor.mul_(0.5)
    if features.sinks is not None:
        features.sinks.add_(1.0)
    if features.causal_per_sequence is not None:
        features.causal_per_sequence.copy_(features.causal_per_sequence == 0)
    if features.spans is not None:  # each ends earlier: none hides what it did not, nor meets another
        first, last = features.spans.unbind(-1)
        last.copy_(torch.where(first < last, (first + last) // 2, last))
    return batch, features


def _numbers(batch: PagedBatch, features: Features) -> Inputs:
    """One number alone, else what is kept by all but one is not found: one of the features', in turn by the tokens;
    the scale where there is none."""
    window, cap, chunk = features.sliding_window, features.softcap, features.chunk
    others = {"sliding_window": window and window + 1, "softcap": cap and 1.5 * cap, "chunk": chunk and chunk + 8}
    found = [name for name, other in others.items() if other is not None]
    if not found:
        return batch.replace(softmax_scale=0.75 * batch.softmax_scale), features
    chosen = found[batch.num_tokens % len(found)]
    return batch, replace(features, **{chosen: others[chosen]})


CHANGES: dict[str, Callable[[PagedBatch, Features], Inputs]] = {
    "key": _negate("key_cache", "key"), "value": _negate("value_cache", "value"), "query": _negate("query"),
    "table": _table, "lengths": _lengths, "starts": _starts, "operands": _operands, "numbers": _numbers,
}  # fmt: skip
_OPERANDS = (*_FACTORS, "sinks", "causal_per_sequence", "spans")
_CHANGED = {  # the tensors that a change writes to
    "key": ("key_cache", "key"), "value": ("value_cache", "value"), "query": ("query",), "table": ("block_table",),
    "lengths": ("seq_lens",), "starts": ("query_start_loc",), "operands": _OPERANDS, "numbers": (),
}  # fmt: skip


def _place(batch: PagedBatch) -> tuple[int, int, int] | None:
    """(sequence, column, spare page): the last page of the longest sequence that has queries, and one of nobody."""
    lens = lens_of(batch.query_start_loc, batch.seq_lens)
    length, seq = max(((n, -i) for i, (q, n) in enumerate(lens) if q), default=(0, 0))
    page = batch.shape.block_size
    used = {p for i, (_, n) in enumerate(lens) for p in batch.block_table[i, : cdiv(n, page)].tolist()}
    spare = next((p for p in range(batch.key_cache.shape[0]) if p not in used), None)
    return (-seq, cdiv(length, page) - 1, spare) if length and spare is not None else None


def _may(change: str, case: Case, batch: PagedBatch, features: Features) -> bool:
    """Whether a change makes other inputs of the same case that are as well formed."""
    if change == "table":  # new K and V are what the pages hold
        return batch.key is None and _place(batch) is not None
    if change == "lengths":  # rows move: a fill lays values where they see them, or do not
        moved = any(n > max(1, q) for q, n in case.lens)
        return moved and case.fill is None and batch.key is None
    if change == "starts":
        return case.fill is None and batch.key is None and _moved(batch) != batch.query_start_loc.tolist()
    if change == "operands":
        return any(getattr(features, name) is not None for name in _OPERANDS)
    if change == "numbers":  # a wider window or chunk would see what a fill made NaN
        return case.fill is None
    return True


def change_of(case: Case, batch: PagedBatch, features: Features) -> str:
    """What the third call of a case changes: what it asks for, or what its name falls on; the next where that may not
    be."""
    names = list(CHANGES)
    first = names.index(case.change) if case.change else zlib.crc32(case.name.encode()) % len(names)
    return next(name for name in names[first:] + names[:first] if _may(name, case, batch, features))


def _prepare(batch: PagedBatch, features: Features) -> None:
    """A page of nobody becomes the other one that the table will name: what the page there holds, negated."""
    seq, column, spare = _place(batch)
    page = int(batch.block_table[seq, column])
    for cache in (batch.key_cache, batch.value_cache):
        cache[spare] = cache[page]
        negate(cache[spare])
    for scale in (features.key_scale, features.value_scale):
        if is_per_token(scale):
            scale[spare] = scale[page]


@contextmanager
def _kept(names: tuple[str, ...], inputs: dict[str, Tensor]) -> Iterator[None]:
    """The bytes under some of the inputs are put back behind it."""
    found = [inputs[name].untyped_storage() for name in names if name in inputs]
    storages = {storage.data_ptr(): (storage, storage.clone()) for storage in found}
    yield
    for storage, copy in storages.values():
        storage.copy_(copy)


def calls(case: Case, batch: PagedBatch, features: Features) -> Iterator[Call]:
    """The four calls, or in a brief case the first and its decode step, each valid until the next is asked for; behind
    the last the inputs are as in the first. In a case of company as many more as `company.orders` has, and two that
    repeat the first; in one that sweeps a number, one of each value."""
    if case.brief:
        yield Call("call 1", batch, features)
        if batch.stats.max_query_len > 1:
            yield Call("call 2, the last token of each sequence alone", *decode_step(batch, features))
        return
    change = change_of(case, batch, features)
    if change == "table":
        _prepare(batch, features)
    whole = seq_lens(case.lens)
    if grows := _grows(change, batch):
        batch.seq_lens.copy_(whole)  # the calls of a batch may be asked for twice
        _lengths(batch, features)
    inputs, others = inputs_of(batch, features), ("query", "key_cache", "value_cache", "key", "value")
    yield Call("call 1", batch, features)
    with _kept(others, inputs):
        yield Call("call 2, other values at the same addresses", *_others(batch, features))
    with _kept(_CHANGED[change], inputs):
        if grows:
            batch.seq_lens.copy_(whole)
        changed = (batch, features) if grows else CHANGES[change](batch, features)
        yield Call(f"call 3, other {change} alone at the same addresses", *changed)
    yield Call("call 4, the values of call 1", batch, features, again=True)
    if case.company:
        yield from _in_company(batch, features)
    if case.sweep:
        for number, (words, other) in enumerate(sweep(case, features), 5):
            yield Call(f"call {number}, {words}", batch, other)


def _in_company(batch: PagedBatch, features: Features) -> Iterator[Call]:
    number = 5
    for words, order in orders(lens_of(batch.query_start_loc, batch.seq_lens)):
        part, own, rows = in_company(batch, features, order)
        yield Call(f"call {number}, {words}", part, own, rows=rows)
        number += 1
    for again in (number, number + 1):
        yield Call(f"call {again}, the values of call 1", batch, features, again=True)
