"""Where the numbers of sm90_prefill.py lie: lanes of a head in panels of 64, rows of a Q Block in boxes of queries.

Rows are (set of heads, token, head of the set): a box of [tokens, heads, 64 lanes] is what TMA moves, and it needs
eight rows. So sets of two heads let a group of six have 20 tokens and 120 rows of 128, where single heads let it have
16 and 96.
"""

from triton.experimental import gluon

ROWS = 128  # of a Q Block
EIGHT = 8  # rows of a box at least: those of a tensor core's tile in shared memory


@gluon.constexpr_function
def tile_lanes(head_size):
    """Lanes of a tile: panels of 64, a power of two of them; those behind the head's last are zeros."""
    return max(64, 1 << (head_size - 1).bit_length())


@gluon.constexpr_function
def even_lanes(head_size):
    """The largest power of two of which a head's lanes, in sixteens, are a multiple."""
    lanes = (head_size + 15) // 16 * 16
    return lanes & -lanes


@gluon.constexpr_function
def rest_lanes(head_size):
    """Lanes of a second product that sums values: a power of two, fewer than sum_lanes; or 0, where one has all."""
    half = tile_lanes(head_size) // 2
    rest = max(16, 1 << (head_size - half - 1).bit_length()) if head_size > 64 else half
    return rest if rest < half else 0


@gluon.constexpr_function
def sum_lanes(head_size):
    """Lanes of the first product that sums values: those of a tile, or half of them."""
    return tile_lanes(head_size) // (2 if rest_lanes(head_size) else 1)


@gluon.constexpr_function
def block_tokens(group, heads):
    """Query tokens of a Q Block of a group of heads, in boxes of so many: whole eights of rows."""
    step = max(EIGHT // heads, 1)
    return ROWS // group // step * step


@gluon.constexpr_function
def box_heads(group):
    """Heads of a box of queries: as few as leave fewest of a Q Block's rows empty."""
    sets = [heads for heads in (1, 2, 4, 8) if group % heads == 0]
    return max(sets, key=lambda heads: (block_tokens(group, heads), -heads))


@gluon.constexpr_function
def box_rows(group, tokens):
    """Rows of a box of a Q Block's `tokens`: a power of two that divides a set's, and half of the block's."""
    rows = tokens * box_heads(group)
    return min(rows & -rows, ROWS // 2)


@gluon.constexpr_function
def box_tokens(group, tokens):
    """Query tokens of a box."""
    return box_rows(group, tokens) // box_heads(group)


@gluon.constexpr_function
def box_head(half, b, group, tokens):
    """The first head, within its group, of the b-th box of half of the rows."""
    first = half * (ROWS // 2) + b * box_rows(group, tokens)
    return first // (tokens * box_heads(group)) * box_heads(group)


@gluon.constexpr_function
def box_token(half, b, group, tokens):
    """Its first query token within the Q Block."""
    first = half * (ROWS // 2) + b * box_rows(group, tokens)
    return first % (tokens * box_heads(group)) // box_heads(group)
