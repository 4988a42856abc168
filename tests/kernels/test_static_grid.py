"""A static grid: equal shares of any batch, one workspace and one grid for all of them, and what exceeds a capacity."""

import random
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from calls import assert_right
from capacity import at_capacity, bits, poisoned, random_lens
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from dsl_triton.features import bundle
from dsl_triton.tile_schedule import interval, item_at, line_of, piece_of
from dsls import in_triton

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
TOKENS, SEQS, KEYS = 48, 5, 128
PLAIN = Features()


def parts(static_grid: ModuleType, decode=(16, 16, 5), prefill=(32, 16, 3), **both: int) -> Any:
    """The config with these fields of its two parts."""
    return static_grid.Config(static_grid.Part(*decode, **both), static_grid.Part(*prefill, **both))


def run(static_grid, batch, config=None, workspace=None, features=PLAIN):
    out = torch.full_like(batch.query, 7.0)
    lse = torch.full(batch.query.shape[:2], 7.0)
    config = config or parts(static_grid)
    workspace = workspace or static_grid.workspace(batch.shape, Capacity.of(batch), config)
    static_grid.launch(batch, features, out, config, workspace, lse=lse)
    return out, lse


def judge(static_grid, batch, found, features=PLAIN):
    assert_right(*found, batch, features, static_grid.CONTRACT)


@triton.jit
def _shares_probe(
    pieces_ptr, length_ptr, query_start_loc_ptr, seq_lens_ptr, num_seqs, f, MOST: tl.constexpr, PROGRAMS: tl.constexpr,
    SNAP: tl.constexpr, WHOLE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_Q: tl.constexpr,
    TILE_SIZE: tl.constexpr, SEQS: tl.constexpr,
):  # fmt: skip
    ends, length, uncut, _ = line_of(
        query_start_loc_ptr, seq_lens_ptr, num_seqs, 2**30, 2**30, f, NUM_KV_HEADS, 1, 2**30, BLOCK_Q, TILE_SIZE, SEQS,
        PROGRAMS, WHOLE,
    )  # fmt: skip
    tl.store(length_ptr, length)
    slot, stop, _, snap = interval(tl.program_id(0), length, PROGRAMS, SNAP)
    at = tl.program_id(0) * MOST
    while slot < stop:
        _, _, _, begin, end = item_at(
            slot, ends, uncut, query_start_loc_ptr, seq_lens_ptr, 2**30, 2**30, f, BLOCK_Q, TILE_SIZE
        )
        from_slot, to_slot = piece_of(slot, stop, begin, end, snap)
        tl.store(pieces_ptr + 2 * at, from_slot)
        tl.store(pieces_ptr + 2 * at + 1, to_slot)
        at += 1
        slot = end


def _shares(lens, features, programs, snap=0, whole=0):
    """The pieces of each program, the line's length, and the batch."""
    batch, most = at_capacity(lens, SHAPE, 160, 5, 1024, fill=False), 64
    pieces, length = torch.full((programs, most, 2), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _shares_probe[(programs,)](
        pieces, length, batch.query_start_loc, batch.seq_lens, batch.num_seqs, bundle(features), MOST=most,
        PROGRAMS=programs, SNAP=snap, WHOLE=whole, NUM_KV_HEADS=2, BLOCK_Q=8, TILE_SIZE=16, SEQS=8,
    )  # fmt: skip
    return [[tuple(p) for p in mine if p[0] >= 0 and p[0] < p[1]] for mine in pieces.tolist()], int(length)


@in_triton
@pytest.mark.parametrize("snap", [0, 2])
@pytest.mark.parametrize("features", [Features(), Features(sliding_window=40)], ids=["causal", "window"])
@pytest.mark.parametrize(
    "lens",
    [[(1, 900), (1, 20), (1, 17)], [(150, 150)], [(1, 100), (0, 0), (64, 300), (0, 9), (9, 9)], [(0, 0)]],
    ids=["ragged-decode", "prompt", "mixed", "empty"],
)
def test_programs_share_the_line_without_gap_and_evenly(dsl, lens, features, snap):
    """No program has more than its even share, but for the tiles by which its two cuts may move, where an item is cut;
    else but for one item."""
    programs = 5
    shares, length = _shares(lens, features, programs, snap)
    walked = [piece for share in shares for piece in share]
    assert [a for a, _ in walked] == [0, *[b for _, b in walked]][: len(walked)]
    assert sum(b - a for a, b in walked) == length
    per_program = max(-(-length // programs), 1)
    assert max(sum(b - a for a, b in share) for share in shares) <= per_program + 2 * min(snap, per_program // 4)


@in_triton
@pytest.mark.parametrize(
    ("lens", "programs", "whole", "uncut"),
    [
        ([(1, 100), (1, 128), (1, 90)], 12, 4, True),
        ([(1, 100), (1, 128), (1, 90)], 12, 3, False),
        ([(1, 100), (1, 128), (1, 90)], 12, 0, False),
        ([(1, 100), (1, 250), (1, 90)], 12, 11, True),
        ([(1, 100), (1, 128), (1, 90)], 5, 16, False),
        ([(70, 70)], 40, 3, True),
        ([(70, 70)], 40, 2, False),
    ],
    ids=["allowed", "too-long", "not-allowed", "longer-and-allowed", "few-programs", "prompt", "prompt-too-long"],
)
def test_items_stay_whole_where_each_has_a_program_and_none_is_much_longer_than_a_share(
    dsl, lens, programs, whole, uncut
):
    """Shares of 4 tiles, 5, 9 and 2; the longest items have 8, 16, 8 and 5. Whole ones have a slot each."""
    shares, length = _shares(lens, PLAIN, programs, whole=whole)
    walked = [piece for share in shares for piece in share]
    assert [a for a, _ in walked] == [0, *[b for _, b in walked]][: len(walked)] and walked[-1][1] == length
    items = 2 * sum(-(-query_len // 8) for query_len, _ in lens)
    assert (len(walked) == items) == uncut and (length == items) == uncut
    assert max(sum(b - a for a, b in share) for share in shares) <= -(-length // programs)
    if uncut:
        assert shares == [[(i, i + 1)] if i < items else [] for i in range(programs)]


@in_triton
def test_uncut_items_leave_nothing_to_merge(dsl):
    static_grid = dsl.module("static_grid")
    config, lens = parts(static_grid, (16, 16, 6), (16, 16, 40), whole=8), [(1, 100), (1, 120), (20, 90)]
    batch = at_capacity(lens, SHAPE, TOKENS, SEQS, KEYS)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    judge(static_grid, batch, run(static_grid, batch, config, workspace))
    assert int(workspace.records[:, 0].max()) == 0


@pytest.mark.parametrize(("lens", "cut"), [([(1, 50), (1, 60)], False), ([(1, 112)], True)], ids=["whole", "cut"])
@pytest.mark.slow_in_helion
def test_items_are_cut_where_they_have_no_program_each(dsl, lens, cut):
    static_grid, batch = dsl.module("static_grid"), at_capacity(lens, SHAPE, TOKENS, SEQS, KEYS)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), parts(static_grid))
    judge(static_grid, batch, run(static_grid, batch, workspace=workspace))
    assert bool(workspace.records[:, 0].any()) == cut, "items stay whole where each has a program"


@pytest.mark.slow_in_helion
def test_one_workspace_serves_any_batch_with_the_bits_of_a_fresh_one(dsl):
    static_grid, generator, workspace = dsl.module("static_grid"), random.Random(5), None
    for seed in range(6):
        lens = random_lens(generator, TOKENS, SEQS, KEYS) if seed else []
        batch = at_capacity(lens, SHAPE, TOKENS, SEQS, KEYS, seed=seed)
        if workspace is None:
            workspace = static_grid.workspace(SHAPE, Capacity.of(batch), parts(static_grid))
        used = run(static_grid, batch, workspace=workspace)
        fresh = static_grid.workspace(SHAPE, Capacity.of(batch), parts(static_grid))
        poisoned(fresh)
        for mine, theirs in zip(used, run(static_grid, batch, workspace=fresh), strict=True):
            assert torch.equal(bits(mine), bits(theirs)), lens
        judge(static_grid, batch, used)
        live = int(batch.query_start_loc[-1])
        assert bool((used[0][live:] == 7.0).all()) and bool((used[1][live:] == 7.0).all())
        static_grid.check(workspace)


@in_triton
@pytest.mark.parametrize(
    "sizes",
    [((16, 32, 1), (16, 32, 1)), ((16, 16, 40, 0), (32, 16, 40, 3)), ()],
    ids=["one-program-and-one-part-for-both", "more-programs-than-tiles", "few"],
)
@pytest.mark.parametrize("features", [Features(), Features(sliding_window=21, sinks=torch.arange(4.0))], ids=str)
def test_any_number_of_programs_is_right(dsl, sizes, features):
    static_grid = dsl.module("static_grid")
    batch = at_capacity([(1, 120), (20, 61), (3, 0), (1, 9)], SHAPE, TOKENS, SEQS, KEYS)
    found = run(static_grid, batch, parts(static_grid, *sizes), features=features)
    judge(static_grid, batch, found, features)


@in_triton
def test_a_batch_too_small_for_a_long_query_leaves_the_prefills_records_alone(dsl):
    """They were written for another batch; its parts must not be merged into this one."""
    static_grid = dsl.module("static_grid")
    config = parts(static_grid, prefill=(32, 16, 5, 0))
    workspace = static_grid.workspace(SHAPE, Capacity(TOKENS, SEQS, torch.device("cpu")), config)
    run(static_grid, at_capacity([(40, 120)], SHAPE, TOKENS, SEQS, KEYS), config, workspace)
    assert int(workspace.records[config.decode.programs :, 0].max()) > 0
    batch = at_capacity([(3, 90), (1, 70)], SHAPE, 6, SEQS, KEYS)
    used = run(static_grid, batch, config, workspace)
    judge(static_grid, batch, used)
    assert bool((used[0][4:] == 7.0).all())


def beyond(batch, what: str):
    """The last but one sequence of three exceeds the tensors: rows past them, or keys past its row of the table."""
    starts, lengths = batch.query_start_loc.clone(), batch.seq_lens.clone()
    if what == "tokens":
        starts[2:] += 100
        lengths[1] = 120
    else:
        lengths[1] = KEYS + 1
    return batch.replace(query_start_loc=starts, seq_lens=lengths)


@pytest.mark.parametrize("query_len", [4, 20], ids=["short", "long"])
@pytest.mark.parametrize("what", ["tokens", "keys"])
@pytest.mark.slow_in_helion
def test_a_sequence_beyond_the_capacity_gets_nan_and_raises_the_flag(dsl, what, query_len):
    static_grid = dsl.module("static_grid")
    batch = at_capacity([(1, 120), (query_len, 60)], SHAPE, 1 + query_len, SEQS, KEYS)
    config = parts(static_grid)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    right = run(static_grid, batch, config, workspace)
    static_grid.check(workspace)
    wrong = run(static_grid, beyond(batch, what), config, workspace)
    for good, bad in zip(right, wrong, strict=True):
        torch.testing.assert_close(good[:1], bad[:1])  # cut elsewhere: its parts are merged in another order
        assert bool(bad[1:].isnan().all())
    with pytest.raises(SpecError, match=r"query_start_loc, seq_lens: .* rows of such a sequence are NaN"):
        static_grid.check(workspace)
    run(static_grid, batch, config, workspace)
    static_grid.check(workspace)


@pytest.mark.parametrize(("name", "lens"), [("num_tokens", [(9, 9)]), ("num_seqs", [(1, 5), (1, 6), (1, 7)])])
def test_a_batch_of_larger_tensors_than_the_workspaces_capacity_is_refused_by_name(dsl, name, lens):
    static_grid = dsl.module("static_grid")
    batch = at_capacity(lens, SHAPE, sum(q for q, _ in lens), len(lens), KEYS)
    workspace = static_grid.workspace(SHAPE, Capacity(8, 2, batch.device), parts(static_grid))
    with pytest.raises(SpecError, match=rf"{name}: .*capacity of the workspace"):
        run(static_grid, batch, workspace=workspace)


@in_triton
def test_more_tiles_than_32_bits_count_are_refused(dsl):
    static_grid = dsl.module("static_grid")
    batch = at_capacity([(1, 5)], AttentionShape(64, 64, 16, 16, torch.float32), 4096, 2048, 16, fill=False)
    wide = batch.replace(block_table=torch.zeros(1, 2**20, dtype=torch.int32).expand(2048, -1))
    with pytest.raises(SpecError, match="block_table: found room for"):
        run(static_grid, wide)


@in_triton
def test_scratch_does_not_grow_with_the_capacity(dsl):
    static_grid = dsl.module("static_grid")
    capacities = (Capacity(n, n, torch.device("meta")) for n in (1, 8192))
    small, large = (static_grid.workspace(SHAPE, capacity, parts(static_grid)) for capacity in capacities)
    assert [t.shape for t in (small.acc, small.records)] == [t.shape for t in (large.acc, large.records)]
