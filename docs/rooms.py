"""Draw docs/pictures/rooms.svg: the rooms, and which imports which, read from the sources. `python docs/rooms.py`

A room stands above all that it imports. An arrow is left out where a way over other rooms leads down to the same one:
every arrow is one that a reader would miss. What a room may import at most is the table of tests/rooms.toml.
`--check` draws nothing and exits with 1 where the committed picture is another one; `--counts [ROOT]` prints how large
the house is, of another checkout too: lines by room, files, classes, commands and their options, tests, megabytes;
`--draw SEED` prints twenty statements at random, and behind them where each stands: guess its room before you look.
"""

import ast
import io
import os
import random
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
ROOMS = tomllib.loads((ROOT / "tests" / "rooms.toml").read_text())["rooms"]
PACKAGES = ("compare", "dsl_triton", "dsl_helion", "common")
# What every room of compare reads stands in no room of its own here: exits, statistics, and who we are; nor does the
# one command, which imports verbs by their names.
LEFT_OUT = {"compare.exits", "compare.stats", "compare.identity", "compare.__main__", "compare.run.__main__"}
COLOURS = {"compare": "#D6E6F2", "dsl_triton": "#F6E3C5", "dsl_helion": "#F6E3C5", "common": "#DDEFE3"}
EDGES = {"compare": "#0072B2", "dsl_triton": "#B07A00", "dsl_helion": "#B07A00", "common": "#007A5A"}
WIDTH, HEIGHT, STEP = 1.08, 0.6, 0.9  # inches: of a box, and from floor to floor

plt.rcParams.update({"font.size": 9, "svg.hashsalt": "diptych", "svg.fonttype": "none"})


def room_of(module: str) -> str:
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), "")


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {room_of(f"{node.module}.{alias.name}") for alias in node.names}
    return found - {""}


def graph() -> dict[str, set[str]]:
    """room -> rooms that it imports from."""
    below: dict[str, set[str]] = {}
    for module, path in modules().items():
        if (room := room_of(module)) and room not in LEFT_OUT:
            below[room] = below.get(room, set()) | imports(path) - {room} - LEFT_OUT
    for dsl in ("dsl_triton", "dsl_helion"):  # the registry imports them by name
        below["compare.competitors"].add(dsl)
    return below


def floors(below: dict[str, set[str]]) -> dict[str, int]:
    """How many rooms stand one above the other under each: 0 for one that imports none."""
    found: dict[str, int] = {}
    while len(found) < len(below):
        ready = [room for room in below if room not in found and below[room] <= found.keys()]
        if not ready:
            raise SystemExit(f"a circle among {sorted(below.keys() - found.keys())}")
        found |= {room: 1 + max((found[other] for other in below[room]), default=-1) for room in ready}
    return found


def reachable(below: dict[str, set[str]], room: str) -> set[str]:
    return below[room] | {deep for other in below[room] for deep in reachable(below, other)}


def plain(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the imports that a way over other rooms leads to as well."""
    deep = {room: reachable(below, room) for room in below}
    return {room: {o for o in under if not any(o in deep[p] for p in under - {o})} for room, under in below.items()}


def places(floor: dict[str, int], arrows: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """(x, y) of every room's middle: compare from the left, kernels in the middle, common on the right; rooms of one
    floor in the order of those that they are imported from."""
    found: dict[str, tuple[float, float]] = {}

    def above(room: str) -> float:
        xs = [found[other][0] for other, under in arrows.items() if room in under]
        return sum(xs) / len(xs) if xs else 0.0

    for level in sorted(set(floor.values()), reverse=True):
        for package, middle in (("compare", None), ("dsl", 2.3), ("common", 5.45)):
            row = [room for room in ROOMS if room.startswith(package) and floor.get(room) == level]
            first = 0.0 if middle is None else middle - (len(row) - 1) / 2 * (WIDTH + 0.12)
            for number, room in enumerate(sorted(row, key=above)):
                found[room] = first + number * (WIDTH + 0.12), level * STEP
    return found


def draw(axes, below) -> None:
    arrows = plain(below)
    at = places(floors(below), arrows)
    for room, under in sorted(arrows.items()):
        for other in sorted(under):
            (x0, y0), (x1, y1) = at[room], at[other]
            bend = 0.0 if abs(x0 - x1) > 0.5 or y0 - y1 < 1.5 * STEP else 0.25
            style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
            begin, end = (x0, y0 - HEIGHT / 2), (x1, y1 + HEIGHT / 2)
            colour = EDGES[room.split(".")[0]]
            axes.add_patch(
                FancyArrowPatch(begin, end, color=colour, alpha=0.7, connectionstyle=f"arc3,rad={bend}", **style)
            )
    for room, (x, y) in at.items():
        package = room.split(".")[0]
        axes.add_patch(
            FancyBboxPatch(
                (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=COLOURS[package], edgecolor=EDGES[package], linewidth=1.1, zorder=3,
            )
        )  # fmt: skip
        name = room if package.startswith("dsl") else room.removeprefix(f"{package}.")
        axes.text(x, y + 0.17, name, ha="center", va="center", fontsize=9, fontweight="bold", zorder=4)
        idea = "\n".join(textwrap.wrap(ROOMS[room]["idea"], 15))
        axes.text(x, y - 0.09, idea, ha="center", va="center", fontsize=8, linespacing=1, zorder=4)
    for package, words in (("compare", "compare/: who wins"), ("dsl_triton", ""), ("common", "common/: what is right")):
        if words:
            xs = [x for room, (x, _) in at.items() if room.startswith(package)]
            top = max(y for room, (_, y) in at.items() if room.startswith(package)) + 0.5
            axes.text(sum(xs) / len(xs), top, words, ha="center", fontsize=10, color=EDGES[package], fontweight="bold")
    xs, ys = zip(*at.values(), strict=True)
    axes.set_xlim(min(xs) - WIDTH / 2 - 0.1, max(xs) + WIDTH / 2 + 0.1)
    axes.set_ylim(min(ys) - HEIGHT / 2 - 0.1, max(ys) + 0.8)
    axes.axis("off")


def picture() -> str:
    below = graph()
    figure = plt.figure(figsize=(8, 11))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_aspect("equal")
    draw(axes, below)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


PLACES = (*PACKAGES, "tests")
READERS = ("dsl_triton/q_block.py", "dsl_triton/static_grid.py", "dsl_helion/q_block.py", "compare/run/command.py")


def named(root: Path, package: str) -> int:
    """How many names the table NAMED or VERBS of a module holds."""
    tree = ast.parse((root / package).read_text(encoding="utf-8"))
    tables = (n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id in ("NAMED", "VERBS"))
    return len(next(tables).keys)


def reached(root: Path, file: str) -> tuple[int, int]:
    """(files of the project that a file imports, all that these reach), inside functions too."""

    def imported(path: Path) -> set[Path]:
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            places = (root.joinpath(*name.split(".")) for name in names if name.split(".")[0] in PACKAGES)
            found |= {one for place in places for one in (place.with_suffix(".py"), place / "__init__.py")}
        return {one for one in found if one.is_file() and one.stat().st_size} - {path}

    direct = imported(root / file)
    every, waiting = set(direct), list(direct)
    while waiting:
        new = imported(waiting.pop()) - every
        every |= new
        waiting += new
    return len(direct), len(every - {root / file})


def options_of_run(root: Path) -> int:
    """Options that `compare run --help` lists."""
    words = [sys.executable, "-m", "compare", "run", "--help"]
    told = subprocess.run(words, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True)
    return len(re.findall(r"^  (?:-\w, )?--[a-z-]+", told.stdout, re.MULTILINE))


def megabytes(root: Path, *under: str) -> float:
    words = ["git", "-C", str(root), "ls-files", "-z", *under]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    paths = [root / name for name in told.split("\0") if name]
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / 1e6, 1)


def counts(root: Path) -> dict[str, object]:
    """How large the house at `root` is: lines by room, files, classes, functions, commands, tests, committed bytes."""
    files = {path: path.read_text(encoding="utf-8") for place in PLACES for path in (root / place).rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in files.items()}

    def of(place: str) -> list[Path]:
        return [path for path in files if path.is_relative_to(root / place)]

    def lines(paths: list[Path]) -> int:
        return sum(files[path].count("\n") for path in paths)

    product = [path for path in files if not path.is_relative_to(root / "tests")]
    kinds = Counter(type(node).__name__ for path in product for node in ast.walk(trees[path]))
    tests = [node for path in of("tests") for node in ast.walk(trees[path]) if isinstance(node, ast.FunctionDef)]
    rooms = sorted({"/".join(path.relative_to(root).parts[:2]) for path in product})
    by_room = {room: lines(of(room)) for room in rooms if (root / room).is_dir()}
    found: dict[str, object] = {f"lines of {room}": count for room, count in by_room.items()}
    found |= {f"lines of {place}": lines(of(place)) for place in PLACES}
    found |= {
        "lines outside tests": lines(product),
        "files outside tests, of tests": f"{len(product)}, {len(of('tests'))}",
        "classes, functions outside tests": f"{kinds['ClassDef']}, {kinds['FunctionDef']}",
        "test functions": sum(node.name.startswith("test_") for node in tests),
        "verbs": named(root, "compare/__main__.py"),
        "studies": named(root, "compare/studies/__init__.py"),
        "pages": named(root, "compare/pages/__init__.py"),
        "options of compare run": options_of_run(root),
        "MB of docs/results, of the checkout": f"{megabytes(root, 'docs/results')}, {megabytes(root)}",
    }
    for file in READERS:
        found[f"files {file} imports, reaches"] = "{}, {}".format(*reached(root, file))
    return found


def at_random(seed: int, count: int = 20) -> list[tuple[str, str]]:
    """(`room file:line`, text) of `count` statements of one line, none of them an import, by a seed."""
    found = []
    for module, path in modules().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            simple = isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom)
            if simple and node.lineno == node.end_lineno and len(text := lines[node.lineno - 1].strip()) > 25:
                found.append((f"{room_of(module)} {path.relative_to(ROOT)}:{node.lineno}", text))
    return random.Random(seed).sample(sorted(set(found)), count)


def main() -> int:
    if "--draw" in sys.argv[1:]:
        found = at_random(int(sys.argv[2]))
        print(*(f"{number:2} {text}" for number, (_, text) in enumerate(found, 1)), "", sep="\n")
        print("\n".join(f"{number:2} {where}" for number, (where, _) in enumerate(found, 1)))
        return 0
    if "--counts" in sys.argv[1:]:
        root = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT
        for name, count in counts(root).items():
            print(f"{name:50} {count}")
        if root == ROOT:
            print(f"{'longest chain of rooms under compare.run':50} {floors(graph())['compare.run'] + 1}")
        return 0
    drawn = picture()
    if "--check" in sys.argv[1:]:
        return int(not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn)
    PICTURE.write_text(drawn, encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
