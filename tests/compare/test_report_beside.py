"""What lies beside a run becomes sections; what cannot be read is said, what is not there is no section."""

import json

import pytest
import synthetic_run

from compare import capability, registry, report_beside
from compare.report_run import read


def run(folder, gpu="h200"):
    load = synthetic_run.workload("q1s512", "decode", 1, 1, 512)
    where = {"asked": gpu, "name": gpu, "title": gpu.upper(), "present": True}
    return read(synthetic_run.write(folder, [synthetic_run.timed(load, "triton/naive", 20.0)], gpu=where))


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def entries(section, number=0):
    tables = [block for block in section.blocks if block.kind == "table"]
    tables += [
        inner for block in section.blocks if block.kind == "fold" for inner in block.blocks if inner.kind == "table"
    ]
    return [[entry for entry, _ in row] for row in tables[number].rows]


SCRATCH = {"cost": "scratch", "kernel": "triton/naive", "workload": "q1s2k", "status": "ok", "scratch_bytes": 532480}


def test_nothing_beside_a_run_is_no_section(tmp_path):
    alone = run(tmp_path / "a" / "b" / "run")
    builders = (report_beside.cost_tables, report_beside.code, report_beside.capabilities)
    assert [builder(alone) for builder in builders] == [None, None, None]


@pytest.mark.parametrize("where", ["run/costs", "costs", "../costs"])
def test_costs_are_found_in_the_run_or_the_two_folders_above(tmp_path, where):
    lines(tmp_path / "gpu" / where / "costs.jsonl", SCRATCH)
    section = report_beside.cost_tables(run(tmp_path / "gpu" / "run"))
    assert entries(section) == [["triton/naive", "q1s2k", "532,480"]]


def test_a_cost_that_failed_has_its_reason(tmp_path):
    lines(tmp_path / "run" / "costs" / "costs.jsonl", SCRATCH | {"status": "crash", "reason": "signal 11"})
    assert entries(report_beside.cost_tables(run(tmp_path / "run"))) == [["triton/naive", "crash", "signal 11"]]


def test_broken_lines_are_said(tmp_path):
    (tmp_path / "run" / "costs").mkdir(parents=True)
    (tmp_path / "run" / "costs" / "costs.jsonl").write_text("no json\n")
    (tmp_path / "run" / "conformance").mkdir()
    (tmp_path / "run" / "conformance" / "cells.jsonl").write_text("{}\n")
    found = run(tmp_path / "run")
    assert "line 1" in report_beside.cost_tables(found).blocks[0].text
    assert "line 1" in report_beside.capabilities(found).blocks[0].text


CODE = {
    "workload": "q1s512", "launched": "_naive_kernel", "status": "ok", "arch": "sm_90", "config": {}, "registers": 123,
    "spills": 0, "shared_bytes": 0, "instructions": 971, "num_warps": 1, "num_stages": 2, "pipelined": 0,
    "loads": {"32": 4}, "matrix": {}, "grid": [32], "generated_tokens": 10, "generated_lines": 2,
    "generated_cyclomatic": 1, "source_tokens": 10,
}  # fmt: skip


def test_generated_code_stands_beside_ours_and_only_that_of_the_runs_gpu(tmp_path):
    rows = [CODE | {"kernel": f"{dsl}/naive", "registers": count} for dsl, count in (("triton", 123), ("helion", 127))]
    lines(tmp_path / "code" / "code.jsonl", {"commit": "abc", "heuristics": "default", "gpu": "h200"}, *rows)
    section = report_beside.code(run(tmp_path / "run"))
    assert [row[:3] for row in entries(section)] == [["naive", "q1s512", "triton"], ["naive", "q1s512", "helion"]]
    assert "123" in entries(section)[0] and "127" in entries(section)[1]
    assert report_beside.code(run(tmp_path / "other", "mi300")) is None


def test_the_capability_matrix_counts_cases_and_sizes_only_what_is_equal(tmp_path):
    kernels = ("triton/naive", "helion/naive")
    known = {k: {"supports": sorted(registry.load(k).SUPPORTS), "source_sha": "0"} for k in kernels}
    meta = {"date": "2000-01-01", "commit": "abc", "device": "cpu", "versions": {}, "kernels": known}
    cells = [{"kernel": k, "case": "query-1", "dtype": "bfloat16", "outcome": "supported"} for k in kernels]
    lines(tmp_path / "conformance" / "cells.jsonl", {"meta": meta}, *cells)
    section = report_beside.capabilities(run(tmp_path / "run"))
    matrix = {row[0]: row[1:] for row in entries(section)}
    assert matrix["bf16"] == ["1", "1"] and matrix["fp32"] == [capability.NOT_RUN] * 2
    sizes = {row[0]: row for row in entries(section, 1)}
    assert "is not in the conformance run" in sizes["q_block"][1] and sizes["naive"][1] == ""


def test_numbers_stand_right_and_nothing_is_no_number():
    table = report_beside.plain([{"kernel": "a", "us": 1.25, "bytes": 1234}, {"kernel": "b", "us": None, "why": "x"}])
    assert [right for _, right in table.head] == [False, True, True, False]
    assert [entry for entry, _ in table.rows[0]] == ["a", "1.25", "1,234", ""]
