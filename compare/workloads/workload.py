"""A workload: the lengths and the shape of a batch; and the grammar of batches on a command line.

The grammar is vLLM's batch spec: `q1s2k` is one query token over a sequence of 2048, `32q1s2k_16q512s1536` joins
groups, `q2k` is a whole prompt. A `~` behind a group varies its lengths: uniform in [0.5, 1] of the one named.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import torch

from common.cases.ask import FP8_OUT, PLAIN, Ask
from common.cases.batch import make_batches
from common.oracle.integrity import Guards
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.metadata import BatchStats
from common.spec.paged_batch import DTYPES
from compare.exits import nearest


def out_dtype(shape: AttentionShape, scaled: bool) -> torch.dtype:
    """The dtype of the output: e4m3 where it is `scaled`, else the query's, and bf16 for an fp8 query."""
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
LLAMA_3_8B = AttentionShape(32, 8, 128, 16, torch.bfloat16)
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES} | {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
NEW_KV = "+kv"  # suffix of the label of a row with the step's new K and V
MOST_SEQUENCES, MOST_KEYS = 2**16, 2**31 - 1  # of a group; lengths are int32 on the device
SPECULATIVE_MAX = 16  # query tokens; more over a context is a chunk of a prompt
_GROUP = re.compile(
    r"(?P<count>\d{1,18})?q(?P<query>\d{1,18})(?P<qk>k?)(?:s(?P<seq>\d{1,18})(?P<sk>k?))?(?P<vary>~?)", re.ASCII
)


class GrammarError(ValueError):
    """A batch, shape or dtype that the command line cannot read; the message points at the part."""


@dataclass(frozen=True)
class Workload:
    """What a row of a suite asks of every kernel. `label` is unique in its suite; `lens` are (query_len, seq_len).

    new_kv: kernels also get the step's new K and V, contiguous; those that do not read them ignore them.
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
        """16 hex digits of everything that decides the tensors: the seed, but not the label."""
        plain = self.to_dict()
        del plain["label"]
        if not self.new_kv:
            del plain["new_kv"]  # rows keep the ids from before this field
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def with_new_kv(self) -> "Workload":
        """The same row with the step's new K and V, under a label that says so."""
        return self if self.new_kv else dataclasses.replace(self, new_kv=True, label=self.label + NEW_KV)

    @property
    def asked(self) -> tuple[str, ...]:
        """What differs from plain causal attention over pages, as text."""
        return self.ask.names() + (("new_kv",) if self.new_kv else ())

    @property
    def out_dtype(self) -> torch.dtype:
        return out_dtype(self.shape, self.ask.out_dtype is not None)

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
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # asdict would copy lens
        plain["shape"], plain["ask"] = self.shape.to_dict(), self.ask.to_dict()
        plain["lens"] = [list(pair) for pair in self.lens]
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Workload":
        shape = AttentionShape.from_dict(plain["shape"])
        lens = tuple((query_len, seq_len) for query_len, seq_len in plain["lens"])
        return cls(**plain | {"shape": shape, "lens": lens, "ask": Ask.from_dict(plain["ask"])})

    def features(self, batch: PagedBatch) -> Features:
        """The features asked, for the first of this workload's batches."""
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
    """Lengths uniform in [0.5, 1] of `longest`, which the first has. Every published figure used this generator."""
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
    """The (query_len, seq_len) of a batch in the grammar. Raises GrammarError showing the offending part."""
    lens, at = [], 0
    for part in text.split("_"):
        lens += _group(text, at, part)
        at += len(part) + 1
    return tuple(lens)


def parse_shape(text: str, block_size: int, dtype: str) -> AttentionShape:
    """`32:8:128` (query heads : KV heads : head size) or a model's name. Raises GrammarError or SpecError."""
    sizes = MODELS.get(text.lower())
    if sizes is None:
        if not re.fullmatch(r"[0-9]{1,5}:[0-9]{1,5}:[0-9]{1,5}", text):
            allowed = f"heads:kv_heads:head_size or {', '.join(MODELS)}{nearest(text.lower(), MODELS)}"
            raise GrammarError(f"shape: found {text!r}, allowed {allowed}")
        sizes = tuple(int(part) for part in text.split(":"))
    if dtype not in DTYPE_NAMES:
        raise GrammarError(f"dtype: found {dtype!r}, allowed {', '.join(DTYPE_NAMES)}")
    return AttentionShape(*sizes, block_size, DTYPE_NAMES[dtype])
