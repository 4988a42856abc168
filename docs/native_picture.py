"""Draw docs/pictures/native-{light,dark}.svg: the roles of the Gluon kernel. `python docs/native_picture.py`

Above, the roles of a program's twelve warps and the rings of shared memory between them, each with its barriers and
their counts as sm90_prefill.py sets them up. Below, the two halves' turns on the tensor cores as sm90_compute.py takes
them. Colours are Okabe and Ito's; what a colour says is also said by a label.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

HERE = Path(__file__).resolve().parent / "pictures"


@dataclass(frozen=True)
class Look:
    page: str
    ink: str
    line: str
    memory: str  # what lies in the GPU's memory
    load: str  # roles of one warp
    ring: str  # shared memory
    compute: str  # roles of four warps
    other: str  # the other half's time


LOOKS = {
    "light": Look("#FFFFFF", "#1F2328", "#59636E", "#E8EAED", "#BFE3F7", "#FBE3B3", "#BFE8D8", "#F2CFE2"),
    "dark": Look("#0D1117", "#E6EDF3", "#9198A1", "#30363D", "#0B4F78", "#6B4A00", "#00533D", "#6E3355"),
}

# place: (x, y, width, height) in a page of 100 x 66, y downwards
MEMORY = {
    "plan, counters": (0, 4, 14, 5), "Q": (0, 14, 14, 5), "K in pages,\nblock table": (0, 24, 14, 7),
    "V in pages,\nblock table": (0, 36, 14, 7),
}  # fmt: skip
LOADERS = {
    "schedule\n1 warp": (21, 3.5, 15, 6), "load_queries\n1 warp": (21, 13.5, 15, 6),
    "load_tiles: K\n1 warp": (21, 24.5, 15, 6), "load_tiles: V\n1 warp": (21, 36.5, 15, 6),
}  # fmt: skip
RINGS = {  # of so many slots; arrivals that make one full, and empty
    "items, 2 slots": (45, 3.5, 19, 6, "full 1, empty 5"),
    "Q, 2 buffers": (45, 13.5, 19, 6, "full 1 + bytes, empty 2"),
    "K, 2 tiles": (45, 24.5, 19, 6, "full 1 + bytes, empty 2"),
    "V, 2 tiles": (45, 36.5, 19, 6, "full 1 + bytes, empty 2"),
}
HALVES = {
    "compute, half 0\n4 warps, rows 0 to 63": (75, 10, 25, 10),
    "compute, half 1\n4 warps, rows 64 to 127": (75, 29, 25, 10),
}


def box(axes, look, place, colour, words, size=9, under=""):
    x, y, width, height = place[:4]
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=look.line, linewidth=0.9))
    lift = 1.1 if under else 0
    axes.text(x + width / 2, y + height / 2 - lift, words, ha="center", va="center", fontsize=size, color=look.ink)
    if under:
        say(axes, look, x + width / 2, y + height / 2 + 1.5, under, size=7.5)


def say(axes, look, x, y, words, size=8.0, ha="center", weight="normal"):
    axes.text(x, y, words, ha=ha, va="center", fontsize=size, color=look.ink, fontweight=weight)


def arrow(axes, look, begin, end):
    how = {"arrowstyle": "-|>", "mutation_scale": 10, "color": look.line, "linewidth": 1.1}
    axes.add_patch(FancyArrowPatch(begin, end, shrinkA=0, shrinkB=0, **how))


def roles(axes, look):
    for x, words in (
        (7, "GPU memory"),
        (28.5, "loading warps"),
        (54.5, "rings in shared memory"),
        (87.5, "computing warps"),
    ):
        say(axes, look, x, 0.8, words, size=10, weight="bold")
    for words, place in MEMORY.items():
        box(axes, look, place, look.memory, words)
    for words, place in LOADERS.items():
        box(axes, look, place, look.load, words)
    for words, place in RINGS.items():
        box(axes, look, place, look.ring, words, under=place[4])
    for words, place in HALVES.items():
        box(axes, look, place, look.compute, words)
    for y, words in ((6.5, ""), (16.5, "TMA or\ncopies"), (27.5, "TMA"), (39.5, "TMA")):
        arrow(axes, look, (14, y), (21, y))
        arrow(axes, look, (36, y), (45, y))
        say(axes, look, 42, y - 1.2 - words.count("\n"), words)
    for y, ends in ((6.5, (12, 31)), (16.5, (14, 33)), (27.5, (16, 35)), (39.5, (18, 37))):
        for end in ends:
            arrow(axes, look, (64, y), (75, end))
    axes.plot([36, 38.5, 38.5], [29.3, 29.3, 8.3], color=look.line, linewidth=1.1, linestyle=(0, (3, 2)))
    arrow(axes, look, (38.5, 8.3), (36, 8.3))
    say(axes, look, 39.2, 22, "claim: two tiles are left", size=7.5, ha="left")
    arrow(axes, look, (85, 20), (85, 29))
    arrow(axes, look, (90, 29), (90, 20))
    say(axes, look, 91, 24.5, "turns:\nbarriers\n14, 15", size=7.5, ha="left")
    arrow(axes, look, (87.5, 39), (87.5, 42))
    say(axes, look, 87.5, 43.2, "the output: TMA or stores, through the queries' buffer")
    words = "All three loaders read the ring of items too: with both halves, five readers empty a slot."
    say(axes, look, 0, 46.2, words, ha="left")


def turns(axes, look):
    top, width, soft = 50, 13, 13
    say(axes, look, 0, top - 0.8, "Two halves take turns on the tensor cores", size=10, ha="left", weight="bold")
    for half in range(2):
        y = top + 1.5 + half * 6
        say(axes, look, 0, y + 2.2, f"half {half}", size=9, ha="left")
        colour = look.other if half else look.compute
        for n in range(3):
            x = 8 + half * width + n * (width + soft)
            if x + width > 100:
                break
            box(axes, look, (x, y, width, 4.4), colour, f"scores of tile {7 - n}\n+ values of tile {8 - n}", size=7.5)
            rest = min(soft, 100 - x - width)
            box(axes, look, (x + width, y, rest, 4.4), look.page, "softmax" if rest > 7 else "", size=8)
    for n in range(6):
        x = 8 + n * width
        colour = look.other if n % 2 else look.compute
        axes.add_patch(Rectangle((x, top + 13.6), width, 1.4, facecolor=colour, edgecolor=look.line, linewidth=0.6))
    say(axes, look, 0, top + 14.3, "tensor\ncores", size=7.5, ha="left")
    say(axes, look, 97, top + 14.3, "time", size=8)


def draw(look):
    plt.rcParams.update({"svg.hashsalt": "diptych", "font.size": 9})
    figure, axes = plt.subplots(figsize=(9, 6.1), layout="constrained", facecolor=look.page)
    axes.set_xlim(-0.5, 100.5)
    axes.set_ylim(66, -0.5)
    axes.axis("off")
    roles(axes, look)
    turns(axes, look)
    return figure


def main() -> None:
    for name, look in LOOKS.items():
        figure = draw(look)
        figure.savefig(HERE / f"native-{name}.svg", metadata={"Date": None}, facecolor=look.page)
        plt.close(figure)


if __name__ == "__main__":
    main()
