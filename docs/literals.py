"""The rules, counted: numeric literals of the syntax trees and lines, of what docs/tuning.md tells.

python docs/literals.py
"""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("untuned.py", "listing2.py")


def count(files: list[Path]) -> tuple[int, int]:
    """Numbers in the sources (True and False are none), and lines."""
    literals = lines = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        literals += sum(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        lines += len(text.splitlines())
    return literals, lines


def main() -> None:
    rules = sorted(ROOT.glob("dsl_*/heuristics/**/*.py"))
    shared = [ROOT / "common" / "serving" / name for name in SHARED]
    tiles = (ROOT / "common" / "serving" / "tiles.json").read_text(encoding="utf-8")
    rows = sum(len(lines) for part, lines in json.loads(tiles).items() if part != "of")
    for name, (literals, lines) in (
        ("`dsl_*/heuristics/`", count(rules)),
        (f"shared: {', '.join(f'`{name}`' for name in SHARED)}", count(shared)),
        ("data: `tiles.json`, four numbers a line of it", (4 * rows, len(tiles.splitlines()))),
    ):
        print(f"| {name} | {literals:,} | {lines:,} |")


if __name__ == "__main__":
    main()
