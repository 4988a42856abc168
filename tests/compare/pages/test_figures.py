"""One table of results: pages take every figure from it by name, and a number in two values is found."""

import tomllib

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.pages import figures, overview, quoted
from compare.pages.quoted import Figure, filled
from tests.compare.pages.typed import unmarked

OF_OTHERS = {"paper.md"}  # it quotes what the authors of the paper measured
PAGES = [page for page in quoted.pages() if page.name not in OF_OTHERS]


@pytest.fixture(scope="module")
def table():
    return quoted.table()


def test_the_table_the_pages_and_the_pictures_are_what_the_committed_runs_say():
    """`python -m compare pages figures --write` makes it so."""
    assert diptych(["pages", "figures"]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_compares_speeds_by_a_number_that_nothing_keeps(page):
    assert not unmarked(page.read_text(encoding="utf-8"))


def test_the_pages_that_a_person_opens_first_quote_figures():
    names = {page.name for page in PAGES if quoted.MARK.search(page.read_text(encoding="utf-8"))}
    assert {"README.md", "choosing-a-dsl.md"} <= names


@pytest.mark.parametrize("page", [p for p in PAGES if quoted.MARK.search(p.read_text(encoding="utf-8"))], ids=str)
def test_a_number_in_two_values_is_found(page, table):
    """Every figure of every page, one after another: another number in its place is written over."""
    text = page.read_text(encoding="utf-8")
    for found in quoted.MARK.finditer(text):
        said = found[0].removesuffix("<!--/-->")
        planted = text[: found.start()] + said + "9<!--/-->" + text[found.end() :]
        assert filled(planted, table) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_begins_with_a_mark(page):
    """There markdown ends the paragraph and begins a block of HTML."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.lstrip().startswith("<!--=")]


@pytest.mark.parametrize(
    "planted",
    [
        "Decodes run at 1.17 of FA3.",
        "In prefill it is 12% slower than Triton.",
        "Helion has 0.94 of its speed.",
        "| prefill | 0.789 of FlashAttention 3 |",
        "vLLM's Triton kernel is beaten\n2.6 times.",
        "- **Speed.** It takes 0.8 of Triton's time.",
        "| class | Triton | FA3 |\n|---|---|---|\n| decode | 1.31 | 1 |",
        "| class | speed |\n|---|---|\n| decode | 1.31 |",
        '<img src="a.svg" alt="Bars: Triton runs at 1.31 of FlashAttention 3 in decode">',
        "![Helion's speed is 0.81 of Triton's](a.svg)",
        "*Figure: prefill at 0.81 of FA3*",
        "Triton decodes 1.3x as fast as FlashAttention 3.",
        "Prefill reaches 0,81 of FlashAttention 3.",
        "Helion is 12 percent slower than Triton.",
        "Helion loses 12% of its decode to Triton.",
        "The first call takes 4.5 s in Triton and 30 s in Helion.",
        "Helion is slower in 140 of 184 pairs.",
    ],
)
def test_a_number_that_somebody_typed_is_found(planted):
    text = (quoted.ROOT / "README.md").read_text(encoding="utf-8")
    assert len(unmarked(f"{text}\n\n{planted}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Triton 3.6.0 beside torch 2.11 and vLLM 0.25.1's kernel: no speed.",
        "<!--= headline.decode.triton -->1.19<!--/--> of FA3",
        "<!-- dated: of a try -->\n0.87 of FA3\n<!-- end dated -->",
        "`0.87 of FA3`",
        "The margin is 2%.",
        "In equal time Triton timed 1,315 candidates.",
        "| page | of |\n|---|---|\n| tiles of 0.5 KB | Triton |\n\nFA3 is beside it.",
    ],
)
def test_what_is_no_figure_is_left_alone(text):
    assert not unmarked(text)


@pytest.mark.parametrize(
    ("mark", "near"),
    [
        ("<!--= headline.decode.tritn --><!--/-->", "headline.decode.triton"),
        ("<!--= headline.decode.triton wurst --><!--/-->", "worst"),
        ("<!-- figures: classses -->\n<!-- end -->", "classes"),
    ],
)
def test_a_figure_that_is_not_there_is_refused_with_the_nearest(mark, near, table):
    with pytest.raises(quoted.NoFigure, match=near):
        filled(mark, table)


def built(tmp_path, runs):
    """The table of invented runs: name -> a factor on the times of Triton's kernels."""
    for name, factor in runs.items():
        records = [
            synthetic_run.timed(load, kernel, us * base * (factor if kernel.startswith("triton") else 1))
            for *given, us in synthetic_run.LOADS
            for load in [synthetic_run.workload(*given)]
            for kernel, base in synthetic_run.SPEED.items()
        ]
        synthetic_run.write(tmp_path / name, records, gpu={"asked": "h200", "name": "h200", "present": True})
    kernels = {"triton": "triton/parallel_softmax", "helion": "helion/parallel_softmax"}
    group = {"runs": list(runs), "kernels": kernels, "beside": [["helion", "triton"]]}
    return figures.build({"results": ".", "gpu": "h200", "group": {"headline": group}, "pairs": group}, tmp_path)


def test_the_headline_is_the_union_of_its_parts():
    asked = tomllib.loads(quoted.ASKED.read_text(encoding="utf-8"))["group"]
    parts = [run for name in ("peers", "serving", "unseen") for run in asked[name]["runs"]]
    assert asked[quoted.HEADLINE]["runs"] == [run for run in parts if run.startswith("release/")]


def test_the_headline_has_times_rates_and_shares_of_the_ceiling(table):
    for kind, (rate, _) in quoted.LIMITS.items():
        us, of, share = (table[f"headline.{kind}.triton.{what}"] for what in ("us", "rate", "share"))
        assert us.value > 1 and 0 < share.worst <= share.value < 1
        assert of.value <= table[f"ceiling.{rate}"].value and us.rows == table[f"headline.{kind}.triton"].rows


def test_a_figure_is_the_mean_of_its_rows(tmp_path):
    found = built(tmp_path, {"a": 1.0})
    assert found["headline.decode.triton"].value == pytest.approx(1 / 0.9, rel=0.02)
    assert (found["headline.decode.triton"].rows, found["headline.all.triton"].rows) == (3, 5)
    assert found["headline.prefill.helion-over-triton"].value == pytest.approx(0.9 / 1.05, rel=0.02)
    assert "headline.speculative.triton" not in found


def test_a_newer_run_moves_every_page_and_breaks_none(tmp_path, table):
    """As where a run is added to the template: numbers and the words chosen by them change, sentences stay."""
    older, newer = built(tmp_path / "older", {"a": 1.0}), built(tmp_path / "newer", {"a": 1.0, "b": 2.0})
    page = "It is <!--= headline.decode.triton word -->?<!--/--> FA3: <!--= headline.decode.triton -->?<!--/-->.\n"
    before, after = filled(page, older), filled(page, newer)
    assert ">ahead of<" in before and ">behind<" in after and before != after
    assert filled(after, older) == before
    for name in quoted.BLOCKS:
        assert "None" not in quoted.BLOCKS[name](newer)


def test_the_table_reads_back_as_it_was_written(table):
    text = figures.written(table)
    assert quoted.table(text) == table and tomllib.loads(text)


def test_pictures_are_the_same_for_the_same_figures_and_follow_them(table):
    name = overview.PICTURES / "classes-light.svg"
    moved = table | {"headline.decode.triton": Figure(1.77, "", 16, 16, 1.0, "q1s512")}
    first, again, other = (overview.drawn(t)[name] for t in (table, table, moved))
    assert first == again and "1.77" in other and "1.77" not in first


CLASSES = ("decode", "speculative", "prefill", "mixed")
PREMISES = {  # what README.md and docs/choosing-a-dsl.md say in words, and the figures under which it is true
    "Helion is a little slower than Triton in the mean, and more on the worst row": lambda t: (
        0.95 < t["headline.all.helion-over-triton"].value < 1 and t["headline.all.helion-over-triton"].worst < 0.9
    ),
    "slower in more pairs than faster": lambda t: t["pairs.slower"].value > t["pairs.faster"].value,
    "vLLM's Triton kernel is slower in the mean": lambda t: t["headline.all.triton-over-vllm"].value > 1,
    "Triton starts sooner": lambda t: all(
        t[f"cost.{when}.triton"].value < t[f"cost.{when}.helion"].value for when in ("start", "restart")
    ),
    "the code is as long": lambda t: 0.8 < t["size.least"].value <= 1 <= t["size.most"].value < 1.25,
    "Triton tries more in equal minutes": lambda t: t["cost.timed.triton"].value > t["cost.timed.helion"].value,
    "a replay costs the host the same": lambda t: (
        abs(t["cost.graph.triton"].value - t["cost.graph.helion"].value) < 2.0  # microseconds
    ),
}


@pytest.mark.parametrize("words", PREMISES)
def test_what_the_pages_say_in_words_is_true_of_the_figures(words, table):
    """Where this fails, a newer run has made a sentence untrue: write the sentence anew."""
    assert PREMISES[words](table)
