"""A static grid: equal shares of any batch, one workspace and one grid for all of them, and what exceeds a capacity."""

import dataclasses
import random
from types import ModuleType
from typing import Any

import pytest
import torch

from calls import judged, launched
from capacity import at_capacity, bits, poisoned, random_lens
from common.gpus import resolve
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from common.spec.metadata import power_of_two
from common.spec.step_plan import FIELDS, ITEMS
from dsls import in_triton

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
TOKENS, SEQS, KEYS = 48, 5, 128
PLAIN = Features()


def parts(static_grid: ModuleType, decode=(16, 16), prefill=(32, 16), programs: int = 5) -> Any:
    """The config with these fields of its two parts."""
    return static_grid.Config(static_grid.Part(*decode), static_grid.Part(*prefill), programs=programs)


def copying(static_grid: ModuleType) -> Any:
    """The config with a copy of the keys of long queries in every capture of 20 tokens, by plain loads."""
    copied = static_grid.Copied(32, 16, 5, copy_programs=3, least_tokens=20)
    if hasattr(copied, "descriptors"):
        copied = dataclasses.replace(copied, descriptors=False)
    return dataclasses.replace(parts(static_grid), copied=copied)


def most_parts(workspace) -> int:
    """Of a Q Block of the last batch."""
    items = workspace.plan[: int(workspace.counters[ITEMS])]
    return int(items[:, FIELDS.index("parts")].max()) if len(items) else 0


@pytest.mark.parametrize(("programs", "cut"), [(5, False), (80, True)], ids=["whole", "cut"])
@pytest.mark.slow_in_helion
def test_an_item_is_cut_where_programs_would_have_none(dsl, programs, cut):
    static_grid, batch = dsl.module("static_grid"), at_capacity([(1, 112)], SHAPE, TOKENS, SEQS, KEYS)
    config = parts(static_grid, programs=programs)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    judged(static_grid, batch, PLAIN, config, workspace)
    assert (most_parts(workspace) > 1) == cut


@in_triton
def test_a_merge_reads_more_parts_than_it_holds_at_once(dsl):
    static_grid, config = dsl.module("static_grid"), parts(dsl.module("static_grid"), programs=28)
    batch = at_capacity([(1, 208), (1, 16)], SHAPE, 2, 2, 208)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    judged(static_grid, batch, PLAIN, config, workspace)
    assert most_parts(workspace) > static_grid._grid.cut(batch, config, workspace).merge_form(batch)[0] == 8


@in_triton
def test_few_q_blocks_have_a_program_for_each_row_of_their_merge(dsl):
    """Those rows that the hint's longest query fills: a decode fills two of 64."""
    static_grid, config = dsl.module("static_grid"), parts(dsl.module("static_grid"), decode=(64, 16), programs=80)
    batch = at_capacity([(8, 208)], SHAPE, 8, 1, 208)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    judged(static_grid, batch, PLAIN, config, workspace)
    assert most_parts(workspace) > 1
    helpers = []
    for longest in (8, 1):
        hinted = batch.replace(stats=dataclasses.replace(batch.stats, max_query_len=longest))
        helpers.append(static_grid._grid.cut(hinted, config, workspace).merge_form(hinted)[2])
    assert helpers == [power_of_two(8 * SHAPE.queries_per_kv), 4]


@in_triton
def test_a_capture_of_short_prompts_reads_pages(dsl):
    static_grid = dsl.module("static_grid")
    config = copying(static_grid)
    config = dataclasses.replace(config, copied=dataclasses.replace(config.copied, least_query_len=30))
    for longest, copies in ((30, True), (29, False)):
        batch = at_capacity([(longest, 64), (1, 40)], SHAPE, TOKENS, SEQS, KEYS)
        workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
        batch = batch.replace(stats=dataclasses.replace(batch.stats, max_query_len=longest))
        assert bool(static_grid._grid.cut(batch, config, workspace).copied) == copies
        judged(static_grid, batch, PLAIN, config, workspace)


@in_triton
def test_layers_of_a_step_share_its_plan(dsl):
    """A launch leaves the counters as it found them."""
    static_grid, config = dsl.module("static_grid"), parts(dsl.module("static_grid"))
    batch = at_capacity([(1, 112), (20, 90)], SHAPE, TOKENS, SEQS, KEYS)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    planned = static_grid.prepare(batch, PLAIN, config, workspace)
    before = planned.counters.clone(), planned.plan.clone()
    for _ in range(2):
        judged(static_grid, batch, PLAIN, config, planned)
        assert torch.equal(planned.counters, before[0]) and torch.equal(planned.plan, before[1])


@pytest.mark.parametrize(
    ("keys", "head_size"),
    [(None, 16), (0, 16), (60, 16), (None, 96), pytest.param(60, 80, marks=pytest.mark.slow)],
    ids=["pages", "no-room", "copies", "pages-of-heads-in-parts", "copies-heads-in-parts"],
)
@pytest.mark.slow_in_helion
def test_one_workspace_serves_any_batch_with_the_bits_of_a_fresh_one(dsl, keys, head_size):
    """keys: that the copy has room for; None: nothing is copied."""
    shape = dataclasses.replace(SHAPE, head_size=head_size)
    static_grid, generator, workspace = dsl.module("static_grid"), random.Random(5), None
    config = parts(static_grid) if keys is None else copying(static_grid)
    for seed in range(6):
        lens = random_lens(generator, TOKENS, SEQS, KEYS) if seed else []
        batch = at_capacity(lens, shape, TOKENS, SEQS, KEYS, seed=seed)
        capacity = Capacity(batch.num_tokens, batch.num_seqs, batch.device, keys or 0)
        if workspace is None:
            workspace = static_grid.workspace(shape, capacity, config)
        used = judged(static_grid, batch, PLAIN, config, workspace)
        fresh = static_grid.workspace(shape, capacity, config)
        poisoned(fresh)
        for mine, theirs in zip(used, launched(static_grid, batch, PLAIN, config, fresh), strict=True):
            assert torch.equal(bits(mine), bits(theirs)), lens
        live = int(batch.query_start_loc[-1])
        assert bool(used[0][live:].isnan().all()) and bool(used[1][live:].isnan().all())
        static_grid.check(workspace)


@in_triton
@pytest.mark.parametrize(
    "sizes",
    [((16, 32), (16, 32), 1), ((16, 16), (32, 16), 80), ()],
    ids=["one-program-and-one-part-for-both", "more-programs-than-tiles", "few"],
)
@pytest.mark.parametrize("features", [Features(), Features(sliding_window=21, sinks=torch.arange(4.0))], ids=str)
def test_any_number_of_programs_is_right(dsl, sizes, features):
    static_grid = dsl.module("static_grid")
    batch = at_capacity([(1, 120), (20, 61), (3, 0), (1, 9)], SHAPE, TOKENS, SEQS, KEYS)
    judged(static_grid, batch, features, parts(static_grid, *sizes))


@pytest.mark.slow_in_helion
def test_a_capture_of_drafts_has_a_draft_in_a_q_block(dsl):
    """Eight tokens under five heads are 40 rows: three Q Blocks of 16 rows would read the same keys."""
    static_grid, shape = dsl.module("static_grid"), dataclasses.replace(SHAPE, num_query_heads=10, head_size=32)
    batch = at_capacity([(8, 60), (8, 33), (3, 90), (1, 17)], shape, TOKENS, SEQS, KEYS)
    drafts, decodes = (dataclasses.replace(batch.stats, max_query_len=longest) for longest in (8, 1))
    wide = dataclasses.replace(shape, dtype=torch.bfloat16)
    config = static_grid.default(wide, drafts, resolve("h200"))
    assert config.decode.block_m == 64 > static_grid.default(wide, decodes, resolve("h200")).decode.block_m == 16
    if hasattr(config, "overlap"):
        config = dataclasses.replace(config, overlap=False)
    judged(static_grid, batch.replace(stats=drafts), PLAIN, config)
    longer, large = dataclasses.replace(drafts, max_query_len=14), dataclasses.replace(wide, head_size=256)
    config = static_grid.default(large, longer, resolve("h200"))
    assert (config.decode.block_m, config.num_warps) == (128, 8)


@pytest.mark.slow_in_helion
def test_a_hint_of_short_queries_alone_costs_time_and_not_correctness(dsl):
    static_grid, batch = dsl.module("static_grid"), at_capacity([(20, 61), (1, 9)], SHAPE, TOKENS, SEQS, KEYS)
    hinted = batch.replace(stats=dataclasses.replace(batch.stats, max_query_len=1))
    judged(static_grid, hinted, PLAIN, copying(static_grid))


def beyond(batch, what: str):
    """The last but one sequence of three exceeds the tensors: rows past them, or keys past its row of the table."""
    starts, lengths = batch.query_start_loc.clone(), batch.seq_lens.clone()
    if what == "tokens":
        starts[2:] += 100
        lengths[1] = 120
    else:
        lengths[1] = KEYS + 1
    return batch.replace(query_start_loc=starts, seq_lens=lengths)


@pytest.mark.parametrize(
    ("query_len", "copies"), [(4, False), (20, False), (20, True)], ids=["short", "long", "copied"]
)
@pytest.mark.parametrize("what", ["tokens", "keys"])
@pytest.mark.slow_in_helion
def test_a_sequence_beyond_the_capacity_gets_nan_and_raises_the_flag(dsl, what, query_len, copies):
    static_grid = dsl.module("static_grid")
    batch = at_capacity([(1, 120), (query_len, 60)], SHAPE, 1 + query_len, SEQS, KEYS)
    config = copying(static_grid) if copies else parts(static_grid)
    workspace = static_grid.workspace(SHAPE, Capacity.of(batch), config)
    right = launched(static_grid, batch, PLAIN, config, workspace)
    static_grid.check(workspace)
    wrong = launched(static_grid, beyond(batch, what), PLAIN, config, workspace, 7.0)
    for good, bad in zip(right, wrong, strict=True):
        torch.testing.assert_close(good[:1], bad[:1])  # cut elsewhere: its parts are merged in another order
        assert bool(bad[1:].isnan().all())
    with pytest.raises(SpecError, match=r"query_start_loc, seq_lens: .* rows of such a sequence are NaN"):
        static_grid.check(workspace)
    launched(static_grid, batch, PLAIN, config, workspace)
    static_grid.check(workspace)


@pytest.mark.parametrize(("name", "lens"), [("num_tokens", [(9, 9)]), ("num_seqs", [(1, 5), (1, 6), (1, 7)])])
def test_a_batch_of_larger_tensors_than_the_workspaces_capacity_is_refused_by_name(dsl, name, lens):
    static_grid = dsl.module("static_grid")
    batch = at_capacity(lens, SHAPE, sum(q for q, _ in lens), len(lens), KEYS)
    workspace = static_grid.workspace(SHAPE, Capacity(8, 2, batch.device), parts(static_grid))
    with pytest.raises(SpecError, match=rf"{name}: .*capacity of the workspace"):
        launched(static_grid, batch, PLAIN, parts(static_grid), workspace)


@in_triton
def test_scratch_does_not_grow_with_the_capacity(dsl):
    static_grid = dsl.module("static_grid")
    capacities = (Capacity(n, n, torch.device("meta")) for n in (1, 8192))
    small, large = (static_grid.workspace(SHAPE, capacity, parts(static_grid)) for capacity in capacities)
    assert small.acc.shape == large.acc.shape
