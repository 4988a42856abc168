"""Layouts of sm90_prefill.py in shared memory: lanes of a head in panels of 64, rows of a Q Block by query token.

Row r is head r % GROUP of token r // GROUP. If GROUP is a power of two, TMA writes a box of [tokens, heads, 64 lanes]
in this order, so half of a Q Block is one box a panel. No box has the shape of other groups, so their rows are copied:
a group of seven has 18 tokens in 128 rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = 128  # of a Q Block
COPIED = 16  # rows that a warp copies at once; with 24 registers its loop keeps four numbers in local memory
OUT_LANES = 128  # of an output that are stored at once, if a head has more
SUM_LANES = 256  # most lanes of V whose sums over a Q Block fit into the registers of its two halves


def shares(head_size: int) -> int:
    """The number of items of a Q Block, each with its share of V's lanes (sm90_wide.py)."""
    return 1 if head_size <= SUM_LANES else 2


@gluon.constexpr_function
def tile_lanes(head_size):
    """Lanes of a tile: panels of 64, a power of two of them; those behind the head's last are zeros."""
    return max(64, 1 << (head_size - 1).bit_length())


@gluon.constexpr_function
def out_lanes(head_size):
    """Lanes of an output that are stored at once."""
    return min(tile_lanes(head_size), OUT_LANES)


@gluon.constexpr_function
def panel_lanes(dtype, head_size):
    """Lanes of a panel of numbers of `dtype`: 128 bytes of them, or a narrower head's."""
    return min(1024 // dtype.primitive_bitwidth, tile_lanes(head_size))


@gluon.constexpr_function
def summed_lanes(dtype, head_size):
    """Lanes over which scores are summed: the head's, rounded up to the 32 bytes of a tensor core's step."""
    step = 256 // dtype.primitive_bitwidth
    return (head_size + step - 1) // step * step


@gluon.constexpr_function
def even_lanes(dtype, head_size):
    """The largest power of two of which `summed_lanes` are a multiple."""
    lanes = summed_lanes(dtype, head_size)
    return lanes & -lanes


@gluon.constexpr_function
def rest_lanes(head_size):
    """Lanes of the second product that sums values, a power of two; 0 if one product has all. Heads of more than
    128 lanes have two products, because an output is stored by OUT_LANES."""
    half = tile_lanes(head_size) // 2
    rest = max(16, 1 << (head_size - half - 1).bit_length()) if head_size > 64 else half
    return rest if rest < half or half >= OUT_LANES else 0


@gluon.constexpr_function
def sum_lanes(head_size):
    """Lanes of the first product that sums values: those of a tile, or half of them."""
    return tile_lanes(head_size) // (2 if rest_lanes(head_size) else 1)


@gluon.constexpr_function
def scales_rows(dtype, narrow):
    """Whether queries are multiplied in fp16 with a factor a row: bf16 over a cache of 8 bits, whose numbers fp16 holds
    and to which they convert two an instruction."""
    return narrow and dtype.name == "bf16"


@gluon.constexpr_function
def block_tokens(group):
    """Query tokens of a Q Block under a group of heads."""
    return ROWS // group


@gluon.constexpr_function
def fits_box(group):
    """Whether half of a Q Block is a box of [tokens, heads]: both are powers of two."""
    return group & (group - 1) == 0


@gluon.constexpr_function
def box_shape(group):
    """What arrives at once of a panel of queries: [tokens, heads] of a box, or [rows, 1] of a copy."""
    return [ROWS // 2 // group, group] if fits_box(group) else [COPIED, 1]


@gluon.constexpr_function
def panels(dtype, lanes, rank):
    """Rows of up to 128 bytes, swizzled as TMA writes and tensor cores read them; of rank 3 those of a head's box."""
    return gl.NVMMASharedLayout(lanes * dtype.primitive_bitwidth // 8, dtype.primitive_bitwidth, rank)
