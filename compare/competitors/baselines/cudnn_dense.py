"""cuDNN's attention on K and V that are contiguous already: a bound, not a competitor, as baseline/sdpa_dense is."""

from __future__ import annotations

import torch

from common.spec import Features, PagedBatch
from common.spec.kernel import Precision, require
from compare.competitors.baselines import cudnn, sdpa, sdpa_dense

NAME = "baseline/cudnn_dense"
SUPPORTS = sdpa.SUPPORTS
CONTRACT = Precision()
Config = sdpa.Config
DEFAULT = Config()
workspace, prepare = sdpa_dense.workspace, sdpa_dense.prepare


def launch(
    batch: PagedBatch,
    features: Features,
    out: torch.Tensor,
    config: sdpa.Config,
    workspace: sdpa_dense.Workspace | None,
    *,
    lse: torch.Tensor | None = None,
) -> None:
    """Attention alone, by cuDNN, over what `prepare` left."""
    require(NAME, SUPPORTS, batch, features, out, lse)
    ready = workspace or prepare(batch, features, config, None)
    cudnn.only(cudnn.BACKEND, NAME, lambda: sdpa.attend(batch, features, out, ready.plan, ready.dense))
