"""What is written into pages: the reference by hand, and refusals that name the argument."""

from dataclasses import replace

import pytest
import torch

from cache_cases import QUANTISED_WRITES, WRITES, build, judge
from common.cases.batch import make_batch
from common.oracle.cache import written, written_scales
from common.oracle.integrity import Guards, same_bits
from common.spec import AttentionShape, SpecError
from common.spec.cache import CacheWrite
from common.spec.paged_batch import FP8


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


class _Reference:
    """A kernel that writes what the reference says, times something."""

    DEFAULT = WRITES[0]  # any dataclass

    def __init__(self, key_gain: float = 1.0, scale_gain: float = 1.0):
        self.gains = key_gain, scale_gain

    def launch(self, write, config):
        caches, scales = written(write), written_scales(write)
        slots = write.slot_mapping[(write.slot_mapping >= 0) & (write.slot_mapping < write.num_slots)].long()
        if self.gains[0] != 1.0 and len(slots):
            page, slot = slots // write.key_cache.shape[1], slots % write.key_cache.shape[1]
            caches[0][page, slot] = (caches[0][page, slot].float() * self.gains[0]).to(caches[0].dtype)
        for there, found in zip((write.key_cache, write.value_cache), caches, strict=True):
            there.copy_(found)
        for there, found in zip((write.key_scale, write.value_scale), scales, strict=True):
            if found is not None and found.dim() == 3:
                there.copy_(found * self.gains[1])


@pytest.mark.parametrize("case", QUANTISED_WRITES, ids=lambda case: case.name)
def test_a_quantised_write_is_judged_by_its_definition(case):
    judge(_Reference(), case, torch.bfloat16)
    if case.tokens and case.drop > 1:
        with pytest.raises(AssertionError):
            judge(_Reference(key_gain=1.2 if case.kv_dtype != torch.int8 else 0.9), case, torch.bfloat16)
        if case.scales == "tokens":
            with pytest.raises(AssertionError, match="scale differs"):
                judge(_Reference(scale_gain=1.001), case, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8], ids=str)
def test_what_a_row_is_worth_survives_its_quantisation(dtype):
    """Scales per token: the largest of a row is exact to the scale's rounding, all within half a step."""
    write = good()
    shape = tuple(write.key_cache.shape[:3])
    caches = {name: torch.zeros(write.key_cache.shape, dtype=dtype) for name in ("key_cache", "value_cache")}
    write = replace(
        write, key=torch.randn(5, 2, 16), key_scale=torch.ones(shape), value_scale=torch.ones(shape), **caches
    )
    write.check(values=True, quantised=True)
    key, scale = written(write)[0], written_scales(write)[0]
    found = key[1, 1].float() * scale[1, 1][:, None]
    step = 1 / 127 if dtype == torch.int8 else 2.0**-3
    assert bool(((found - write.key[0]).abs() <= 0.51 * step * write.key[0].abs().amax(-1, keepdim=True)).all())
    assert torch.equal(scale[0, 1], torch.ones(2)), "a slot of nobody"


def test_int8_rounds_halves_away_from_zero_and_a_row_of_zeros_has_a_scale():
    caches = {name: torch.zeros(1, 8, 1, 8, dtype=torch.int8) for name in ("key_cache", "value_cache")}
    key = torch.tensor([127.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49, 0.0]).view(1, 1, 8)
    scales = {name: torch.zeros(1, 8, 1) for name in ("key_scale", "value_scale")}
    write = CacheWrite(key, key * 0, slot_mapping=torch.tensor([3]), **caches, **scales)
    assert written(write)[0][0, 3, 0].tolist() == [127, 1, -1, 2, 3, -3, 0, 0]
    assert written_scales(write)[1][0, 3].tolist() == [pytest.approx(1e-6)]


SCALES = {
    "beside-floats": ({"key_scale": torch.ones(1)}, torch.float32, "key_scale"),
    "float64": ({"key_scale": torch.ones(1).double()}, FP8[0], "key_scale"),
    "of-three-heads": ({"value_scale": torch.ones(3)}, FP8[0], "value_scale"),
    "int8-without": ({}, torch.int8, "key_scale"),
    "int8-one": ({"key_scale": torch.ones(1)}, torch.int8, "key_scale"),
    "one-for-all-slots": ({"key_scale": torch.ones(1, 1, 1).expand(3, 8, 2)}, FP8[0], "key_scale"),
    "one-memory": (dict.fromkeys(("key_scale", "value_scale"), torch.ones(3, 8, 2)), FP8[0], "value_scale"),
}


@pytest.mark.parametrize("case", SCALES)
def test_a_malformed_scale_is_refused_by_name(case):
    changes, dtype, argument = SCALES[case]
    caches = {name: torch.zeros(3, 8, 2, 16, dtype=dtype) for name in ("key_cache", "value_cache")}
    with pytest.raises(SpecError) as refused:
        replace(good(), **caches, **changes).check(quantised=True)
    assert refused.value.argument == argument


def test_quantised_pages_are_refused_for_kernels_that_cannot_write_them():
    caches = {name: torch.zeros(3, 8, 2, 16, dtype=FP8[0]) for name in ("key_cache", "value_cache")}
    with pytest.raises(SpecError, match="key_cache"):
        replace(good(), **caches).check()


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
