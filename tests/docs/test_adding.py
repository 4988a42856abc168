"""The pages that add a kernel or a feature are followed, step by step, in a copy of the project.

A page's steps: `path` and a colon, then a block of python is a new file, a block of diff an edit (lines that go, lines
that come); a block of sh is run. So a page that a change of the sources made wrong fails here, at the step.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(
    r"(?:^`(?P<path>[\w./-]+)`:\n\n)?^```(?P<kind>python|diff|sh)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE
)
TOOLS = {"diptych-check": ["diptych_check.py"], "diptych": ["-m", "compare"]}


def steps(page: Path) -> list[tuple[str, str, str]]:
    """(path, kind, body) in order."""
    return [(m["path"] or "", m["kind"], m["body"]) for m in STEP.finditer(page.read_text(encoding="utf-8"))]


def edited(text: str, diff: str) -> str:
    """The text with the lines of `-` once replaced by those of `+`. Raises ValueError where they are not there once."""
    gone, come = ("\n".join(line[1:] for line in diff.splitlines() if line.startswith(mark)) for mark in "-+")
    if text.count(gone) != 1:
        raise ValueError(f"found {text.count(gone)} of these lines, allowed 1:\n{gone}")
    return text.replace(gone, come)


def follow(page: Path, project: Path, *, skip: str = "(?!)") -> list[str]:
    """Do all that the page says; the commands that were run. skip: of commands, which need minutes here."""
    done = []
    for path, kind, body in steps(page):
        if kind == "python":
            assert path and not (project / path).exists(), f"{path} is there already"
            (project / path).write_text(body)
        elif kind == "diff":
            (project / path).write_text(edited((project / path).read_text(), body))
        else:
            for line in filter(str.strip, body.splitlines()):
                if not re.search(skip, line):
                    run(line, project)
                    done.append(line)
    return done


def run(line: str, project: Path) -> None:
    words = shlex.split(line, comments=True)
    words = [
        sys.executable,
        *TOOLS.get(words[0], words[1:] if words[0] == "python" else words),
        *words[1:] * (words[0] in TOOLS),
    ]
    environment = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture
def project(tmp_path):
    """A copy of the project without its committed runs."""
    for name in ("common", "compare", "dsl_triton", "dsl_helion", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "diptych_check.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_a_kernel_is_added_by_its_page(project):
    done = follow(ROOT / "docs" / "adding-a-kernel.md", project)
    assert len(done) == 4


@pytest.mark.slow
def test_a_feature_is_added_by_its_page(project):
    done = follow(ROOT / "docs" / "adding-a-feature.md", project, skip="dsl_helion")
    assert len(done) == 4


@pytest.mark.slow
def test_the_feature_is_right_in_helion_too(project):
    follow(ROOT / "docs" / "adding-a-feature.md", project, skip="dsl_triton|mirror")


@pytest.mark.slow
def test_the_kernels_twin_is_right(project):
    """40 s of Helion's code generation."""
    follow(ROOT / "docs" / "adding-a-kernel.md", project, skip=".")
    run("diptych-check dsl_helion.two_passes --case one-empty-sequence --case page-24 --case padded-tokens", project)


def test_an_edit_that_finds_nothing_fails():
    with pytest.raises(ValueError, match="found 0"):
        edited("a\nb\n", "-c\n+d\n")
    assert edited("a\nb\n", "-a\n+c\n+d\n") == "c\nd\nb\n"
