"""The scripts of docs/results/conformance/scripts: a stranger can run each, for a finding about a kernel of others."""

import ast

import pytest

from compare.record.folder import ROOT

FOLDER = ROOT / "docs" / "results" / "conformance" / "scripts"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_stands_alone(script):
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 20
    imported = {name.split(".")[0] for node in ast.walk(ast.parse(text)) for name in _names(node)}
    package = "vllm" if script.name.startswith("flash_attn3") else script.name.split("_")[0]
    assert imported - {"triton"} == {"torch", package}


def _names(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) else []


def test_the_logs_name_every_script():
    logs = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.log"))
    assert len(SCRIPTS) == 10 and all(script.name in logs for script in SCRIPTS)
