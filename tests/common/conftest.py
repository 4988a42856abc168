"""What tests of the kit share, and tables at the end of a run: the mutants and what killed each, and the worst ratios
of right results."""

import pytest

from common.kit.isolate import Isolated

COLUMNS = {"mutant": 36, "scope": 13, "case": 58, "rule": 11, "ratio": 9}


def _properties(terminalreporter) -> list[dict]:
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])]
    return [dict(report.user_properties) for report in reports if getattr(report, "when", "") == "call"]


def pytest_terminal_summary(terminalreporter) -> None:
    rows = _properties(terminalreporter)
    mutants = [row for row in rows if "mutant" in row]
    if mutants:
        terminalreporter.section("mutants: what killed each, and by how many budgets")
        for row in [{name: name for name in COLUMNS}, *mutants]:
            terminalreporter.write_line("  ".join(f"{row[name]!s:{width}}" for name, width in COLUMNS.items()))
    for row in rows:
        if "worst ratios" in row:
            terminalreporter.section("right results: the largest part of each budget that any of them used")
            for line in row["worst ratios"]:
                terminalreporter.write_line(line)


@pytest.fixture
def kernels_are_importable(monkeypatch, request):
    """Kernels beside the test can be named to the kit's child."""
    monkeypatch.setenv("PYTHONPATH", str(request.path.parent))


@pytest.fixture(scope="module")
def child():
    """The kit's child process, one for the tests of a file."""
    found = Isolated(threads=1)
    yield found
    found.close()
