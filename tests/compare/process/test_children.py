"""The children of compare are named in one table, and told there which GPUs they see."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from compare.process import children

ROOT = Path(__file__).parents[3]
NAMED = set(children.CHILDREN)


def texts(path):
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}


def test_no_other_file_names_a_child():
    files = [path for folder in ("common", "compare") for path in (ROOT / folder).rglob("*.py")]
    table = Path(children.__file__)
    assert {path: texts(path) & NAMED for path in files if texts(path) & NAMED} == {table: NAMED}


def test_each_is_a_module_that_can_be_run():
    for child in NAMED:
        source = Path(importlib.util.find_spec(child).origin).read_text()
        assert re.search(r'\nif __name__ == "__main__":\n    main\(\w*\)\n\Z', source), child
        assert children.command(child)[1:] == ["-m", child]


@pytest.mark.parametrize(
    ("hip", "masks", "told"),
    [
        (None, {}, ["0", "1"]),
        (None, {"CUDA_VISIBLE_DEVICES": "3, GPU-5a"}, ["3", "GPU-5a"]),
        (None, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "6,7"}, ["0", "1"]),
        ("6.4", {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "6,7"}, ["6", "7"]),
        ("6.4", {"CUDA_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": ""}, ["4", "5"]),
        ("6.4", {"HIP_VISIBLE_DEVICES": "4,5,-1"}, ["4", "5"]),
    ],
)
def test_a_child_is_told_of_a_gpu_as_this_process_was(monkeypatch, hip, masks, told):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, mask in masks.items():
        monkeypatch.setenv(name, mask)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert children.visible() == told
    assert set(children.seeing(told[0]).values()) == {told[0]}


def test_who_is_to_see_no_gpu_is_given_an_index_that_none_has():
    """An empty list hides nothing from ROCm's runtime."""
    assert children.seeing(children.NO_GPU) == {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
