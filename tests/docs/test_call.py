"""The example of the public call in docs/engines.md runs as it stands, in both DSLs, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calls import assert_right
from common.spec import Features, PagedBatch
from common.spec.metadata import BatchStats
from dsl_triton.auto import CONTRACT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "engines.md"


def example(using="import paged_attention"):
    """The page's first block of Python that has `using`."""
    blocks = [block.split("```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
    return next(block for block in blocks if using in block)


@pytest.mark.parametrize(
    "dsl",
    ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)],  # 40 s of Helion's code generation
)
def test_the_example_computes_attention_and_a_plan_does(dsl):
    torch.manual_seed(0)
    names = {}
    exec(compile(example().replace("dsl_triton", dsl), PAGE.name, "exec"), names)
    expect_attention(names)
    plan = example("plan.warmup()").replace("dsl_triton", dsl)
    exec(compile(plan, PAGE.name, "exec"), names)
    expect_attention(names)


def expect_attention(names):
    batch = PagedBatch(*names["tensors"], 64**-0.5, BatchStats.of([(1, 40), (4, 20)]))
    assert_right(names["out"], None, batch, Features(), CONTRACT)


def python(code, **variables):
    """What a fresh process without a word about the interpreter in its environment says."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT)


def test_the_example_runs_as_it_stands_and_says_once_where_it_is_interpreted():
    done = python(example())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([5, 8, 64])\n"
    said = done.stderr.count("no GPU is here")
    assert said == (0 if torch.cuda.is_available() else 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: nothing is interpreted")
def test_an_import_of_triton_that_came_first_is_said_in_one_line():
    done = python("import triton, dsl_triton; dsl_triton.paged_attention")
    (line,) = [line for line in done.stderr.splitlines() if "no GPU is here" in line]
    assert "TRITON_INTERPRET=1" in line


def test_who_has_decided_is_not_overruled():
    code = "import os, dsl_triton; dsl_triton.paged_attention; print(os.environ['TRITON_INTERPRET'])"
    done = python(code, TRITON_INTERPRET="0")
    assert (done.stdout, done.stderr) == ("0\n", "")
