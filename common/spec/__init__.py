"""What may be asked of a kernel, and what a kernel is.

In: tensors and host integers of a step. Out: a validated `PagedBatch` with its `Features`, or a typed SpecError; the
`Kernel` protocol that every implementation fulfils. Knows no DSL and computes no attention.
"""

from common.gpus import Gpu
from common.spec.cdna import Cdna
from common.spec.features import Features, is_per_token
from common.spec.paged_batch import AttentionShape, Layout, PagedBatch, SpecError, UnsupportedFeature

__all__ = [
    "AttentionShape", "Cdna", "Features", "Gpu", "Layout", "PagedBatch", "SpecError", "UnsupportedFeature",
    "is_per_token",
]  # fmt: skip
