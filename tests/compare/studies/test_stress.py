"""`study stress`: what counts as a change, which configs are launched, what is kept and said; no GPU."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from common import gpus
from compare.__main__ import main as diptych
from compare.competitors import registry, sources
from compare.exits import NO_GPU, NOTHING, OK, USAGE, WRONG
from compare.static.nvidia_code import products
from compare.studies.stress import child, stress
from compare.studies.stress import page as stress_page
from compare.studies.stress.subjects import CHOSEN, SAMPLED, Subject, subjects
from compare.workloads import Workload, parse_lens, parse_shape

SHAPE = parse_shape("32:8:128", 16, "bf16")
IN_REGISTERS = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1, %f2}, {%r1,%r2,%r3,%r4}, %rd5, 1, 1, 1, 0;"
IN_SHARED = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1,\n%f2}, %rd4, %rd5, %p1, 1, 1, 0, 0;"
HERE = {"torch": "2.11.0", "triton": "3.6.0", "helion": "1.5.0", "ptxas": "12.8.93"}
NEWER = HERE | {"triton": "3.9.0", "ptxas": "13.4.59"}


def test_products_by_where_their_left_operand_is():
    assert products("\n".join([IN_REGISTERS, IN_SHARED, IN_REGISTERS, "mma.sync {%f1}, {%r1}"])) == (2, 1)


class Flaky:
    """Writes the same numbers into two tensors, but for the launches `bad`, which leave one bit changed in one."""

    def __init__(self, bad, skips=False):
        self.out, self.lse = torch.empty(4, 2, 8, dtype=torch.bfloat16), torch.empty(4, 2)
        self.bad, self.skips, self.number = bad, skips, -1
        self()
        self.number = -1

    def __call__(self):
        self.number += 1
        self.out.copy_(torch.arange(64.0).view(4, 2, 8))
        if not (self.skips and self.number in self.bad):
            self.lse.fill_(1.0)
        if self.number in self.bad and not self.skips:
            self.out.view(torch.int16)[3, 1, 7] ^= 1


@pytest.mark.parametrize("skips", [False, True], ids=["one-bit", "not-written"])
def test_every_launch_with_other_bits_is_found(skips):
    launch = Flaky({3, 401, 499}, skips)
    assert child.repeat(launch, [launch.out, launch.lse], 500, lambda: True) == (500, [3, 401, 499])
    launch = Flaky(set())
    assert child.repeat(launch, [launch.out, launch.lse], 7, lambda: True) == (7, [])


def test_a_config_that_is_out_of_time_says_how_often_it_was_launched():
    launch = Flaky({1, 450})
    assert child.repeat(launch, [launch.out], 500, lambda: launch.number < 300) == (400, [1])


class Said:
    def __init__(self):
        self.events = []

    def send(self, event, **fields):
        self.events.append((event, fields))

    @property
    def row(self):
        return next(fields["fields"] for event, fields in self.events if event == "row")


@pytest.fixture
def small(monkeypatch):
    """The child on a small prompt, interpreted; what it launched is said to have these products."""
    said = Said()
    workload = Workload("small", parse_lens("q20s40"), parse_shape("2:1:16", 16, "bf16"))
    task = {"gpu": "h200", "device": "cpu", "workload": workload.to_dict(), "limit_s": 60.0, "lost": ["lost"]}
    ptx = [IN_SHARED]

    def launched(call):
        call()
        return [SimpleNamespace(assembly=text) for text in ptx]

    monkeypatch.setattr(child, "launched_code", launched)
    return child.Stress(task, said), said, ptx


def job(name="one", kernel="triton/q_block", launches=3):
    config = registry.config_dict(registry.load(kernel).DEFAULT)
    return {"id": name, "kernel": kernel, "config": config, "launches": launches}


def test_the_child_judges_the_first_launch_and_compares_the_others(small):
    bench, said, ptx = small
    ptx[:] = [IN_SHARED, IN_REGISTERS]
    assert bench.job(job())
    assert said.row["status"] == "ok" and said.row["done"] == 3 and said.row["differ"] == 0
    assert said.row["wgmma"] == {"register": 1, "shared": 1} and 0 < said.row["worst"] < 1
    assert said.events[-1][0] == "finished"
    json.dumps(said.row, allow_nan=False)


def test_without_a_product_from_registers_nothing_is_repeated(small):
    bench, said, _ = small
    assert bench.job(job())
    assert said.row["status"] == child.UNCONCERNED and "done" not in said.row


def test_a_wrong_first_launch_is_not_repeated_and_a_changed_bit_is_told(small, monkeypatch):
    bench, said, ptx = small
    ptx[:] = [IN_REGISTERS]
    kernel = registry.load("triton/q_block")
    launch, count = kernel.launch, iter(range(100))

    def wrong(batch, features, out, config, workspace, *, lse=None):
        launch(batch, features, out, config, workspace, lse=lse)
        if next(count) in when:
            out[7, 1, 3] = value

    monkeypatch.setattr(kernel, "launch", wrong)
    when, value = {0}, math.nan
    assert bench.job(job())
    assert said.row["status"] == "incorrect" and "done" not in said.row
    json.dumps(said.row, allow_nan=False)
    said.events.clear()
    when, value, count = {2, 4}, 1.0, iter(range(100))
    assert bench.job(job(launches=5))
    assert said.row["status"] == "nondeterministic" and said.row["differ"] == 2
    assert "2 of 5 launches have other bits than the first, number 2 before all" in said.row["reason"]


def test_a_config_that_took_a_process_along_is_not_begun_again_and_an_error_is_a_row(small):
    bench, said, _ = small
    assert bench.job(job("lost"))
    assert [event for event, _ in said.events] == ["finished"]
    assert bench.job(job() | {"config": {"no_such_field": 1}})
    assert said.row["status"] == "crash" and "no_such_field" in said.row["reason"]


def test_configs_are_those_that_prompts_get_and_a_seeded_sample():
    def found(seed=0, samples=2):
        return subjects(("triton/split",), SHAPE, gpus.resolve("h200"), "w", 9, samples, seed)

    first = found()
    assert found() == first and len({one.id for one in first}) == len(first)
    chosen, sampled = ([one for one in first if one.origin == origin] for origin in (CHOSEN, SAMPLED))
    assert first == chosen + sampled and len(sampled) == 2
    parts = [json.dumps(one.config["prefill"], sort_keys=True) for one in first]
    assert len(set(parts)) == len(parts), "what decodes take is no difference here"
    default = registry.config_dict(registry.load("triton/split").DEFAULT)
    assert default["prefill"] in [one.config["prefill"] for one in chosen]
    assert all(one.config["prefill"]["block_m"] >= 64 and one.config["prefill"]["num_warps"] >= 4 for one in sampled)
    assert {one.source for one in first} == {sources.of_kernel("triton/split")}
    assert [one for one in found(seed=1) if one.origin == SAMPLED] != sampled
    assert replace(first[0], source="older").id != first[0].id


def wanted(count=3):
    made = [Subject("triton/x", {"n": n}, CHOSEN if n < 2 else SAMPLED, "sha", "q2k", 9) for n in range(count)]
    return made


def answering(fields, begun):
    """A lane that answers each job with these fields, or `lost`."""

    def lane(jobs):
        for job in jobs:
            begun.append(job["id"])
            told = fields(job)
            yield job, {"event": "lost", "cell": job["id"]} | told if "fields" not in told else told | {"event": "row"}

    return lambda: lane


def test_lines_are_kept_by_versions_and_what_is_done_is_not_launched_again(tmp_path):
    ones, console, begun = wanted(), Console(quiet=True), []

    def fields(job):
        if job["config"]["n"] == 1:
            return {"status": "timeout", "reason": "no sign of life for 90 s"}
        return {"fields": {"status": "ok", "reason": "", "done": 9, "differ": 0, "wgmma": {"register": 8, "shared": 8}}}

    def run(versions, some=ones, deadline=math.inf):
        begun.clear()
        kept = stress.Kept(tmp_path / stress.LINES, some, versions)
        stress.launch_all(kept, answering(fields, begun), 2, deadline, console)
        kept.close()
        return kept

    assert run(HERE, deadline=0.0).missing() == ones and not begun
    assert not run(HERE).missing() and set(begun[:2]) == {one.id for one in ones if one.origin == CHOSEN}
    assert len(run(HERE).mine) == 3 and not begun
    assert len(run(NEWER).mine) == 3 and len(begun) == 3
    changed = [replace(ones[0], source="newer"), *ones[1:]]
    kept = run(HERE, changed)
    assert begun == [changed[0].id] and len(kept.lines) == 7 and len(kept.current) == 5
    lines = stress.read(tmp_path / stress.LINES)
    assert lines == kept.lines and lines[0].keys() >= HERE.keys() | {"kernel", "config", "source", "launches", "status"}
    assert {line["status"] for line in lines} == {"ok", "timeout"}


def test_the_page_has_the_newest_versions_first_what_failed_and_what_was_left_out():
    ones = wanted()
    ok = {"status": "ok", "reason": "", "done": 9, "differ": 0, "worst": 0.4, "wgmma": {"register": 8, "shared": 8}}
    bad = ok | {"status": "nondeterministic", "reason": "2 of 9 launches", "differ": 2, "worst": 0.5}
    lines = [HERE | {"id": one.id, "kernel": one.kernel, "config": one.config} | ok for one in ones[:2]]
    lines += [NEWER | lines[0] | {"triton": "3.9.0", "ptxas": "13.4.59"}, lines[1] | NEWER | bad]
    page = stress_page.render(lines, "a GPU", ones, "the command", dropped=1)
    rows = [line for line in page.splitlines() if line.startswith("| 1")]
    assert rows == [
        "| 13.4.59 | 3.9.0 | 2.11.0 | triton/x | 2 | 2 | 18 | 2 | 0.5 | 1 nondeterministic | 1 |",
        "| 12.8.93 | 3.6.0 | 2.11.0 | triton/x | 2 | 2 | 18 | 0 | 0.4 | none | 1 |",
    ]
    assert "- triton 3.9.0 with ptxas 13.4.59 on torch 2.11.0: left out 0 chosen and 1 sampled configs of 3." in page
    assert "`triton/x` by `{'n': 1}`: nondeterministic: 2 of 9 launches" in page and "1 lines of older sources" in page
    assert "Nothing." in stress_page.render(lines[:2], "a GPU", ones, "the command")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--kernels", "triton/nothing"], USAGE), (["--gpu", "h2000"], USAGE), (["--workload", "x"], USAGE), ([], NO_GPU)],
)
def test_what_the_command_refuses(words, code, monkeypatch):
    monkeypatch.setattr(stress.gpus, "detect", lambda: None)
    assert diptych(["study", "stress", *words]) == code


def test_a_gpu_without_wgmma_has_nothing_to_launch(monkeypatch):
    monkeypatch.setattr(stress.gpus, "detect", lambda: gpus.resolve("mi300"))
    assert diptych(["study", "stress"]) == NOTHING


def test_the_command_writes_lines_and_page_and_says_what_is_left(tmp_path, monkeypatch, capsys):
    here, begun, status = gpus.resolve("h200"), [], ["ok"]
    monkeypatch.setattr(stress.gpus, "detect", lambda: here)
    monkeypatch.setattr(stress, "here", lambda arch: HERE)

    def lane(command, task, deadline, silence_s):
        assert task["gpu"] == "h200" and task["workload"]["lens"] and command[-1] == "compare.studies.stress.child"
        return answering(lambda job: {"fields": {"status": status[0], "reason": "why"}}, begun)()

    monkeypatch.setattr(stress, "Lane", lane)
    command = ["study", "stress", "--kernels", "triton/split", "--samples", "1", "--out", str(tmp_path)]
    assert diptych([*command, "--budget", "0.000001"]) == OK and not begun
    assert "nothing launched; left out 3: 3 of triton/split" in capsys.readouterr().out
    assert diptych(command) == OK and len(begun) == 3
    assert "3 ok; " in capsys.readouterr().out
    assert "| 12.8.93 | 3.6.0 | 2.11.0 | triton/split | 3 |" in (tmp_path / "stress.md").read_text()
    status[0] = "nondeterministic"
    assert diptych([*command, "--seed", "1"]) == WRONG and len(begun) == 4
