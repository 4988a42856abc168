"""cuDNN's attention through torch's scaled_dot_product_attention, on pages gathered inside the timed call.

The same work as baseline/sdpa, but torch may take no other backend, where by itself it would take FlashAttention 2 on
most batches. A batch that cuDNN refuses is `unsupported`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.spec import UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import sdpa

NAME = "baseline/cudnn"
RELEASE = ("torch, cuDNN", "2.11.0", "", "proprietary", "CUDA", 0)
BACKEND = SDPBackend.CUDNN_ATTENTION
REFUSALS = ("No available kernel", "No viable backend")  # how torch begins where it has none, on a GPU and on a CPU

SUPPORTS = sdpa.SUPPORTS
CONTRACT = Precision()
DEFAULT = None
workspace, prepare = sdpa.workspace, sdpa.prepare

if not torch.cuda.is_available() or torch.version.cuda is None:
    raise ImportError("cuDNN's attention needs an NVIDIA GPU; none is here")


def only(backend: SDPBackend, name: str, attend: Callable[[], Any]) -> None:
    """`attend` with one backend allowed. Raises UnsupportedFeature where torch says that it has no kernel for this."""
    try:
        with sdpa_kernel(backend):
            attend()
    except RuntimeError as error:
        if not str(error).startswith(REFUSALS):
            raise
        raise UnsupportedFeature(
            name, "a batch that this backend of torch refuses", "what its other backends do"
        ) from error


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Gather, then attend by cuDNN."""
    plan = workspace or sdpa.make_plan(batch, features)
    only(BACKEND, NAME, lambda: sdpa.attend(batch, features, out, plan, sdpa.gather(batch, plan)))
