"""The named corner cases: small batches at the edges where attention kernels break.

`numbers` place a case in the list of 100 corners that attention kernels are known to break at; `name` is the stable id
that third parties use. A case over 10 s in an interpreter is `large`: for a GPU only, `too_large` on a CPU.
"""

from __future__ import annotations

import torch

from common.cases import layouts
from common.cases.case import MIXED, ONE_HEAD, RAGGED, Case, build, config_for, decodes, named, outputs, prompts
from common.cases.edge_cases import EDGES
from common.cases.family_cases import FAMILY
from common.cases.feature_cases import FEATURE_CASES
from common.spec import Layout

__all__ = ["BY_NAME", "CASES", "Case", "build", "config_for", "outputs"]

H, F = torch.float16, torch.float32  # the others are bfloat16
_TWO = decodes(45, 20)

_NUMBERED: tuple[Case, ...] = (
    # query lengths
    named("query-0", 1, lens=((0, 20), (3, 20), (0, 5)), dtype=H),
    named("query-1", 2, lens=decodes(3, 20), dtype=F),
    named("query-2", 3, lens=((2, 2), (2, 19))),
    named("query-3", 4, lens=((3, 3), (3, 18)), dtype=H),
    named("query-15-16-17", 5, lens=((15, 20), (16, 16), (17, 40))),
    named("query-127", 6, lens=((127, 130),), heads=ONE_HEAD, block_size=64, dtype=H),
    named("query-128", 6, lens=((128, 128),), heads=ONE_HEAD, block_size=64),
    named("query-129", 6, lens=((129, 140),), heads=ONE_HEAD, block_size=64, dtype=F),
    named("chunk-1000", 7, lens=((1000, 3000), (1, 77)), heads=(8, 2), head_size=128, large=True),
    named("one-prompt-among-decodes", 8, lens=(*decodes(5, 33), (40, 40), *decodes(18)), heads=(2, 1), dtype=H),
    named("one-prompt-of-512-among-decodes", 8, lens=(*decodes(5, 33), (512, 512), *decodes(*[18] * 60)), large=True),
    named("speculative-2-to-9", 9, lens=((2, 30), (5, 41), (9, 33)), heads=(2, 1)),
    # context lengths
    named("context-0", 10, lens=prompts(5, 16, 20)),
    named("context-1", 11, lens=((4, 5), (1, 2), (17, 18)), dtype=H),
    named("context-page-minus-1", 12, lens=((4, 19), (1, 16)), dtype=F),
    named("context-page", 12, lens=((4, 20), (1, 17))),
    named("context-page-plus-1", 12, lens=((4, 21), (1, 18)), dtype=H),
    named("context-not-a-multiple", 13, lens=((7, 44), (3, 26))),
    # sequence lengths at boundaries
    named("sequence-at-page", 14, lens=decodes(15, 16, 17, 31, 32, 33), heads=(2, 1), dtype=H),
    named("sequence-at-tile", 15, lens=decodes(63, 64, 65, 127, 128, 129), heads=(2, 1)),
    named("sequence-at-segment", 16, lens=decodes(127, 128, 129, 255, 256, 257), heads=(1, 1), block_size=32, dtype=F),
    named("prompts-at-segment", 16, lens=((3, 128), (3, 129), (2, 511), (2, 513)), heads=ONE_HEAD, block_size=64),
    named("sequence-1", 17, lens=decodes(1, 1), dtype=H),
    named("sequence-65536", 18, lens=((1, 65536), (3, 65535), (1, 9)), heads=(8, 2), head_size=128, large=True),
    named("sequence-131075", 19, lens=((1, 131075), (2, 131072)), heads=(8, 1), head_size=128, dtype=H, large=True),
    # nothing
    named("one-empty-sequence", 20, lens=((1, 20), (0, 0), (4, 9), (1, 0))),
    named("all-sequences-empty", 21, lens=((1, 0), (3, 0), (0, 0)), dtype=H),
    named("cache-without-pages", 22, lens=((1, 0), (2, 0)), spare_pages=0, extra_columns=0, dtype=F),
    named("batch-0", 23, lens=()),
    named("batch-1", 24, lens=((6, 30),), dtype=F),
    named("no-tokens", 25, lens=((0, 17), (0, 0), (0, 32)), dtype=H),
    # many sequences
    named("batch-257", 26, lens=tuple((1, 1 + i % 9) for i in range(257)), heads=ONE_HEAD, head_size=16, dtype=H),
    named("batch-1024", 27, lens=tuple((1 + (i % 7 == 0) * 5, 9 + 37 * i % 700) for i in range(1024)), large=True),
    named("batch-4096", 28, lens=tuple((1, 1 + 53 * i % 300) for i in range(4096)), dtype=H, large=True),
    # mixtures and their order
    named("all-decode", 29, lens=decodes(3, 45, 17, 32), dtype=F),
    named("all-prefill", 30, lens=prompts(3, 18, 25), heads=(2, 1), dtype=H),
    named("decode-then-prefill", 31, lens=(*decodes(40, 17), *prompts(9, 18))),
    named("prefill-then-decode", 31, lens=(*prompts(9, 18), *decodes(40, 17)), dtype=H),
    named("prefill-and-decode-alternate", 31, lens=MIXED, dtype=F),
    named("one-long-255-short", 32, lens=((1, 32768), *decodes(*[1] * 255)), heads=(8, 2), head_size=128, large=True),
    # page sizes
    named("page-1", 33, block_size=1, refused="block_size"),
    named("page-8", 34, block_size=8),
    named("page-16", 35, block_size=16, dtype=H),
    named("page-24", 36, block_size=24),
    named("page-32", 37, block_size=32, dtype=F),
    named("page-48", 38, block_size=48, lens=((1, 100), (5, 50)), dtype=H),
    named("page-64", 39, block_size=64, lens=((1, 130), (5, 64))),
    named("page-128", 40, block_size=128, lens=((1, 130), (5, 128)), dtype=H),
    named("page-256", 41, block_size=256, lens=((1, 300), (2, 256)), heads=(2, 1)),
    named("page-544", 42, block_size=544, lens=((1, 600), (2, 545)), heads=(2, 1), head_size=16, dtype=H),
    named("page-784", 43, block_size=784, lens=((1, 800), (2, 785)), heads=(2, 1), head_size=16),
    # head sizes
    named("head-32", 44, lens=_TWO, head_size=32, dtype=F),
    named("head-40", 45, head_size=40),
    named("head-64", 46, lens=_TWO, head_size=64, dtype=H),
    named("head-80", 47, head_size=80),
    named("head-96", 48, lens=_TWO, head_size=96, dtype=H),
    named("head-112", 49, lens=_TWO, head_size=112, dtype=F),
    named("head-120", 50, lens=_TWO, head_size=120),
    named("head-128", 51, lens=_TWO, head_size=128),
    named("head-192", 52, lens=_TWO, head_size=192, dtype=H),
    named("head-256", 53, lens=_TWO, head_size=256),
    # query heads per KV head
    named("ratio-1", 56, heads=(2, 2), dtype=H),
    named("ratio-2", 57, heads=(4, 2)),
    named("ratio-3", 58, heads=(3, 1), dtype=F),
    named("ratio-4", 59, lens=MIXED, heads=(4, 1), dtype=H),
    named("ratio-5", 60, lens=MIXED, heads=(10, 2)),
    named("ratio-6", 61, lens=MIXED, heads=(6, 1), dtype=H),
    named("ratio-7", 62, lens=MIXED, heads=(7, 1)),
    named("ratio-8", 63, lens=MIXED, heads=(8, 1), dtype=F),
    named("ratio-12", 64, lens=MIXED, heads=(12, 1), dtype=H),
    named("ratio-16", 65, lens=MIXED, heads=(16, 1)),
    named("ratio-17", 66, lens=((1, 40), (3, 20)), heads=(17, 1), dtype=F),
    named("ratio-24", 66, lens=((1, 40), (3, 20)), heads=(24, 1), dtype=H),
    named("ratio-64", 66, lens=((1, 20), (2, 9)), heads=(64, 1)),
    named("kv-heads-3", 67, lens=((1, 40), (3, 20)), heads=(6, 3), dtype=H),
    named("kv-heads-5", 67, lens=((1, 40), (3, 20)), heads=(5, 5)),
    # pages and the block table
    named("pages-permuted", 68, lens=((1, 90), (5, 60)), block_size=8),
    named("pages-reversed", 69, lens=((1, 60), (5, 40)), block_size=8, dtype=H, arrange=layouts.reversed_pages),
    named("pages-shared", 70, lens=((1, 60), (5, 45), (1, 34)), shared_pages=2),
    named("page-twice-in-one-sequence", 70, lens=((1, 60), (5, 45)), dtype=F, arrange=layouts.page_twice),
    named("table-tail-garbage", 71, lens=(*decodes(9, 33, 17, 20), (4, 50)), heads=(2, 1), dtype=H),
    named("table-exactly-as-wide-as-used", 72, lens=((3, 20), (1, 64)), extra_columns=0),
    named("table-exactly-as-wide-partial-page", 72, lens=((1, 20), (2, 50)), extra_columns=0, dtype=H),
    named("table-columns-int32", 73, arrange=layouts.table_columns, dtype=F),
    named("table-columns-int64", 73, arrange=layouts.table_columns, table_dtype=torch.int64),
    named("table-rows-int32", 73, arrange=layouts.table_rows, dtype=H),
    named("table-rows-int64", 73, arrange=layouts.table_rows, table_dtype=torch.int64),
    named(
        "page-id-beyond-16-bits", 74, lens=_TWO, heads=ONE_HEAD, head_size=8, block_size=8, spare_pages=65600,
        arrange=layouts.last_pages,
    ),
    named(
        "page-offset-beyond-31-bits-of-bytes", 75, lens=_TWO, heads=(16, 8), head_size=128, spare_pages=70000,
        arrange=layouts.last_pages, large=True,
    ),
    named(
        "page-offset-beyond-31-bits-of-elements", 76, lens=RAGGED, heads=(16, 8), head_size=128, spare_pages=140000,
        arrange=layouts.last_pages, large=True,
    ),
    # strides and layouts
    named("query-in-fused-qkv", 78, arrange=layouts.fused_query),
    named("query-and-out-padded", 79, arrange=layouts.padded_query, pad_out=True, dtype=H),
    named("cache-stacked", 80, style="stacked"),
    named("cache-interleaved", 80, style="interleaved", dtype=H),
    named("cache-nhd", 81, style="nhd", dtype=F),
    named("cache-hnd", 82, style="hnd", dtype=H),
    named("cache-x-packed", 83, layout=Layout.X_PACKED),
    named("unaligned-and-odd-strides", 84, arrange=layouts.unaligned),
    # windows
    named("window-1", 85, sliding_window=1),
    named("window-page-minus-1", 86, lens=((1, 60), (5, 40)), sliding_window=15, dtype=H),
    named("window-page", 86, lens=((1, 60), (5, 40)), sliding_window=16),
    named("window-page-plus-1", 86, lens=((1, 60), (5, 40)), sliding_window=17, dtype=F),
    named("window-beyond-the-sequence", 87, sliding_window=45),
    named("window-4096-of-5000", 88, lens=((1, 5000),), heads=ONE_HEAD, block_size=64, sliding_window=4096, dtype=H),
    named("window-leaves-leading-segments-empty", 89, lens=((1, 500), (3, 300)), heads=(2, 1), sliding_window=21),
    named("window-starts-inside-a-tile", 89, lens=((9, 90), (1, 75)), heads=(2, 1), sliding_window=40, dtype=H),
    # soft caps and sinks
    named("softcap-15", 90, softcap=15.0, dtype=H),
    named("softcap-50-logits-4400", 91, lens=MIXED, softcap=50.0, loud=3000.0),
    named("sinks-near-the-mass", 93, lens=((1, 300), (3, 40)), heads=(4, 1), sinks="near"),
    named("sinks-with-window", 93, lens=((1, 300), (9, 60)), heads=(4, 1), sinks="near", sliding_window=33, dtype=F),
    named("sinks-off", 94, sinks="off", dtype=H),
    # beside the numbered ones
    named("non-causal", causal=False, dtype=H),
    named("non-causal-with-window", lens=((5, 40), (9, 9)), causal=False, sliding_window=7),
    named("padded-tokens", pad_tokens=13),
    named("hints-too-small", lens=((3, 90), (20, 60)), heads=(2, 1), arrange=layouts.small_hints, dtype=H),
    named("hints-too-large", lens=MIXED, arrange=layouts.large_hints),
    named(
        "everything-at-once", lens=(*MIXED, (0, 0)), heads=(10, 2), head_size=40, block_size=24, sliding_window=19,
        softcap=20.0, sinks="near", style="interleaved", pad_tokens=3, dtype=H,
    ),
)  # fmt: skip

CASES: tuple[Case, ...] = (*_NUMBERED, *FAMILY, *EDGES, *FEATURE_CASES)
BY_NAME = {case.name: case for case in CASES}
