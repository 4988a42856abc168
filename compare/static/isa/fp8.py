"""8-bit floats: e4m3 and e5m2, in OCP's form (gfx950) or `fnuz`, with one NaN and no infinity (gfx942)."""

from typing import Any

import numpy as np
import torch

from compare.static.isa.errors import NotExecutable

NAMES = ("fp8", "bf8")  # in a mnemonic: e4m3, e5m2
_DTYPES = {
    ("fp8", True): torch.float8_e4m3fnuz, ("fp8", False): torch.float8_e4m3fn,
    ("bf8", True): torch.float8_e5m2fnuz, ("bf8", False): torch.float8_e5m2,
}  # fmt: skip


def decode(code: Any, name: str, fnuz: bool) -> Any:
    """The low byte of each word -> float32."""
    low = torch.from_numpy(np.asarray(code).astype(np.uint8))
    return low.view(_DTYPES[name, fnuz]).float().numpy()


def encode(x: Any, name: str, fnuz: bool, clamps: Any) -> Any:
    """float32 -> uint32 with the code, rounded to nearest even. An overflow becomes the largest number where MODE
    clamps, else infinity where the format has one, else NaN. Raises NotExecutable for a clamped infinity: AMD's texts
    do not define it."""
    if (np.isinf(x) & clamps).any():
        raise NotExecutable(f"v_cvt_pk_{name}_f32", "of an infinity, where MODE clamps")
    dtype = _DTYPES[name, fnuz]
    largest = torch.finfo(dtype).max
    within = np.where(clamps, np.clip(x, -largest, largest), x).astype(np.float32)
    code = torch.from_numpy(within).to(dtype).view(torch.uint8).numpy().astype(np.uint32)
    if dtype is torch.float8_e4m3fn:  # torch saturates; 464 is half way to the number behind the largest
        code = np.where((np.abs(x) > 464) & ~np.asarray(clamps), np.uint32(0x7F), code)
    return code
