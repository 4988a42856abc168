"""split: who reads which K and V, what decides between its two kernels, and that layouts change no bit."""

import dataclasses

import pytest
import torch

from calls import assert_right, judged
from common.cases.batch import make_batch
from common.gpus import resolve
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, Layout, PagedBatch, SpecError
from dsls import in_triton, slow_in_helion

SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)
LENS = [(1, 90), (3, 40), (20, 20), (0, 7), (1, 1), (33, 70)]
CAUSAL = Features()
FEATURES = {
    "causal": Features(),
    "window": Features(sliding_window=19),
    "non-causal": Features(causal=False),
    "non-causal-window": Features(causal=False, sliding_window=9),
    "sinks-softcap": Features(sinks=torch.linspace(1.0, 3.0, 8), softcap=5.0),
    "all": Features(sliding_window=19, sinks=torch.linspace(1.0, 3.0, 8), softcap=5.0),
}


def config(split):
    return split.Config(split.Prefill(16, 16), split.Decode(32))


def run(split, batch: PagedBatch, features: Features = CAUSAL) -> torch.Tensor:
    """Judged against the reference, which reads the pages."""
    return judged(split, batch, features, config(split))[0]


def rewritten(batch: PagedBatch) -> PagedBatch:
    """The new K and V of every sequence are other values in its pages: as if the cache were written after the call."""
    pages = batch.replace(
        key_cache=batch.key_cache.clone(), value_cache=batch.value_cache.clone(), key=None, value=None
    )
    starts = batch.query_start_loc.tolist()
    for seq, seq_len in enumerate(batch.seq_lens.tolist()):
        for token in range(starts[seq + 1] - starts[seq]):
            at = seq_len - (starts[seq + 1] - starts[seq]) + token
            page = int(batch.block_table[seq, at // 16])
            for cache, new in ((pages.key_cache, batch.key), (pages.value_cache, batch.value)):
                cache[page, at % 16] = new[starts[seq] + token]
    return pages


# Each feature in both layouts and from both sources of K and V, each layout from both sources.
CELLS = [
    pytest.param((layout == Layout.PAGED) != bool(turn % 2), layout, features, id=f"{layout.value}-{name}")
    for turn, (name, features) in enumerate(FEATURES.items())
    for layout in Layout
]


@in_triton
@pytest.mark.parametrize(("new_kv", "layout", "features"), CELLS)
def test_right_from_pages_and_from_the_new_tokens(dsl, new_kv: bool, layout: Layout, features: Features) -> None:
    run(dsl.module("split"), make_batch(LENS, SHAPE, new_kv=new_kv, layout=layout, pad_tokens=3), features)


@pytest.mark.parametrize("features", [*map(slow_in_helion, FEATURES.values())], ids=FEATURES)
def test_prompts_follow_the_new_k_and_v_and_never_their_slots(dsl, features: Features) -> None:
    split = dsl.module("split")
    batch = make_batch([(20, 20), (33, 70), (2, 18)], SHAPE, new_kv=True, pad_tokens=3)
    batch.key[:55] += 1.0
    batch.value[:55] *= -2.0
    out = torch.full_like(batch.query, float("nan"))
    split.launch(batch, features, out, config(split), None)
    pages = rewritten(batch)
    assert_right(out, None, pages, features, split.CONTRACT)
    stale = check(out, None, batch, features, split.CONTRACT, reference(batch, features))
    assert not stale.ok, "the slots of the new tokens were read"


@pytest.mark.slow_in_helion
def test_a_single_token_reads_the_pages(dsl) -> None:
    """Which hold it as well: what `key` and `value` say then changes no bit."""
    split = dsl.module("split")
    batch = make_batch([(1, 40), (1, 1), (1, 16)], SHAPE, new_kv=True)
    before = run(split, batch)
    assert torch.equal(before, run(split, batch.replace(key=None, value=None)))
    batch.key.fill_(float("nan"))
    assert torch.equal(before, run(split, batch))


@pytest.mark.slow_in_helion
@pytest.mark.parametrize("new_kv", [False, True], ids=["pages", "new-kv"])
@pytest.mark.parametrize("page", [16, 24])
def test_x_packed_pages_give_the_bits_of_pages(dsl, page: int, new_kv: bool) -> None:
    batch = make_batch(LENS, AttentionShape(10, 2, 80, page, torch.float16), new_kv=new_kv)
    key = batch.key_cache.unflatten(3, (10, 8)).permute(0, 2, 3, 1, 4).contiguous()  # x = 8 lanes of 2 bytes
    value = batch.value_cache.permute(0, 2, 3, 1).contiguous()
    packed = batch.replace(key_cache=key, value_cache=value, layout=Layout.X_PACKED)
    assert torch.equal(run(dsl.module("split"), batch), run(dsl.module("split"), packed))


def test_x_packed_slots_that_lie_apart_are_refused(dsl) -> None:
    batch, split = make_batch(LENS, SHAPE, layout=Layout.X_PACKED), dsl.module("split")
    wide = torch.zeros(*batch.key_cache.shape[:-1], 8)
    apart = batch.replace(key_cache=wide[..., :4])
    with pytest.raises(SpecError, match="key_cache: found slots 8 elements apart, allowed x = 4"):
        split.launch(apart, Features(), torch.empty_like(batch.query), config(split), None)


@pytest.mark.parametrize("part", ["prefill", "decode"])
@pytest.mark.slow_in_helion
def test_each_kernel_writes_the_rows_of_its_class_alone(dsl, part: str) -> None:
    split, batch = dsl.module("split"), make_batch([(1, 20), (2, 20), (1, 5)], SHAPE, new_kv=True)
    out = torch.full_like(batch.query, float("nan"))
    getattr(split, f"_launch_{part}")(batch, Features(), out, getattr(config(split), part), None)
    written = [i for i in range(4) if not bool(out[i].isnan().any())]
    assert written == {"prefill": [1, 2], "decode": [0, 3]}[part]


def test_the_space_is_wide_and_distinct_and_its_parts_are_plain_values(dsl) -> None:
    configs = list(dsl.module("split").space(AttentionShape(), resolve("mi300")))
    assert len(set(configs)) == len(configs) >= 40
    assert set(dataclasses.asdict(configs[0])) == {"prefill", "decode"}
