"""Which elements share memory, against the addresses of all their bytes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import bytes_of
from common.spec.overlap import Places, meet, overlaps_itself, runs_of, share_memory

SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3)
LAID = st.tuples(SIZES, st.integers(0, 20), st.sampled_from([torch.int8, torch.float16, torch.float32]))


def laid(buffer, sizes, offset, dtype):
    return buffer.view(dtype).as_strided([n for n, _ in sizes], [s for _, s in sizes], offset)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(a=LAID, b=LAID)
def test_what_shares_memory_is_found_exactly(a, b):
    buffer = torch.empty(512, dtype=torch.int8)
    one, other = laid(buffer, *a), laid(buffer, *b)
    mine, theirs = bytes_of(one), bytes_of(other)
    both = bool({*mine} & {*theirs})
    assert overlaps_itself(one) == (len({*mine}) < len(mine))
    assert share_memory(one, other) == both
    assert meet(other.data_ptr() - one.data_ptr(), runs_of(one), runs_of(other)) == both
    pointers = [one.data_ptr(), other.data_ptr(), 0]
    assert Places([one, other, None], [0]).clash(pointers) == Places([one, other, None], [1, 2]).clash(pointers) == both


def test_pages_of_k_and_v_in_turns_do_not_meet():
    """As told by sizes and strides, whatever their number."""
    base = torch.empty(2**24, dtype=torch.float16)
    pages = base.view(-1, 2, 16, 8, 64)
    assert not share_memory(pages[:, 0], pages[:, 1]) and not overlaps_itself(pages[:, 0])
    assert share_memory(pages[:, 0], pages[1:, 0])
    assert not share_memory(base.view(-1, 2, 64)[:, 0], base.view(-1, 2, 64)[:, 1])


def test_empty_tensors_share_nothing():
    empty, full = torch.empty(0, 4), torch.empty(3)
    assert not overlaps_itself(empty) and not share_memory(empty, full) and not share_memory(full, full[:0])
