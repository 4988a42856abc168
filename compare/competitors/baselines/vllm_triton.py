"""vLLM's Triton attention kernel, `unified_attention`, called as its TRITON_ATTN backend calls it.

Found in an installed vLLM (`vllm.v1.attention.ops`, or `vllm.attention.ops` of older ones), else as the kernel's two
files alone in a package named `vllm_triton_033` or `vllm_triton_025` (vllm_files.py). K and V go in as strided views,
so vLLM 0.25's cache [blocks, 2, block, heads, size] and 0.33's [blocks, heads, block, 2 * size] are one call.
"""

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from common.gpus import Gpu
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity, Precision, launches
from compare.competitors.baselines import bare_files, vllm_files

NAME = "baseline/vllm_triton"
RELEASE = ("vllm", "0.32.0", "2026-10", "Apache-2.0", "Triton", 401)
MIN_LAUNCH_GRID_SIZE_2D = 128  # vLLM's: fewer programs than this, and a decode is cut into segments
MAX_3D_QUERY_LEN = 8  # vLLM 0.33's: as many query tokens a sequence may be cut; 0.25 cuts decodes alone
SMALLEST_HEAD = 32  # vLLM's backend refuses smaller heads

SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "full_graph", "head_size_512"})
ASKS = frozenset({"fp8_kv", "fp8_query"})  # the kernel is asked, and refuses in its own words
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"block_size": [*range(16, 1025, 16)], "head_size": [*range(SMALLEST_HEAD, 513, 8)]}


@functools.cache
def _interface() -> ModuleType:
    """The module that has `unified_attention`. Raises ImportError naming what was tried."""
    module = vllm_files.find()
    print(f"{NAME}: {module.__name__} from {module.__file__}", file=sys.stderr)
    return module


FILE = _interface().__file__


@dataclass(frozen=True)
class Config:
    """What vLLM's backend fixes. segments: parts of a sequence in the 3D kernel; 0: the 2D kernel alone, which is
    vLLM's batch-invariant mode."""

    segments: int = 16


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Its two modes: nothing else can be chosen from outside."""
    yield Config()
    yield Config(0)


@dataclass(frozen=True)
class Workspace:
    """threshold: launches of more Q blocks than this are not cut. output [rows, num_query_heads, segments, head_size
    rounded up to a power of two], maximum and expsum [rows, num_query_heads, segments], fp32."""

    threshold: int
    output: torch.Tensor
    maximum: torch.Tensor
    expsum: torch.Tensor


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> Workspace | None:
    """Scratch for as many rows as a launch below the threshold can have, allocated once as vLLM does."""
    if config.segments == 0:
        return None
    threshold = max(MIN_LAUNCH_GRID_SIZE_2D // shape.num_kv_heads, 1)
    rows = max(min(capacity.num_tokens, threshold * MAX_3D_QUERY_LEN), 1)
    heads, padded = shape.num_query_heads, 1 << (shape.head_size - 1).bit_length()
    sizes = ((rows, heads, config.segments, padded), *[(rows, heads, config.segments)] * 2)
    return Workspace(threshold, *(torch.empty(size, dtype=torch.float32, device=capacity.device) for size in sizes))


def _scratch(batch: PagedBatch, workspace: Workspace | None) -> dict[str, object]:
    """The arguments of the 3D kernel. Without them vLLM takes the 2D one: also where the scratch has too few rows,
    which right hints never bring about."""
    if workspace is None or batch.num_tokens > workspace.output.shape[0]:
        return {}
    return {
        "seq_threshold_3D": workspace.threshold,
        "num_par_softmax_segments": workspace.output.shape[2],
        "softmax_segm_output": workspace.output,
        "softmax_segm_max": workspace.maximum,
        "softmax_segm_expsum": workspace.expsum,
    }


def _refuse(shape: AttentionShape) -> None:
    """What vLLM's backend refuses before its kernel is asked."""
    if shape.block_size % 16:
        raise UnsupportedFeature(NAME, f"block_size {shape.block_size}", "a multiple of 16")
    if shape.head_size < SMALLEST_HEAD:
        raise UnsupportedFeature(NAME, f"head_size {shape.head_size}", f"at least {SMALLEST_HEAD}")


def _scales(features: Features, batch: PagedBatch) -> dict[str, object]:
    """vLLM's mode of fp8 with one scale for each tensor, and its scales; its kernel reads the first number of each.

    Raises UnsupportedFeature for several.
    """
    if any(one is not None and one.numel() > 1 for one in (features.key_scale, features.value_scale)):
        raise UnsupportedFeature(NAME, "a scale for each head or token", "one scale for each tensor")
    given = bare_files.scales_of(features, batch)
    return given | ({"kv_quant_mode": vllm_files.KVQuantMode.FP8_PER_TENSOR} if batch.shape.quantised else {})


@launches(NAME, SUPPORTS | ASKS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call of vLLM's function, into the live rows of `out`."""
    _refuse(batch.shape)
    with bare_files.own_words(NAME, batch):
        given = bare_files.unified(batch, features, out)
        _interface().unified_attention(**given, **_scales(features, batch), **_scratch(batch, workspace))
