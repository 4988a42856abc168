"""A speed of a class, a kernel and a unit has one value over README.md and docs/."""

import pytest

from compare.pages import quoted
from tests.compare.pages.stands import Stands, contradictions, stands

OF_OTHERS = {"paper.md"}  # it quotes what the authors of the paper measured
PAGES = {page.name: page.read_text(encoding="utf-8") for page in quoted.pages() if page.name not in OF_OTHERS}


def test_no_speed_stands_in_two_values():
    assert not contradictions(PAGES)


def test_the_speeds_of_the_pages_are_read():
    """Else the test above would find nothing, whatever stands there."""
    for page in ("README.md", "speed.md", "choosing-a-dsl.md"):
        found = {one[:3] for one in stands(PAGES[page])}
        assert {(kind, "triton", "FA3") for kind in quoted.CLASSES} <= found


@pytest.mark.parametrize(
    "planted",
    [
        "| class | Triton | FA3 |\n|---|---|---|\n| decode | 9.31 | 1 |",
        "| FA3's time / the kernel's (rows) | decode | mixed |\n|---|---|---|\n| `triton/auto` | 9.19 (16) | |",
        "| class | kernel | geometric mean |\n|---|---|---|\n| decode | triton/auto | 9.19× |",
        "Against FlashAttention 3, the portable Triton kernels are ahead of it in decode (9.31).",
        "It has <!--= headline.decode.triton -->9.31<!--/--> of its speed.",
    ],
)
def test_a_second_value_is_found(planted):
    """As docs/choosing-a-dsl.md had 1.19 beside README.md's 1.17, in a table of another run."""
    (said,) = contradictions(PAGES | {"planted.md": planted})
    assert said.startswith("triton over FA3 in decode, rows of headline: ")
    assert "README.md" in said and "in planted.md" in said


def test_a_page_that_names_its_rows_may_have_its_own_value():
    planted = "| rows of | class | Triton |\n|---|---|---|\n| an older run | decode | 9.31 |"
    assert not contradictions(PAGES | {"planted.md": planted})
    assert list(stands(planted)) == [Stands("decode", "triton", "FA3", "an older run", "9.31")]
