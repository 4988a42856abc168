"""A kernel with an instruction that the model of the ISA does not know: v_msad_u8, by inline assembly."""

import triton
import triton.language as tl
from diptych_probe.triton_product import Config

from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal"})
CONTRACT = Precision()
DEFAULT = Config()


@triton.jit
def _kernel(out_ptr):
    lane = tl.arange(0, 64)
    asm: tl.constexpr = "v_msad_u8 $0, $1, $1, $1"
    x = tl.inline_asm_elementwise(asm, "=v,v", [lane], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + lane, x.to(out_ptr.dtype.element_ty))


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse=None):
    _kernel[(1,)](out, num_warps=1)
