"""Compile for a GPU that is not here: Triton's target, and Helion's questions about its device.

On a host without a GPU Helion generates generic code: GQA rows padded to a 16-row dot by a tower of joins, no AMD keys,
one program for persistent grids. Every name that it asks about the device is replaced here, and only here.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from common import gpus
from common.gpus import Gpu

_ENVIRONMENT = "helion._compiler.compile_environment"
_INDEXING = "helion._compiler.indexing_strategy"


def gpu_target(arch: str) -> Any:
    """Triton's GPUTarget for `sm_90` or `gfx942`. RDNA (gfx10 and later) has waves of 32 lanes."""
    from triton.backends.compiler import GPUTarget

    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def code_key(source: Any, options: dict[str, Any]) -> str:
    """What decides the code of a Triton source for one target: its text, its specialisation and the options."""
    return f"{source.hash()} {sorted(options.items(), key=lambda pair: pair[0])}"


class MissingHook(RuntimeError):
    """Helion no longer has a name that is replaced here: pin helion, or update common/absent.py."""


def _min_dot_size(gpu: Gpu) -> Callable[..., tuple[int, ...]]:
    from triton.compiler import make_backend

    backend = make_backend(gpu_target(gpu.arch))
    smallest = backend.get_codegen_implementation(backend.parse_options({}))["min_dot_size"]

    def min_dot_size(device: torch.device, lhs: torch.dtype, rhs: torch.dtype) -> tuple[int, ...]:
        from helion._compat import torch_dtype_to_tl

        return tuple(int(size) for size in smallest(torch_dtype_to_tl(lhs), torch_dtype_to_tl(rhs)))

    return min_dot_size


def _is_block() -> Callable[..., bool]:
    """Whether Helion describes a block: on NVIDIA none of more than 256 elements in a dimension, on a CPU any."""
    from helion._compiler.compile_environment import CompileEnvironment
    from helion._compiler.indexing_strategy import TensorDescriptorIndexingStrategy

    asked = TensorDescriptorIndexingStrategy.is_supported

    def is_supported(*of: Any, **named: Any) -> bool:
        with mock.patch.object(CompileEnvironment.current(), "device", torch.device("cuda")):
            return asked(*of, **named)

    return staticmethod(is_supported)


def _hooks(gpu: Gpu) -> list[tuple[str, str, Any]]:
    """(module, name, replacement). A name that a module imported by value is replaced there too."""
    amd = gpu.vendor == "amd"
    capability = (0, 0) if amd else divmod(int(gpu.arch.removeprefix("sm_")), 10)
    hopper_or_later = capability >= (9, 0)

    def units(device: Any = None, *, reserved_sms: int = 0) -> int:
        return max(gpu.units - reserved_sms, 1)

    def xcds(device: Any = None) -> int:
        return gpu.xcds

    def threads(num_warps: int) -> int:
        return num_warps * gpu.warp_size

    def supports_config_key(spec: Any, key: str) -> bool:  # Helion asks the device's type for these two
        if key == "host_tensor_descriptors":
            return hopper_or_later
        return key != "cross_loop_pipeline" and spec.backend.supports_config_key(key)

    def may_reach_tma(config: Any) -> bool:  # Helion asks the device of the tensors, here the CPU; then barriers fence
        from helion._compiler.compile_environment import CompileEnvironment
        from helion._compiler.device_function import indexing_uses_tensor_descriptor

        facts = CompileEnvironment.current().config_spec.memory_op_facts
        blocks = any(fact.ndim in range(2, 6) for fact in facts) and indexing_uses_tensor_descriptor(config.indexing)
        return hopper_or_later and (blocks or indexing_uses_tensor_descriptor(config.atomic_indexing))

    return [
        ("helion._compat", "_is_hip", lambda: amd),
        ("helion._compat", "_is_amd_cdna", lambda: amd),
        ("helion._compat", "_amd_base_arch", lambda: gpu.arch if amd else None),
        ("helion._compat", "_min_dot_size", _min_dot_size(gpu)),
        ("helion._compat", "_supports_tensor_descriptor", lambda: hopper_or_later),
        ("helion._compat", "_supports_maxnreg", lambda: not amd),
        ("helion._compat", "_sm100_dot_tmem_lhs_broken", lambda device: gpu.arch == "sm_100"),
        ("helion._compiler.device_function", "_selects_tma_access", may_reach_tma),
        ("helion.runtime.kernel", "_device_specialization_key", lambda *of, **named: ("cuda", capability, ())),
        (_INDEXING, "TensorDescriptorIndexingStrategy.is_supported", _is_block()),
        # dependent launches (griddepcontrol) are generated from sm_90 on
        (_ENVIRONMENT, "CompileEnvironment.ptx_capability", property(lambda _: None if amd else capability)),
        ("helion.runtime", "get_num_sm", units),
        ("helion.runtime", "get_num_xcd", xcds),
        ("helion.autotuner.config_spec", "get_num_xcd", xcds),
        ("helion.autotuner.config_spec", "ConfigSpec.supports_config_key", supports_config_key),
        ("helion.autotuner.config_spec", "device_num_sm", units),
        ("helion.autotuner.config_spec", "num_compute_units", lambda: gpu.units),
        ("helion.autotuner.config_spec", "warps_to_threads", threads),
        ("helion.autotuner.config_spec", "_regs_per_block", lambda: 65536),  # of NVIDIA, which alone has `maxnreg`
    ]


@contextlib.contextmanager
def helion_as(gpu: Gpu) -> Iterator[None]:
    """In this context kernels choose their warps, and Helion generates code, as if `gpu` were this machine's.

    Raises MissingHook where the installed Helion lacks one of the names.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(gpus, "gpu_of", lambda device: gpu))  # what `warp_size` asks
        for module_name, name, replacement in _hooks(gpu) if "helion" in sys.modules else ():
            *path, attribute = name.split(".")
            owner = functools.reduce(getattr, path, importlib.import_module(module_name))
            if not hasattr(owner, attribute):
                raise MissingHook(f"{module_name}.{name}: found nothing, allowed the name that helion 1.5 has")
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
