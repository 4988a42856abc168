"""Named cases over a cache of 8 bits, and the batch for which the heuristics choose a decode of its own over one."""

import torch

from common.cases.named import CASES
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

_USABLE = [case for case in CASES if not case.refused and not case.large]
STORED = [case for case in _USABLE if case.shape.cache_dtype.itemsize == 1]
SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16, kv_dtype=torch.float8_e4m3fn)
DECODES = BatchStats.of([(1, 4096)] * 32)
