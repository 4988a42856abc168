"""Faults planted into a kernel that Triton compiled for gfx942, and into its inputs, are noticed; with the score."""

import json
from collections import Counter
from pathlib import Path

import pytest

import children

MASKS = ("planted.as_it_is", "planted.wrong_mask")
HERE = Path(__file__).parent
RIGHT, WRONG = "(key_pos < end)", "(key_pos <= end)"  # of dsl_triton/naive.py: a key behind the last visible one


def plant(folder):
    """A package `planted` in `folder`: the baseline as it is, and with the wrong mask."""
    source = (HERE.parents[3] / "dsl_triton" / "naive.py").read_text()
    assert source.count(RIGHT) == 1
    package = folder / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "as_it_is.py").write_text(source)
    (package / "wrong_mask.py").write_text(source.replace(RIGHT, WRONG))


def verdicts(folder="", **asked):
    environment = children.compiling(HERE.parents[3], folder, HELION_DISALLOW_AUTOTUNING="1")
    return children.answer([str(HERE / "fault_child.py"), json.dumps(asked)], environment)


def score(found):
    """Prints how many faults of each kind were caught; returns {kind: (caught, planted)}."""
    kinds = {
        name: name.split()[0] if name.split()[1].endswith(":") else name
        for name in found
        if name not in ("nothing", *MASKS)
    }
    planted, caught = Counter(kinds.values()), Counter(kind for name, kind in kinds.items() if found[name] != "ok")
    print(*(f"{kind}: {caught[kind]} of {planted[kind]} caught" for kind in planted), sep="\n")
    return {kind: (caught[kind], planted[kind]) for kind in planted}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    plant(folder)
    return verdicts(folder, kernel="triton/q_block@fixed", row="chunk-17-over-40", drops=8, seed=0, others=MASKS)


def test_a_right_kernel_is_ok(found):
    assert found["nothing"] == "ok"


def test_a_wrong_mask_is_incorrect(found):
    assert [found[name] for name in MASKS] == ["ok", "incorrect"]


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("bad block table", "fault"),
        ("block of another sequence", "incorrect"),
        ("context length one page too long", "incorrect"),
        ("context length one too long", "incorrect"),
        ("every barrier", "fault"),
        ("every waitcnt", "fault"),
    ],
)
def test_a_planted_fault_is_caught(found, fault, verdict):
    assert found[fault] in {verdict, "fault"}


def test_the_mutation_score(found, capsys):
    """One barrier, one wait, one instruction less at a time. Some change nothing here: a wait that another covers, a
    guard against NaN, a lane that is masked."""
    with capsys.disabled():
        print()
        scores = score(found)
    for kind in ("barrier", "waitcnt", "instruction"):
        caught, planted = scores[kind]
        assert planted >= 4 and 3 * caught >= planted, (kind, scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "drops"),
    # static_grid runs its 1,000 programs and more for each: 60 took over 10 minutes beside other work
    [("triton/parallel_softmax", 60), ("helion/q_block", 60), ("triton/static_grid", 12)],
)
def test_the_mutation_score_of_others(kernel, drops, capsys):
    found = verdicts(kernel=kernel, row="mixed-with-empty", drops=drops, seed=1)
    with capsys.disabled():
        print(f"\n{kernel}")
        score(found)
    # A buffer's lanes beyond its records read zero, so that a bad table need be no fault.
    assert found["nothing"] == "ok" and found["bad block table"] in ("fault", "incorrect")
    assert found["every waitcnt"] != "ok"
