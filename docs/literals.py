"""The numbers that a choice is made by, counted: literals of the syntax trees other than 0, 1 and 2, and lines.

python docs/literals.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "`common/choice/`": "common/choice/*.py",
    "`common/serving/choice.py`, `cdna.py`, `listing2.py`": "common/serving/{choice,cdna,listing2}.py",
    "`dsl_*/heuristics/`": "dsl_*/heuristics/**/*.py",
    "`dsl_triton/native/auto.py`, `sm90_config.py`": "dsl_triton/native/{auto,sm90_config}.py",
}


def files(pattern: str) -> list[Path]:
    """Of a glob with at most one group of alternatives in braces."""
    before, _, rest = pattern.partition("{")
    names, _, after = rest.partition("}")
    return sorted(file for name in names.split(",") for file in ROOT.glob(before + name + after))


def count(found: list[Path]) -> tuple[int, int]:
    """Literals (True and False are none), and lines."""
    literals = lines = 0
    for file in found:
        text = file.read_text(encoding="utf-8")
        values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        literals += sum(value not in (0, 1, 2) for value in numbers)
        lines += len(text.splitlines())
    return literals, lines


def main() -> None:
    whole = [count(files(pattern)) for pattern in ROOMS.values()]
    for name, (literals, lines) in zip(ROOMS, whole, strict=True):
        print(f"| {name} | {literals} | {lines:,} |")
    literals, lines = map(sum, zip(*whole, strict=True))
    print(f"| together | {literals} | {lines:,} |")


if __name__ == "__main__":
    main()
