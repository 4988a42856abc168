"""Malformed command lines of every verb: an exit code of the table, five lines at most, no traceback."""

import pytest

from compare import exits
from compare.__main__ import VERBS, main

RUN = "docs/results/h200/fig9"  # a committed run
CODES = {exits.USAGE, exits.NO_GPU, exits.NOTHING}
LINES = """
rnu
--vers
-x
run --suite smok
run --suite
run --kernels triton/qblock
run --kernels triton/auto@fast
run --kernels , --list --workload 1q
run --gpu mi30
run --gpu
run --frobnicate
run --workloads 1q1s10 extra
run --workload 3x
run --workload q9s3
run --workload decode --suite peers
run --workload 1q1s10 --shape 8:3:128
run --workload 1q1s10 --shape llama4
run --workload 1q1s10 --shape 0:0:0
run --workload 1q1s10 --set dtype=float99
run --set block-size=0
run --set block-size=abc
run --set cpu-budget=-1
run --set cpu-budget=nan
run --seed x
run --precision 2
run --trace /nowhere.csv
run --trace docs
run --retry
run --fail-on regress
run --fail-on slow --against x
run --against /nowhere --workload 1q1s10 --kernels triton/naive
run --resume /proc/nowhere --kernels triton/naive --workload 1q1s10
run --out a --resume b
run --timer sundial
run --re x
run --gpu h200 --require-gpu
run --out /proc/x --workload 1q1s10 --kernels triton/naive
run --out /etc/passwd --workload 1q1s10 --kernels triton/naive
run --trace x.csv:steps=3
run --device tpu:0 --workload 1q1s10 --kernels triton/naive
fleet --frobnicate
report
report /nowhere
report /etc
report RUN --print means
report RUN --print mens
report RUN --print means --unit triton/q_blok
report RUN --unit triton/auto
report RUN RUN --out /nowhere/x.html
diff
diff RUN
diff /a /b
diff RUN docs/results/h200/peers-before
diff RUN RUN --noise /nowhere
diff RUN RUN --kernels nothing
diff RUN RUN --relative x
merge
merge RUN --out
merge /a /b --out /nowhere
tune
tune --gpu h2000
tune --rank
tune --fit /nowhere
tune --minutes none
explain
explain 3x
explain 1q1s10 --gpu h20x
explain 1q1s10 --kernels x
doctor --frob
doctor --gpu xx
study cost
study costs --frob
study hots
doctor --rounds /nowhere
study graphs --report /nowhere
pages nope
pages choosin
pages choosing --wrt
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_it_is_refused_in_few_words(line, capsys):
    try:
        code = main(line.replace("RUN", RUN).split())
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code in CODES, (code, said)
    assert 0 < len(said.splitlines()) <= exits.MOST_LINES, said
    assert "Traceback" not in said and "[Errno" not in said and "usage:" not in said
    assert len(said) <= 6 * 80, said


def test_every_verb_is_asked_for_something_malformed():
    assert {line.split()[0] for line in LINES} >= set(VERBS) and len(LINES) >= 50


def test_what_is_nearest_comes_first(capsys):
    assert main(["run", "--suite", "smok"]) == exits.USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first == "suite: did you mean smoke?" and second.strip().startswith("found 'smok', allowed smoke, ")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("report docs/results/h200/paers", "docs/results/h200/peers"),
        ("report docs/results/mi300", "docs/results/mi300/family"),
    ],
)
def test_a_folder_that_is_no_run_is_told_with_the_runs_near_it(line, near, capsys):
    assert main(line.split()) == exits.USAGE
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("run folder: did you mean ") and near in first


def test_what_is_missing_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["diff"])
    assert capsys.readouterr().err.splitlines()[0] == "missing: before, after"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_message_fits_five_lines_of_its_window(width):
    many = ", ".join(f"kernel_{number}" for number in range(300))
    told = exits.told(f"kernel: found 'x', allowed {many}; nearest: kernel_1, kernel_2", width)
    assert told.startswith("kernel: did you mean kernel_1, kernel_2?") and told.endswith("...")
    assert sum(-(-len(line) // width) for line in told.splitlines()) <= exits.MOST_LINES
    assert exits.told("a: found x, allowed y", width) == "a: found x, allowed y"
