"""A study that is asked for what cannot be says what it found, measures nothing and ends with its exit code."""

import pytest
import torch

from compare.__main__ import main as diptych
from compare.exits import NO_GPU, USAGE

REFUSED = {
    "host --gpu mi300": (NO_GPU, "mi300 is not here"),
    "regret --gpu mi300": (NO_GPU, "tuning needs the GPU itself"),
    "stress --kernels triton/nayve": (USAGE, "triton/nayve"),
    "stress --workload q1x": (USAGE, "q1x"),
    "stress --shape 2:1": (USAGE, "2:1"),
}
WITHOUT_OUT = ("regret", "stress")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused_by_what_was_found(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = REFUSED[words]
    out = [] if words.startswith(WITHOUT_OUT) else ["--out", str(tmp_path / "out")]
    assert diptych(["study", *words.split(), *out]) == code
    told = "".join(capsys.readouterr()).replace("\n", " ")
    assert said in told and not [path for path in tmp_path.glob("out/*") if path.stat().st_size]
