"""The capability matrix: what a conformance run says of a kernel, and that the committed page is what it says."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import children
from compare.competitors import registry
from compare.studies import capability
from compare.studies.constructs import CONSTRUCTS, HELION_ON_GFX942

ROOT = Path(__file__).parents[3]
SINKS = next(aspect for aspect in capability.ASPECTS if aspect.name == "sinks")
CAUSAL = capability.ASPECTS[0]


def run(tmp_path, *cells):
    path = tmp_path / "cells.jsonl"
    capability.write(path, cells, "nothing")
    return capability.read(path)


def cell(kernel="triton/naive", case="query-1", outcome="supported", **more):
    return {"kernel": kernel, "case": case, "dtype": "float16", "outcome": outcome} | more


def test_what_passed_is_counted_and_one_failure_is_named(tmp_path):
    both = run(tmp_path, cell(), cell(case="query-2"))
    assert capability.entry(both, "triton/naive", CAUSAL) == capability.Entry(capability.SUPPORTED, 2)
    one = run(tmp_path / "one", cell(), cell(case="query-2", outcome="failed", reason="nan at 3"))
    assert capability.entry(one, "triton/naive", CAUSAL) == capability.Entry(capability.FAILED, error="nan at 3")


def test_a_typed_refusal_of_the_aspect_is_not_yet_and_of_another_says_nothing(tmp_path):
    refusal = {"outcome": "unsupported", "argument": "sinks", "reason": "sinks: found ..."}
    found = run(tmp_path, cell(case="sinks-near-the-mass", **refusal))
    assert capability.entry(found, "triton/naive", SINKS) == capability.Entry(
        capability.NOT_YET, error="sinks: found ..."
    )
    assert capability.entry(found, "triton/naive", CAUSAL).state == capability.NOT_RUN
    other = run(
        tmp_path / "other", cell(case="everything-at-once", outcome="unsupported", argument="softcap", reason="softcap")
    )
    assert capability.entry(other, "triton/naive", SINKS).state == capability.NOT_RUN


def test_a_run_in_parts_is_one_unless_the_kernel_or_the_device_changed(tmp_path, monkeypatch):
    run(tmp_path, cell(), cell("triton/q_block"))
    joined = run(tmp_path, cell(case="query-2"), cell(outcome="failed", reason="nan"))
    assert [(c["kernel"], c["case"], c["outcome"]) for c in joined.cells] == [
        ("triton/naive", "query-1", "failed"),
        ("triton/naive", "query-2", "supported"),
        ("triton/q_block", "query-1", "supported"),
    ]
    monkeypatch.setattr(capability.sources, "sha", lambda kernel: "another")
    assert [c["case"] for c in run(tmp_path, cell(case="query-3")).cells] == ["query-3"]


def test_two_kernels_are_equal_where_every_aspect_is(tmp_path):
    found = run(tmp_path, cell(), cell("helion/naive"), cell("triton/q_block", "sinks-near-the-mass"))
    assert capability.differences(found, "triton/naive", "helion/naive") == ""
    assert "sinks: not run against supported" in capability.differences(found, "triton/naive", "triton/q_block")


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "line 2"), ('{"outcome": "perfect", "case": "query-1"}', "line 2: found perfect of query-1"),
     ('{"outcome": "failed", "case": "no-such-case"}', "no-such-case")],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path, line, said):
    run(tmp_path, cell())
    path = tmp_path / "cells.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(capability.NoResults, match=re.escape(said)):
        capability.read(path)


def test_the_committed_run_has_kernels_as_they_declare_themselves():
    found = capability.read(capability.RESULTS)
    assert {kernel.split("/")[0] for kernel in found.kernels} == {"triton", "helion"}
    for kernel, known in found.meta["kernels"].items():
        assert known["supports"] == sorted(registry.load(kernel).SUPPORTS), kernel


PROBES = {who: [c for c in CONSTRUCTS if c.probe and c.probe[0] == who] for who in ("helion", "triton")}
PROBES["gfx942"] = [c for c in CONSTRUCTS if c.probe and c.probe[0] == HELION_ON_GFX942]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("construct", PROBES["helion"], ids=lambda construct: construct.probe[1])
def test_helion_refuses_it_in_these_words(construct):
    import refused_helion

    assert refused_helion.refusal(construct.probe[1]).startswith(construct.error)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("construct", PROBES["gfx942"], ids=lambda construct: construct.probe[1])
def test_what_a_compiler_refuses_the_interpreter_does_not_run_either(construct):
    import refused_helion

    assert "AssertionError" in construct.error and "cannot cast" in construct.error
    assert refused_helion.refusal(construct.probe[1]).startswith('InterpreterError: AssertionError("cannot cast')


def test_triton_refuses_them_in_these_words():
    """In one process: it imports triton for seconds."""
    names = [construct.probe[1] for construct in PROBES["triton"]]
    told = "\n".join(children.said(["-m", "tests.support.refused_triton", *names], children.compiling(ROOT), 300))
    assert names and not [c.error for c in PROBES["triton"] if f"{c.probe[1]}: {c.error}" not in told]


def test_every_refusal_has_a_probe_and_every_probe_an_error():
    for construct in CONSTRUCTS:
        assert bool(construct.error) == (construct.probe is not None)
        assert construct.error or "impossible" not in construct.triton + construct.helion


def test_the_conformance_run_is_written_by_the_tests_themselves(request, monkeypatch, tmp_path):
    plugin = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    monkeypatch.setattr(plugin, "CELLS", {})
    began, passed = cell("triton/q_block", outcome="failed"), cell("triton/q_block")
    crash = SimpleNamespace(reprcrash="file.py:3: nan")
    for case, failed, cells in (("query-1", False, [began, passed]), ("query-2", True, [began])):
        told = [("conformance", found | {"case": case}) for found in cells]
        report = SimpleNamespace(when="call", user_properties=told, failed=failed, longrepr=crash if failed else None)
        plugin.pytest_runtest_logreport(report)
    out = tmp_path / "cells.jsonl"
    config = SimpleNamespace(getoption=lambda name: {"--conformance-out": str(out)}[name])
    plugin.pytest_sessionfinish(SimpleNamespace(config=config))
    found = capability.read(out).cells
    assert [(c["case"], c["outcome"]) for c in found] == [("query-1", "supported"), ("query-2", "failed")]
    assert found[1]["reason"] == "file.py:3: nan"
