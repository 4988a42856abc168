"""Pick a kernel of this folder and its config, by a measured winner or what logs teach, and launch it (paper 5).

`paged_attention` is the call, `plan_paged_attention` the one for serving, which owns its scratch. What `dsl_triton`
offers under these names adds native/auto.py's kernel to them.
"""

from importlib import import_module

from common.serving.call import PagedAttention
from common.serving.choice import Choice, Family
from common.serving.facade import FlashAttention
from common.serving.library import register
from common.serving.plan import planner, sizer
from common.spec.kernel import SEAMS, Precision

SUPPORTS = SEAMS | {"lse", "full_graph", "x_packed", "batch_invariant"}
CONTRACT = Precision()

# `split` has no scratch, so it can take the place of any other at a launch
KERNELS = ("adjustable_tile", "parallel_softmax", "unpaged", "split", "q_block")
# ptxas takes more registers for the code of parallel_softmax than that needs
FAMILY = Family(
    "triton", KERNELS, lambda name: import_module(f".{name}", __package__), bounded=("parallel_softmax",), fixed=(1,)
)
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)
workspace_bytes = sizer(FAMILY)

Config = Choice
DEFAULT = Choice("parallel_softmax", FAMILY.kernel("parallel_softmax").DEFAULT)

choose, space, workspace = FAMILY.choose, FAMILY.space, FAMILY.workspace
prepare, launch = FAMILY.prepare, FAMILY.launch
