"""The site has every page, its reference names what is there, and a link that leads nowhere is found.

The site itself is built by `make docs`, in CI too; this needs nothing of mkdocs.
"""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/.-]+\.md)$", CONFIG, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    front = {name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
    assert {name for name in listed if "/" not in name} == pages | {"api.md"}
    assert {Path(name).name for name in listed if name.startswith("project/")} == front
    assert len(listed) == len(set(listed))


def test_the_reference_names_what_is_in_the_sources():
    include = loaded("include")
    tree = ast.parse((ROOT / "docs" / "website.py").read_text(encoding="utf-8"))
    (table,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "API"]
    names = [name for said in ast.literal_eval(table).values() for listed in said.values() for name in listed]
    assert len(names) > 10
    for name in names:
        include.definition(name)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    links = loaded("links")
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "a.html").write_text(
        '<a class="x" href="b.html#there">right</a><a href="https://example.org/#x">elsewhere</a>'
        '<a href="b.html#gone">1</a><img src="c.svg"><source srcset="d.svg">'
    )
    assert links.broken(tmp_path) == ["a.html: b.html#gone", "a.html: c.svg", "a.html: d.svg"]


def test_a_picture_follows_the_theme_of_the_page_and_not_the_system(monkeypatch):
    """A reader may turn the site light on a dark system; its `<source media>` would stay dark."""
    for name in ("mkdocs", "mkdocs.exceptions", "mkdocs.structure", "mkdocs.structure.files"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    website = loaded("website")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    themed = website.PICTURE.sub(website._themed, page)
    assert "<picture>" in page and "<picture>" not in themed
    assert 'src="docs/pictures/classes-light.svg#only-light"' in themed
    assert 'src="docs/pictures/classes-dark.svg#only-dark"' in themed and themed.count("alt=") == 2
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    assert not [text for text in pages if "<picture>" in website.PICTURE.sub(website._themed, text)]
