"""Two panels, one picture: what stands in a Triton file stands in the Helion file of that name, in the same order."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
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
    "static_grid.py",
    "dense_tiles.py",
    "copy_pages.py",
    "unpaged.py",
    "tile_sources.py",
    "split.py",
    "auto.py",
]

# Triton alone: a class for the bundle, tuples of strides (None where V lies as K does), the reduction's overlap, which
# Helion has always, a loop in a helper, and descriptors made by hand.
TRITON_ALONE = {"Bundle", "_strides", "_scratch_strides", "can_overlap", "value_strides", "find_region", "new_blocks"}
# Helion alone: division without rounding down, forms of a gather by name, and the partial results that Triton's kernels
# address by pointers.
HELION_ALONE = {"div", "mod", "cdiv", "store_partial", "load_partial", "gather_form", "_operands", "_Merge"}


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
