"""Copies of the Triton family without one feature: its branches cut out of the source by ast, not merely untaken."""

import ast
from pathlib import Path

SEAMS = ("features", "masks", "primitives", "page_runs", "dense_tiles", "copy_pages")  # the files where features live
SCALES = "scales_ptr"  # the parameter of the loaders of scales per token
# feature: expressions that are None in a source that does not know it, ...
ABSENT = {
    "alibi": ("f.alibi_slopes",), "alibi_sqrt": ("f.alibi_sqrt",), "batch-wide causality": ("f.non_causal",),
    "causal_per_sequence": ("f.causal_per_sequence",), "chunked_local": ("f.chunk",),
    "fp8_kv": ("f.key_scale", "f.value_scale"), "fp8_out": ("f.out_scale",), "fp8_query": ("f.query_scale",),
    "int8_kv": ("f.key_token_scales", "f.value_token_scales", SCALES), "prefix_lm": ("f.spans",),
    "sinks": ("f.sinks",), "sliding_window": ("f.sliding_window",), "softcap": ("f.softcap",),
    "tree_bias": ("f.tree_bias",),
}  # fmt: skip
# ... and what else stands in place of an expression there
INSTEAD = {
    "fp8_out": {"DTYPE.primitive_bitwidth == 8": False},
    "fp8_query": {"q.dtype.is_fp8() and q.shape[1] < 32": False, "QUERY_DTYPE.is_fp8()": False},
    "fp8_kv": {
        "x.to(DTYPE)": ast.Name("x", ast.Load()),
        "deals_lanes(v.dtype, ROWS)": False,
        "widens_pairs(v.dtype, DTYPE, ROWS, PTX)": False,
        "deals_lanes(value_cache_ptr.dtype.element_ty, acc.shape[0])": False,
        "r.row_scale.dtype.is_floating()": False,
        "q.dtype == tl.bfloat16 and cache_ptr.dtype.element_ty.primitive_bitwidth == 8": False,
    },
}


class Cut(ast.NodeTransformer):
    """Puts what is known in place of tests, and the branch that is taken in place of what tests it."""

    def __init__(self, feature: str) -> None:
        self.absent, self.instead, self.branches = ABSENT[feature], INSTEAD.get(feature, {}), 0

    def visit(self, node: ast.AST) -> ast.AST | list:
        known = self.instead.get(ast.unparse(node)) if self.instead and isinstance(node, ast.expr) else None
        if known is not None:
            self.branches += 1
            return known if isinstance(known, ast.AST) else ast.Constant(known)
        return super().visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if ast.unparse(node.left) in self.absent and isinstance(node.ops[0], ast.Is | ast.IsNot):
            self.branches += 1
            return ast.Constant(isinstance(node.ops[0], ast.Is))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)  # True decides an `or`, False an `and`
        left = [one for one in node.values if not (isinstance(one, ast.Constant) and one.value is not decides)]
        if any(isinstance(one, ast.Constant) for one in left):
            return ast.Constant(decides)
        return ast.Constant(not decides) if not left else left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_If(self, node: ast.If) -> ast.AST | list:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return node.body if node.test.value else node.orelse


def write_family(root: Path, package: str, feature: str | None) -> int:
    """`dsl_triton` as `package` below `root`, without one feature; how many tests of it were cut."""
    source = Path(__file__).parents[3] / "dsl_triton"
    (root / package).mkdir()
    branches = 0
    for path in source.glob("*.py"):
        text = path.read_text()
        if feature is not None and path.stem in SEAMS:
            cut = Cut(feature)
            tree = ast.fix_missing_locations(cut.visit(ast.parse(text)))
            asked = {ast.unparse(node.left) for node in ast.walk(tree) if isinstance(node, ast.Compare)}
            assert not asked & set(cut.absent), path.name
            text, branches = ast.unparse(tree), branches + cut.branches
        (root / package / path.name).write_text(text.replace("dsl_triton", package))
    return branches
