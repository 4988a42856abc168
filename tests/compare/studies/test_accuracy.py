"""The study of accuracy by length: what it computes, and the table that it prints."""

import json

import pytest
import torch

from common.gpus import resolve
from compare.__main__ import main
from compare.exits import OK
from compare.studies import accuracy


def test_an_output_that_is_smaller_by_a_part_has_that_bias():
    expected = torch.rand(4, 2, 8, dtype=torch.float64) + 1
    relative, bias = accuracy.errors((expected * 0.98).float(), expected)
    assert relative == pytest.approx(0.02, rel=1e-5) and bias == pytest.approx(-0.02, rel=1e-5)


@pytest.mark.parametrize(("gpu", "dtype"), [("h200", torch.float8_e4m3fn), ("mi300", torch.float8_e4m3fnuz)])
def test_values_are_positive_in_the_type_that_the_gpu_multiplies(gpu, dtype):
    row = accuracy.workload(resolve(gpu), True, 3, 40, (2, 1, 32))
    batch, features = accuracy.inputs(row, "cpu")
    assert batch.query.dtype == batch.value_cache.dtype == dtype and features.query_scale is not None
    values = batch.value_cache[batch.block_table[0, :2].long()].float()
    assert (values >= 0).all() and (values > 0).any()


def _row(kernel, keys, query="float8_e4m3fn"):
    return {
        "kernel": kernel, "gpu": "h200", "evidence": "measured", "query": query, "cache": "float8_e4m3fn",
        "query_len": 64, "keys": keys, "relative": 0.132, "bias": -0.132,
    }  # fmt: skip


def test_the_table_has_a_line_a_length_and_a_column_a_kernel(tmp_path, capsys):
    file = tmp_path / "accuracy.jsonl"
    rows = [_row("triton/auto", 2048), _row("helion/auto", 2048), _row("triton/auto", 131072)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["study", "accuracy", "--table", str(file)]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| query | tokens | keys | triton/auto, h200 | helion/auto, h200 |"
    assert lines[2] == "| fp8 | 64 | 2,048 | 13.20%, -13.200% | 13.20%, -13.200% |"
    assert lines[3] == "| fp8 | 64 | 131,072 | 13.20%, -13.200% |  |"
