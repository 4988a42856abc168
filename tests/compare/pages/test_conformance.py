"""The page about kernels of others: made of the committed reports, and scripts that a stranger can run."""

import ast

import pytest

from compare.pages import conformance

SCRIPTS = sorted((conformance.FOLDER / "scripts").glob("*.py"))


def test_the_committed_page_is_fresh():
    [(page, text)] = conformance.texts().items()
    assert page.read_text(encoding="utf-8") == text, "python -m compare pages reports --write"


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
