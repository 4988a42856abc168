"""Generated wrong kernels: each is the emulation's source with one expression changed.

`made(count, seed)` draws them from all changes of OPERATORS: a comparison, an off-by-one, a constant, a term, a factor,
a dtype, another name, a boolean, a function, a value cached from an earlier call. Half as many more are wrong only in
some batches (LIMITS): long sequences, one head, odd pages. `load` turns one into a callable kernel.
"""

import ast
import itertools
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.mutants import emulation

SOURCE = Path(emulation.__file__)
# Where a limited mutant is wrong: an expression in a function that has `at`; `rows` and `heads` limit it to one head.
LIMITS = (
    "at.seq_len > 64", "at.seq_len > 300", "at.seq_len > 1000", "at.seq_len > 2048", "at.seq_len > 4096",
    "at.seq_len > 16384", "at.seq_len > 32768", "at.seq_len % 16 == 1", "at.seq_len % 64 == 0", "at.seq_len < 16",
    "at.query_len > 1", "at.query_len > 16", "at.query_len > 64", "at.query_len > 256", "at.query_len > 1000",
    "at.query_len == 1", "at.seq > 0", "at.seq == at.batch.num_seqs - 1", "at.seq > 15", "at.seq > 63",
    "at.seq > 255", "at.seq > 511", "at.batch.num_seqs == 1", "at.batch.query.shape[1] > 16",
    "at.batch.query.shape[1] > 64", "at.batch.shape.queries_per_kv > 8", "at.batch.shape.queries_per_kv in (9, 10, 11)",
    "at.batch.shape.queries_per_kv == 1", "at.batch.shape.num_kv_heads > 8", "at.batch.shape.num_kv_heads % 2 == 1",
    "at.batch.shape.head_size > 128", "at.batch.shape.head_size % 32 != 0", "at.batch.shape.head_size < 32",
    "at.batch.shape.block_size > 64", "at.batch.shape.block_size % 16 != 0",
    "at.batch.shape.block_size & (at.batch.shape.block_size - 1)", "at.batch.query.dtype == torch.float16",
    "at.batch.query.dtype == torch.float32", "at.batch.shape.quantised",
    "at.batch.key_cache.stride() != at.batch.value_cache.stride()",
    "at.batch.key_cache.stride(1) < at.batch.key_cache.stride(2)",
    "at.batch.query.stride(0) != at.batch.query[0].numel()",
    "at.batch.block_table.dtype == torch.int64", "at.batch.block_table.shape[1] > 64",
    "abs(at.batch.softmax_scale - at.batch.query.shape[2] ** -0.5) > 1e-3",
    "at.features.softcap is not None and at.features.softcap < 1", "at.features.softcap is not None",
    "at.features.sinks is not None", "at.features.sliding_window is not None and at.features.sliding_window > 1000",
    "at.features.sliding_window is not None and at.features.sliding_window % 2 == 1",
    "at.features.alibi_slopes is not None and at.features.sliding_window is not None",
    "at.features.spans is not None", "at.features.query_scale is not None and at.features.softcap is not None",
    "not at.features.causal", "at.context_len == 0",
)  # fmt: skip
_SWAPS = {  # names to swap, in both directions
    "key": "value", "k": "value", "query_len": "seq_len", "seq_len": "context_len", "pages": "slots", "first": "last",
    "row": "column", "query": "key", "key_scale": "value_scale", "m": "l", "tile": "segments", "heads": "rows",
    "num_query_heads": "heads", "shift": "m", "of_keys": "of_values", "scale": "query_scale", "p": "weights",
    "key_cache": "value_cache", "chunk": "lookback", "sliding_window": "seq_len", "starts": "lengths",
    "causal_per_sequence": "sinks", "start": "stop", "seq": "segment", "logits": "scores", "seen": "wanted",
}  # fmt: skip
_CALLS = {
    "maximum": ("minimum",), "amax": ("amin", "mean"), "exp2": ("exp",), "tanh": ("sin", "sigmoid"), "any": ("all",),
    "sum": ("amax", "mean"), "ones_like": ("zeros_like",), "zeros_like": ("ones_like",), "log2": ("log",),
    "sqrt": ("abs",), "clamp": (), "zeros": ("ones",), "where": (), "repeat_interleave": ("repeat",),
    "max": ("min",), "min": ("max",), "range": (), "arange": (), "float": ("half", "bfloat16"),
}  # fmt: skip
_DTYPES = {"float16": ("bfloat16",), "bfloat16": ("float16",), "float8_e4m3fn": ("float8_e4m3fnuz",)}
_COMPARE = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
}  # fmt: skip
_SYMMETRIC = {"transpose", "maximum", "max", "min"}
_LEFT_ALONE = {"tf32", "At", "State", "Schedule"}  # of the source
KEPT = """
_MEMORY = {}
def _kept(number, at, made, tensor, *more):
    place = (number, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), at.seq, at.segment, *more)
    if place not in _MEMORY:
        if len(_MEMORY) > 4096:
            _MEMORY.clear()
        _MEMORY[place] = made()
    return _MEMORY[place]
"""


@dataclass(frozen=True)
class Made:
    """One change.

    name: operator, function and line; text: the expression before and after. whole: a limited mutant's source without
    its limit. limit: where the mutant is wrong, an expression of `at`. Both are None for an unlimited mutant.
    """

    name: str
    operator: str
    line: int
    text: str
    source: str
    whole: str | None = None
    limit: str | None = None


def _compare(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for operator in _COMPARE.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [operator()], node.comparators)


def _arithmetic(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        for operator in _ARITHMETIC.get(type(node.op), ()):
            yield ast.BinOp(node.left, operator(), node.right)


def _one(node: ast.expr) -> Iterator[ast.expr]:
    """Change a number or a tensor of numbers by one, up or down."""
    numeric = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod)
    if numeric or (isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)):
        for operator in (ast.Add(), ast.Sub()):
            yield ast.BinOp(node, operator, ast.Constant(1))


def _constant(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        x = node.value
        for value in {x + 1, x - 1, 2 * x, 0 if isinstance(x, int) else 1.01 * x, -x} - {x}:
            yield ast.Constant(value)
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "math.inf":
        yield ast.Constant(1e4)
    if isinstance(node, ast.Name) and node.id == "LOG2E":
        yield ast.Constant(1.4427)
        yield ast.Constant(1.0)


def _term(node: ast.expr) -> Iterator[ast.expr]:
    """Keep one side of an operation, or one branch of a conditional."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    if isinstance(node, ast.BoolOp):
        yield from node.values
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.where", "torch.maximum", "max", "min"):
        yield from node.args[-2:]


def _factor(node: ast.expr) -> Iterator[ast.expr]:
    """Scale a result by one percent or by one part in a thousand."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        for factor in (1.01, 1.001, 2.0):
            yield ast.BinOp(node, ast.Mult(), ast.Constant(factor))


def _dtype(node: ast.expr) -> Iterator[ast.expr]:
    """Hold sums and products in 16 bits, or name another dtype."""
    if isinstance(node, ast.Attribute) and node.attr in _DTYPES:
        yield from (ast.Attribute(node.value, other, node.ctx) for other in _DTYPES[node.attr])
    floats = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Div | ast.MatMult)
    if floats or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.exp2", "_dot", "torch.log2")):
        for kind in ("half", "bfloat16"):
            low = ast.Call(ast.Attribute(node, kind, ast.Load()), [], [])
            yield ast.Call(ast.Attribute(low, "float", ast.Load()), [], [])


def _name(node: ast.expr) -> Iterator[ast.expr]:
    """Use another name, or "value" in place of "key"."""
    both = list(_SWAPS.items()) + [(b, a) for a, b in _SWAPS.items()]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from (ast.Name(other, node.ctx) for one, other in both if one == node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from (ast.Attribute(node.value, other, node.ctx) for one, other in both if one == node.attr)
    if isinstance(node, ast.Constant) and node.value in ("key", "value"):
        yield ast.Constant("value" if node.value == "key" else "key")


def _boolean(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)


def _function(node: ast.expr) -> Iterator[ast.expr]:
    """Call another function, call none, or swap the arguments."""
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for other in _CALLS.get(name, ()):
        func = ast.Attribute(node.func.value, other, ast.Load()) if isinstance(node.func, ast.Attribute) else None
        yield ast.Call(func or ast.Name(other, ast.Load()), node.args, node.keywords)
    if name in ("tanh", "clamp", "exp2", "float", "sqrt", "flatten", "contiguous", "long"):
        inner = node.args[0] if node.args and not isinstance(node.func.value, ast.Call | ast.BinOp) else node.func.value
        yield inner
    if len(node.args) == 2 and not node.keywords and name not in _SYMMETRIC:
        yield ast.Call(node.func, node.args[::-1], [])


OPERATORS: dict[str, Callable[[ast.expr], Iterator[ast.expr]]] = {
    "comparison": _compare, "arithmetic": _arithmetic, "off by one": _one, "constant": _constant,
    "dropped term": _term, "factor": _factor, "dtype": _dtype, "name": _name, "boolean": _boolean,
    "function": _function,
}  # fmt: skip
# What is cached from the first call at an address: (function, expression, whose address, what else must be equal)
_KEPT_SITES = (
    ("_load", "tile.float()", ("at.batch.key_cache", "at.batch.value_cache", "at.batch.block_table"),
     ("kind", "int(key[0])", "key.numel()")),
    ("_place", "edits.pages(at, kind, index, table[index.clamp(max=table.numel() - 1)])",
     ("at.batch.block_table", "at.batch.key_cache"), ("kind", "int(key[0])", "key.numel()")),
    ("_row_scale", "scale.repeat_interleave(group)[:, None, None]", ("at.batch.key_cache", "scale"), ("kind",)),
    ("_sequence", "edits.query(at, at.batch.query[at.tokens].transpose(0, 1))", ("at.batch.query",),
     ("at.tokens.start",)),
    ("_step", "edits.scale(at, at.batch.softmax_scale) * _row_scale(at, edits, 'key')", ("at.batch.query",), ()),
    ("_step", "_mask(at, edits, row, column)", ("at.batch.query", "at.batch.seq_lens"),
     ("int(key[0])", "key.numel()", "at.query_len")),
    ("_step", "_biased(at, edits, edits.score(at, logits, at.features.softcap), row, column)", ("at.batch.query",),
     ("int(key[0])", "key.numel()")),
    ("_segment", "edits.sink(at, at.features.sinks.float())", ("at.features.sinks", "at.batch.query"), ()),
    ("_biased", "edits.slopes(at, f.alibi_slopes)", ("f.alibi_slopes",), ()),
    ("_biased", "f.tree_bias.float()", ("f.tree_bias",), ()),
    ("_sequence", "_merge(at, edits, edits.partials(at, states))", ("at.batch.query", "at.batch.value_cache"),
     ("at.seq_len",)),
)  # fmt: skip


@lru_cache(maxsize=1)
def _tree() -> ast.Module:
    return ast.parse(SOURCE.read_text(encoding="utf-8"))


def functions_of() -> Iterator[ast.FunctionDef]:
    """The functions of the emulation that may be changed."""
    for node in ast.walk(_tree()):
        if isinstance(node, ast.ClassDef) and node.name in _LEFT_ALONE:
            continue
        if isinstance(node, ast.FunctionDef) and node.name not in _LEFT_ALONE and node.name != "long":
            yield node


def expressions_of(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The expressions of a function's body, except targets, annotations and docstrings."""
    for statement in function.body:
        inside = {part for node in ast.walk(statement) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        # names of modules, objects and functions: adding one to them gives no kernel
        inside |= {node.value for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        inside |= {node.func for node in ast.walk(statement) if isinstance(node, ast.Call)}
        for node in ast.walk(statement):
            if (
                node in inside
                or not isinstance(node, ast.expr)
                or isinstance(getattr(node, "ctx", ast.Load()), ast.Store)
            ):
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in ("key", "value"):
                continue
            yield node


def _names(function: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters and of its assigned variables."""
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def written(node: ast.expr, new: ast.expr, extra: str = "") -> str:
    """The source with `new` in place of `node`, which is one of `_sites`."""
    lines = SOURCE.read_bytes().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    whole = b"".join(lines)
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return (whole[:begin] + f"({ast.unparse(new)})".encode() + whole[end:]).decode() + extra


@lru_cache(maxsize=1)
def _sites() -> list[tuple[str, ast.FunctionDef, ast.expr, ast.expr]]:
    """Every change that the operators make: (operator, function, expression, replacement)."""
    found = []
    for function in functions_of():
        known = _names(function)
        for node in expressions_of(function):
            before = ast.unparse(node)
            seen = {before}
            for operator, makes in OPERATORS.items():
                for new in makes(node):
                    text = ast.unparse(new)
                    stranger = isinstance(new, ast.Name) and new.id not in known
                    if text not in seen and not stranger:
                        seen.add(text)
                        found.append((operator, function, node, new))
    return found


def _sampled(sites: list, count: int, rng: random.Random) -> list:
    """Take changes from the operators in turn, so that each has a share; an unused share goes to the others."""
    by: dict[str, list] = {}
    for site in rng.sample(sites, len(sites)):
        by.setdefault(site[0], []).append(site)
    found: list = []
    while len(found) < count and any(by.values()):
        found += [by[operator].pop() for operator in OPERATORS if by.get(operator)]
    return found[:count]


def _kept() -> Iterator[tuple[str, str, str, str]]:
    """(function name, expression, replacement, address) of every value that may be cached from an earlier call."""
    for number, (function, expression, addresses, more) in enumerate(_KEPT_SITES):
        for address in addresses:
            words = ", ".join((str(number), "at", f"lambda: {expression}", address, *more))
            yield function, expression, f"_kept({words})", address


def _of_kept() -> Iterator[Made]:
    for function in functions_of():
        for name, expression, new, address in _kept():
            if name == function.name:
                wanted = ast.unparse(ast.parse(expression, mode="eval"))
                node = next(node for node in expressions_of(function) if ast.unparse(node) == wanted)
                source = written(node, ast.parse(new, mode="eval").body, KEPT)
                text = f"{expression} is kept by the address of {address}"
                yield Made(f"kept {function.name}:{node.lineno} {address}", "kept", node.lineno, text, source)


def made(count: int, seed: int = 0) -> list[Made]:
    """`count` wrong kernels, a third of them limited. The same seed gives the same kernels. A few compute the right
    result."""
    sites = _sites()
    rng, found = random.Random(seed), list(_of_kept())
    within = [site for site in sites if any(a.arg == "at" for a in site[1].args.args)]
    some = round(count / 3)
    chosen = [(site, "") for site in _sampled(sites, count - some - len(found), rng)]
    limits = itertools.cycle(rng.sample(LIMITS, len(LIMITS)))
    chosen += zip(_sampled(within, some, rng), limits, strict=False)
    for (operator, function, node, new), limit in chosen:
        kind = f"limited {operator}" if limit else operator
        text = f"{ast.unparse(node)} -> {ast.unparse(new)}" + (f" where {limit}" if limit else "")
        name, source = f"{kind} {function.name}:{node.lineno}", written(node, new)
        if limit:
            within = ast.IfExp(ast.parse(limit, mode="eval").body, new, node)
            found.append(Made(name, kind, node.lineno, text, written(node, within), source, limit))
        else:
            found.append(Made(name, kind, node.lineno, text, source))
    return found[:count]


def exactly(source: str) -> str:
    """A source that computes in float64 what the given one does in float32, P by default too: another order of the sums
    then changes them by 10^-15, and any other change shows."""
    source = source.replace("query = at.batch.query.dtype", "query = torch.float64")
    return source.replace(".float()", ".double()").replace("torch.float32", "torch.float64")


def load(source: str) -> types.ModuleType:
    """The module of a changed emulation; its `emulate` is the kernel. Raises what running the source raises."""
    import sys

    module = types.ModuleType("diptych_made")
    sys.modules[module.__name__] = module  # dataclasses look up their module
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module
