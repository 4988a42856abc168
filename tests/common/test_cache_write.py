"""What is written into pages: the reference by hand, and refusals that name the argument."""

from dataclasses import replace

import pytest
import torch

from cache_cases import WRITES, build
from common.batch import make_batch
from common.cache import CacheWrite
from common.cache_reference import written
from common.guards import Guards
from common.integrity import same_bits
from common.spec import AttentionShape, SpecError


def good(dtype=torch.float32) -> CacheWrite:
    pool = torch.full((2, 3, 8, 2, 16), float("nan"), dtype=dtype)
    new = torch.arange(2 * 5 * 2 * 16).view(2, 5, 2, 16).to(dtype)
    return CacheWrite(new[0], new[1], pool[0], pool[1], torch.tensor([9, -1, 0, -1, 23]))


def test_tokens_land_in_their_slots_and_dropped_ones_nowhere():
    write = good()
    write.check(values=True)
    key, value = written(write)
    for cache, new in ((key, write.key), (value, write.value)):
        assert torch.equal(cache[1, 1], new[0]) and torch.equal(cache[0, 0], new[2])
        assert torch.equal(cache[2, 7], new[4])
        assert int(cache.isfinite().sum()) == 3 * 2 * 16
    assert bool(write.key_cache.isnan().all()), "the reference writes into copies"


@pytest.mark.parametrize("style", ["nhd", "hnd", "stacked", "interleaved"])
def test_a_step_written_by_its_slots_is_what_the_batch_holds(style):
    lens, shape = [(1, 9), (3, 20), (0, 5), (16, 16)], AttentionShape(4, 2, 16, 8)
    batch = make_batch(lens, shape, style=style, new_kv=True)
    slots = []
    for seq, (query_len, seq_len) in enumerate(lens):
        for position in range(seq_len - query_len, seq_len):
            slots.append(int(batch.block_table[seq, position // 8]) * 8 + position % 8)
    before = batch.key_cache.clone(), batch.value_cache.clone()
    for cache in (batch.key_cache, batch.value_cache):
        for slot in slots:
            cache[slot // 8, slot % 8] = float("nan")
    write = CacheWrite(batch.key, batch.value, batch.key_cache, batch.value_cache, torch.tensor(slots))
    assert all(same_bits(found, wanted) for found, wanted in zip(written(write), before, strict=True))


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.name)
def test_every_case_is_well_formed(case):
    build(case, torch.float16, "cpu", Guards()).check(values=not case.beyond)


# id -> (what is changed, the argument that the refusal names)
MALFORMED = {
    "key-a-list": ({"key": [1.0]}, "key"),
    "key-flat": ({"key": torch.zeros(5, 32)}, "key"),
    "key-of-another-head": ({"key": torch.zeros(5, 2, 8), "value": torch.zeros(5, 2, 8)}, "key"),
    "key-integers": ({"key": torch.zeros(5, 2, 16, dtype=torch.int32)}, "key"),
    "key-lanes-apart": ({"key": torch.zeros(5, 2, 32)[..., ::2]}, "key"),
    "value-half": ({"value": torch.zeros(5, 2, 16).half()}, "value"),
    "value-a-token-short": ({"value": torch.zeros(4, 2, 16)}, "value"),
    "value-elsewhere": ({"value": torch.zeros(5, 2, 16, device="meta")}, "value"),
    "cache-half": ({"key_cache": torch.zeros(3, 8, 2, 16).half()}, "key_cache"),
    "cache-of-page-20": (
        {"key_cache": torch.zeros(3, 20, 2, 16), "value_cache": torch.zeros(3, 20, 2, 16)},
        "block_size",
    ),
    "cache-of-another-size": ({"value_cache": torch.zeros(2, 8, 2, 16)}, "value_cache"),
    "cache-expanded": ({"key_cache": torch.zeros(1, 8, 2, 16).expand(3, -1, -1, -1)}, "key_cache"),
    "slots-int16": ({"slot_mapping": torch.tensor([1, 2], dtype=torch.int16)}, "slot_mapping"),
    "slots-more-than-rows": ({"slot_mapping": torch.arange(6)}, "slot_mapping"),
    "slots-apart": ({"slot_mapping": torch.arange(10)[::2]}, "slot_mapping"),
    "slots-of-two-dimensions": ({"slot_mapping": torch.arange(4)[None]}, "slot_mapping"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_write_is_refused_by_name(case):
    changes, argument = MALFORMED[case]
    with pytest.raises(SpecError) as refused:
        replace(good(), **changes).check()
    assert refused.value.argument == argument


@pytest.mark.parametrize("of", ["key", "key_cache"])
def test_one_memory_for_two_things_is_refused(of):
    write = good()
    cache = write.key_cache if of == "key_cache" else write.key.as_strided((1, 8, 2, 16), (80, 8, 4, 1))
    there = (
        write
        if of == "key_cache"
        else replace(write, key_cache=torch.zeros(1, 8, 2, 16), slot_mapping=torch.tensor([1]))
    )
    with pytest.raises(SpecError, match=f"value_cache: found the memory of {of}"):
        replace(there, value_cache=cache).check()


@pytest.mark.parametrize(("slots", "found"), [([9, 24], "24"), ([3, -1, 3], "3 again")], ids=["outside", "twice"])
def test_slots_are_looked_at_where_it_is_asked_for(slots, found):
    write = replace(good(), slot_mapping=torch.tensor(slots))
    write.check()
    with pytest.raises(SpecError, match=found):
        write.check(values=True)
