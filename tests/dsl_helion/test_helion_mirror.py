"""Two panels, one picture: what stands in a Triton file stands in the Helion file of that name, in the same order."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    "features.py",
    "masks.py",
    "primitives.py",
    "cache.py",
    "naive.py",
    "q_block.py",
    "parallel_softmax.py",
    "reduce_segments.py",
    "page_runs.py",
    "adjustable_tile.py",
    "tile_schedule.py",
    "merge_parts.py",
    "merge_states.py",
    "static_grid.py",
    "dense_tiles.py",
    "copy_pages.py",
    "unpaged.py",
    "tile_sources.py",
    "split.py",
    "auto.py",
]

# Triton alone: classes for the bundle and the row operands, tuples of strides (None where V lies as K does), new K and
# V of one size, the reduction's overlap, which Helion has always, a loop in a helper, descriptors made by hand, and
# stores and scales that Helion addresses in one way for all.
TRITON_ALONE = {
    "Bundle", "RowOperands", "new_tokens", "_per_head", "_per_token", "_strides", "_scratch_strides", "can_overlap",
    "value_strides", "find_region", "_new_blocks", "store_whole_rows", "load_run_scales", "factor",
}  # fmt: skip
# Helion alone: forms of a gather by name, the partial results that Triton's kernels address by pointers, fp8 that is
# passed as bytes, and what helpers share.
HELION_ALONE = {
    "store_partial", "gather_form", "_operands", "packed_operands", "_Merge", "stored", "head_scale",
    "_per_token",
}  # fmt: skip


def names(path: Path, alone: set[str]) -> list[str]:
    """Functions and classes in file order."""
    body = ast.parse(path.read_text()).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in alone]


@pytest.mark.parametrize("file", FILES)
def test_the_same_names_in_the_same_order(file: str) -> None:
    triton = names(ROOT / "dsl_triton" / file, TRITON_ALONE)
    helion = names(ROOT / "dsl_helion" / file, HELION_ALONE)
    assert triton == helion


def test_no_triton_in_the_helion_folder() -> None:
    for path in (ROOT / "dsl_helion").rglob("*.py"):
        source = path.read_text()
        assert "inline_triton" not in source and "triton_kernel" not in source and "import triton" not in source, path
