"""Sizes of sources: what does not run costs nothing, branches and escapes are counted, unequal kernels not compared."""

import ast

import pytest

from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.studies import capability, sizes


def functions(text):
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


PLAIN = "def f(a, b):\n    c = a + b\n    return c\n"
DRESSED = '''
def f(
    first: torch.Tensor,  # [rows]
    second: int,
) -> torch.Tensor:
    """A docstring of
    two lines."""
    total: torch.Tensor = (
        first
        + second
    )  # why
    return total
'''


def test_comments_docstrings_annotations_names_and_layout_cost_nothing():
    assert sizes.measure(functions(PLAIN)) == sizes.measure(functions(DRESSED))


def test_constexpr_is_code():
    one, two = functions("def f(n: tl.constexpr): return n"), functions("def f(n): return n")
    assert sizes.measure(one).tokens == sizes.measure(two).tokens + 4


BODIES = {
    "return a": 0, "return 1 if a else 2": 1, "if a: return 1\n elif b: return 2": 2, "for x in a: pass": 1,
    "while a: pass": 1, "return a and b or c": 2, "return [x for x in a if x]": 1,
    "try: pass\n except ValueError: pass": 1, "match a:\n  case 1: pass\n  case 2: pass": 2,
}  # fmt: skip


@pytest.mark.parametrize(("body", "branches"), BODIES.items())
def test_the_cyclomatic_number_is_one_and_the_branches(body, branches):
    assert sizes.measure(functions(f"def f(a, b, c):\n {body}\n")).cyclomatic == 1 + branches


def test_escapes_are_counted():
    text = "def f(x):\n tl.extra.cuda.gdc_wait()\n hl.inline_triton('')\n return x\n"
    size = sizes.measure(functions(text))
    assert size.escapes == 2
    assert sizes.measure(functions("def f(x): return tl.sum(x)")).escapes == 0


@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_a_kernel_is_what_its_launch_reaches_in_its_own_folder(dsl):
    naive, q_block, parts = (sizes.of_kernel(f"{dsl}/{rung}") for rung in ("naive", "q_block", "parallel_softmax"))
    assert naive.device.functions == 1  # the textbook stands alone
    assert q_block.device.functions > 10  # the primitives of an attention kernel
    assert parts.device.tokens > q_block.device.tokens  # and the reduction
    grid = sizes.of_kernel(f"{dsl}/static_grid")  # its launch is that of an object of the module
    assert grid.device.functions > parts.device.functions
    assert sizes.of_kernel(f"{dsl}/auto").device.functions == 0


def test_helion_has_no_escapes_and_no_triton_helper_is_counted_as_host_code():
    for kernel in (*registry.OWN, *registry.ABLATIONS):
        source = sizes.of_kernel(kernel)
        assert not (kernel.startswith("helion/") and source.escapes), kernel
    assert set(sizes.of_kernel("triton/parallel_softmax").escapes) == {
        "tl.extra.cuda.gdc_launch_dependents",
        "tl.extra.cuda.gdc_wait",
        "tl.inline_asm_elementwise",  # four fp8 numbers to fp16 at once
    }


def results(*cells):
    ids = dict.fromkeys(cell["kernel"] for cell in cells)
    known = {k: {"supports": sorted(registry.load(k).SUPPORTS), "source_sha": "0"} for k in ids}
    meta = {"date": "2000-01-01", "commit": "0", "device": "none", "versions": {}, "kernels": known}
    return capability.Results(meta, cells)


def cell(kernel, case="query-1", outcome="supported", **more):
    return {"kernel": kernel, "case": case, "dtype": "bfloat16", "outcome": outcome} | more


def test_kernels_of_unequal_capability_have_no_ratio():
    equal = results(cell("triton/naive"), cell("helion/naive"))
    ratios = {row["rung"]: row for row in sizes.pairs(equal)}
    assert ratios["naive"]["ratio_tokens"] == pytest.approx(
        ratios["naive"]["helion_tokens"] / ratios["naive"]["triton_tokens"], abs=1e-3
    )
    assert "is not in the conformance run" in ratios["q_block"]["unequal"] and ratios["q_block"]["ratio_lines"] is None
    failed = results(cell("triton/naive"), cell("helion/naive", outcome="failed", reason="nan"))
    (row, *_) = sizes.pairs(failed)
    assert "supported against failed" in row["unequal"] and row["ratio_tokens"] is None


def test_the_command_prints_a_row_a_kernel(capsys):
    assert diptych(["study", "sizes", "--kernels", "*/naive"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["triton/naive", "helion/naive"]
    assert diptych(["study", "sizes", "--kernels", "baseline/sdpa"]) == 5
