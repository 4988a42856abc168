"""The page of arithmetic about an AMD GPU: bytes per die, and what a command line refuses."""

import pytest

from compare.__main__ import main as diptych
from compare.studies import dies


def test_eight_kv_heads_need_no_remap_and_one_does():
    fetched = {(line[0], line[1]): (float(line[4]), float(line[5])) for line in dies.die_lines()}
    as_launched, remapped = fetched["prompt q8k", "32:8"]
    assert as_launched == 1.0 < remapped, "a head's Q Blocks are on one die already"
    as_launched, remapped = fetched["prompt q8k", "16:1"]
    assert as_launched > 7 and remapped < 5
    assert {fetched[key] for key in fetched if "decode" in key[0]} == {(1.0, 1.0)}


@pytest.mark.parametrize(("gpu", "found"), [("h200", "sm_90"), ("mi250", "gfx90a"), ("mi30", "mi300")])
def test_a_gpu_without_eight_dies_is_refused(gpu, found, capsys):
    assert diptych(["study", "dies", "--gpu", gpu]) == 2
    assert found in capsys.readouterr().err
