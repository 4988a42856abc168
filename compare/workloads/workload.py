"""A workload: the lengths of a batch and the shape they meet; and the grammar that writes batches on a command line.

The grammar is vLLM's batch spec: `q1s2k` is one query token over a sequence of 2048, `32q1s2k_16q512s1536` joins
groups, `q2k` is a whole prompt. A `~` behind a group varies its lengths: uniform in [0.5, 1] of the one named.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from common.cases.ask import ScaleForm, alibi_slopes, features_of, spans_tensor, tree_bias, with_scales
from common.cases.batch import make_batches
from common.oracle.integrity import Guards
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import asked_of_shape
from common.spec.metadata import BatchStats, lens_of
from common.spec.paged_batch import DTYPES

# What a row asks of attention beyond plain causal rows, before there are tensors; they are drawn beside a batch.


FIRST = ("causal", "sliding_window", "softcap", "sinks")  # asked for since there are rows: always part of their ids
FP8_OUT = torch.float8_e4m3fn
Lens = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Ask:
    """`common.spec.Features` before there are tensors.

    sinks: one near ln(keys) on every head. alibi: slopes of the ALiBi paper. spans: an image of so many tokens at the
    start of every sequence's new tokens. encoders: every second sequence is not causal. tree: so many draft tokens, two
    branches at each. scales: form of those of a quantised cache (`AttentionShape.kv_dtype`). fp8_out: e4m3, scale 1/64.
    """

    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: Literal["linear", "sqrt"] | None = None
    chunk: int | None = None
    chunk_lookback: int = 0
    spans: int | None = None
    encoders: bool = False
    cross: bool = False
    tree: int | None = None
    scales: ScaleForm | None = None
    fp8_out: bool = False
    batch_invariant: bool = False

    def names(self) -> tuple[str, ...]:
        """What differs from plain causal attention, as text."""
        asked = [] if self.causal else ["non_causal"]
        asked += [f"{k}={v}" for k in ("sliding_window", "softcap") if (v := getattr(self, k)) is not None]
        asked += ["sinks"] * self.sinks
        for field in fields(self)[len(FIRST) :]:
            value = getattr(self, field.name)
            if value != field.default:
                asked.append(field.name if value is True else f"{field.name}={value}")
        return tuple(asked)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is not asked for is left out, but for the first four."""
        named = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in named.items() if name in FIRST or value != default}

    def members(self, shape: AttentionShape) -> frozenset[str]:
        """What a kernel's SUPPORTS must have for it."""
        return self._sketch().names() | asked_of_shape(shape)

    @property
    def sees(self) -> int:
        """`Features.sees`."""
        return self._sketch().sees

    def _sketch(self) -> Features:
        """The features with tensors of nothing."""
        return features_of(self, **{name: torch.empty(0) for name, on in self._drawn().items() if on})

    def _drawn(self) -> dict[str, bool]:
        """The features that are tensors, whatever the shape of the cache."""
        return {
            "sinks": self.sinks,
            "alibi_slopes": self.alibi is not None,
            "spans": self.spans is not None,
            "causal_per_sequence": self.encoders,
            "tree_bias": self.tree is not None,
            "out_scale": self.fp8_out,
        }

    def _draw(self, name: str, lens: Lens, heads: int, keys: int, generator: torch.Generator) -> torch.Tensor:
        if name == "sinks":  # near ln(keys) one takes about half of a row's mass, so that losing it shows
            return math.log(max(keys, 1)) + torch.randn(heads, generator=generator)
        if name == "alibi_slopes":
            return torch.tensor(alibi_slopes(heads))
        if name == "spans":
            firsts = [max(seq_len - query_len, 0) for query_len, seq_len in lens]
            return spans_tensor(tuple(((first, first + self.spans - 1),) for first in firsts))
        if name == "causal_per_sequence":
            return (torch.arange(len(lens)) % 2).to(torch.int32)
        if name == "tree_bias":
            return tree_bias([(token - 1) // 2 if token else -1 for token in range(self.tree)], generator)
        return torch.tensor([1.0 / 64])

    def features(self, batch: PagedBatch, seed: int, keys: int | None = None) -> Features:
        """Features of a batch, on its device. keys: seen by a row, for the sinks; None: of the longest sequence."""
        generator = torch.Generator().manual_seed(seed)
        lens = lens_of(batch.query_start_loc, batch.seq_lens)
        keys = batch.stats.max_seq_len if keys is None else keys
        heads = batch.shape.num_query_heads
        drawn = [name for name, on in self._drawn().items() if on]
        tensors = {name: self._draw(name, lens, heads, keys, generator).to(batch.device) for name in drawn}
        return with_scales(features_of(self, **tensors), batch, self.scales, 1.0, generator)

    def hidden(self) -> int:
        """Pairs of a draft tree that no token sees: of a token and one before it that is no ancestor."""
        depths = [token.bit_length() for token in range(1, (self.tree or 0) + 1)]
        return sum(range(1, len(depths) + 1)) - sum(depths)


def out_dtype(shape: AttentionShape, scaled: bool) -> torch.dtype:
    """What a launch writes: e4m3 where the output is `scaled`, else the query's dtype, and bf16 for an fp8 query."""
    if scaled:
        return FP8_OUT
    return shape.dtype if shape.dtype in DTYPES else torch.bfloat16


def empty_output(batch: PagedBatch, features: Features) -> torch.Tensor:
    """[num_tokens, num_query_heads, value lanes] in `out_dtype`."""
    shape = batch.shape
    dtype = out_dtype(shape, features.out_scale is not None)
    return torch.empty((*batch.query.shape[:2], shape.value_lanes), dtype=dtype, device=batch.device)


MODELS = {  # query heads, KV heads, head size of public models
    "llama-3-8b": (32, 8, 128),
    "llama-3-70b": (64, 8, 128),
    "llama-2-7b": (32, 32, 128),
    "qwen2.5-7b": (28, 4, 128),
    "qwen3-32b": (64, 8, 128),
    "mistral-7b": (32, 8, 128),
    "gemma-2-9b": (16, 8, 256),
    "phi-2": (32, 32, 80),
    "gpt-oss-20b": (64, 8, 64),
}
PLAIN = Ask()
LLAMA_3_8B = AttentionShape(32, 8, 128, 16, torch.bfloat16)
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES} | {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
NEW_KV = "+kv"  # behind the label of a row that has the step's new K and V
MOST_SEQUENCES, MOST_KEYS = 2**16, 2**31 - 1  # of a group; lengths are int32 on the device
SPECULATIVE_MAX = 16  # query tokens; more over a context is a chunk of a prompt
_GROUP = re.compile(r"(?P<count>\d+)?q(?P<query>\d+)(?P<qk>k?)(?:s(?P<seq>\d+)(?P<sk>k?))?(?P<vary>~?)")


class GrammarError(ValueError):
    """A batch, shape or dtype that the command line cannot read; the message points at the part."""


@dataclass(frozen=True)
class Workload:
    """What one row of a suite asks of every kernel. `label` is unique in its suite; `lens` are (query_len, seq_len).

    new_kv: kernels are also given the step's new K and V, contiguous; those that do not read them ignore them.
    """

    label: str
    lens: tuple[tuple[int, int], ...]
    shape: AttentionShape = LLAMA_3_8B
    ask: Ask = PLAIN
    style: str = "nhd"
    shared_pages: int = 0
    seed: int = 0
    new_kv: bool = False

    @property
    def id(self) -> str:
        """16 hex digits over all that decides the tensors, the seed included and the label not."""
        plain = self.to_dict()
        del plain["label"]
        if not self.new_kv:
            del plain["new_kv"]  # rows keep the ids that they had before there was such a field
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def with_new_kv(self) -> Workload:
        """The same row with the step's new K and V given, under a label that says so."""
        return self if self.new_kv else dataclasses.replace(self, new_kv=True, label=self.label + NEW_KV)

    @property
    def asked(self) -> tuple[str, ...]:
        """What differs from plain causal attention over pages alone, as text."""
        return self.ask.names() + (("new_kv",) if self.new_kv else ())

    @property
    def out_dtype(self) -> torch.dtype:
        return out_dtype(self.shape, self.ask.fp8_out)

    @property
    def stats(self) -> BatchStats:
        return BatchStats.of(self.lens)

    @property
    def kind(self) -> str:
        """The class: decode, speculative, prefill or mixed. Empty sequences do not count."""
        kinds = {_kind_of(query_len, seq_len) for query_len, seq_len in self.lens if query_len}
        if kinds <= {"decode"}:
            return "decode"
        if kinds <= {"decode", "speculative"}:
            return "speculative"
        return "prefill" if kinds == {"prefill"} else "mixed"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the worker's pipe and the manifest."""
        plain = dataclasses.asdict(self)
        plain["shape"], plain["ask"] = self.shape.to_dict(), self.ask.to_dict()
        plain["lens"] = [list(pair) for pair in self.lens]
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Workload:
        shape = AttentionShape.from_dict(plain["shape"])
        lens = tuple((query_len, seq_len) for query_len, seq_len in plain["lens"])
        return cls(**plain | {"shape": shape, "lens": lens, "ask": Ask(**plain["ask"])})

    def features(self, batch: PagedBatch) -> Features:
        """What is asked, for the first of this workload's batches."""
        return self.ask.features(batch, self.seed + 1)

    def batches(
        self,
        copies: int,
        device: torch.device | str,
        guards: Guards | None = None,
        pad_tokens: int = 0,
        *,
        fill: bool = True,
    ) -> list[PagedBatch]:
        """`copies` page sets of this workload over one pool; values by `seed`. pad_tokens: rows past the last one.

        fill: False leaves the values out, for a compiler.
        """
        return make_batches(
            self.lens,
            self.shape,
            copies=copies,
            seed=self.seed,
            device=device,
            style=self.style,
            shared_pages=self.shared_pages,
            pad_tokens=pad_tokens,
            guards=guards,
            new_kv=self.new_kv,
            fill=fill,
        )


def _kind_of(query_len: int, seq_len: int) -> str:
    if query_len == 1:
        return "decode"
    return "speculative" if query_len <= SPECULATIVE_MAX and seq_len > query_len else "prefill"


def vary(count: int, longest: int, seed: int) -> list[int]:
    """Lengths uniform in [0.5, 1] of `longest`, which the first has. The generator that every published figure used."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (torch.rand(count, generator=generator) * 0.5 + 0.5).mul(longest).long().tolist()
    return [longest, *lengths[1:]]


def _broken(text: str, at: int, part: str, why: str) -> GrammarError:
    return GrammarError(f"workload: {why}\n  {text}\n  {' ' * at}{'^' * max(len(part), 1)}")


def _group(text: str, at: int, part: str) -> list[tuple[int, int]]:
    found = _GROUP.fullmatch(part)
    if found is None:
        raise _broken(text, at, part, f"found {part!r}, allowed [count]q<n>[k][s<n>[k]][~], as in 32q1s2k")
    count = int(found["count"] or 1)
    query = int(found["query"]) * (1024 if found["qk"] else 1)
    whole = found["seq"] is None
    seq = query if whole else int(found["seq"]) * (1024 if found["sk"] else 1)
    if not 1 <= count <= MOST_SEQUENCES:
        raise _broken(text, at, part, f"found {count} sequences in {part!r}, allowed 1 to {MOST_SEQUENCES}")
    if seq > MOST_KEYS:
        raise _broken(text, at, part, f"found {seq} keys in {part!r}, allowed at most {MOST_KEYS}")
    if seq < query:
        raise _broken(text, at, part, f"found sequence {seq} in {part!r}, allowed at least its query length {query}")
    if not found["vary"] or count == 1:
        return [(query, seq)] * count
    lengths = vary(count, seq, 1000 + count)
    return [(n, n) if whole else (query, max(n, query)) for n in lengths]


def parse_lens(text: str) -> tuple[tuple[int, int], ...]:
    """The (query_len, seq_len) of a batch in the grammar. Raises GrammarError that shows the offending part."""
    lens, at = [], 0
    for part in text.split("_"):
        lens += _group(text, at, part)
        at += len(part) + 1
    return tuple(lens)


def parse_shape(text: str, block_size: int, dtype: str) -> AttentionShape:
    """`32:8:128` (query heads : KV heads : head size) or a model's name. Raises GrammarError or SpecError."""
    sizes = MODELS.get(text.lower())
    if sizes is None:
        if not re.fullmatch(r"\d+:\d+:\d+", text):
            near = difflib.get_close_matches(text.lower(), MODELS, n=3, cutoff=0.4)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise GrammarError(f"shape: found {text!r}, allowed heads:kv_heads:head_size or {', '.join(MODELS)}{hint}")
        sizes = tuple(int(part) for part in text.split(":"))
    if dtype not in DTYPE_NAMES:
        raise GrammarError(f"dtype: found {dtype!r}, allowed {', '.join(DTYPE_NAMES)}")
    return AttentionShape(*sizes, block_size, DTYPE_NAMES[dtype])
