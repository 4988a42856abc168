"""FlashInfer's paged prefill on its FlashAttention-2 template: any query length, Ampere and later."""

from compare.competitors.baselines.flashinfer_paths import Path, Prefill

RELEASE = ("flashinfer-python", "0.7.2", "", "Apache-2.0", "CUDA", 0)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap"})
PATH = Prefill("baseline/flashinfer_fa2", SUPPORTS, "fa2")
CONTRACT, DEFAULT = Path.CONTRACT, None
workspace, prepare, launch = PATH.workspace, PATH.prepare, PATH.launch
