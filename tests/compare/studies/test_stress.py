"""`study stress`: a kernel whose bits change is found, one whose bits stay passes, and bad words are refused."""

import os
import subprocess
import sys

from compare.__main__ import main as diptych
from compare.bench.subject import Subject

SMALL = ["study", "stress", "--kernels", "triton/naive", "--workload", "q1s20", "--shape", "2:1:16", "--launches", "3"]


def test_the_same_bits_pass_where_nobody_asked_for_the_interpreter():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "compare", *SMALL]
    assert "naive: 0 of 3 launches" in subprocess.run(words, env=environment, capture_output=True, text=True).stdout


def test_another_bit_is_found(monkeypatch, capsys):
    launches, real = [], Subject.launch

    def launch(self, number, lse=None):
        real(self, number, lse)
        launches.append(number)
        if len(launches) == 3:
            self.arena.outs[0][0, 0, 0] += 1.0

    monkeypatch.setattr(Subject, "launch", launch)
    assert diptych(SMALL) == 1
    assert "1 of 3 launches have other bits than the first, number 3 before all" in capsys.readouterr().out
