"""A stranger's first Triton kernel, interpreted: right, and with one bug each, whose cause the kit says."""

import pytest

from common.kit.isolate import Isolated
from common.kit.kit import Kit

pytestmark = pytest.mark.usefixtures("kernels_are_importable")
CASES = (
    "query-15-16-17@lens=3/5",
    "window-page@lens=1/40@lse=heads",
    "one-empty-sequence",
    "unaligned-and-odd-strides@lens=1/20",
)
BUGS = {  # kernel -> (case, what the kit says)
    "key_strides_for_values": (
        "query-15-16-17@lens=2/16.1/32@spare_pages=0@value_style=transposed", "K's strides for V"),
    "heads_by_modulo": ("query-15-16-17@lens=2/16", "KV head = query head modulo KV heads"),
    "window_one_too_narrow": ("window-page@lens=1/40.2/30", "a window that is one key narrower"),
    "no_rescale": (
        "query-15-16-17@loud=4.0@lens=2/90",
        "an accumulator that a greater maximum does not rescale, in tiles of 32 keys"),
}  # fmt: skip


@pytest.fixture(scope="module")
def child():
    found = Isolated(interpret=True, threads=1)
    yield found
    found.close()


@pytest.mark.parametrize("case", CASES)
def test_the_right_one_is_right(case, child):
    assert Kit("kit_triton:right", 7, child).once(case).status == "ok"


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_told_by_its_cause(name, child):
    case, words = BUGS[name]
    found = Kit(f"kit_triton:{name}", 7, child).once(case, "")
    assert (found.status, found.cause) == ("incorrect", words)
    assert f"; equals what {words}" in found.reason and found.reason.endswith(" would give")
    assert "times the allowed error" in found.reason or "breaks an exact rule" in found.reason
