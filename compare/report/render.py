"""Render a report's sections as markdown, and as one HTML page that needs no other file and no network."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.analysis import markup, tables
from compare.analysis.runs import RunData
from compare.report import guide
from compare.report.blocks import Section

# A figure inside a page: without its prologue and fixed size, in the page's colours, with the ids that it uses.


# A figure's neutral and DSL colours follow the page's theme; other colours are legible on both.
COLOURS = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--sheet)",
    "#dddddd": "var(--rule)",
    "#f4f4f4": "var(--stripe)",
    "#0072b2": "var(--triton)",
    "#d55e00": "var(--helion)",
}
_COLOUR = re.compile("|".join(COLOURS), re.IGNORECASE)
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


def inline(path: Path, prefix: str, text: str) -> markup.Html:
    """A file's SVG as an element of a page. prefix: of its ids. text: its alternative text."""
    whole = path.read_text(encoding="utf-8")
    body = whole[whole.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # its `*` would match the whole page
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    names = {name for pair in used for name in pair if name}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in names else "", body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-")
    body = _COLOUR.sub(lambda match: COLOURS[match.group().lower()], body)
    opening, rest = body.split(">", 1)
    opening = _SIZE.sub("", opening)
    label = html.escape(text, quote=True)
    return markup.Html(f'{opening} role="img" aria-label="{label}">{rest}'.strip())


TEMPLATES = Path(__file__).parent / "templates"


def markdown(run: RunData, sections: Sequence[Section]) -> str:
    """report.md of one run."""
    values = {"run": run, "header": guide.header(run), "sections": sections}
    lines: list[str] = []
    for line in (line.rstrip() for line in _environment().get_template("report.md.j2").render(values).splitlines()):
        if line or (lines and lines[-1]):  # never two empty lines in a row
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def page(runs: Sequence[RunData], sections: Sequence[Sequence[Section]]) -> str:
    """One HTML page on one or several runs, each with its sections."""
    parts = [
        {
            "run": run,
            "timed": run.timed,
            "prefix": f"r{number}",
            "header": guide.header(run),
            "sections": made,
        }
        for number, (run, made) in enumerate(zip(runs, sections, strict=True))
    ]
    gpus = dict.fromkeys(run.gpu_title for run in runs)
    title = runs[0].title if len(runs) == 1 else "Paged attention on " + " and ".join(gpus)
    values = {"title": title, "parts": parts, "overview": overview(runs) if len(runs) > 1 else None}
    return _environment(escapes=True).get_template("report.html.j2").render(values)


def overview(runs: Sequence[RunData]) -> tables.Table:
    """One line for each run: what was there, and the evidence behind its cells."""
    columns = (
        ("run", False), ("GPU", False), ("suite", False), ("cells", True), ("ok", True), ("timed", True),
        ("failed", True), ("what stands behind it", False),
    )  # fmt: skip
    body = [
        [
            f"`{run.manifest.get('run_id', run.folder.name)}`",
            run.gpu_title + (" (absent)" if run.absent else ""),
            run.suite,
            len(run.records),
            len(run.ok),
            sum(record.timing is not None for record in run.records) or "none",
            sum(record.status.is_failure for record in run.records),
            run.headline,
        ]
        for run in runs
    ]
    return tables.Table(columns, body)


def _environment(escapes: bool = False) -> Any:
    """The jinja environment: of markdown, where each expression becomes one line; or of HTML, where each is escaped."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=escapes,
        lstrip_blocks=escapes,
        autoescape=escapes,
        finalize=None if escapes else markup.markdown,
    )
    found.filters |= {"inline": markup.page, "cell": markup.cell, "made": markup.Made, "seen": markup.seen}
    found.globals["svg"] = inline
    return found
