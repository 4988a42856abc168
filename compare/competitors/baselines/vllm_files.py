"""Where vLLM's Triton kernel comes from: an installed vLLM, or its two files alone.

The two files, `triton_unified_attention.py` and `triton_attention_helpers.py`, stand unchanged in a package
`vllm_triton_033`, `_032` or `_025` on the path. What they import of vLLM is a handful of names; while the two are
loaded, and no longer, modules that hold just these stand in for it. The project ships neither file.
`run` runs scripts that import the kernel, with the two files.
"""

import enum
import importlib
import importlib.util
import logging
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from compare.competitors.baselines import bare_files

INSTALLED = ("vllm.v1.attention.ops.triton_unified_attention", "vllm.attention.ops.triton_unified_attention")
BARE = ("vllm_triton_033", "vllm_triton_032", "vllm_triton_025")
_OPS = "vllm.v1.attention.ops"
_HELPERS, _KERNEL = "triton_attention_helpers", "triton_unified_attention"


class KVQuantMode(enum.IntEnum):
    """vLLM's modes of a quantised cache, by their numbers; this project asks for NONE alone."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def _capability_family(number: int) -> bool:
    return (
        torch.version.hip is None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability()[0] == number // 10
    )


def _fp8_dtype() -> torch.dtype:
    """e4m3fnuz on gfx94x, as vLLM's platforms answer; it is read for a constant of the fp8 branch alone."""
    amd = torch.version.hip is not None and torch.cuda.is_available()
    old = amd and torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx94")
    return torch.float8_e4m3fnuz if old else torch.float8_e4m3fn


def held() -> dict[str, dict[str, Any]]:
    """What the two files read of each module that they import."""
    import triton
    import triton.language as tl

    platform = SimpleNamespace(
        fp8_dtype=_fp8_dtype,
        is_device_capability_family=_capability_family,
        is_rocm=lambda: torch.version.hip is not None,
        is_cuda=lambda: torch.version.cuda is not None,
        is_xpu=lambda: False,
    )
    return {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
        _OPS: {},
    }


def load_bare(package: str) -> ModuleType:
    """The kernel's module out of a package of its two files. Raises ImportError where one is missing or asks more."""
    folder = bare_files.folder_of(package, (_HELPERS, _KERNEL))
    with bare_files.standing_in(held()):
        bare_files.execute(f"{_OPS}.{_HELPERS}", folder / f"{_HELPERS}.py")
        module = bare_files.execute(f"{_OPS}.{_KERNEL}", folder / f"{_KERNEL}.py")
    module.__name__ = f"{package}.{_KERNEL}"
    return module


def find() -> ModuleType:
    """The first of INSTALLED and BARE that can be loaded. Raises ImportError naming what each said."""
    tried = []
    for name in (*INSTALLED, *BARE):
        try:
            module = load_bare(name) if name in BARE else importlib.import_module(name)
        except (ImportError, OSError, AttributeError, RuntimeError) as error:  # RuntimeError: vLLM asks for a GPU
            tried.append(f"{name}: {error}")
            continue
        if hasattr(module, "unified_attention"):
            return module
        tried.append(f"{name}: it has no unified_attention")
    raise ImportError("vLLM's Triton kernel is not here: " + "; ".join(tried))


def run(scripts: Sequence[str]) -> None:
    """Run scripts that import `unified_attention` from vLLM, with the kernel's two files where no vLLM is installed."""
    from common import interpreter

    if not torch.cuda.is_available():
        interpreter.install()
    for package in BARE:
        if importlib.util.find_spec(package) is None:
            continue
        module = load_bare(package)
        with bare_files.standing_in(held()):
            sys.modules[f"{_OPS}.{_KERNEL}"] = module
            for script in scripts:
                print(package, Path(script).name, flush=True)
                runpy.run_path(script)
