"""AITER's Triton attention (`aiter.ops.triton`), AMD's own fork of vLLM's kernel, called as vLLM's backend calls it.

It picks tile, warps and segments by the batch and the number of units, and asks for waves a unit, which Triton's NVIDIA
compiler does not know: it runs on AMD alone. It allocates its scratch in the call.
"""

import importlib
from collections.abc import Callable

import torch

from common.spec import AttentionShape, UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import aiter_files, bare_files

NAME = "baseline/aiter_triton"
RELEASE = ("amd-aiter", "0.1.7.post2.dev18", "2025-11", "BSD", "Triton", 320)
PLACES = ("aiter.ops.triton.attention.unified_attention", "aiter.ops.triton.unified_attention")

SUPPORTS = frozenset({"causal", "sliding_window", "softcap", "sinks", "full_graph"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision


DEFAULT = None


def find() -> Callable[..., None]:
    """AITER's function, of its two files alone where it is not installed. Raises ImportError naming what each said."""
    tried = []
    for name in PLACES:
        try:
            return importlib.import_module(name).unified_attention
        except Exception as error:  # at import it asks for the GPU's arch, and some builds compile
            tried.append(f"{name}: {type(error).__name__}: {error}")
    try:
        return aiter_files.load().unified_attention
    except (ImportError, AttributeError) as error:
        tried.append(str(error))
    raise ImportError("AITER's kernels, which run on AMD GPUs alone, are not here: " + "; ".join(tried))


if torch.version.hip is None and torch.cuda.is_available():
    raise ImportError("AITER's kernels run on AMD GPUs alone, and this torch is not built for ROCm")
_attend = find()
FILE = _attend.__code__.co_filename

workspace = bare_files.no_scratch


def _refuse(shape: AttentionShape) -> None:
    """A tile of its decode kernel is a page, and Triton's tiles are powers of two."""
    page = shape.block_size
    if page & (page - 1) or page < 16:
        raise UnsupportedFeature(NAME, f"block_size {page}", "a power of two of at least 16")


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call of AITER's function, into the live rows of `out`."""
    _refuse(batch.shape)
    _attend(**bare_files.unified(batch, features, out), q_descale=None, k_descale=None, v_descale=None)
