"""Constructs that the kernels wanted and a DSL lacks, with the error that it gives.

docs/capability.md shows all of them (compare.studies.capability), docs/features.md those that features needed
(compare.pages.features).

`probe` names the function of tests/support/refused_helion.py or tests/support/refused_triton.py that provokes the
error: a test runs each, so a version that lifts a refusal, or words it differently, is noticed. Versions: Helion 1.5.0,
Triton 3.7.1.
"""

from __future__ import annotations

from dataclasses import dataclass

SUPPORTED, IMPOSSIBLE = "supported", "impossible"
HELION_ON_GFX942 = "helion, compiled for gfx942"


@dataclass(frozen=True)
class Construct:
    """triton, helion: supported or impossible, followed by how, or by what the kernels do instead.

    error: the beginning of the refusal, type first. probe: (whose, function), HELION_ON_GFX942 where only a compiler
    for the target refuses; None where nothing is refused. cost: of what the kernels do instead, where a feature needed
    the construct.
    """

    what: str
    triton: str
    helion: str
    error: str = ""
    probe: tuple[str, str] | None = None
    cost: str = ""

    @property
    def instead(self) -> str:
        """What the kernels do where this is impossible; Helion's way where it is impossible in both."""
        said = self.helion if self.helion.startswith(IMPOSSIBLE) else self.triton
        return said.removeprefix(f"{IMPOSSIBLE}: ")


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
        f"{IMPOSSIBLE}: `amax` of it as integers, for spans and flags per sequence; else ranges come from positions",
        "BackendUnsupported: Backend 'triton' does not support: reduction 'any'",
        ("helion", "any_of_a_mask"),
        cost="none: Triton's kernels take `tl.max` of integers too",
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
        "not yet: no such call; atomics by hand ([last_arriver](ablations.md#last_arriver))",
        f"{SUPPORTED}: `hl.barrier` ([barrier](ablations.md#barrier))",
    ),
    Construct(
        "a barrier inside a loop of the grid",
        "not yet: no such call",
        f"{IMPOSSIBLE}: two loops over the grid, the barrier between them",
        "BarrierOnlyAllowedAtTopLevel: hl.barrier() is only supported between top level hl.tile/hl.grid loops.",
        ("helion", "barrier_in_a_loop"),
    ),
    Construct(
        "a barrier in a grid of one program a tile",
        "not yet: no such call",
        f"{IMPOSSIBLE}: a persistent grid, all of whose programs are resident",
        "BarrierRequiresPersistent: hl.barrier() requires pid_type to be persistent (got 'flat').",
        ("helion", "barrier_without_residence"),
    ),
    Construct(
        "two loops over the grid in one kernel, the second reads what the first wrote",
        f"{IMPOSSIBLE}: a kernel has one grid; two launches",
        f"{IMPOSSIBLE}: two launches, or `hl.barrier` between the loops",
        "LoopDependencyError: Loop dependency detected: 'x' was written in a previous loop.",
        ("helion", "two_phases_without_a_barrier"),
    ),
    Construct(
        "a product of e4m3fnuz, the fp8 of gfx942",
        f"{SUPPORTED}: `tl.dot`",
        f"{IMPOSSIBLE}: both operands widened to fp16, which holds each of its numbers",
        "InternalError: TypeError: hl.dot: mat1 must be one of ['torch.float16', 'torch.bfloat16', 'torch.float32', "
        "'torch.int8', 'torch.float8_e4m3fn', 'torch.float8_e5m2'], got torch.float8_e4m3fnuz",
        ("helion", "product_of_e4m3fnuz"),
        cost="an fp8 query on gfx942: its scores take fp16's matrix instructions, twice as many as Triton's of fp8",
    ),
    Construct(
        "a masked load of e4m3fnuz",
        f"{SUPPORTED}: `other=0.0`; Helion writes `other=0`",
        f"{IMPOSSIBLE}: the host hands the cache over as bytes, the kernel views what it loaded as fp8",
        "AssertionError: cannot cast int32[constexpr[16], constexpr[16]] to <['16', '16'], fp8e4b8>",
        (HELION_ON_GFX942, "masked_load_of_e4m3fnuz"),
        cost="none at run time: a cast of bits",
    ),
    Construct(
        "e4m3fnuz on sm_90",
        f"{IMPOSSIBLE}: caches in e4m3fn or e5m2 there",
        f"{IMPOSSIBLE}: caches in e4m3fn or e5m2 there",
        'CompilationError: ValueError("type fp8e4b8 not supported in this architecture.',
        ("triton", "e4m3fnuz_on_sm_90"),
        cost="a cache written on gfx942 must be written anew for an NVIDIA GPU",
    ),
    Construct(
        "a loop in a helper, as over a sequence's spans",
        SUPPORTED,
        f"{IMPOSSIBLE}: all spans in one load, then a reduction; other loops stand in the kernel files",
        "TorchOpTracingError: AssertionError",
        ("helion", "loop_in_a_helper"),
        cost="spans: rows x spans comparisons at once, where Triton takes one span after another",
    ),
    Construct(
        "the size of a tensor in the feature bundle as a constant",
        f"{SUPPORTED}: and not needed, its loop takes any number of spans",
        f"{IMPOSSIBLE}: the next power of two of `max_spans` as `hl.constexpr` in the bundle, and a mask",
        "AttributeError: 'dict' object has no attribute 'size'",
        ("helion", "size_in_a_bundle"),
        cost="spans: each power of two of `max_spans` compiles anew; Triton's loop takes any number",
    ),
    Construct(
        "as many lanes as a tensor in the feature bundle has",
        f"{SUPPORTED}: a power of two as `tl.constexpr`",
        f"{IMPOSSIBLE}: as above",
        "ShapeSpecializingAllocation: Using a tensor size in a device allocation requires specialization.",
        ("helion", "lanes_of_a_bundle"),
        cost="as above",
    ),
    Construct(
        "a tensor of the host in a dict that a helper makes",
        f"{SUPPORTED}: a pointer in a tuple",
        f"{IMPOSSIBLE}: helpers return what they loaded, the bundle goes on beside it",
        "ShapeSpecializingAllocation: Using a tensor size in a device allocation requires specialization.",
        ("helion", "tensor_in_a_dict_of_a_helper"),
        cost="one more argument of every seam",
    ),
    Construct(
        "a helper's dict made in both branches of an `if`",
        f"{SUPPORTED}: a tuple",
        f"{IMPOSSIBLE}: rows' operands are made outside, or in an `if` without `else`",
        "InductorLoweringError: Error in codegen for node _if",
        ("helion", "dict_in_both_branches"),
        cost="[fused](ablations.md#fused), whose branches differ in rows, has no feature of rows (ALiBi, spans, ...)",
    ),
    Construct(
        "`t[index]` in a helper",
        f"{SUPPORTED}: `tl.load` of a pointer",
        f"{IMPOSSIBLE}: `hl.load`, `hl.store`",
        "TorchOpTracingError: IndexError: only integers, slices",
        ("helion", "subscript_in_a_helper"),
        cost="none",
    ),
    Construct(
        "`x[:, None]` in a helper",
        SUPPORTED,
        f"{IMPOSSIBLE}: `x.unsqueeze(1)`",
        "InductorLoweringError: Lowering aten.slice.Tensor returned <class 'torch._inductor.ir.TensorBox'>",
        ("helion", "new_axis_in_a_helper"),
        cost="none",
    ),
)
