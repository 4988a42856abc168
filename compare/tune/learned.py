"""The learned choices that are committed, as the tuner and the studies ask them: a file for each DSL and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.choice import columns
from common.choice.learned import Learned
from common.choice.table import table
from common.gpus import Gpu
from common.serving.grid import decided_by
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.workloads import Workload


def of(dsl: str, gpu: Gpu) -> Learned | None:
    """The learned choice of a DSL on a GPU; None where none was written."""
    return registry.load(f"{dsl}/auto").FAMILY.learned(gpu)


def asked(row: Workload) -> tuple[AttentionShape, BatchStats]:
    """What a choice knows of a row."""
    return row.shape, decided_by(row.stats, row.ask.sees)


def ranked(kernel_id: str, configs: Sequence[Sequence[Any]], rows: Sequence[Workload], gpu: Gpu) -> list[int]:
    """The order of candidates by what they lose on the mean of the rows; as given where nothing was learned.

    configs: of each candidate one a row, as plain values.
    """
    dsl, _, kernel = kernel_id.partition("/")
    known = of(dsl, gpu) if dsl in registry.DSLS and kernel in columns.KERNELS else None
    if known is None:
        return list(range(len(configs)))
    batch = columns.batches([(*asked(row), gpu) for row in rows])
    made = columns.configs([(kernel, config) for mine in configs for config in mine], dsl)
    wide = {name: np.tile(value, len(configs)) for name, value in batch.items()}
    lost = known.net.answers(table(wide, made, known.constants)).mean(axis=0).reshape(len(configs), len(rows))
    return list(np.argsort(lost.mean(axis=1), kind="stable"))
