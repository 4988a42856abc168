"""Studies: questions beside speed, one in each file: host time, sizes, races, a server, the checker itself.

In: the kernels, the compilers, committed runs. Out: tables and rows that pages and reports quote.
"""

from pathlib import Path

HELP = "answer a question beside speed: study NAME; without a name, list them"
NAMED = {
    "host": "compare.studies.host",
    "counts": "compare.studies.counts",
    "estimates": "compare.studies.estimates",
    "stress": "compare.studies.stress",
    "sizes": "compare.studies.sizes",
    "engine": "compare.studies.engine.engine",
    "alarms": "compare.studies.alarms",
    "mutation": "compare.studies.mutation.score",
    "regret": "compare.studies.regret",
    "everything": "compare.studies.everything",
}


def template(page: str) -> str:
    """The words of a study's page, for `str.format`."""
    return (Path(__file__).parent / "templates" / f"{page}.md").read_text(encoding="utf-8")
