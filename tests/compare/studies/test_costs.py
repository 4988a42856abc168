"""Compile times: rows are kept and read again, and one kernel is compiled for real."""

import pytest

from compare.__main__ import main as diptych
from compare.studies.costs import costs


def row(kernel, state, status="ok"):
    return {"cost": "compile", "kernel": kernel, "workload": costs.WORKLOAD, "state": state, "status": status}


def test_rows_are_kept_and_read_again_and_the_last_word_wins(tmp_path, monkeypatch):
    def measure(kernels, workload, gpu, *, here, lanes):
        return iter([row(kernel, state) for kernel in kernels for state in costs.compile_cost.STATES])

    monkeypatch.setattr(costs.compile_cost, "measure", measure)
    for _ in range(2):
        words = ["--gpu", "h200", "--kernels", "triton/q_block,triton/auto", "--out", str(tmp_path)]
        assert diptych(["study", "costs", *words]) == 0
    rows = costs.read(tmp_path)
    assert len(rows) == 2 and all(one["ran_on"].startswith(costs.processor()) for one in rows)
    with (tmp_path / "costs.jsonl").open("a") as file:
        file.write('{"cost": "co')
    with pytest.raises(ValueError, match="line 5"):
        costs.read(tmp_path)


def test_a_row_that_failed_is_the_exit_code(tmp_path, monkeypatch):
    failed = [row("triton/q_block", "cold", "failed")]
    monkeypatch.setattr(costs.compile_cost, "measure", lambda *_, **__: iter(failed))
    assert diptych(["study", "costs", "--gpu", "h200", "--out", str(tmp_path)]) == 1


def test_nothing_selected(tmp_path):
    assert diptych(["study", "costs", "--gpu", "mi300", "--kernels", "baseline/sdpa", "--out", str(tmp_path)]) == 5


@pytest.mark.slow
def test_a_kernel_is_compiled_cold_and_warm(tmp_path):
    assert diptych(["study", "costs", "--gpu", "h200", "--kernels", "triton/naive", "--out", str(tmp_path)]) == 0
    cold, warm = costs.read(tmp_path)
    assert cold["first_cpu_s"] > 0 and (cold["state"], warm["state"]) == costs.compile_cost.STATES
