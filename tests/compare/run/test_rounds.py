"""How many rounds a precision takes, on rounds whose spread is known."""

import dataclasses
import random
from pathlib import Path

import pytest

from compare.__main__ import main as diptych
from compare.record.records import MAX_SAMPLES
from compare.run import rounds as of_rounds
from synthetic_run import timed, workload, write

LOAD = workload("q1s512", "decode", 1, 1, 512)


def run(folder, spread, count=MAX_SAMPLES):
    random.seed(7)
    droop = [1 + 0.2 * r / count for r in range(count)]
    records = []
    for kernel in ("baseline/flash_attn3", "triton/naive", "helion/naive"):
        record = timed(LOAD, kernel, 10.0)
        samples = tuple(10.0 * d * (1 + random.gauss(0, spread / 2**0.5)) for d in droop)
        records.append(record.replace(timing=dataclasses.replace(record.timing, samples_us=samples)))
    return write(folder, records), records


def test_what_moves_both_does_not_count(tmp_path):
    _, records = run(tmp_path, 0.01)
    assert of_rounds.spreads(records) == pytest.approx([0.01, 0.01], rel=0.2)


def test_rounds_grow_with_the_square_of_the_spread():
    assert of_rounds.rounds(0.01, 0.005) == 27
    assert of_rounds.rounds(0.02, 0.005) == pytest.approx(4 * 27, abs=2)


def test_the_command_prints_a_line_a_share(tmp_path, capsys):
    folder, _ = run(tmp_path, 0.01)
    assert diptych(["doctor", "--rounds", str(folder), "--precision", "1%"]) == 0
    assert capsys.readouterr().out.count("rounds") == 1 + len(of_rounds.SHARES)


def test_runs_that_took_no_turns_are_exit_2(tmp_path, capsys):
    folder = write(tmp_path, [timed(LOAD, "triton/naive", 10.0)])
    assert diptych(["doctor", "--rounds", str(folder)]) == 2
    assert str(Path(folder)) in capsys.readouterr().err
