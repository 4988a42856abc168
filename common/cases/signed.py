"""Cases whose V are all of one sign, so that V do not cancel and the error of a sum shows in the output.

Where V have both signs, an output over many keys is small, and what a sum loses hides behind the rounding of P. SIGNED
has rows of few tiles in many heads, and a few rows of 16,400 and of 131,072 keys (one row, one head), in each 8-bit
form. The values are random, so the statistical rules apply too.
"""

import torch

from common.cases.case import Case, named
from common.cases.fills import positive
from common.spec.paged_batch import FP8

_E4M3, _FNUZ, _E5M2 = FP8
_FORMS: dict[str, dict[str, object]] = {
    "bf16": {},
    "fp16": {"dtype": torch.float16},
    "e4m3": {"kv_dtype": _E4M3, "scales": "heads"},
    "e4m3-scales-of-tokens": {"kv_dtype": _E4M3, "scales": "tokens", "dtype": torch.float16},
    "e5m2": {"kv_dtype": _E5M2, "scales": "one"},
    # scales of tokens widen the logits: at this scale no key has more of a row than P of fp8 may be off by
    "int8": {"kv_dtype": torch.int8, "scales": "tokens", "softmax_scale": 0.0625},
    "fp8-query": {"fp8_query": _E4M3, "scales": "one"},
    "fp8-query-fnuz": {"fp8_query": _FNUZ, "scales": "heads"},
}
_LONG = {"heads": (2, 1), "head_size": 64, "block_size": 64}
_LONGEST = {"heads": (1, 1), "head_size": 32, "block_size": 128}

ROWS: tuple[Case, ...] = tuple(
    named(name, lens=((40, 200), (24, 150), (33, 256)), heads=(8, 2), head_size=64, fill=positive, **options)
    for name, options in (
        ("signed-rows", {}),
        ("signed-rows-fp8-query", _FORMS["fp8-query"]),
        ("signed-rows-fp32", {"dtype": torch.float32}),
    )
)
LONG: tuple[Case, ...] = tuple(
    named(f"signed-16400-{form}", lens=((2, 16_400), (1, 2100)), fill=positive, **_LONG | options)
    for form, options in _FORMS.items()
)
LONGEST: tuple[Case, ...] = tuple(
    named(f"signed-131072-{form}", lens=((1, 131_072),), fill=positive, **_LONGEST | options)
    for form, options in _FORMS.items()
)
SIGNED: tuple[Case, ...] = (*ROWS, *LONG, *LONGEST)
_NOT_OFTEN = ("fp16", "fp8-query-fnuz")
OFTEN: tuple[Case, ...] = (*ROWS, *(case for case in LONG if not case.name.endswith(_NOT_OFTEN)))  # at smoke
