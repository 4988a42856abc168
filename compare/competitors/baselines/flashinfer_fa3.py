"""FlashInfer's paged prefill on its FlashAttention-3 template: any query length, Hopper alone."""

import torch

from compare.competitors.baselines.flashinfer_paths import Path, Prefill

if torch.cuda.get_device_capability()[0] != 9:
    raise ImportError(
        f"FlashInfer's fa3 needs compute capability 9.x; this GPU has {torch.cuda.get_device_capability()}"
    )

RELEASE = ("flashinfer-python", "0.7.2", "", "Apache-2.0", "CUDA", 0)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap"})
PATH = Prefill("baseline/flashinfer_fa3", SUPPORTS, "fa3")
CONTRACT, DEFAULT = Path.CONTRACT, None
workspace, prepare, launch = PATH.workspace, PATH.prepare, PATH.launch
