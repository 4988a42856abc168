"""The page about kernels of others: made of the committed reports, and scripts that a stranger can run."""

import ast
import json

import pytest

from compare.pages import conformance

SCRIPTS = sorted((conformance.FOLDER / "scripts").glob("*.py"))


def test_the_committed_pages_are_fresh():
    texts = conformance.texts()
    assert {page.name for page in texts} == {"README.md", "mutants.md", "conformance.md", "alarms.md"}
    for page, text in texts.items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: python -m compare pages reports --write"


def test_no_alarm_is_committed():
    _, *found = map(json.loads, conformance.ALARMS.read_text(encoding="utf-8").splitlines())
    assert found and not [case for case in found if case["alarms"]]


@pytest.mark.parametrize("subject", conformance.TITLES)
def test_every_subject_has_a_report_and_no_case_twice(subject):
    seen = conformance.cases()[subject]
    assert seen and all(case["status"] for case in seen.values())
    assert len({name.split("@")[0] for name in seen}) == len(seen)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_stands_alone(script):
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 20
    imported = {name.split(".")[0] for node in ast.walk(ast.parse(text)) for name in _names(node)}
    assert imported == {"torch", "vllm"}


def _names(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) else []


def test_the_log_names_every_script():
    log = (conformance.FOLDER / "scripts" / "h200.log").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 4 and all(script.name in log for script in SCRIPTS)
