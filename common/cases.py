"""The named corner cases: small batches at the edges where attention kernels break.

`numbers` place a case in the list of 100 corners that attention kernels are known to break at; `name` is the stable id
that third parties use. A case over 10 s in an interpreter is `large`: for a GPU only, `too_large` on a CPU.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Literal

import torch

from common import case_layouts as layouts
from common.batch import CacheStyle, make_batch
from common.case_layouts import Arrange
from common.guards import Guards
from common.spec import AttentionShape, Features, Layout, PagedBatch

H, B, F = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """One corner: a batch is a function of it and nothing else.

    lens: (query_len, seq_len) per sequence. heads: query heads, KV heads. sinks: "near" puts a sink of ln(n) +- 1 on
    every head, n the mean sequence length, so that it carries about half of the mass; "off" one of -inf.
    loud: what the queries are multiplied by. new_kv: the step's new K and V are given too. arrange: how the batch is
    laid out afterwards. pad_out: `out` has eight lanes between its heads. refused: the argument that the typed error
    must name, where the case is one to refuse.
    """

    name: str
    numbers: tuple[int, ...]
    lens: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (4, 2)
    head_size: int = 32
    block_size: int = 16
    dtype: torch.dtype = B
    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Literal["near", "off"] | None = None
    loud: float = 1.0
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
    large: bool = False
    refused: str | None = None

    @property
    def shape(self) -> AttentionShape:
        """Raises SpecError in a case that refuses the shape itself."""
        return AttentionShape(*self.heads, self.head_size, self.block_size, self.dtype)

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def structured(self) -> bool:
        """Whether the checker may not assume independent rounding errors."""
        return self.loud != 1.0

    def features(self, device: torch.device | str = "cpu") -> Features:
        sinks = None
        if self.sinks is not None:
            mean = max(1.0, sum(seq_len for _, seq_len in self.lens) / max(1, len(self.lens)))
            around = torch.linspace(-1.0, 1.0, self.heads[0]) + math.log(mean)
            sinks = (around if self.sinks == "near" else torch.full_like(around, -math.inf)).to(device)
        return Features(self.causal, self.sliding_window, self.softcap, sinks)


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
    if case.loud != 1.0:
        batch.query.mul_(case.loud)
    if case.arrange is not None:
        batch = case.arrange(batch, guards)
    return batch, case.features(device)


def outputs(
    case: Case, batch: PagedBatch, guards: Guards, poison: float = math.nan
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) for a launch on `batch`, filled with `poison`, between guards."""
    tokens, heads, size = batch.query.shape
    out = guards.full("out", (tokens, heads, size + 8 * case.pad_out), batch.query.dtype, poison)
    return out[..., :size], guards.full("lse", (tokens, heads), torch.float32, poison)


def _decode(*seq_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((1, seq_len) for seq_len in seq_lens)


def _prompts(*query_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((query_len, query_len) for query_len in query_lens)


_MIXED = ((1, 40), (9, 9), (1, 17), (5, 30))
_TWO_DECODES = _decode(45, 20)
_RAGGED = ((1, 45), (5, 20), (18, 18))
_LONG = (1, 1)  # heads of cases with many tokens or keys: one program each


def _case(name: str, *numbers: int, lens: tuple[tuple[int, int], ...] = _RAGGED, **options: object) -> Case:
    return Case(name, numbers, lens, **options)


CASES: tuple[Case, ...] = (
    # query lengths
    _case("query-0", 1, lens=((0, 20), (3, 20), (0, 5)), dtype=H),
    _case("query-1", 2, lens=_decode(3, 20), dtype=F),
    _case("query-2", 3, lens=((2, 2), (2, 19))),
    _case("query-3", 4, lens=((3, 3), (3, 18)), dtype=H),
    _case("query-15-16-17", 5, lens=((15, 20), (16, 16), (17, 40))),
    _case("query-127", 6, lens=((127, 130),), heads=_LONG, block_size=64, dtype=H),
    _case("query-128", 6, lens=((128, 128),), heads=_LONG, block_size=64),
    _case("query-129", 6, lens=((129, 140),), heads=_LONG, block_size=64, dtype=F),
    _case("chunk-1000", 7, lens=((1000, 3000), (1, 77)), heads=(8, 2), head_size=128, large=True),
    _case("one-prompt-among-decodes", 8, lens=(*_decode(5, 33), (40, 40), *_decode(18)), heads=(2, 1), dtype=H),
    _case("one-prompt-of-512-among-decodes", 8, lens=(*_decode(5, 33), (512, 512), *_decode(*[18] * 60)), large=True),
    _case("speculative-2-to-9", 9, lens=((2, 30), (5, 41), (9, 33)), heads=(2, 1)),
    # context lengths
    _case("context-0", 10, lens=_prompts(5, 16, 20)),
    _case("context-1", 11, lens=((4, 5), (1, 2), (17, 18)), dtype=H),
    _case("context-page-minus-1", 12, lens=((4, 19), (1, 16)), dtype=F),
    _case("context-page", 12, lens=((4, 20), (1, 17))),
    _case("context-page-plus-1", 12, lens=((4, 21), (1, 18)), dtype=H),
    _case("context-not-a-multiple", 13, lens=((7, 44), (3, 26))),
    # sequence lengths at boundaries
    _case("sequence-at-page", 14, lens=_decode(15, 16, 17, 31, 32, 33), heads=(2, 1), dtype=H),
    _case("sequence-at-tile", 15, lens=_decode(63, 64, 65, 127, 128, 129), heads=(2, 1)),
    _case("sequence-at-segment", 16, lens=_decode(127, 128, 129, 255, 256, 257), heads=_LONG, block_size=32, dtype=F),
    _case("prompts-at-segment", 16, lens=((3, 128), (3, 129), (2, 511), (2, 513)), heads=_LONG, block_size=64),
    _case("sequence-1", 17, lens=_decode(1, 1), dtype=H),
    _case("sequence-65536", 18, lens=((1, 65536), (3, 65535), (1, 9)), heads=(8, 2), head_size=128, large=True),
    _case("sequence-131075", 19, lens=((1, 131075), (2, 131072)), heads=(8, 1), head_size=128, dtype=H, large=True),
    # nothing
    _case("one-empty-sequence", 20, lens=((1, 20), (0, 0), (4, 9), (1, 0))),
    _case("all-sequences-empty", 21, lens=((1, 0), (3, 0), (0, 0)), dtype=H),
    _case("cache-without-pages", 22, lens=((1, 0), (2, 0)), spare_pages=0, extra_columns=0, dtype=F),
    _case("batch-0", 23, lens=()),
    _case("batch-1", 24, lens=((6, 30),), dtype=F),
    _case("no-tokens", 25, lens=((0, 17), (0, 0), (0, 32)), dtype=H),
    # many sequences
    _case("batch-257", 26, lens=tuple((1, 1 + i % 9) for i in range(257)), heads=_LONG, head_size=16, dtype=H),
    _case("batch-1024", 27, lens=tuple((1 + (i % 7 == 0) * 5, 9 + 37 * i % 700) for i in range(1024)), large=True),
    _case("batch-4096", 28, lens=tuple((1, 1 + 53 * i % 300) for i in range(4096)), dtype=H, large=True),
    # mixtures and their order
    _case("all-decode", 29, lens=_decode(3, 45, 17, 32), dtype=F),
    _case("all-prefill", 30, lens=_prompts(3, 18, 25), heads=(2, 1), dtype=H),
    _case("decode-then-prefill", 31, lens=(*_decode(40, 17), *_prompts(9, 18))),
    _case("prefill-then-decode", 31, lens=(*_prompts(9, 18), *_decode(40, 17)), dtype=H),
    _case("prefill-and-decode-alternate", 31, lens=_MIXED, dtype=F),
    _case("one-long-255-short", 32, lens=((1, 32768), *_decode(*[1] * 255)), heads=(8, 2), head_size=128, large=True),
    # page sizes
    _case("page-1", 33, block_size=1, refused="block_size"),
    _case("page-8", 34, block_size=8),
    _case("page-16", 35, block_size=16, dtype=H),
    _case("page-24", 36, block_size=24),
    _case("page-32", 37, block_size=32, dtype=F),
    _case("page-48", 38, block_size=48, lens=((1, 100), (5, 50)), dtype=H),
    _case("page-64", 39, block_size=64, lens=((1, 130), (5, 64))),
    _case("page-128", 40, block_size=128, lens=((1, 130), (5, 128)), dtype=H),
    _case("page-256", 41, block_size=256, lens=((1, 300), (2, 256)), heads=(2, 1)),
    _case("page-544", 42, block_size=544, lens=((1, 600), (2, 545)), heads=(2, 1), head_size=16, dtype=H),
    _case("page-784", 43, block_size=784, lens=((1, 800), (2, 785)), heads=(2, 1), head_size=16),
    # head sizes
    _case("head-32", 44, lens=_TWO_DECODES, head_size=32, dtype=F),
    _case("head-40", 45, head_size=40),
    _case("head-64", 46, lens=_TWO_DECODES, head_size=64, dtype=H),
    _case("head-80", 47, head_size=80),
    _case("head-96", 48, lens=_TWO_DECODES, head_size=96, dtype=H),
    _case("head-112", 49, lens=_TWO_DECODES, head_size=112, dtype=F),
    _case("head-120", 50, lens=_TWO_DECODES, head_size=120),
    _case("head-128", 51, lens=_TWO_DECODES, head_size=128),
    _case("head-192", 52, lens=_TWO_DECODES, head_size=192, dtype=H),
    _case("head-256", 53, lens=_TWO_DECODES, head_size=256),
    # query heads per KV head
    _case("ratio-1", 56, heads=(2, 2), dtype=H),
    _case("ratio-2", 57, heads=(4, 2)),
    _case("ratio-3", 58, heads=(3, 1), dtype=F),
    _case("ratio-4", 59, lens=_MIXED, heads=(4, 1), dtype=H),
    _case("ratio-5", 60, lens=_MIXED, heads=(10, 2)),
    _case("ratio-6", 61, lens=_MIXED, heads=(6, 1), dtype=H),
    _case("ratio-7", 62, lens=_MIXED, heads=(7, 1)),
    _case("ratio-8", 63, lens=_MIXED, heads=(8, 1), dtype=F),
    _case("ratio-12", 64, lens=_MIXED, heads=(12, 1), dtype=H),
    _case("ratio-16", 65, lens=_MIXED, heads=(16, 1)),
    _case("ratio-17", 66, lens=((1, 40), (3, 20)), heads=(17, 1), dtype=F),
    _case("ratio-24", 66, lens=((1, 40), (3, 20)), heads=(24, 1), dtype=H),
    _case("ratio-64", 66, lens=((1, 20), (2, 9)), heads=(64, 1)),
    _case("kv-heads-3", 67, lens=((1, 40), (3, 20)), heads=(6, 3), dtype=H),
    _case("kv-heads-5", 67, lens=((1, 40), (3, 20)), heads=(5, 5)),
    # pages and the block table
    _case("pages-permuted", 68, lens=((1, 90), (5, 60)), block_size=8),
    _case("pages-reversed", 69, lens=((1, 60), (5, 40)), block_size=8, dtype=H, arrange=layouts.reversed_pages),
    _case("pages-shared", 70, lens=((1, 60), (5, 45), (1, 34)), shared_pages=2),
    _case("page-twice-in-one-sequence", 70, lens=((1, 60), (5, 45)), dtype=F, arrange=layouts.page_twice),
    _case("table-tail-garbage", 71, lens=(*_decode(9, 33, 17, 20), (4, 50)), heads=(2, 1), dtype=H),
    _case("table-exactly-as-wide-as-used", 72, lens=((3, 20), (1, 64)), extra_columns=0),
    _case("table-exactly-as-wide-partial-page", 72, lens=((1, 20), (2, 50)), extra_columns=0, dtype=H),
    _case("table-columns-int32", 73, arrange=layouts.table_columns, dtype=F),
    _case("table-columns-int64", 73, arrange=layouts.table_columns, table_dtype=torch.int64),
    _case("table-rows-int32", 73, arrange=layouts.table_rows, dtype=H),
    _case("table-rows-int64", 73, arrange=layouts.table_rows, table_dtype=torch.int64),
    _case(
        "page-id-beyond-16-bits", 74, lens=_TWO_DECODES, heads=_LONG, head_size=8, block_size=8, spare_pages=65600,
        arrange=layouts.last_pages,
    ),
    _case(
        "page-offset-beyond-31-bits-of-bytes", 75, lens=_TWO_DECODES, heads=(16, 8), head_size=128, spare_pages=70000,
        arrange=layouts.last_pages, large=True,
    ),
    _case(
        "page-offset-beyond-31-bits-of-elements", 76, lens=_RAGGED, heads=(16, 8), head_size=128, spare_pages=140000,
        arrange=layouts.last_pages, large=True,
    ),
    # strides and layouts
    _case("query-in-fused-qkv", 78, arrange=layouts.fused_query),
    _case("query-and-out-padded", 79, arrange=layouts.padded_query, pad_out=True, dtype=H),
    _case("cache-stacked", 80, style="stacked"),
    _case("cache-interleaved", 80, style="interleaved", dtype=H),
    _case("cache-nhd", 81, style="nhd", dtype=F),
    _case("cache-hnd", 82, style="hnd", dtype=H),
    _case("cache-x-packed", 83, layout=Layout.X_PACKED),
    _case("unaligned-and-odd-strides", 84, arrange=layouts.unaligned),
    # windows
    _case("window-1", 85, sliding_window=1),
    _case("window-page-minus-1", 86, lens=((1, 60), (5, 40)), sliding_window=15, dtype=H),
    _case("window-page", 86, lens=((1, 60), (5, 40)), sliding_window=16),
    _case("window-page-plus-1", 86, lens=((1, 60), (5, 40)), sliding_window=17, dtype=F),
    _case("window-beyond-the-sequence", 87, sliding_window=45),
    _case("window-4096-of-5000", 88, lens=((1, 5000),), heads=_LONG, block_size=64, sliding_window=4096, dtype=H),
    _case("window-leaves-leading-segments-empty", 89, lens=((1, 500), (3, 300)), heads=(2, 1), sliding_window=21),
    _case("window-starts-inside-a-tile", 89, lens=((9, 90), (1, 75)), heads=(2, 1), sliding_window=40, dtype=H),
    # soft caps and sinks
    _case("softcap-15", 90, softcap=15.0, dtype=H),
    _case("softcap-50-logits-4400", 91, lens=_MIXED, softcap=50.0, loud=3000.0),
    _case("sinks-near-the-mass", 93, lens=((1, 300), (3, 40)), heads=(4, 1), sinks="near"),
    _case("sinks-with-window", 93, lens=((1, 300), (9, 60)), heads=(4, 1), sinks="near", sliding_window=33, dtype=F),
    _case("sinks-off", 94, sinks="off", dtype=H),
    # beside the numbered ones
    _case("non-causal", causal=False, dtype=H),
    _case("non-causal-with-window", lens=((5, 40), (9, 9)), causal=False, sliding_window=7),
    _case("padded-tokens", pad_tokens=13),
    _case("hints-too-small", lens=((3, 90), (20, 60)), heads=(2, 1), arrange=layouts.small_hints, dtype=H),
    _case("hints-too-large", lens=_MIXED, arrange=layouts.large_hints),
    _case(
        "everything-at-once", lens=(*_MIXED, (0, 0)), heads=(10, 2), head_size=40, block_size=24, sliding_window=19,
        softcap=20.0, sinks="near", style="interleaved", pad_tokens=3, dtype=H,
    ),
)  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
