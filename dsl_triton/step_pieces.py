"""The plan of a static grid: the pieces that each program takes, found on the device once a step for all its layers.

Grid: the programs of the launch that is planned. Each finds its share of the line as a program of static_grid.py does
by itself in every layer (tile_schedule.py), and leaves a list of pieces, and a record of the cut where its last one
goes on in the next program. A piece stands where its item's number in the line says, one further for each program
before, so no sum over programs is needed.
"""

import triton
import triton.language as tl

from dsl_triton.features import bundle
from dsl_triton.merge_parts import RECORD, write_record
from dsl_triton.tile_schedule import interval, item_at, line_of, piece_of, q_block_range, sequence_at

# of a piece, int32: its sequence and KV head, the Q Block's first token in the sequence, the sequence's first query
# row, query tokens and keys (0 where it is refused), tiles [start, stop), whether the item begins with them, the
# scratch row of its part (-1 where it is the whole item), and whether the sequence is refused
FIELDS = (
    "seq", "kv_head", "first", "query_start", "query_len", "seq_len", "start", "stop", "begins", "part", "refused",
)  # fmt: skip
PIECE = tl.constexpr(len(FIELDS))


@triton.jit
def number_of(seq, kv_head, q_block, query_len, index, items, BLOCK_Q: tl.constexpr):
    """An item's number in the line; `items`: of each of the sequences `index`. Q Blocks stand in pairs, the last with
    the first."""
    blocks = tl.cdiv(query_len, BLOCK_Q)
    second = 2 * q_block < blocks - 1
    pair = tl.minimum(q_block, blocks - 1 - q_block)
    return tl.sum(tl.where(index < seq, items, 0), 0) + kv_head * blocks + 2 * pair + second.to(tl.int32)


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "max_keys", "most"])
def _pieces_kernel(
    pieces_ptr,  # i32 [most, PIECE]
    shares_ptr,  # i32 [programs, 2]: a program's first piece, and the one behind its last
    records_ptr,  # i32 [programs, RECORD]
    overflow_ptr,  # i32 [1]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    num_seqs,
    num_tokens,
    max_keys,
    most,  # pieces that there is room for; query_start_loc that does not rise could make more
    f,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr,
    SEQS: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, PROGRAMS: tl.constexpr, SNAP: tl.constexpr,
    WHOLE: tl.constexpr, FIRST_ROW: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    program = tl.program_id(0)
    ends, length, uncut, refused_any, items = line_of(
        query_start_loc_ptr, seq_lens_ptr, num_seqs, num_tokens, max_keys, f,
        NUM_KV_HEADS, SHORTEST, LONGEST, BLOCK_Q, TILE_SIZE, SEQS, PROGRAMS, WHOLE,
    )  # fmt: skip
    slot, stop, per_program, snap = interval(program, length, PROGRAMS, SNAP)
    record_ptr = records_ptr + program * RECORD
    tl.store(record_ptr, 0)
    if program == 0:
        tl.store(overflow_ptr, refused_any)

    at = 0
    if slot < stop:
        seq, kv_head, q_block, _, _ = item_at(
            slot, ends, uncut, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys, f, BLOCK_Q, TILE_SIZE
        )
        _, query_len, _, _ = sequence_at(seq, True, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys)
        at = number_of(seq, kv_head, q_block, query_len, tl.arange(0, SEQS), items, BLOCK_Q) + program
    tl.store(shares_ptr + 2 * program, at)
    while slot < stop:
        seq, kv_head, q_block, begin, end = item_at(
            slot, ends, uncut, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys, f, BLOCK_Q, TILE_SIZE
        )
        from_slot, to_slot = piece_of(slot, stop, begin, end, snap)
        if (from_slot < to_slot) & (at < most):
            query_start, query_len, seq_len, refused = sequence_at(
                seq, True, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys
            )
            _, _, lo, _, _, hi = q_block_range(seq, q_block, query_len, seq_len, f, BLOCK_Q, TILE_SIZE)
            whole = (from_slot == begin) & (to_slot == end)
            row = FIRST_ROW + (2 * program + (from_slot == begin).to(tl.int32)) * BLOCK_M
            piece_ptr = pieces_ptr + at * PIECE
            tl.store(piece_ptr, seq)
            tl.store(piece_ptr + 1, kv_head)
            tl.store(piece_ptr + 2, q_block * BLOCK_Q)
            tl.store(piece_ptr + 3, query_start)
            tl.store(piece_ptr + 4, query_len)
            tl.store(piece_ptr + 5, seq_len)
            tl.store(piece_ptr + 6, tl.minimum(lo + from_slot - begin, hi))
            # the item's last slot takes the rest
            tl.store(piece_ptr + 7, tl.where(to_slot < end, tl.minimum(lo + to_slot - begin, hi), hi))
            tl.store(piece_ptr + 8, (from_slot == begin).to(tl.int32))
            tl.store(piece_ptr + 9, tl.where(whole, -1, row))
            tl.store(piece_ptr + 10, refused.to(tl.int32))
            if to_slot < end:
                write_record(
                    record_ptr, program, begin, end, snap, per_program, query_start, query_len, q_block, kv_head,
                    FIRST_ROW, BLOCK_M, QUERIES_PER_KV,
                )  # fmt: skip
            at += 1
        slot = end
    tl.store(shares_ptr + 2 * program + 1, at)


def make_pieces(plan, kind, batch, features, overflow, seqs) -> None:
    """Fill a kind's pieces, shares and records in `plan` (planned_grid.py)."""
    shape, part, programs = batch.shape, kind.part, kind.part.programs
    records = plan.records[kind.first_record : kind.first_record + programs]
    _pieces_kernel[(programs,)](
        plan.pieces[kind.first_piece :], plan.shares[kind.first_record :], records, overflow,
        batch.query_start_loc, batch.seq_lens, batch.num_seqs, batch.num_tokens,
        batch.block_table.shape[1] * shape.block_size, kind.most, bundle(features),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, BLOCK_M=kind.block_m,
        TILE_SIZE=part.tile_size, SEQS=triton.next_power_of_2(seqs), SHORTEST=kind.shortest, LONGEST=kind.longest,
        PROGRAMS=programs, SNAP=part.snap, WHOLE=part.whole, FIRST_ROW=kind.first_row, RECORD=RECORD,
        num_warps=4,
    )  # fmt: skip
