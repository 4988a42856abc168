"""Draw docs/pictures/*.svg: what one program of each rung of the ladder does. `python docs/pictures.py`

The tile ranges are computed as the kernels compute them (`kv_tile_range`, `segment_range` in both primitives.py,
`run_length` in both page_runs.py).
Colours are Okabe and Ito's; what a colour says is also said by a label or a hatch.
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

HERE = Path(__file__).resolve().parent / "pictures"
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
SEEN, UNSEEN, LINE = "#E4E4E4", "#FFFFFF", "#666666"
PAGE, TILE, HEADS = 8, 16, 4  # keys of a page, keys of a tile, query heads of the KV head that is drawn
QUERY_LEN, SEQ_LEN = 7, 64
CONTEXT = SEQ_LEN - QUERY_LEN
TABLE = (5, 2, 9, 0, 7, 3, 11, 6)  # page ids of the sequence, in its order

plt.rcParams.update({"font.size": 10, "svg.hashsalt": "diptych", "hatch.linewidth": 0.8})


def box(axes, x, y, width, height, colour, *, edge="none", hatch=None, line=0.8):
    axes.add_patch(
        Rectangle(
            (x, y),
            width,
            height,
            facecolor=colour,
            edgecolor=edge,
            hatch=hatch,
            linewidth=line,
            zorder=3 if colour == "none" else 1,
        )
    )


def text(axes, x, y, words, **style):
    axes.text(x, y, words, **({"ha": "center", "va": "center", "fontsize": 9} | style))


def arrow(axes, begin, end, colour=LINE, bend=0.0):
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "color": colour, "linewidth": 1.2}
    axes.add_patch(FancyArrowPatch(begin, end, connectionstyle=f"arc3,rad={bend}", **style))


def canvas(width, height, x, y):
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.invert_yaxis()
    axes.axis("off")
    return figure, axes


def scores(axes):
    """The scores of one sequence under one KV head: rows are (query token, query head), columns are keys."""
    for token in range(QUERY_LEN):
        box(axes, 0, token * HEADS, SEQ_LEN, HEADS, UNSEEN)
        box(axes, 0, token * HEADS, CONTEXT + token + 1, HEADS, SEEN)
        text(axes, -0.8, (token + 0.5) * HEADS, f"token {token}", ha="right")
        for head in range(HEADS):
            y = token * HEADS + head
            axes.plot([0, CONTEXT + token + 1], [y] * 2, color="#FFFFFF", linewidth=0.5 if head else 1.8)
    box(axes, 0, 0, SEQ_LEN, QUERY_LEN * HEADS, "none", edge=LINE)


def pages(axes, y):
    """The sequence's row of the block table, above its keys."""
    text(axes, -0.8, y + 1, "block_table", ha="right", family="monospace")
    for i, page in enumerate(TABLE):
        box(axes, i * PAGE, y, PAGE, 2, "#FFFFFF", edge=LINE)
        text(axes, (i + 0.5) * PAGE, y + 1, f"page {page}")


def lines(axes, step, colour, style=":"):
    for key in range(step, SEQ_LEN, step):
        axes.plot([key, key], [0, QUERY_LEN * HEADS], color=colour, linewidth=0.9, linestyle=style)


def key_axis(axes, y):
    for key in range(0, SEQ_LEN + 1, TILE):
        text(axes, key, y, str(key), fontsize=8)
    text(axes, SEQ_LEN / 2, y + 1.7, f"keys of the sequence; the first {CONTEXT} are context, {QUERY_LEN} are new")


def naive():
    figure, axes = canvas(9, 5.2, (-9, SEQ_LEN + 1), (-6.5, 37.5))
    text(axes, 0, -5.4, "naive: one program = one query token under one query head", ha="left", fontsize=12)
    pages(axes, -3)
    scores(axes)
    lines(axes, PAGE, LINE)
    token, head = 3, 1
    row, end = token * HEADS + head, CONTEXT + token + 1
    for i in range(-(-end // PAGE)):
        width = min(PAGE, end - i * PAGE)
        box(axes, i * PAGE, row, width, 1, BLUE, edge="#FFFFFF")
        arrow(axes, (i * PAGE + 4, -0.9), (i * PAGE + 4, row - 0.1), BLUE)
        text(axes, i * PAGE + 2.6, 2, str(i + 1), color=BLUE, fontsize=10, fontweight="bold")
    words = "this program: token 3, head 1; a step per page, 8 steps"
    text(axes, SEQ_LEN / 2, row + 5, words, color=BLUE, fontsize=10, bbox={"facecolor": SEEN, "edgecolor": "none"})
    key_axis(axes, 29.3)
    words = f"{QUERY_LEN} tokens x {HEADS} heads = {QUERY_LEN * HEADS} programs read the same K and V."
    text(axes, 0, 33.8, words, ha="left")
    text(axes, 0, 36, "A row is one head of a token. Grey: keys that it may see.", ha="left")
    return figure


def q_block():
    figure, axes = canvas(9, 5.2, (-9, SEQ_LEN + 1), (-6.5, 37.5))
    text(
        axes,
        0,
        -5.4,
        "q_block: one program = 16 rows (4 tokens x 4 heads) over all their tiles",
        ha="left",
        fontsize=12,
    )
    pages(axes, -3)
    scores(axes)
    first, last = 0, 3  # BLOCK_Q = BLOCK_M // QUERIES_PER_KV = 4 tokens
    full_hi, hi = (CONTEXT + first + 1) // TILE, -(-(CONTEXT + last + 1) // TILE)
    for j in range(hi):
        masked = j >= full_hi
        colour, hatch = (ORANGE, "//") if masked else (BLUE, None)
        for token in range(first, last + 1):
            width = min(TILE, CONTEXT + token + 1 - j * TILE)
            box(axes, j * TILE, token * HEADS, width, HEADS, colour, edge="#FFFFFF" if masked else "none", hatch=hatch)
        box(axes, j * TILE, 0, TILE, 16, "none", edge="#000000", line=1.3)
        words = f"tile {j}\n" + ("masked" if masked else "no mask")
        style = (
            {"bbox": {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 2}}
            if masked
            else {"color": "#FFFFFF", "bbox": {"facecolor": BLUE, "edgecolor": "none", "pad": 2}}
        )
        text(axes, (j + 0.5) * TILE, 8, words, fontsize=10, **style)
    box(axes, 0, 16, SEQ_LEN, 12, "none", edge="#000000", line=1.3)
    text(axes, SEQ_LEN / 2, 22, "the next Q Block: 3 tokens, 12 of its 16 rows are real", fontsize=10)
    key_axis(axes, 29.3)
    text(axes, 0, 33.8, "A tile of K and V is loaded once for 16 rows: [16, d] x [d, 16], a matrix product.", ha="left")
    words = "Blue: every row sees every key, the loop without masks. Orange: the diagonal, the masked loop."
    text(axes, 0, 36, words, ha="left")
    return figure


def segments(tiles, limit=4):
    """[start, stop) of the segments that have tiles, as `segment_range` deals them."""
    per_segment = max(-(-tiles // limit), 1)
    return [(at, min(at + per_segment, tiles)) for at in range(0, tiles, per_segment)]


def parallel_softmax():
    figure, axes = canvas(9, 5.0, (-4.2, 18.2), (-1.6, 10.3))
    title = "parallel_softmax: one program = a segment of a Q Block's tiles (at most 4 segments here)"
    text(axes, -4.1, -1.1, title, ha="left", fontsize=12)
    colours, hatches = (BLUE, ORANGE, GREEN, PURPLE), (None, "//", "..", "\\\\")
    for number, tiles in enumerate((10, 6, 1)):
        y = number * 3.6
        keys = f"{tiles * TILE} keys, {tiles} tile{'s' if tiles > 1 else ''}"
        text(axes, -4.1, y + 0.5, f"sequence {number}\n1 query token\n{keys}", ha="left")
        used = segments(tiles)
        for segment, (start, stop) in enumerate(used):
            for j in range(start, stop):
                box(axes, j, y, 1, 1, colours[segment], edge="#FFFFFF", hatch=hatches[segment])
            box(axes, start, y, stop - start, 1, "none", edge="#000000", line=1.3)
            middle, plural = (start + stop) / 2, "s" if stop - start > 1 else ""
            text(axes, middle, y - 0.32, f"{stop - start} tile{plural}", fontsize=8)
            if len(used) > 1:
                text(axes, middle, y + 1.45, "m, l, acc", fontsize=8, color=VERMILION)
                axes.plot([middle, middle], [y + 1.75, y + 2.1], color=LINE, linewidth=1.2)
        if len(used) > 1:
            first = sum(used[0]) / 2
            axes.plot([first, 11.4], [y + 2.1] * 2, color=LINE, linewidth=1.2)
            arrow(axes, (11.3, y + 2.1), (12.3, y + 2.1))
            box(axes, 12.3, y + 1.5, 3.4, 1.2, "#FFFFFF", edge="#000000")
            text(axes, 14, y + 2.1, "reduce_segments", fontsize=9, family="monospace")
            arrow(axes, (15.7, y + 2.1), (16.6, y + 2.1))
            text(axes, 16.7, y + 2.1, "out", ha="left", fontsize=10)
        else:
            arrow(axes, (1.1, y + 0.5), (16.6, y + 0.5))
            text(axes, 16.7, y + 0.5, "out", ha="left", fontsize=10)
            text(axes, 8, y + 0.05, "one segment has all tiles: it writes out itself, nothing to reduce", fontsize=9)
    words = "Within a sequence a colour is a program. All run at once. Each sequence's own tiles are dealt evenly."
    text(axes, -4.1, 9.6, words, ha="left")
    return figure


def runs(axes, y, page, keys, j):
    """Pages of `page` keys, and tile j below them in the runs by which it is loaded."""
    colours, hatches = (BLUE, ORANGE), (None, "//")
    for at in range(0, keys, page):
        box(axes, at, y, page, 1.6, "#FFFFFF", edge=LINE)
        text(axes, at + page / 2, y + 0.8, f"page {TABLE[at // page]}")
    for at in range(0, keys, TILE):
        box(axes, at, y + 3.2, TILE, 1.6, SEEN, edge=LINE)
        if at != j * TILE:
            text(axes, at + TILE / 2, y + 4, f"tile {at // TILE}")
    run = math.gcd(page, TILE)
    count = TILE // run
    for i in range(count):
        at = j * TILE + i * run
        box(axes, at, y + 3.2, run, 1.6, colours[i % 2], edge="#FFFFFF", hatch=hatches[i % 2])
        arrow(axes, (at + run / 2, y + 1.6), (at + run / 2, y + 3.2), colours[i % 2])
    return f"{count} page id{'s' if count > 1 else ''}\n[{count}, {run}, d]" if count > 1 else f"1 page id\n[{run}, d]"


def adjustable_tile():
    figure, axes = canvas(9, 5.8, (-16, 64), (-2.2, 32.5))
    text(axes, -15.8, -1.5, "adjustable_tile: the tile is no longer tied to the page", ha="left", fontsize=12)
    for row, (page, words) in enumerate(((8, "larger than\nthe page"), (48, "inside\na page"), (24, "across\npages"))):
        y = row * 6.2
        text(axes, -15.8, y + 2.4, f"tile of {TILE},\n{words}", ha="left")
        text(axes, 49.5, y + 4, runs(axes, y, page, 48, 1), ha="left")
    text(axes, 0, 19.1, "A run is the keys that page and tile cannot part: one page id, one 64-bit product.", ha="left")
    text(axes, -15.8, 25.6, "one batch,\ntwo launches", ha="left")
    at, lens = 0, (1, 1, 16, 17, 60)
    for query_len in lens:
        width, short = max(math.sqrt(query_len) * 1.9, 2.4), query_len <= 16
        colour, hatch = (GREEN, "..") if short else (PURPLE, "\\\\")
        box(axes, at, 22, width, 1.8, colour, edge="#FFFFFF", hatch=hatch)
        text(axes, at + width / 2, 24.5, str(query_len))
        arrow(axes, (at + width / 2, 25.2), (8 if short else 30, 27.4), colour)
        at += width + 0.6
    text(axes, at + 0.6, 24.5, "query tokens", ha="left")
    for x, words, colour in (
        (-2, "at most 16: segments,\na decode's tile", GREEN),
        (22, "more: Q Blocks,\na prefill's tile", PURPLE),
    ):
        box(axes, x, 27.5, 20, 3.6, "#FFFFFF", edge=colour, line=1.5)
        text(axes, x + 10, 29.3, words)
    return figure


def static_grid():
    """The plan of one sequence, its last Q Block first, and which of four programs claims each item."""
    figure, axes = canvas(9, 4.6, (-0.3, 21.3), (-2.2, 8.6))
    text(axes, 0, -1.7, "static_grid: items of the step's plan, claimed by 4 programs", ha="left", fontsize=12)
    colours, hatches = (BLUE, ORANGE, GREEN, PURPLE), (None, "//", "..", "\\\\")
    items = (5, 5, 4, 4, 3, 3, 2, 2, 1)  # tiles
    ends, begin = [0] * 4, 0
    for number, tiles in enumerate(items):
        program = min(range(4), key=ends.__getitem__)
        place = begin * 21 / sum(items)
        width = tiles * 21 / sum(items)
        box(axes, place, 0, width, 1, colours[program], edge="#000000", hatch=hatches[program])
        text(axes, place + width / 2, -0.45, f"{tiles} tile{'s' * (tiles > 1)}", fontsize=9)
        box(
            axes, 3 + ends[program], 2.6 + program, tiles, 0.8, colours[program], edge="#FFFFFF", hatch=hatches[program]
        )
        style = {"bbox": {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 1.2}, "fontsize": 8}
        text(
            axes, 3 + ends[program] + tiles / 2, 3.0 + program, f"item {number}" if tiles > 1 else f"{number}", **style
        )
        ends[program] += tiles
        begin += tiles
    for program in range(4):
        text(axes, 2.8, 3.05 + program, f"program {program}", ha="right", fontsize=9)
    words = "The plan: the longest sequence first. A program claims the next item when it is done with one."
    text(axes, 0, 1.7, words, ha="left")
    words = "Items 0 and 1 are segments of one Q Block: merge_parts adds their sums."
    text(axes, 0, 7.0, words, ha="left")
    words = "Another batch is another plan: the programs, their scratch and the captured graph stay the same."
    text(axes, 0, 7.8, words, ha="left")
    return figure


def split():
    figure, axes = canvas(9, 5.8, (-9, SEQ_LEN + 1), (-6.5, 42))
    text(
        axes,
        0,
        -5.4,
        "split: a prompt reads its context from pages, its new tokens where they are",
        ha="left",
        fontsize=12,
    )
    pages(axes, -3)
    scores(axes)
    last = 3  # the Q Block's tokens 0 .. 3, as in q_block
    for j in range(-(-CONTEXT // TILE)):
        width = min(TILE, CONTEXT - j * TILE)
        masked = width < TILE
        box(axes, j * TILE, 0, width, 16, ORANGE if masked else BLUE, edge="#FFFFFF", hatch="//" if masked else None)
        box(axes, j * TILE, 0, width, 16, "none", edge="#000000", line=1.3)
        arrow(axes, (j * TILE + width / 2, -1.1), (j * TILE + width / 2, 0.2), "#000000")
        words = f"context {j}\n" + ("its end: masked" if masked else "no mask")
        style = {"color": "#000000", "bbox": {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 2}, "fontsize": 8}
        text(axes, j * TILE + width / 2, 8, words, **style)
    for token in range(last + 1):
        box(axes, CONTEXT, token * HEADS, token + 1, HEADS, GREEN, edge="#FFFFFF", hatch="..")
    box(axes, CONTEXT, 0, QUERY_LEN, 16, "none", edge="#000000", line=1.3)
    box(axes, CONTEXT, 20, QUERY_LEN, 2.4, GREEN, edge="#FFFFFF", hatch="..")
    text(axes, CONTEXT - 1, 21.2, "key and value of this step, contiguous", ha="right")
    arrow(axes, (CONTEXT + 2, 20), (CONTEXT + 2, 16.2), GREEN)
    key_axis(axes, 29.3)
    axes.plot([-9, SEQ_LEN + 1], [32.6, 32.6], color=LINE, linewidth=0.8)
    text(
        axes,
        0,
        34.3,
        "A sequence of one query token has a kernel of its own: a KV head's query heads, padded to 16 rows.",
        ha="left",
    )
    for row in range(16):
        real = row < HEADS
        box(axes, 0, 35.6 + row * 0.3, 48, 0.3, PURPLE if real else UNSEEN, edge=LINE, line=0.3)
    text(axes, 49, 36.2, f"{HEADS} heads", ha="left", color="#000000")
    text(axes, 49, 38.8, "12 rows of padding", ha="left")
    text(axes, 0, 41.5, "Both launches see the whole batch; the device decides who works.", ha="left")
    return figure


def unpaged():
    figure, axes = canvas(9, 6.4, (-9, SEQ_LEN + 1), (-16, 37.5))
    title = "unpaged: keys leave their pages once; then every Q Block reads whole tiles"
    text(axes, 0, -14.9, title, ha="left", fontsize=12)
    pool = sorted(TABLE)
    text(axes, -0.8, -11.8, "the cache", ha="right")
    for slot, page in enumerate(pool):
        box(axes, slot * PAGE + 0.6, -12.8, PAGE - 1.2, 2, SKY, edge=LINE)
        text(axes, (slot + 0.5) * PAGE, -11.8, f"page {page}", fontsize=8)
    for place, page in enumerate(TABLE):
        arrow(axes, ((pool.index(page) + 0.5) * PAGE, -10.7), ((place + 0.5) * PAGE, -5.1), SKY)
    text(axes, -0.8, -4, "scratch of\none KV head", ha="right")
    box(axes, 0, -5, SEQ_LEN, 2, SKY, edge=LINE)
    for place, page in enumerate(TABLE):
        text(axes, (place + 0.5) * PAGE, -4, f"from {page}", fontsize=8)
    scores(axes)
    first, last = 0, 3  # the Q Block's tokens, as in q_block
    full_hi, hi = (CONTEXT + first + 1) // TILE, -(-(CONTEXT + last + 1) // TILE)
    for j in range(hi):
        masked = j >= full_hi
        for token in range(first, last + 1):
            width = min(TILE, CONTEXT + token + 1 - j * TILE)
            hatch, colour = ("//", ORANGE) if masked else (None, BLUE)
            box(axes, j * TILE, token * HEADS, width, HEADS, colour, edge="#FFFFFF" if masked else "none", hatch=hatch)
        box(axes, j * TILE, 0, TILE, 16, "none", edge="#000000", line=1.3)
        arrow(axes, ((j + 0.5) * TILE, -2.9), ((j + 0.5) * TILE, 1.6), "#000000")
        words = f"tile {j}: one block\n" + ("masked" if masked else "no mask")
        style = {"color": "#000000", "bbox": {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 2}, "fontsize": 8}
        text(axes, (j + 0.5) * TILE, 8, words, **style)
    key_axis(axes, 29.3)
    text(axes, 0, 33.8, "Copy: a page id per key, once. Attend: a tile is a row number in a descriptor.", ha="left")
    text(
        axes,
        0,
        36,
        "Behind a last key a tile holds zeros. (7 tokens stand for many: up to 16 are served through pages.)",
        ha="left",
    )
    return figure


def auto():
    figure, axes = canvas(9, 4.2, (-0.2, 73), (0, 33))
    text(
        axes,
        0,
        1.4,
        "auto: host integers choose a kernel and a config; lengths never leave the device",
        ha="left",
        fontsize=12,
    )
    words = {"ha": "center", "fontsize": 9}
    box(axes, 0, 12, 15, 8, "#FFFFFF", edge=LINE)
    text(axes, 7.5, 16, "hints and shapes:\nsequences, tokens,\ndecodes, longest\nquery, keys", **words)
    box(axes, 20, 12, 12, 8, SKY, edge=LINE)
    text(axes, 26, 16, "keys rounded up;\nfor a plan all,\nto a grid", **words)
    box(axes, 37, 12, 13, 8, ORANGE, edge=LINE)
    text(axes, 43.5, 16, "a measured winner,\nor what logs\nteach", **words)
    arrow(axes, (15, 16), (20, 16))
    arrow(axes, (32, 16), (37, 16))
    for i, (name, why) in enumerate(
        (
            ("parallel_softmax", "in segments"),
            ("q_block", "one launch, whole"),
            ("adjustable_tile", "prompts, by pages"),
            ("unpaged", "prompts, out of a copy"),
            ("split", "x-packed pages"),
        )
    ):
        y = 3.4 + i * 5.4
        box(axes, 56, y, 16, 4.6, "#FFFFFF", edge=LINE)
        text(axes, 64, y + 1.6, name, family="monospace")
        text(axes, 64, y + 3.5, why, fontsize=7.5)
        arrow(axes, (50, 16), (56, y + 2.3))
    words = "Few points of the grid: a warm-up compiles all that a capacity can reach. A wrong hint costs time alone."
    text(axes, 0, 31.6, words, ha="left")
    return figure


def keys_read(last):
    """Keys that a Q Block whose last token is `last` reads: up to what that token sees."""
    return CONTEXT + last + 1


def programs():
    """Of the picture's sequence: who is launched, what all of them read through the block table, what one writes."""
    per_block = 16 // HEADS
    blocks = [min(at + per_block, QUERY_LEN) - 1 for at in range(0, QUERY_LEN, per_block)]  # the last token of each
    by_token = HEADS * sum(CONTEXT + token + 1 for token in range(QUERY_LEN))
    token_pages = HEADS * sum(-(-(CONTEXT + token + 1) // PAGE) for token in range(QUERY_LEN))
    by_block = sum(map(keys_read, blocks))
    count = len(blocks)
    rungs = (
        ("naive", f"{QUERY_LEN * HEADS}: token x head", by_token, token_pages, "1 row"),
        ("q_block", f"{count}: Q Blocks", by_block, by_block, "16 rows"),
        ("parallel_softmax", f"{2 * count}: Q Blocks x segments", by_block, by_block, "m, l, acc of 16 rows"),
        ("adjustable_tile", f"{count}: Q Blocks", by_block, -(-by_block // PAGE), "16 rows"),
        ("static_grid", "4: as many as fit the GPU", by_block, -(-by_block // PAGE), "rows, or parts of them"),
        ("split", f"{count}: Q Blocks", count * CONTEXT, count * CONTEXT, "16 rows"),
        ("unpaged", f"{count}: Q Blocks, after a copy", SEQ_LEN, SEQ_LEN, "16 rows"),
    )
    figure, axes = canvas(9, 4.6, (-1, 101), (-2.2, len(rungs) * 1.6 + 1.4))
    heads = ((0, "rung"), (20, "programs: 7 tokens, 4 heads"), (48, "keys read from pages, all programs"))
    for x, words in (*heads, (83, "a program writes")):
        text(axes, x, -1.4, words, ha="left", fontsize=9.5, fontweight="bold")
    for number, (name, grid, keys, ids, writes) in enumerate(rungs):
        y = number * 1.6
        text(axes, 0, y + 0.5, name, ha="left", family="monospace")
        text(axes, 20, y + 0.5, grid, ha="left")
        box(axes, 48, y, 14 * keys / by_token, 1, BLUE if number else ORANGE)
        page_ids = "" if ids == keys else f", {ids} page ids"
        text(axes, 48.8 + 14 * keys / by_token, y + 0.5, f"{keys:,}{page_ids}", ha="left")
        text(axes, 83, y + 0.5, writes, ha="left")
    words = (
        "64 keys under one KV head, 8 in a page. Where no number of page ids stands, a page id is loaded for each key."
    )
    text(axes, 0, len(rungs) * 1.6 + 0.3, words, ha="left")
    words = "7 tokens stand for a longer prompt: the last four rungs have another path for queries of up to 16 tokens."
    text(axes, 0, len(rungs) * 1.6 + 1.1, words, ha="left")
    return figure


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for draw in (naive, q_block, parallel_softmax, adjustable_tile, static_grid, split, unpaged, auto, programs):
        figure = draw()
        figure.savefig(HERE / f"{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
