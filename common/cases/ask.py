"""The features that a case or a row asks for, described without tensors, and the tensors drawn for a batch's
lengths."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from common.cases.batch import owned_slots
from common.oracle.integrity import Guards
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.feature_rules import check_numbers
from common.spec.features import OPERANDS
from common.spec.kernel import asked_of_shape
from common.spec.metadata import Lens, lens_of
from common.spec.quantise import SPREAD

# Of K and V: one number, one per KV head, or one per token and KV head; of K and, behind a dash, of V.
ScaleForm = Literal["one", "heads", "tokens", "one-heads", "tokens-heads"]
Spans = tuple[tuple[tuple[int, int], ...], ...]  # per sequence, (first, last) of each
NO_SPANS = ((0, 0), (-1, -1), (9, 4), (0, -1))  # what stands in place of a span, in turn
FP8_OUT = torch.float8_e4m3fn  # what rows use
ENCODERS = "encoders"
HEAVY = 60.0  # as a sink it takes all but e^-60 of the mass
FIRST = ("causal", "sliding_window", "softcap", "sinks")  # older than the other fields: ids of rows always name them
# The plain words for values of fields; ids of rows and of committed cells contain them.
_TOLD: dict[tuple[str, Any], tuple[str, Any]] = {
    ("sinks", None): ("sinks", False), ("sinks", "drawn"): ("sinks", True),
    ("non_causal", ENCODERS): ("encoders", True), ("out_dtype", FP8_OUT): ("fp8_out", True),
}  # fmt: skip
_ASKED = {told: asked for asked, told in _TOLD.items()}


@dataclass(frozen=True)
class Ask:
    """`common.spec.Features` before there are tensors.

    sinks: "near" puts a sink of ln(n) +- 1 on every head, n the mean sequence length, so that it carries about half of
    the mass; "off" one of -inf; "some" -inf on the even heads and "near" on the others; "heavy" one of +60, which
    leaves e^-60 to the keys; "drawn" a random one near ln(longest sequence).
    alibi: slopes of the ALiBi paper, or of 0; "drawn": of either sign, as no paper has them. spans: those of each
    sequence, or an image of so many tokens at the start of every sequence's new tokens. non_causal: these sequences are
    not causal; "encoders": every second one, from the first. flag: what tells that one is causal, any number but 0.
    tree: the parent of each draft token, -1 the context; or so many tokens, two branches at each. scales: form of those
    of a quantised cache (`AttentionShape.kv_dtype`), of about key_scale_factor for K and scale_factor for V. out_dtype:
    an fp8 output, under out_scale. operands: the dtype of sinks and of a tree's bias, float32 where None; in another
    the flags of causal_per_sequence are bool.
    """

    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Literal["near", "off", "some", "heavy", "drawn"] | None = None
    alibi: Literal["linear", "sqrt", "zero", "drawn", "sqrt-drawn"] | None = None
    chunk: int | None = None
    chunk_lookback: int = 0
    spans: int | Spans | None = None
    non_causal: tuple[int, ...] | Literal["encoders"] | None = None
    cross: bool = False
    tree: int | tuple[int, ...] | None = None
    scales: ScaleForm | None = None
    scale_factor: float = 1.0
    key_scale_factor: float = 1.0
    flag: int = 1
    out_dtype: torch.dtype | None = None
    out_scale: float = 1.0 / 64
    batch_invariant: bool = False
    operands: torch.dtype | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values. A field that is not asked for is left out, except the first four."""
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return dict(_TOLD.get((name, x), (name, x)) for name, x, default in given if name in FIRST or x != default)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Ask":
        """The inverse of `to_dict`, also for dicts from JSON, which has lists."""
        given = [(name, _tuples(value)) for name, value in plain.items()]
        return cls(**dict(_ASKED.get(item, item) for item in given))

    def names(self) -> tuple[str, ...]:
        """The features that differ from plain causal attention, as text."""
        told = self.to_dict()
        asked = [] if told.pop("causal") else ["non_causal"]
        on = [(name, value) for name, value in told.items() if value is not None and value is not False]
        return (*asked, *(name if value is True else f"{name}={value}" for name, value in on))

    def members(self, shape: AttentionShape) -> frozenset[str]:
        """The members of SUPPORTS that a kernel needs for it."""
        return self._sketch().names() | asked_of_shape(shape)

    @property
    def sees(self) -> int:
        """`Features.sees`."""
        return self._sketch().sees

    @property
    def parents(self) -> tuple[int, ...]:
        """The parent of each token of a draft tree; a parent precedes its child."""
        if isinstance(self.tree, int):
            return tuple((token - 1) // 2 if token else -1 for token in range(self.tree))
        return self.tree or ()

    def hidden(self) -> int:
        """Pairs (token, an earlier token that is not its ancestor) of a draft tree, which the tree hides."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return sum(range(1, len(depths) + 1)) - sum(depths)

    def tensors(self) -> tuple[str, ...]:
        """The tensor fields of `Features` that it needs, except the scales of what a batch holds."""
        on = {
            "sinks": self.sinks, "alibi_slopes": self.alibi, "spans": self.spans,
            "causal_per_sequence": self.non_causal, "tree_bias": self.tree, "out_scale": self.out_dtype,
        }  # fmt: skip
        return tuple(name for name, asked in on.items() if asked is not None)

    def check(self) -> None:
        """Raise SpecError for features that exclude each other."""
        check_numbers(self._sketch())

    def _sketch(self) -> Features:
        """The features with empty tensors."""
        return self.with_tensors({name: torch.empty(0) for name in self.tensors()})

    def with_tensors(self, tensors: dict[str, Tensor]) -> Features:
        """The `Features` that it asks for, with these tensors."""
        return Features(
            self.causal and not self.cross, self.sliding_window, self.softcap,
            alibi_sqrt=self.alibi in ("sqrt", "sqrt-drawn"), chunk=self.chunk, chunk_lookback=self.chunk_lookback,
            cross=self.cross, batch_invariant=self.batch_invariant, **tensors,
        )  # fmt: skip

    def features(self, batch: PagedBatch, seed: int) -> Features:
        """The features for a batch, on its device."""
        generator = torch.Generator().manual_seed(seed)
        lens, heads = lens_of(batch.query_start_loc, batch.seq_lens), batch.shape.num_query_heads
        features = features_of(self, lens, heads, generator, batch.device)
        return with_scales(features, batch, self, generator)


PLAIN = Ask()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def alibi_slopes(num_heads: int) -> list[float]:
    """The slopes of the ALiBi paper (Press et al., 2022): 2^(-8 i / n) for the largest power of two n of heads; the
    other heads take every second slope of twice as many heads."""
    n = 1 << (num_heads.bit_length() - 1)
    near = [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)]
    return near + [2.0 ** (-4.0 * i / n) for i in range(1, 2 * (num_heads - n) + 1, 2)]


def tree_bias(parents: Sequence[int], generator: torch.Generator) -> Tensor:
    """float32 [N, N]: the bias of a draft tree, about 1 and random where a token sees itself or an ancestor. -1 is the
    context."""
    size = len(parents)
    bias = torch.full((size, size), -math.inf)
    for token in range(size):
        seen = token
        while seen >= 0:
            bias[token, seen] = torch.randn((), generator=generator)
            seen = parents[seen]
    return bias


def spans_tensor(spans: Spans) -> Tensor:
    """int32 [num_seqs, max_spans, 2], at least one span wide, padded with empty spans of every form."""
    width = max(1, *(len(pairs) for pairs in spans)) if spans else 1
    none = itertools.cycle(NO_SPANS)
    padded = [[*pairs, *itertools.islice(none, width - len(pairs))] for pairs in spans]
    return torch.tensor(padded, dtype=torch.int32).view(len(spans), width, 2)


def features_of(
    ask: Ask, lens: Lens, heads: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Features:
    """The features for sequences of these lengths, without the scales of what a batch holds (`with_scales` adds them).

    Draws in the order of `Ask.tensors`, on the CPU.
    """
    return ask.with_tensors({n: _drawn(ask, n, lens, heads, generator).to(device) for n in ask.tensors()})


def _drawn(ask: Ask, name: str, lens: Lens, heads: int, generator: torch.Generator) -> Tensor:
    if name == "sinks":
        return _sinks(ask, [seq_len for _, seq_len in lens], heads, generator).to(ask.operands or torch.float32)
    if name == "alibi_slopes":
        if ask.alibi.endswith("drawn"):
            return 0.3 * torch.randn(heads, generator=generator)
        return torch.tensor(alibi_slopes(heads)) * (ask.alibi != "zero")
    if name == "spans":
        if not isinstance(ask.spans, int):
            return spans_tensor(ask.spans)
        firsts = [max(seq_len - query_len, 0) for query_len, seq_len in lens]
        return spans_tensor(tuple(((first, first + ask.spans - 1),) for first in firsts))
    if name == "causal_per_sequence":
        full = range(0, len(lens), 2) if ask.non_causal == ENCODERS else ask.non_causal
        kind = torch.bool if ask.operands else torch.int32
        return torch.tensor([ask.flag * (seq not in full) for seq in range(len(lens))], dtype=kind)
    if name == "tree_bias":
        return tree_bias(ask.parents, generator).to(ask.operands or torch.float32)
    return torch.tensor([ask.out_scale])


def _sinks(ask: Ask, seq_lens: list[int], heads: int, generator: torch.Generator) -> Tensor:
    if ask.sinks == "drawn":  # near ln(keys) a sink takes about half of a row's mass, so losing it shows
        return math.log(max([1, *seq_lens])) + torch.randn(heads, generator=generator)
    near = torch.linspace(-1.0, 1.0, heads) + math.log(max(1.0, sum(seq_lens) / max(1, len(seq_lens))))
    off = torch.full_like(near, -math.inf)
    some = torch.where(torch.arange(heads) % 2 == 0, off, near)
    return {"near": near, "off": off, "some": some, "heavy": torch.full_like(near, HEAVY)}[ask.sinks]


def _scale(form: str, batch: PagedBatch, size: float, generator: torch.Generator) -> Tensor:
    """Scales from `size` / 2 to 2 `size`; NaN for slots without an owner."""
    blocks, page = batch.by_token()[0].shape[:2]
    heads = batch.shape.num_kv_heads
    sizes = {"one": (1,), "heads": (heads,), "tokens": (blocks, page, heads)}[form]
    scale = size * torch.exp2(2 * torch.rand(sizes, generator=generator) - 1)
    if form == "tokens":
        lens = lens_of(batch.query_start_loc, batch.seq_lens)
        scale[~owned_slots(lens, [batch.block_table], blocks, page)] = math.nan
    return scale.to(batch.device)


def with_scales(features: Features, batch: PagedBatch, ask: Ask, generator: torch.Generator) -> Features:
    """Add scales that give the elements of K and V about the requested factors, and a scale for an fp8 query."""
    if ask.scales is not None:
        size = 1.0 / SPREAD[batch.shape.cache_dtype]
        gains = (ask.key_scale_factor, ask.scale_factor)
        of_key, _, of_value = ask.scales.partition("-")
        forms = zip((of_key, of_value or of_key), gains, strict=True)
        key, value = (_scale(form, batch, size * gain, generator) for form, gain in forms)
        features = replace(features, key_scale=key, value_scale=value)
    if batch.query.dtype.itemsize == 1:
        features = replace(features, query_scale=torch.tensor([0.75], device=batch.device))
    return features


def between_guards(features: Features, guards: Guards, apart: bool) -> Features:
    """The same features with their tensors between guards. apart: tensors of two dimensions or more get gaps of
    garbage."""
    made = {}
    for name in OPERANDS:
        tensor = getattr(features, name)
        if isinstance(tensor, Tensor):
            made[name] = _apart(tensor, name, guards) if apart and tensor.dim() > 1 else guards.copy(name, tensor)
    return replace(features, **made)


def _apart(tensor: Tensor, name: str, guards: Guards) -> Tensor:
    """The same values with three elements of garbage after each row."""
    *outer, size = tensor.shape
    wide = guards.full(name, (*outer, size + 3), tensor.dtype, 2**30 if tensor.dtype == torch.int32 else math.nan)
    return wide[..., :size].copy_(tensor)
