"""How a Config meets a shape and a GPU: what fits, how small a Q Block may be, what a launch can overlap."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton

from common.gpus import Gpu
from common.spec import AttentionShape


@triton.constexpr_function
def padded(head_size):
    """Lanes that hold a head: a power of two, and at least the 16 that a matrix product needs."""
    return max(16, triton.next_power_of_2(head_size))


def fits(block_m: int, tile_size: int, num_warps: int, num_stages: int, shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether the operands fit into shared memory and the accumulators into registers, by an upper bound of each."""
    head = max(16, triton.next_power_of_2(shape.head_size))
    # K and V of each stage in flight, and Q beside them
    shared = (2 * tile_size * max(num_stages - 1, 1) + block_m) * head * shape.dtype.itemsize
    accumulators = block_m * (head + tile_size) * 4
    # 4 bytes x 160 of a thread's 255 registers
    return shared <= gpu.shared_bytes and accumulators <= num_warps * gpu.warp_size * 160 * 4


def smallest_block_m(shape: AttentionShape) -> int:
    """A Q Block holds at least one token under all query heads of its KV head, and a power of two of rows."""
    return triton.next_power_of_2(shape.queries_per_kv)


def can_overlap(gpu: Gpu) -> bool:
    """Whether a launch may begin before the one it depends on has ended (programmatic dependent launch)."""
    return gpu.vendor == "nvidia" and int(gpu.arch.removeprefix("sm_")) >= 90


def strides(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    """Strides as a kernel argument; None for an operand that is None, whose branch is not compiled."""
    return None if tensor is None else tensor.stride()


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream beside the caller's; None where launches run at once (a CPU)."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


@contextmanager
def beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """What is launched inside begins after what the current stream holds, and runs beside what follows, until `join`.

    In a captured graph they are two branches.
    """
    if stream is None:
        yield
    else:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield


def join(stream: torch.cuda.Stream | None) -> None:
    """The current stream goes on when `stream` has ended."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)
