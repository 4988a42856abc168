"""The README's example of the public call runs as it stands, in both DSLs."""

from pathlib import Path

import pytest
import torch

from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import Features, PagedBatch
from common.spec.metadata import BatchStats
from dsl_triton.auto import CONTRACT

README = Path(__file__).parents[2] / "README.md"


def example():
    section = README.read_text().split("## Calling it\n")[1].split("\n## ")[0]
    return section.split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize(
    "dsl",
    ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)],  # 40 s of Helion's code generation
)
def test_the_example_computes_attention(dsl):
    torch.manual_seed(0)
    names = {}
    exec(compile(example().replace("dsl_triton", dsl), "README.md", "exec"), names)
    batch = PagedBatch(*names["tensors"], 64**-0.5, BatchStats.of([(1, 40), (4, 20)]))
    verdict = check(names["out"], None, batch, Features(), CONTRACT, reference(batch, Features()))
    assert verdict.ok, verdict.reason
