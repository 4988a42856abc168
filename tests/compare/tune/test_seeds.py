"""A static ranking seeds the tuner behind the default, says what it is, and changes nothing where there is none."""

import json

import pytest

from common.gpus import resolve
from compare.competitors import registry
from compare.static.compile import Compilation, Outcome
from compare.tune import arm, rank, space
from compare.tune.space import DEFAULT, Policy, start
from compare.workloads import Ask, Workload, parse_lens
from compare.workloads.suites import peers, pick

ROWS = pick(peers(0), "32q1s2k~,q2k")
WINDOWED = Workload("windowed", parse_lens("4q1s16k"), ask=Ask(sliding_window=256))
SEED = Policy(set=(("num_warps", 2),))


@pytest.fixture
def ranking(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "FOLDER", tmp_path)
    ranked = [{"policy": SEED.to_dict(), "name": SEED.name, "share": 0.8}]
    content = {"label": space.LABEL, "kernels": {"triton/q_block": ranked}}
    space.path("mi300").write_text(json.dumps(content))
    return content


def test_ranked_policies_come_right_behind_the_default(ranking):
    mi300, h200 = (arm.candidates("triton/q_block", ROWS, resolve(gpu), 8, 0) for gpu in ("mi300", "h200"))
    assert mi300[:2] == [DEFAULT, SEED] and len(mi300) == 8
    assert h200[0] == DEFAULT and h200[1] != SEED, "another GPU has no such ranking"


def test_a_file_without_the_label_is_refused(ranking):
    space.path("mi300").write_text(json.dumps(ranking | {"label": "measured"}))
    with pytest.raises(ValueError, match="measured"):
        space.of("mi300", "triton/q_block")


@pytest.mark.parametrize("gpu", ["mi300", "mi355"])
def test_a_committed_ranking_is_of_todays_configs(gpu):
    """The tuner asks its policies first: one of a field that has left ended it with a TypeError."""
    for kernel_id in space.read(gpu)["kernels"]:
        default = start(DEFAULT, kernel_id, registry.load(kernel_id), ROWS[0], resolve(gpu))
        assert all(policy.config(default) for policy in space.of(gpu, kernel_id))


@pytest.mark.parametrize(("change", "why"), [({"spills": 4}, "spills 4"), ({"matrix_redundancy": 1.5}, "1.50 times")])
def test_what_drops_out(change, why):
    fact = {"kernel": "_q_block_kernel", "spills": 0, "scratch_bytes": 0, "matrix_redundancy": 1.0} | change
    outcome = Outcome(Compilation(ROWS[1], "triton/q_block"), "ok", {}, facts=(fact,))
    us, reason = rank._score(outcome, ROWS[1], resolve("mi300"))
    assert us is None and why in reason


def test_policies_are_ranked_by_their_share_of_the_defaults_estimate(monkeypatch):
    """Stand-ins for the compiler and the estimate: two warps are a tenth faster, three stages do not compile."""

    def compiled(jobs, gpu):
        for job in jobs:
            status = "compile_error" if job.config["num_stages"] == 3 else "ok"
            yield Outcome(job, status, job.config, reason="no such thing")

    class Estimate:
        def __init__(self, row, kernel, config, facts, gpu):
            self.us = 9.0 if config["num_warps"] == 2 else 11.0 if config["num_warps"] == 8 else 10.0

    monkeypatch.setattr(rank, "compile_in_child", compiled)
    monkeypatch.setattr(rank, "estimate", Estimate)
    found = rank.rank("triton/q_block", ROWS, resolve("mi300"), 24, 0)
    best = found["ranked"][0]
    assert 0.9 <= best["share"] < 1 and "num_warps=2" in best["name"]  # a default may have two warps on one of the rows
    assert found["dropped"] and all("compile_error" in why for why in found["dropped"].values())
    shares = [one["share"] for one in found["ranked"]]
    assert shares == sorted(shares) and len(shares) <= rank.KEPT


def untuned(gpu):
    """What a call of parallel_softmax on WINDOWED gets: 6 segments on an H200, 12 without the window."""
    return start(DEFAULT, "triton/parallel_softmax", registry.load("triton/parallel_softmax"), WINDOWED, gpu)


def test_candidates_of_a_windowed_row_depart_from_the_config_for_the_keys_that_it_sees(monkeypatch):
    told = []
    monkeypatch.setattr(
        arm.learned, "ranked", lambda _, configs, *rest: told.extend(configs) or list(range(len(configs)))
    )
    arm.candidates("triton/parallel_softmax", [WINDOWED], resolve("h200"), 4, 0)
    assert told[0] == [registry.config_dict(untuned(resolve("h200")))]


def test_a_ranking_compiles_a_windowed_row_with_the_config_for_the_keys_that_it_sees(monkeypatch):
    compiled = []

    def refused(jobs, gpu):
        compiled.extend(jobs)
        return [Outcome(job, "compile_error", job.config, reason="not asked") for job in jobs]

    monkeypatch.setattr(rank, "compile_in_child", refused)
    rank.rank("triton/parallel_softmax", [WINDOWED], resolve("mi300"), 4, 0)
    assert compiled[0].config == registry.config_dict(untuned(resolve("mi300")))
