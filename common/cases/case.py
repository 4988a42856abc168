"""What a named case is, and how it becomes a batch."""

import dataclasses
import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from common.cases.ask import PLAIN, Ask, between_guards, features_of, with_scales
from common.cases.batch import CacheStyle, make_batch
from common.cases.fills import Fill, structured
from common.cases.layouts import Arrange, far_query, far_rows, strided
from common.oracle.integrity import Guards
from common.spec import AttentionShape, Features, Layout, PagedBatch
from common.spec.paged_batch import FP8


@dataclass(frozen=True)
class Case:
    """One corner: a batch is a function of it and nothing else.

    lens: (query_len, seq_len) per sequence. heads: query heads, KV heads. ask: the features; `of` and `but` take its
    fields beside the case's own.
    loud: what the queries are multiplied by. fill: values that break kernels. new_kv: the step's new K and V are given
    too. arrange: how the batch is laid out afterwards. pad_out: `out` has eight lanes between its heads. tile_size:
    keys of a tile, where a kernel's config has such a thing. refused: the argument that the typed error must name,
    where the case is one to refuse. apart: features' tensors have gaps of garbage behind their rows.
    softmax_scale: None: head_size^-0.5. query_style, key_style, value_style, out_style: how that tensor alone lies in
    memory, one of `layouts.STRIDES`. change: what alone is another in the call that changes one thing
    (`common.cases.calls`); None: by the case's name. lse: how the LSE lies in memory, one of LSE_STYLES, where
    a kernel has it; None: none is asked for. company: some of the sequences are asked alone and with others, too
    (`common.cases.company`). sweep: a number that is asked with many values, one of `swept.WORDS`
    (`common.cases.swept`). brief: in place of the calls behind the first there is one of
    the last token of each sequence, for what no other call would show.
    """

    name: str
    numbers: tuple[int, ...]
    lens: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (4, 2)
    head_size: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    ask: Ask = PLAIN
    loud: float = 1.0
    fill: Fill | None = None
    style: CacheStyle = "nhd"
    shared_pages: int = 0
    pad_tokens: int = 0
    extra_columns: int = 3
    spare_pages: int = 3
    table_dtype: torch.dtype = torch.int32
    new_kv: bool = False
    layout: Layout = Layout.PAGED
    arrange: Arrange | None = None
    pad_out: bool = False
    tile_size: int | None = None
    large: bool = False
    refused: str | None = None
    value_size: int | None = None
    kv_dtype: torch.dtype | None = None
    fp8_query: torch.dtype | None = None
    apart: bool = False
    softmax_scale: float | None = None
    query_style: str | None = None
    key_style: str | None = None
    value_style: str | None = None
    out_style: str | None = None
    change: str | None = None
    lse: str | None = "rows"
    company: bool = False
    sweep: str | None = None
    brief: bool = False

    @classmethod
    def of(cls, name: str, numbers: tuple[int, ...], lens: tuple[tuple[int, int], ...], **options: Any) -> "Case":
        """A case of fields, its own and those of what it asks."""
        asked, own = _sorted(options)
        return cls(name, numbers, lens, ask=Ask(**asked), **own)

    def but(self, **changes: Any) -> "Case":
        """The case with other fields, its own and those of what it asks."""
        asked, own = _sorted(changes)
        return dataclasses.replace(self, ask=dataclasses.replace(self.ask, **asked), **own)

    def value(self, field: str) -> Any:
        """Of one of FIELDS."""
        return getattr(self.ask if field in ASKED else self, field)

    @property
    def shape(self) -> AttentionShape:
        """Raises SpecError in a case that refuses the shape itself."""
        dtypes = (self.fp8_query, self.fp8_query) if self.fp8_query else (self.dtype, self.kv_dtype)
        sizes = (*self.heads, self.head_size, self.block_size)
        return AttentionShape(*sizes, dtypes[0], self.value_size, dtypes[1])

    @cached_property
    def asked(self) -> frozenset[str]:
        """The members that a kernel's SUPPORTS must have; those of a launch without LSE."""
        packed = {"x_packed"} if self.layout is Layout.X_PACKED else set()
        return self.ask.members(self.shape) | packed

    @property
    def fp8(self) -> dict[str, torch.dtype]:
        """The arguments that hold fp8, and which."""
        named = {"query": self.fp8_query, "key_cache": self.fp8_query or self.kv_dtype, "out": self.ask.out_dtype}
        return {name: dtype for name, dtype in named.items() if dtype in FP8}

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def structured(self) -> bool:
        """Whether the checker may not assume independent rounding errors."""
        return self.loud != 1.0 or structured(self.fill) or self.flat

    @property
    def flat(self) -> bool:
        """Whether P, in fp8 beside an fp8 query, is nearly one number, or two at the ends of a soft cap that logits
        saturate: within a step of 2^-3 its rounding errors are all the same."""
        spread = 1.0 if self.softmax_scale is None else self.softmax_scale * math.sqrt(self.head_size)
        saturated = self.ask.softcap is not None and self.ask.softcap < spread
        return self.fp8_query is not None and (spread < 2.0**-3 or saturated)

    def features(self, device: torch.device | str = "cpu") -> Features:
        """But for scales of what a batch holds, which `build` adds."""
        return features_of(self.ask, self.lens, self.heads[0], torch.Generator().manual_seed(self.seed), device)


ASKED = tuple(field.name for field in dataclasses.fields(Ask))
FIELDS = tuple(field.name for field in dataclasses.fields(Case) if field.name != "ask") + ASKED


def _sorted(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are fields of an Ask, and the others."""
    asked = {name: value for name, value in options.items() if name in ASKED}
    return asked, {name: value for name, value in options.items() if name not in ASKED}


_BATCH_OPTIONS = (
    "style", "shared_pages", "pad_tokens", "extra_columns", "spare_pages", "table_dtype", "new_kv", "layout",
)  # fmt: skip


def build(case: Case, device: torch.device | str = "cpu", guards: Guards | None = None) -> tuple[PagedBatch, Features]:
    """The batch and the features of a case, every tensor between the bands of `guards`.

    Deterministic on one device type. Raises SpecError in a case that refuses the shape itself.
    """
    guards = guards or Guards(device)
    options = {name: getattr(case, name) for name in _BATCH_OPTIONS}
    batch = make_batch(list(case.lens), case.shape, seed=case.seed, device=device, guards=guards, **options)
    if case.softmax_scale is not None:
        batch = batch.replace(softmax_scale=case.softmax_scale)
    if case.loud != 1.0:
        batch.query.mul_(case.loud)
    features = case.features(device)
    if case.fill is not None:
        case.fill(batch, features)
    if case.arrange is not None:
        batch = case.arrange(batch, guards)
    batch = _restyled(case, batch, guards)
    generator = torch.Generator().manual_seed(case.seed)
    features = with_scales(features, batch, case.ask, generator)
    return batch, between_guards(features, guards, case.apart)


def _restyled(case: Case, batch: PagedBatch, guards: Guards) -> PagedBatch:
    """The batch, its query and caches each in the strides of its own that the case names."""
    tensors = {"query": "query", "key": "key_cache", "value": "value_cache"}
    styles = {tensors[name]: style for name in tensors if (style := getattr(case, f"{name}_style")) is not None}
    # a step's new K and V lie as their caches, but at multiples of 16 bytes
    styles |= {name: styles[tensors[name]] for name in ("key", "value") if styles.get(tensors[name], "odd") != "odd"}
    styles = {name: style for name, style in styles.items() if getattr(batch, name) is not None}
    return batch.replace(**{name: strided(getattr(batch, name), style, name, guards) for name, style in styles.items()})


def outputs(
    case: Case, batch: PagedBatch, guards: Guards, poison: float = math.nan
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(out, lse) for a launch on `batch`, filled with `poison`, between guards; lse: None where none is asked for."""
    tokens, heads, size = *batch.query.shape[:2], batch.shape.value_lanes
    if case.arrange is far_query:
        out = far_rows(batch.query, "out", guards).fill_(poison)
    else:
        out = guards.full("out", (tokens, heads, size + 8 * case.pad_out), case.ask.out_dtype or case.dtype, poison)
    out = out[..., :size] if case.out_style is None else strided(out[..., :size], case.out_style, "out", guards)
    return out, None if case.lse is None else _lse((tokens, heads), case.lse, guards, poison)


LSE_STYLES = ("rows", "heads", "apart")


def _lse(shape: tuple[int, int], style: str, guards: Guards, poison: float) -> torch.Tensor:
    """[tokens, heads]. rows: contiguous; heads: one head's behind those of the one before, as FlashAttention has them;
    apart: three of nobody's behind every row."""
    tokens, heads = shape
    sizes = {"rows": shape, "heads": (heads, tokens), "apart": (tokens, heads + 3)}[style]
    lse = guards.full("lse", sizes, torch.float32, poison)
    return lse.t() if style == "heads" else lse[:, :heads]


def config_for(case: Case, config: Any) -> Any:
    """`config` with the case's tile size, where the case has one and the config, or a part of it, a `tile_size`."""
    if case.tile_size is None or not dataclasses.is_dataclass(config):
        return config
    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changed = {name: config_for(case, part) for name, part in parts.items()}
    return dataclasses.replace(config, **changed | ({"tile_size": case.tile_size} if "tile_size" in parts else {}))


def decodes(*seq_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((1, seq_len) for seq_len in seq_lens)


def prompts(*query_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((query_len, query_len) for query_len in query_lens)


MIXED = ((1, 40), (9, 9), (1, 17), (5, 30))
RAGGED = ((1, 45), (5, 20), (18, 18))
ONE_HEAD = (1, 1)  # heads of cases with many tokens or keys: one program each


def named(name: str, *numbers: int, lens: tuple[tuple[int, int], ...] = RAGGED, **options: object) -> Case:
    return Case.of(name, numbers, lens, **options)
