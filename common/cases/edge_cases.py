"""Named cases after bugs of published kernels, values that break kernels, and corners of the numbers left open.

The numbers are those of `common.cases.named`; `compare.pages.cases` says which of the 100 each case stands for.
"""

from __future__ import annotations

import torch

from common.cases import layouts
from common.cases.case import MIXED, RAGGED, Case, decodes, named
from common.cases.fills import FILLS

H, F = torch.float16, torch.float32  # the others are bfloat16
_DTYPES = (torch.bfloat16, H, F)
_WINDOWED = {"sliding_window": 19, "lens": ((1, 60), (9, 50), (3, 30)), "pad_tokens": 2}


def _value_cases() -> tuple[Case, ...]:
    """One per fill, its dtypes in turn; those of what no row sees under a window, so that such keys lie in tiles."""
    cases = []
    for turn, (name, fill) in enumerate(FILLS.items()):
        options = dict(_WINDOWED) if name.startswith("unseen") else {"lens": MIXED}
        if "softcap" in name:
            options["softcap"] = 30.0
        dtype = H if "fp16" in name else _DTYPES[turn % 3]
        cases.append(named(f"values-{name}", fill=fill, dtype=dtype, **options))
    return tuple(cases)


EDGES: tuple[Case, ...] = (
    # corners of numbers that other cases stand for in part
    named("page-2048", 43, block_size=2048, lens=((1, 2050), (2, 30)), heads=(2, 1), head_size=16, dtype=H),
    named("table-of-one-column", 67, 84, lens=((1, 16), (3, 9), (1, 1)), extra_columns=0),
    named(
        "table-tail-of-other-sequences", 71, lens=(*decodes(9, 33, 17), (4, 50)), arrange=layouts.stale_tail, dtype=H,
    ),
    named("query-offset-beyond-31-bits", 77, lens=((1, 20), (3, 30)), arrange=layouts.far_query, large=True),
    named("softcap-50", 90, softcap=50.0),
    named("softcap-15-logits-4400", 91, lens=MIXED, softcap=15.0, loud=3000.0, dtype=H),
    named("sinks-off-with-window", 94, lens=((1, 300), (9, 60)), heads=(2, 1), sinks="off", sliding_window=33),
    named("sinks-off-on-every-second-head", 94, lens=((1, 300), (3, 40)), sinks="some", dtype=F),
    named("sinks-of-60", lens=MIXED, sinks="heavy", dtype=H),
    # bugs of published kernels
    named("first-tile-masked-for-late-rows", 89, lens=((33, 90), (17, 130)), heads=(2, 1), sliding_window=5, dtype=F),
    named("empty-segments-beside-full-ones", 89, 20, lens=((1, 700), (1, 3), (2, 0), (1, 1)), heads=(2, 1)),
    named("empty-segments-with-sinks", 89, 93, lens=((1, 700), (1, 3), (1, 0)), heads=(2, 1), sinks="near", dtype=H),
    named("table-ends-at-a-whole-page", 72, lens=((1, 16), (2, 32), (1, 64)), extra_columns=0, dtype=F),
    named("page-larger-than-a-tile", 43, block_size=528, tile_size=16, lens=((1, 530), (17, 60)), head_size=16),
    named("window-to-both-sides-over-tiles", lens=((40, 90), (9, 130)), heads=(2, 1), causal=False, sliding_window=24),
    named("padded-lanes-beside-nan", 49, 79, head_size=40, lens=RAGGED, arrange=layouts.padded_query, pad_out=True),
    *_value_cases(),
)  # fmt: skip
