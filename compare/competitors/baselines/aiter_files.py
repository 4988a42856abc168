"""AITER's two files alone, where AITER is not installed: its kernels are then compiled for a GPU that is not here.

`unified_attention.py` (which chooses and launches; `attention/` in AITER) and `kernels.py` (AITER's
`_triton_kernels/attention/unified_attention.py`) stand unchanged in a package `aiter_triton` on the path. What they
import of AITER stands in for it while they are loaded: the arch, the number of units, the dtype of an fp8 and a
kernel's name. The project ships neither file.
"""

from types import ModuleType, SimpleNamespace

import torch

from compare.competitors.baselines import bare_files

BARE = "aiter_triton"
ARCH, UNITS = "gfx942", 304  # an MI300X, for which it chooses without a GPU
_TRITON = "aiter.ops.triton"
_KERNELS, _LAUNCH = f"{_TRITON}._triton_kernels.attention.unified_attention", f"{_TRITON}.attention.unified_attention"


def load() -> ModuleType:
    """The module that has `unified_attention`. Raises ImportError where a file is missing or asks for more."""
    folder = bare_files.folder_of(BARE, ("kernels", "unified_attention"))
    held = {
        f"{_TRITON}.utils.device_info": {"get_num_sms": lambda: bare_files.units(UNITS)},
        f"{_TRITON}.utils.types": {"e4m3_dtype": torch.float8_e4m3fnuz},
        f"{_TRITON}.utils._triton": {"arch_info": SimpleNamespace(get_arch=lambda: ARCH)},
        f"{_TRITON}.utils._triton.kernel_repr": {"make_kernel_repr": lambda *_: None},
        f"{_TRITON}._triton_kernels.flash_attn_triton_amd.utils": {
            "get_arch": lambda: SimpleNamespace(name=ARCH, is_rdna=False)
        },
        f"{_TRITON}._triton_kernels.attention": {},
    }
    with bare_files.standing_in(held):
        bare_files.execute(_KERNELS, folder / "kernels.py")
        return bare_files.execute(_LAUNCH, folder / "unified_attention.py")
