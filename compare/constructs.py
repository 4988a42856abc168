"""What the kernels wanted to write and a DSL does not have, with the error that it gives; read by compare.capability.

`probe` names the function of tests/refused_helion.py or tests/refused_triton.py that provokes the error: a test runs
each, so a version that lifts a refusal, or words it otherwise, is noticed. Versions: Helion 1.5.0, Triton 3.7.1.
"""

from __future__ import annotations

from dataclasses import dataclass

SUPPORTED, IMPOSSIBLE = "supported", "impossible"


@dataclass(frozen=True)
class Construct:
    """triton, helion: supported or impossible, with how or why behind it. error: how the refusal begins, type first.

    probe: (DSL, function); None where nothing is refused.
    """

    what: str
    triton: str
    helion: str
    error: str = ""
    probe: tuple[str, str] | None = None


CONSTRUCTS: tuple[Construct, ...] = (
    Construct(
        "a dependent launch that waits behind its loops, for the launch before it to end first",
        f"{SUPPORTED}: `tl.extra.cuda.gdc_wait` anywhere, NVIDIA alone",
        f"{IMPOSSIBLE}: at entry alone, so the launches of `static_grid` do not overlap",
        "PdlPlacement: PDL ops run on the host before the first top level loop (entry) or after the last one (exit)",
        ("helion", "late_wait"),
    ),
    Construct(
        "whole pages as one tile, with a head size that is no power of two",
        f"{SUPPORTED}: form `run` of `adjustable_tile`",
        f"{IMPOSSIBLE}: one index per key there",
        "TorchOpTracingError: RuntimeError: shape '[32, 80]' is invalid for input of size",
        ("helion", "whole_pages"),
    ),
    Construct(
        "an `if` over a device value in a helper",
        SUPPORTED,
        f"{IMPOSSIBLE}: `torch.where`, or the `if` in the kernel file",
        "TorchOpTracingError: GuardOnDataDependentSymNode: Could not guard on data-dependent expression",
        ("helion", "branch_in_a_helper"),
    ),
    Construct(
        "a lookup by two scalars of the device, `table[seq, index]`",
        SUPPORTED,
        f"{IMPOSSIBLE}: one of the two must be a grid's own index",
        "InductorLoweringError: Error in codegen for node load",
        ("helion", "two_scalars"),
    ),
    Construct(
        "the reduction `any` of a mask",
        f"{SUPPORTED}: `tl.reduce`",
        f"{IMPOSSIBLE}: ranges are computed from positions",
        "BackendUnsupported: Backend 'triton' does not support: reduction 'any'",
        ("helion", "any_of_a_mask"),
    ),
    Construct(
        "24 lanes, a page's slots, in a product of two dimensions",
        f"{IMPOSSIBLE}: the next power of two and a mask",
        f"{IMPOSSIBLE}: the next power of two and a mask",
        "TorchOpTracingError: RuntimeError: Attempting to broadcast a dimension of length 24",
        ("helion", "page_of_24"),
    ),
    Construct(
        "24 lanes, said to Triton",
        f"{IMPOSSIBLE}: as above",
        f"{IMPOSSIBLE}: as above",
        "ValueError: arange's range must be a power of 2",
        ("triton", "arange_of_24"),
    ),
    Construct(
        "a loop left by `break`",
        f"{IMPOSSIBLE}: bounds are computed first",
        f"{IMPOSSIBLE}: bounds are computed first",
        "UnsupportedPythonType: ast.Break is not supported in Helion kernels",
        ("helion", "leave_a_loop"),
    ),
    Construct(
        "a loop left by `break`, said to Triton",
        f"{IMPOSSIBLE}: as above",
        f"{IMPOSSIBLE}: as above",
        "UnsupportedLanguageConstruct: unsupported AST node type: Break",
        ("triton", "leave_a_loop"),
    ),
    Construct(
        "a grid whose size is on the device",
        "not without a sync: the host reads a number to launch; `static_grid` has a fixed one",
        f"{IMPOSSIBLE}: `static_grid` has a fixed one",
        "InternalError: KeyError: FakeTensor(..., size=(), dtype=torch.int32)",
        ("helion", "device_counted_grid"),
    ),
    Construct(
        "a barrier of the whole grid between two phases of one launch",
        "not yet: no such call; atomics by hand (`ablations/last_arriver.py`)",
        f"{SUPPORTED}: `hl.barrier` (`ablations/barrier.py`)",
    ),
)
