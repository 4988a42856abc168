"""The spread that reports print beside an estimate is that of the committed cells of an H200."""

import json

import pandas as pd

from common import gpus
from compare.analysis.cells import combined
from compare.record.folder import ROOT
from compare.record.records import latest
from compare.record.store import read_records
from compare.static.estimate import SPREAD, NoEstimate, estimate
from compare.workloads import suites

H200 = ROOT / "docs" / "results" / "h200"


def ratios(suite):
    """Measured time over estimate, of each cell that the model has a rule for."""
    gpu, rows = gpus.resolve("h200"), {row.id: row for row in suites.suite(suite)}
    for record in combined(latest(read_records(H200 / suite / "cells.jsonl"))):
        if record.timing is None or record.workload.id not in rows:
            continue
        try:
            said = estimate(rows[record.workload.id], record.kernel, record.config or {}, record.facts, gpu)
        except NoEstimate:
            continue
        yield record.timing.median_us / said.us


def test_the_spread_is_that_of_the_committed_cells():
    found = pd.Series([ratio for suite in ("peers", "serving") for ratio in ratios(suite)])
    said = json.loads(SPREAD.read_text())["nvidia"]
    assert (len(found), round(found.quantile(0.1), 2), round(found.quantile(0.9), 2)) == (
        said["points"], said["p10"], said["p90"],
    )  # fmt: skip
