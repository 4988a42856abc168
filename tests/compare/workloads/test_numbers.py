"""A number on a command line: digits of ASCII, in its range, or an error that says what was found."""

import argparse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.workloads import GrammarError, parse_lens, parse_shape
from compare.workloads import numbers as n

WRONG = {
    n.window: ["0", "-1", "2147483648", "１２", "1.0", "", "x", "9" * 5000, "1_000"],
    n.seed: ["-1", str(2**62 + 1), "1e3", "²"],
    n.page: ["0", "-8", str(2**30), "８"],
    n.at_least_one: ["0", "１"],
    n.count: ["-1", "none"],
    n.positive: ["0", "nan", "inf", "-1", "１", "x", "1e-400"],
    n.share: ["0", "1", "100%", "nan", "１%", "%"],
    n.number: ["x", "", "１"],
}
RIGHT = {n.window: "2147483647", n.seed: str(2**62), n.page: "784", n.share: "0.5%", n.positive: "1e3", n.count: "0"}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in WRONG.items() for text in texts])
def test_a_number_that_means_nothing_is_refused(kind, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"found .*, allowed") as error:
        kind(text)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("kind", RIGHT)
def test_a_number_that_means_something_is_read(kind):
    assert kind(RIGHT[kind]) >= 0


@pytest.mark.parametrize(
    ("parse", "texts"),
    [(parse_lens, ("1" * 5000 + "q1", "q１s40", "１q1s40", "q1s４0k")),
     (lambda text: parse_shape(text, 16, "bf16"), ("３2:8:128", "99999999999:1:128", "0x20:8:128"))],
    ids=["batches", "shapes"],
)  # fmt: skip
def test_batches_and_shapes_are_written_in_few_digits_of_ascii(parse, texts):
    for text in texts:
        with pytest.raises(GrammarError):
            parse(text)


def property_of(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(text=st.text(max_size=30) | st.from_regex(r"\A[0-9]{0,3}q[0-9]{1,12}k?(s[0-9]{1,12}k?)?~?\Z"))
    def holds(text):
        for kind in WRONG:
            try:
                assert isinstance(kind(text), int | float)
            except argparse.ArgumentTypeError as error:
                assert "allowed" in str(error)
        try:
            assert all(0 <= query <= seq for query, seq in parse_lens(text))
        except GrammarError as error:
            assert "allowed" in str(error)

    return holds


test_any_text_is_a_number_or_refused = property_of(300)
test_any_of_ten_thousand_texts_is_a_number_or_refused = pytest.mark.slow(property_of(10_000))
