"""Hooks of the site (mkdocs.yml): pages of docs/ stay as GitHub shows them, and every link of theirs leads somewhere.

A link to a page of results, to README.md and its like, becomes a page; one to a source, its lines numbered, or to a
folder, its list; one to any other file takes the file along. What nothing links to is left out. The reference is made
of API, whose names mkdocstrings reads in the sources; nothing of the project is imported.
"""

import html
import os
import re
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

import links

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages that stand beside docs/
LINK = re.compile(r"(?P<mark>\]\(|src(?:set)?=\")(?!\w+:|#)(?P<to>[^)\s#\"]+)(?P<line>#[^)\s\"]*)?(?=[)\"])")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'(<img src="[^"]+")(.*?)</picture>',
    re.DOTALL,
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
LARGEST = 200_000  # characters of a source that is shown with numbered lines; above it the file comes as it is

API = {
    "The call": {
        "`dsl_triton` and `dsl_helion` export the same calls; each is one `Family` of kernels behind these classes.": (
            "common.serving.call.PagedAttention",
            "common.serving.call.PagedAttention.__call__",
            "common.serving.plan.Plan",
            "common.serving.facade.FlashAttention",
        )
    },
    "A batch": {
        "What the tensors are.": (
            "common.spec.paged_batch.AttentionShape",
            "common.spec.paged_batch.PagedBatch",
            "common.spec.features.Features",
            "common.spec.refusals.SpecError",
        )
    },
    "A kernel": {"What a kernel module defines.": ("common.spec.kernel.Kernel",)},
    "The checker": {
        "The float64 reference, and how far from it is right.": (
            "common.oracle.reference.reference",
            "common.oracle.tolerance.check",
            "common.oracle.tolerance.Verdict",
        )
    },
    "Batches and cases": {
        "Batches as the tests make them, and the named cases.": (
            "common.cases.batch.make_batch",
            "common.cases.case.Case",
            "common.cases.trial.Trial",
        )
    },
    "Writing K and V": {"The step's new K and V into pages.": ("common.spec.cache.CacheWrite",)},
}


def api() -> str:
    """The page of the reference."""
    parts = ["# API", "Made of the docstrings. What an engine needs, in order, is on the page [engines](engines.md)."]
    for title, said in API.items():
        for words, names in said.items():
            parts += [f"## {title}", words, *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def on_files(files, config):
    """Every page, and what its links name, until nothing new is named."""
    files.append(File.generated(config, "api.md", content=api()))
    waiting = [Path(f.abs_src_path) for f in files.documentation_pages() if f.abs_src_path]
    waiting += [ROOT / name for name in PROJECT]
    waiting += [DOCS / "results/README.md", DOCS / "results/h200/release/peers/report.md"]
    seen = set()
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        _include(files, config, page)
        for target in _targets(page):
            if target.suffix == ".md":
                waiting.append(target)
            else:
                _include(files, config, target)
    return files


def _include(files, config, target: Path) -> None:
    """The file that stands for a path of the repository; those of docs/results are there already, left out."""
    there = files.src_uris.get(_address(target))
    if there is None:
        files.append(_file(config, target))
    elif there.inclusion.is_excluded():
        there.inclusion = InclusionLevel.NOT_IN_NAV


def _targets(page: Path) -> list[Path]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    named = [found["to"] for found in LINK.finditer(text)]
    found = [Path(os.path.normpath(page.parent / name)) for name in named]
    return [target for target in found if target.exists() and target != ROOT]


def _address(target: Path) -> str:
    """Where a path of the repository stands in the site."""
    if target.is_relative_to(DOCS) and (target.suffix in (".md", ".svg", ".png") or _is_large(target)):
        return target.relative_to(DOCS).as_posix()
    path = target.relative_to(ROOT).as_posix()
    return f"project/{path}" if target.suffix == ".md" else f"source/{path}.html"


def _is_large(target: Path) -> bool:
    return target.is_file() and target.stat().st_size > LARGEST


def _file(config, target: Path) -> File:
    if target.is_dir():
        listed = sorted(path.name + "/" * path.is_dir() for path in target.iterdir() if path.name != "__pycache__")
        return File.generated(config, _address(target), content=_shell(target, "<br>".join(map(html.escape, listed))))
    if _address(target).startswith("source/"):
        return File.generated(config, _address(target), content=_shell(target, _lines(target)))
    return File.generated(config, _address(target), abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)


def _lines(target: Path) -> str:
    """The source, line by line, with an anchor each."""
    try:
        lexer = get_lexer_for_filename(target.name)
    except ClassNotFound:
        lexer = TextLexer()
    form = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, nobackground=True)
    return highlight(target.read_text(encoding="utf-8"), lexer, form)


def _shell(target: Path, body: str) -> str:
    """A page of its own, without the theme: a source is looked at, then left."""
    name = target.relative_to(ROOT).as_posix()
    style = HtmlFormatter(style="friendly").get_style_defs("pre") + (
        "body{margin:1rem;font:14px/1.4 monospace;background:#fff;color:#1f2328}pre{overflow-x:auto}"
        "a{color:inherit;text-decoration:none}:target+span,:target{background:#fff3b0}"
        "@media(prefers-color-scheme:dark){body{filter:invert(.9) hue-rotate(180deg);background:#fff}}"
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    return f"<!doctype html>{head}<style>{style}</style><h1>{name}</h1>{body}"


def on_page_markdown(markdown, page, config, files):
    """Links of a page as they lead in the site."""
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else DOCS / page.file.src_uri
    here = Path(page.file.src_uri).parent

    def lead(found):
        target = Path(os.path.normpath(source.parent / found["to"]))
        line = found["line"] or ""
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        address = _address(target)
        if address.startswith("source/"):
            line = re.sub(r"#L(\d+)", r"#L-\1", line)
        return found["mark"] + os.path.relpath(address, here) + line

    codes = []

    def keep(found):
        codes.append(found[0])
        return f"\0{len(codes) - 1}\0"

    led = PICTURE.sub(_themed, LINK.sub(lead, CODE.sub(keep, markdown)))
    return re.sub("\0(\\d+)\0", lambda found: codes[int(found[1])], led)


def _themed(found):
    """A picture in two files as two images, of which the theme shows one: a reader may turn the page against the
    system's scheme, which is all that <source media> knows."""
    dark, light, rest = found.groups()
    return f'{light[:-1]}#only-light"{rest}<img src="{dark}#only-dark"{rest}'


def on_post_build(config):
    if lost := links.broken(Path(config.site_dir)):
        raise PluginError(f"{len(lost)} links lead nowhere:\n" + "\n".join(lost))
