"""Whatever a record says is text of a page, in markdown as in HTML: no tag, no link, no picture, no block."""

import html.parser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from compare.analysis import markup
from compare.analysis.tables import Table

TEXTS = {"paragraph_open", "inline", "paragraph_close", "text", "text_special", "code_inline", "strong_open"}
TEXTS |= {"strong_close", "softbreak"}
TABLE = {f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")}
# Half of all characters are those that a page might take for its own.
RUDE = st.text(st.one_of(st.sampled_from("`*_~<>[]()!&;|#-+=\\\n :x1/\"'\u202e"), st.characters()), max_size=40)


def tokens(text):
    found = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return found + [child for token in found for child in token.children or ()]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=RUDE)
@example("<script>x</script> ![p](http://e) [a]: b")
@example("`a\n\n<b>`")
@example("``<b>`` `` ` ** **")
@example("a`b")
def test_any_text_is_a_paragraph(text):
    for of in (text, f"`{text}`", f"**{text}** `{text}`", f"x {markup.said(text)} `y`"):
        assert {token.type for token in tokens(markup.markdown(of))} <= TEXTS, markup.markdown(of)
        entry = Table([("a", False), ("b", False)], [[of, "x"]]).markdown
        found = tokens(entry)
        assert {token.type for token in found} <= TEXTS | TABLE, entry
        assert sum(token.type == "td_open" for token in found) == (2 if str(of) else 1), entry


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.text += data


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=RUDE)
def test_any_text_is_no_tag_of_html(text):
    for of in (text, f"`{text}`", f"**{text}**"):
        assert {(tag, len(attrs)) for tag, attrs in Tags(markup.page(of)).tags} <= {("code", 0), ("strong", 0)}


def shown(text):
    """What a reader of the markdown sees."""
    return "".join(token.content for token in tokens(markup.markdown(text)) if token.type != "inline")


@pytest.mark.parametrize(
    "text", ["a|b <b> &lt; [x](y) ![p](q) *x* `y` **z** _z_ ~~s~~ snake_case & # \\", "# no heading", "- x", "1. x"]
)
def test_what_is_said_is_read_word_for_word(text):
    assert shown(markup.said(text)) == text
    assert Tags(markup.page(markup.said(text))).text == text


def test_our_own_marks_are_kept():
    assert markup.markdown("a `b` **c `d`**, k~_2 [0.98, 1.02] -> x") == "a `b` **c `d`**, k~_2 [0.98, 1.02] -> x"
    assert markup.page("`<i>` & **1**") == "<code>&lt;i&gt;</code> &amp; <strong>1</strong>"


def test_what_no_page_can_show_is_replaced():
    assert markup.markdown("a\x00\x1b\u202eb") == markup.page("a\x00\x1b\u202eb") == "a\ufffd\ufffd\ufffdb"
