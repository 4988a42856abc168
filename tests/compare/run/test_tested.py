"""What the versions that are here make of the smoke cells; a verdict that cannot be wrong unseen."""

import pytest
from rich.console import Console

from common import gpus, versions
from compare import exits
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.run import tested
from compare.run.tested import Seen

FINE = Seen("interpreted", "triton/q_block on a", "ok", "")
CRASH = Seen("interpreted", "triton/q_block on b", "crash", "ValueError: too many indices")
GONE = Seen("h200", "triton/q_block on a", "unavailable", "ImportError: no")


# Halves of a DSL's rungs, each in a process of its own, side by side: Helion's take minutes.
HALVES = [pytest.param(d, tested.rungs(d)[n::2], id=tested.rungs(d)[n]) for d in registry.DSLS for n in (0, 1)]


@pytest.mark.lane
@pytest.mark.slow
@pytest.mark.parametrize(("dsl", "kernels"), HALVES)
def test_the_smoke_cells_of_every_rung_are_right(dsl, kernels):
    cells = list(tested.interpreted(kernels))
    assert len(cells) == len(kernels) * len(tested.ROWS.split(","))
    assert tested.verdict(dsl, cells)[0] == exits.OK, "\n".join(tested.verdict(dsl, cells)[1])


@pytest.mark.slow
@pytest.mark.parametrize("target", tested.TARGETS)
@pytest.mark.parametrize("dsl", registry.DSLS)
def test_every_rung_compiles(dsl, target):
    cells = list(tested.compiled(dsl, gpus.resolve(target)))
    assert len(cells) == len(registry.RUNGS)
    assert tested.verdict(dsl, cells)[0] == exits.OK, "\n".join(tested.verdict(dsl, cells)[1])


@pytest.mark.parametrize(
    ("cells", "code", "says"),
    [
        ([FINE, FINE], exits.OK, "x: works: interpreted 2 of 2"),
        ([FINE, CRASH], exits.WRONG, "x: does not work: interpreted 1 of 2"),
        ([FINE, GONE], exits.OK, "x: works: interpreted 1 of 1, h200 0 of 1"),
        ([GONE], exits.NOTHING, "x: not tested: ImportError: no"),
        ([], exits.NOTHING, "x: not tested: nothing could be tried"),
    ],
)
def test_a_verdict(cells, code, says):
    found, lines = tested.verdict("x", cells)
    assert (found, lines[0]) == (code, says)
    assert lines[1:] == ["  interpreted triton/q_block on b: crash: ValueError: too many indices"] * (CRASH in cells)


def installed(monkeypatch, **found):
    monkeypatch.setattr(versions, "here", lambda package: found[package])


def test_each_dsl_has_its_verdict_and_the_worst_is_the_exit_code(monkeypatch, capsys):
    installed(monkeypatch, torch="2.13.0+cpu", triton="3.9.0", helion="1.5.1")
    monkeypatch.setattr(tested, "seen", lambda dsl, targets: iter([FINE if dsl == "triton" else CRASH]))
    assert tested.judged(Console(), None) == exits.WRONG
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "torch 2.13.0+cpu, triton 3.9.0, helion 1.5.1: the tested set `newest`"
    assert [line.partition(":")[0] for line in rest[:2]] == ["triton", "helion"]
    assert "works" in rest[0] and "does not work" in rest[1]


def test_a_dsl_that_is_not_installed_is_no_fault(monkeypatch, capsys):
    installed(monkeypatch, torch="2.14.0", triton="3.9.0", helion="")
    monkeypatch.setattr(tested, "seen", lambda dsl, targets: iter([FINE]))
    assert tested.judged(Console(), None) == exits.OK
    said = capsys.readouterr().out
    assert "helion not installed: no tested set" in said and "helion: not tested: helion: found none" in said


def test_nothing_is_interpreted_by_a_triton_that_is_too_old_for_it(monkeypatch):
    installed(monkeypatch, torch="2.11.0", triton="3.6.0", helion="1.5.0")
    monkeypatch.setattr(tested, "interpreted", lambda dsl: iter([FINE]))
    monkeypatch.setattr(tested, "compiled", lambda dsl, gpu: iter([GONE]))
    assert list(tested.seen("triton", [gpus.resolve("h200")])) == [GONE]


def test_the_gpu_that_is_here_is_the_one_that_is_compiled_for(monkeypatch):
    asked = []
    monkeypatch.setattr(tested, "seen", lambda dsl, targets: asked.append([gpu.name for gpu in targets]) or [FINE])
    tested.judged(Console(), gpus.resolve("b200"))
    tested.judged(Console(), None)
    assert asked == [["b200"]] * 2 + [list(tested.TARGETS)] * 2


def test_the_doctor_is_asked_by_an_option(monkeypatch):
    monkeypatch.setattr(tested, "judged", lambda console, here: exits.WRONG)
    assert diptych(["doctor", "--versions"]) == exits.WRONG
