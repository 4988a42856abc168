"""Every superlative of the project's pages is quoted in docs/claims.md, with what stands behind it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "docs" / "claims.md"
PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")} - {CLAIMS})
SUPERLATIVE = re.compile(
    r"\b(fastest|the only|first (public|released|open)|state of the art|no other (framework|project|kernel library)"
    r"|best (known|public)|unique|nobody else|unmatched|no framework)\b",
    re.IGNORECASE,
)


def quoted(text: str) -> list[tuple[str, str]]:
    """(page, words) of every row of the table of superlatives."""
    return re.findall(r"^\| (\S+\.md) \| \"(.+?)\" \|", text, re.MULTILINE)


def unclaimed(page: str, text: str, claims: list[tuple[str, str]]) -> list[str]:
    """Where a superlative of a page lies in no words that the claims quote of it."""
    flat = re.sub(r"\s+", " ", text)
    spans = [m.span() for where, words in claims if where == page for m in re.finditer(re.escape(words), flat)]
    hits = SUPERLATIVE.finditer(flat)
    return [
        flat[h.start() - 40 : h.end() + 40] for h in hits if not any(a <= h.start() and h.end() <= b for a, b in spans)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_superlatives_are_claims(page):
    name = str(page.relative_to(ROOT))
    assert not unclaimed(name, page.read_text(encoding="utf-8"), quoted(CLAIMS.read_text(encoding="utf-8")))


def test_every_quoted_claim_is_still_made():
    for page, words in quoted(CLAIMS.read_text(encoding="utf-8")):
        assert words in re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8")), (
            f"{page} no longer says: {words}"
        )


def test_an_unclaimed_superlative_is_seen():
    assert unclaimed("a.md", "It is the\nfastest kernel.", [("a.md", "the fastest rung")])
    assert not unclaimed("a.md", "It is the\nfastest kernel.", [("a.md", "the fastest kernel")])
