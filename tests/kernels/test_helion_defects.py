"""Each defect of Helion that docs/helion-idiomatic.md reports still happens, and says what the page quotes."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "helion-idiomatic.md"
DEFECTS = sorted((ROOT / "tests" / "support" / "helion_defects").glob("*.py"))


@pytest.mark.parametrize("path", DEFECTS, ids=lambda path: path.stem)
def test_a_defect_says_what_the_page_quotes(path: Path, capsys) -> None:
    runpy.run_path(str(path))
    page, said = PAGE.read_text(encoding="utf-8"), capsys.readouterr().out.splitlines()
    assert f"](../{path.relative_to(ROOT)})" in page
    assert said and all(f"`{line}`" in page for line in said), said


def test_each_is_short_and_needs_helion_and_torch_alone() -> None:
    for path in DEFECTS:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert len(lines) <= 25 and imported <= {"re", "helion", "torch"}, path
