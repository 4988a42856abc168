"""The plan of a static grid: the pieces that each program takes, found on the device once a step for all its layers.

Grid: the programs of the launch that is planned. Each finds its share of the line as a program of static_grid.py does
by itself in every layer (tile_schedule.py), and leaves a list of pieces, and a record of the cut where its last one
goes on in the next program. A piece stands where its item's number in the line says, one further for each program
before, so no sum over programs is needed.
"""

from dataclasses import dataclass

import helion
import helion.language as hl
import torch

from dsl_helion.arithmetic import cdiv
from dsl_helion.binding import kernel, run
from dsl_helion.features import bundle
from dsl_helion.merge_parts import write_record
from dsl_helion.tile_schedule import interval, item_at, line_of, piece_of, q_block_range, sequence_at

# of a piece, int32: its sequence and KV head, the Q Block's first token in the sequence, the sequence's first query
# row, query tokens and keys (0 where it is refused), tiles [start, stop), whether the item begins with them, the
# scratch row of its part (-1 where it is the whole item), and whether the sequence is refused
FIELDS = (
    "seq", "kv_head", "first", "query_start", "query_len", "seq_len", "start", "stop", "begins", "part", "refused",
)  # fmt: skip
PIECE = len(FIELDS)


@dataclass(frozen=True)
class _Plan:
    num_warps: int = 4
    num_stages: int = 1


def number_of(seq, kv_head, q_block, query_len, index, items, block_q):
    """An item's number in the line; `items`: of each of the sequences `index`. Q Blocks stand in pairs, the last with
    the first."""
    blocks = cdiv(query_len, block_q)
    second = 2 * q_block < blocks - 1
    pair = torch.minimum(q_block, blocks - 1 - q_block)
    before = torch.where(index < seq, items, 0).sum(0).to(torch.int32)
    return before + kv_head * blocks + 2 * pair + second.to(torch.int32)


def _pieces_kernel(
    pieces: torch.Tensor,  # i32 [most, PIECE]
    shares: torch.Tensor,  # i32 [programs, 2]: a program's first piece, and the one behind its last
    records: torch.Tensor,  # i32 [programs, RECORD]
    overflow: torch.Tensor,  # i32 [1]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    num_tokens: int,
    max_keys: int,
    f: dict,
    num_kv_heads: hl.constexpr,
    queries_per_kv: hl.constexpr,
    block_m: hl.constexpr,
    tile_size: hl.constexpr,
    seqs: hl.constexpr,
    shortest: hl.constexpr,
    longest: hl.constexpr,
    programs: hl.constexpr,
    max_snap: hl.constexpr,
    whole: hl.constexpr,
    first_row: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    most = pieces.size(0)  # there is room for; query_start_loc that does not rise could make more
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        ends, length, uncut, refused_any, items = line_of(
            query_start_loc, seq_lens, num_seqs, num_tokens, max_keys, f, num_kv_heads, shortest, longest, block_q,
            tile_size, seqs, programs, whole,
        )  # fmt: skip
        slot, stop, per_program, snap = interval(program, length, programs, max_snap)
        records[program, 0] = 0
        if program == 0:
            overflow[0] = refused_any

        first_seq, first_head, first_block, _, _ = item_at(
            torch.minimum(slot, length - 1), ends, uncut, query_start_loc, seq_lens, num_tokens, max_keys, f, block_q,
            tile_size,
        )  # fmt: skip
        _, first_len, _, _refused = sequence_at(first_seq, None, query_start_loc, seq_lens, num_tokens, max_keys)
        at = number_of(first_seq, first_head, first_block, first_len, hl.arange(seqs), items, block_q) + program
        at = torch.where(slot < stop, at, 0)
        shares[program, 0] = at
        while slot < stop:
            seq, kv_head, q_block, begin, end = item_at(
                slot, ends, uncut, query_start_loc, seq_lens, num_tokens, max_keys, f, block_q, tile_size
            )
            from_slot, to_slot = piece_of(slot, stop, begin, end, snap)
            real = (from_slot < to_slot) & (at < most)
            if real:
                query_start, query_len, seq_len, refused = sequence_at(
                    seq, None, query_start_loc, seq_lens, num_tokens, max_keys
                )
                _, _, lo, _, _, hi = q_block_range(seq, q_block, query_len, seq_len, f, block_q, tile_size)
                begins = (from_slot == begin).to(torch.int32)
                part = first_row + (2 * program + begins) * block_m
                hl.store(pieces, [at, 0], seq)
                hl.store(pieces, [at, 1], kv_head)
                hl.store(pieces, [at, 2], q_block * block_q)
                hl.store(pieces, [at, 3], query_start)
                hl.store(pieces, [at, 4], query_len)
                hl.store(pieces, [at, 5], seq_len)
                hl.store(pieces, [at, 6], torch.minimum(lo + from_slot - begin, hi))
                # the item's last slot takes the rest
                hl.store(pieces, [at, 7], torch.where(to_slot < end, torch.minimum(lo + to_slot - begin, hi), hi))
                hl.store(pieces, [at, 8], begins)
                hl.store(pieces, [at, 9], torch.where((from_slot == begin) & (to_slot == end), -1, part))
                hl.store(pieces, [at, 10], refused.to(torch.int32))
                if to_slot < end:
                    write_record(
                        records, program, program, begin, end, snap, per_program, query_start, query_len,
                        q_block, kv_head, first_row, block_m, queries_per_kv,
                    )  # fmt: skip
            at = at + real.to(torch.int32)
            slot = end
        shares[program, 1] = at


_pieces = kernel(_pieces_kernel)


def make_pieces(plan, kind, batch, features, overflow, seqs) -> None:
    """Fill a kind's pieces, shares and records in `plan` (planned_grid.py)."""
    shape, part = batch.shape, kind.part
    end = kind.first_record + part.programs
    args = (
        plan.pieces[kind.first_piece : kind.first_piece + kind.most], plan.shares[kind.first_record : end],
        plan.records[kind.first_record : end], overflow, batch.query_start_loc, batch.seq_lens,
        batch.num_tokens, batch.block_table.shape[1] * shape.block_size, bundle(features),
        shape.num_kv_heads, shape.queries_per_kv, kind.block_m, part.tile_size, helion.next_power_of_2(seqs),
        kind.shortest, kind.longest, part.programs, part.snap, part.whole, kind.first_row,
    )  # fmt: skip
    run(_pieces, _Plan(), args)
