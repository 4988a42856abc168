"""Wrong kernels that are right except at one value of one axis, like a kernel tested at other sizes only.

`families(count, seed)` takes the axes in turn and draws a value and one of FAULTS. The kernel is the emulation with
that fault where the axis has the value, exceeds it, or is a multiple of it. A level's score by axis then tells which
values the level covers, of single axes and of relations between two axes.
"""

import ast
import random
from functools import lru_cache

import torch

from common.cases import boundaries
from common.cases.random_cases import log_uniform
from common.mutants.emulation import At, Schedule
from common.mutants.operators import Made, expressions_of, functions_of, written
from common.spec import Features, PagedBatch
from common.spec.metadata import lens_of

# (function of the emulation, expression, replacement): common mistakes
FAULTS: tuple[tuple[str, str, str], ...] = (
    ("_mask", "(key < at.seq_len).expand(query.shape[0], -1)", "(key < at.seq_len - 1).expand(query.shape[0], -1)"),
    ("_mask", "key <= query", "key < query"),
    ("_mask", "key <= query", "key <= query + 1"),
    ("_mask", "edits.visible(at, query, key, seen)", "edits.visible(at, query, key, seen) & (key > 0)"),
    ("_place", "torch.arange(num_query_heads, device=key.device) // (num_query_heads // shape[2])",
     "torch.arange(num_query_heads, device=key.device) % shape[2]"),
    ("_place", "key % shape[1]", "(key + 1) % shape[1]"),
    ("_place", "table[index.clamp(max=table.numel() - 1)]", "table[(index - 1).clamp(min=0)]"),
    ("_step", "edits.scale(at, at.batch.softmax_scale)", "1.02 * edits.scale(at, at.batch.softmax_scale)"),
    ("_step", "state.acc * fade[..., None]", "state.acc"),
    ("_step", "state.l * fade + p.sum(-1)", "state.l + p.sum(-1)"),
    ("_step", "torch.where(seen, scores * LOG2E, -math.inf)", "torch.where(seen, scores * LOG2E, -5.0)"),
    ("_step", "torch.where(wanted[:, None], value, 0.0)", "torch.where(wanted[:, None], value, 0.0).flip(-1)"),
    ("_load", "tile.float()", "1.01 * tile.float()"),
    ("_load", "tile.float()", "torch.cat([tile[..., :-1], torch.zeros_like(tile[..., :1])], -1).float()"),
    ("_segment", "min(first + at.schedule.tile, keys.stop)", "min(first + at.schedule.tile - 1, keys.stop)"),
    ("_sequence", "edits.query(at, at.batch.query[at.tokens].transpose(0, 1))",
     "edits.query(at, at.batch.query[at.tokens].flip(1).transpose(0, 1))"),
)  # fmt: skip
_SHAPE = "at.batch.shape."
# axis: (the expression that gives it in `at`; how a fault depends on it: "=" at a value, ">" past it, "%" at multiples)
EXPRESSIONS: dict[str, tuple[str, str]] = {
    "query": ("at.query_len", "==>%"), "keys": ("at.seq_len", ">>%"), "context": ("at.context_len", ">>%"),
    "sequences": ("at.batch.num_seqs", "==>%"), "place": ("at.seq", ">>%"),
    "ratio": (f"{_SHAPE}queries_per_kv", "===>%"), "kv_heads": (f"{_SHAPE}num_kv_heads", "===>%"),
    "query heads": (f"{_SHAPE}num_query_heads", ">%"), "head_size": (f"{_SHAPE}head_size", "===>%"),
    "page": (f"{_SHAPE}block_size", "===>%"), "value_size": (f"{_SHAPE}value_lanes", "==>"),
    "window": ("(at.features.sliding_window or 0)", "==>%"), "chunk": ("(at.features.chunk or 0)", "=>>%"),
    "tree": ("(0 if at.features.tree_bias is None else at.features.tree_bias.shape[0])", "=>"),
    "table columns": ("at.batch.block_table.shape[1]", ">>%"), "tokens": ("at.batch.query.shape[0]", ">>%"),
    "rows": (f"at.query_len * {_SHAPE}queries_per_kv", "==>%"),
    "pages of a sequence": (f"-(-at.seq_len // {_SHAPE}block_size)", ">>%"),
    "pages": ("at.batch.key_cache.shape[0]", ">>%"),
}  # fmt: skip
# The range to draw from for axes that `boundaries.RANGES` lacks: (least, most).
_FAR: dict[str, tuple[int, int]] = {
    "keys": (1, 70_000), "context": (0, 66_000), "place": (1, 600), "query heads": (1, 129), "rows": (1, 300),
    "table columns": (1, 1000), "tokens": (1, 2100), "pages of a sequence": (1, 600), "pages": (1, 70_000),
    "query": (1, 2048), "sequences": (1, 1024), "window": (1, 16_384), "chunk": (1, 8192), "page": (8, 1088),
    "head_size": (8, 512), "value_size": (8, 512), "ratio": (1, 128), "kv_heads": (1, 128), "tree": (1, 128),
}  # fmt: skip
# Conditions on two axes, or on something that is no number.
BETWEEN: tuple[str, ...] = (
    "at.batch.key_cache.stride() != at.batch.value_cache.stride()",
    "(at.features.sliding_window or 0) == at.batch.shape.block_size",
    "(at.features.sliding_window or 0) >= at.seq_len",
    "(at.features.sliding_window or 0) in (16, 32, 64, 128)",
    "(at.features.sliding_window or 1) % at.batch.shape.block_size == 0",
    "(at.features.chunk or 0) == at.batch.shape.block_size",
    "at.query_len == at.seq_len and at.query_len > 64",
    "at.query_len > at.batch.stats.max_query_len", "at.seq_len > at.batch.stats.max_seq_len",
    "int(at.batch.seq_lens[-1]) == 0", "int(at.batch.query_start_loc[-1] - at.batch.query_start_loc[-2]) == 0",
    "int(at.batch.seq_lens[0]) == 0", "at.seq_len % at.batch.shape.block_size == 0",
    "at.seq_len % at.batch.shape.block_size == 1", "at.context_len == at.batch.shape.block_size",
    "at.batch.shape.value_lanes > at.batch.shape.head_size", "at.batch.shape.value_lanes < at.batch.shape.head_size",
    "int(at.batch.block_table[at.seq, 0]) > 65535", "int(at.batch.block_table[at.seq, 0]) > 32767",
    "at.batch.num_seqs > 1 and int(at.batch.block_table[0, 0]) == int(at.batch.block_table[-1, 0])",
    "at.features.causal_per_sequence is not None and int(at.features.causal_per_sequence[at.seq]) not in (0, 1)",
    "at.features.causal_per_sequence is not None and not bool(at.features.causal_per_sequence[-1])",
    "at.features.spans is not None and at.features.spans.shape[1] > 4",
    "at.features.value_scale is not None and float(at.features.value_scale.nan_to_num(0.0).max()) > 1",
    "at.features.out_scale is not None and float(at.features.out_scale) > 1",
    "at.query_len == at.seq_len and at.query_len % 64 == 0",
    "at.features.value_scale is not None and float(at.batch.value_cache.float().nan_to_num(0.0).abs().max()) > 200",
    "at.features.key_scale is not None and float(at.features.key_scale.nan_to_num(0.0).max()) > 4",
    "at.batch.key_cache.dtype == torch.int8 and bool((at.batch.key_cache == -128).any())",
    "float(at.batch.key_cache[0].float().nan_to_num(0.0, 0.0, 0.0).abs().max()) > 60000",
    "at.batch.softmax_scale > 0.6", "at.batch.query.shape[0] > int(at.batch.query_start_loc[-1]) + 64",
    "(at.features.sliding_window or 0) > 1 and (at.features.sliding_window or 0) % 64 == 0",
    "at.features.sinks is not None and at.features.sliding_window == 128",
    "at.batch.num_seqs % 32 == 0", "at.batch.num_seqs > 1 and at.seq % 32 == 31",
    "at.batch.stats.max_query_len == 1 and at.tokens.start * at.batch.shape.num_query_heads > 8192",
    "at.batch.num_seqs > 2 and len(set(at.batch.block_table[:2, 0].tolist())) == 1 "
    "and int(at.batch.block_table[at.seq, 0]) != int(at.batch.block_table[0, 0])",
    "at.batch.shape.num_kv_heads == 8 and at.batch.shape.queries_per_kv == 5",
)  # fmt: skip


def _value(axis: str, rng: random.Random) -> int:
    """Draw a value: half of them near a power of two or a served size, the others anywhere."""
    least, most = _FAR[axis]
    step = boundaries.RANGES[axis][2] if axis in boundaries.RANGES else 1
    if axis in boundaries.RANGES and rng.random() < 0.5:
        found = boundaries.drawn(axis, rng)
        found = found[0] if isinstance(found, tuple) else found
    elif rng.random() < 0.5:
        found = rng.choice(boundaries.around(max(1, least), most))
    else:
        found = log_uniform(rng, max(1, least), most, step)
    return min(most, max(least, round(found / step) * step))


def limit(axis: str, rng: random.Random) -> str:
    """An expression of `at` that holds at a drawn value of an axis, past it, or at its multiples."""
    expression, kinds = EXPRESSIONS[axis]
    kind, value = rng.choice(kinds), _value(axis, rng)
    if kind == "%":
        return f"{expression} > 0 and {expression} % {rng.choice((3, 5, 7, 8, 16, 24, 32, 48, 64, 100))} == 0"
    if kind == ">":  # past three quarters of the cases nothing would be left to be right at
        return f"{expression} > {min(value, _FAR[axis][1] * 3 // 4)}"
    return f"{expression} == {value}"


@lru_cache(maxsize=1)
def _sites() -> list[tuple[ast.expr, ast.expr]]:
    """The place of each fault and its replacement."""
    found = []
    functions = {function.name: function for function in functions_of()}
    for name, before, after in FAULTS:
        text = ast.unparse(ast.parse(before, mode="eval"))
        node = next(node for node in expressions_of(functions[name]) if ast.unparse(node) == text)
        found.append((node, ast.parse(after, mode="eval").body))
    return found


def wrong_where(where: str, fault: int, axis: str = "between") -> Made:
    """The emulation with one of FAULTS where an expression of `at` holds."""
    node, after = _sites()[fault]
    within = ast.IfExp(ast.parse(where, mode="eval").body, after, node)
    text = f"{ast.unparse(node)} -> {ast.unparse(after)} where {where}"
    name = f"axis {axis}"
    return Made(f"{name}: fault {fault}", name, node.lineno, text, written(node, within), written(node, after), where)


def families(count: int, seed: int = 0) -> list[Made]:
    """`count` wrong kernels: one axis after the other, then the conditions on two axes. The same seed gives the same
    kernels."""
    rng, found = random.Random(f"families {seed}"), []
    axes = [*EXPRESSIONS, *["between"] * 3]
    for number in range(count):
        axis = axes[number % len(axes)]
        where = limit(axis, rng) if axis in EXPRESSIONS else rng.choice(BETWEEN)
        found.append(wrong_where(where, rng.randrange(len(FAULTS)), axis))
    return found


def places(batch: PagedBatch, features: Features, schedule: Schedule) -> list[At]:
    """A place (`At`) for each sequence of the call that has tokens."""
    starts = batch.query_start_loc.tolist()
    lens = enumerate(lens_of(batch.query_start_loc, batch.seq_lens))
    return [At(batch, features, schedule, seq, slice(starts[seq], starts[seq + 1]), q, n) for seq, (q, n) in lens if q]


def meets(kernel: Made, places: list[At]) -> bool:
    """Whether a kernel that is wrong only at its limit meets that limit at any of `places`. If not, it need not be
    called."""
    if kernel.limit is None:
        return True
    code = compile(kernel.limit, "limit", "eval")
    return any(eval(code, {"at": at, "torch": torch}) for at in places)
