"""V of fewer lanes than K, over caches of 8 bits and of 16, for the tests of both DSLs; and configs of 64 rows."""

from dataclasses import replace

import torch

from common.cases.case import Case

CASE = Case(
    "narrow", (), ((33, 162), (31, 31), (2, 50)), (6, 3), head_size=80, block_size=16, dtype=torch.float16,
    value_size=16, kv_dtype=torch.float8_e4m3fn,
)  # fmt: skip
CASES = {"fp8": CASE, "bf16-over-e5m2": replace(CASE, dtype=torch.bfloat16, kv_dtype=torch.float8_e5m2)}
CASES |= {"fp16": replace(CASE, kv_dtype=None), "32-lanes": replace(CASE, value_size=32)}
WIDE = {"q_block": {"block_m": 64, "tile_size": 64}, "unpaged": {}, "parallel_softmax": {"num_segments": 2}}
