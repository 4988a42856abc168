"""The written heuristics: readable, formatted, importable, and legal for every batch."""

import importlib.util
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors import registry
from compare.record import folder as run_folder
from compare.tune import arm as tune_arm
from compare.tune import tune
from compare.tune.fit import Fitted
from compare.tune.space import DEFAULT, Space
from compare.workloads import suites

GPU = resolve("h200")
ROWS = tune.pick_rows(16)
PROVENANCE = {"gpu": GPU.title, "commit": "0123456789", "date": "2026-01-01", "minutes": 4.0, "seed": 0}


def synthetic(arm, plan):
    """Lines of a run whose times are drawn: each policy has a mood of its own for decodes and for the others."""
    draw, lines = random.Random(1), []
    for kernel, policies in plan.items():
        moods = {(p.name, kind): draw.uniform(1, 3) for p in policies for kind in (True, False)}
        for row in ROWS:
            for policy in policies:
                us = 10.0 * moods[policy.name, row.stats.max_query_len == 1] * draw.uniform(1, 1.05)
                times = {"screen_us": us, "final_us": us}
                line = {"arm": arm, "kernel": kernel, "row": row.label, "policy": policy.name, "status": "ok", "t": 1.0}
                lines.append(line | times)
            lines.append({"arm": arm, "kernel": kernel, "row": row.label, "policy": "", "done": True, "t": 2.0})
    return lines


@pytest.fixture(scope="module", params=["triton", "helion"])
def written(request, tmp_path_factory):
    """(arm, policies by kernel, path of the file, the imported module)."""
    arm = request.param
    kernels = [k for k in registry.OWN if k.startswith(arm) and not k.endswith("/auto")]
    plan = {kernel: tune_arm.candidates(kernel, ROWS, GPU, 16, 0) for kernel in kernels}
    fitted = Fitted(arm, synthetic(arm, plan), ROWS, plan, GPU)
    path = tmp_path_factory.mktemp(arm) / "h200.py"
    path.write_text(fitted.source(PROVENANCE))
    spec = importlib.util.spec_from_file_location(f"{arm}_h200", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return arm, plan, path, module


@pytest.mark.parametrize("command", [["format", "--check"], ["check"]])
def test_it_needs_no_editing_to_pass_review(written, command):
    _, _, path, _ = written
    config = ["--config", str(run_folder.ROOT / "pyproject.toml")]
    done = subprocess.run([sys.executable, "-m", "ruff", *command, *config, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(path.read_text().splitlines()) <= 300


def test_it_says_where_it_is_from_and_what_it_loses(written):
    _, plan, _, module = written
    assert PROVENANCE.items() <= module.PROVENANCE.items()
    classes = Counter((s.head_size, s.block_size, s.dtype, s.cache_dtype) for s in (row.shape for row in ROWS))
    assert {shape for shape, rows in classes.items() if rows >= 4} == module.MEASURED  # one row is no evidence
    assert module.PROVENANCE["rows"] == f"{sum(classes[shape] for shape in module.MEASURED)} of suite tuning"
    assert set(module.HELD_OUT) == {kernel.split("/")[1] for kernel in plan} | {"auto"}
    assert all(1.0 <= mean <= worst for mean, worst in module.HELD_OUT.values())


def test_every_row_of_every_suite_gets_a_config_of_the_space(written):
    arm, plan, _, module = written
    rows = [row for name in ("tuning", "peers", "serving") for row in suites.suite(name)]
    for kernel_id in plan:
        kernel, name = registry.load(kernel_id), kernel_id.split("/")[1]
        spaces = {}
        for row in rows:
            found = getattr(module, name)(row.shape, row.stats, GPU)
            default, _ = registry.default_config(kernel_id, kernel, row.shape, row.stats, GPU, "default")
            if found != default:
                if row.shape not in spaces:
                    spaces[row.shape] = Space(kernel.space(row.shape, GPU))
                assert module.covers(row.shape, GPU) and spaces[row.shape].allows(found, default), (
                    f"{row.label}: {found}"
                )
            chosen, config = module.auto(row.shape, row.stats, GPU)
            assert f"{arm}/{chosen}" in plan and config == getattr(module, chosen)(row.shape, row.stats, GPU)


@pytest.mark.parametrize(
    ("shape", "gpu"),
    [
        (AttentionShape(head_size=80), "h200"),
        (AttentionShape(head_size=256, block_size=528), "h200"),
        (AttentionShape(dtype=torch.float32), "h200"),
        (AttentionShape(kv_dtype=torch.float8_e4m3fn), "h200"),  # a cache of 8 bits under the query that was measured
        (AttentionShape(kv_dtype=torch.int8), "h200"),
        (AttentionShape(64, 2), "h200"),
        (AttentionShape(), "mi300"),
        (AttentionShape(), "h100"),
    ],
)
def test_what_was_not_measured_gets_the_default(written, shape, gpu):
    _, plan, _, module = written
    gpu = resolve(gpu)
    assert not module.covers(shape, gpu)
    for row in ROWS:
        for kernel_id in plan:
            default, _ = registry.default_config(kernel_id, registry.load(kernel_id), shape, row.stats, gpu, "default")
            assert getattr(module, kernel_id.split("/")[1])(shape, row.stats, gpu) == default


def test_empty_and_odd_batches_are_answered(written):
    _, plan, _, module = written
    shape = AttentionShape()
    for stats in (
        replace(ROWS[0].stats, num_seqs=0, num_tokens=0, num_decodes=0),
        replace(ROWS[0].stats, max_seq_len=1),
    ):
        for kernel_id in plan:
            assert getattr(module, kernel_id.split("/")[1])(shape, stats, GPU) is not None


def test_the_one_graph_for_all_has_one_config(written):
    _, _, _, module = written
    shape = AttentionShape()
    assert len({module.static_grid(shape, row.stats, GPU) for row in ROWS}) == 1


def test_rows_without_a_time_of_the_defaults_kernel_make_no_tree_of_kernels():
    """They are those that take long: a tree of the others would answer for them."""
    kernels = ("triton/parallel_softmax", "triton/q_block", "triton/unpaged", "triton/adjustable_tile")
    plan = {kernel: [DEFAULT] for kernel in kernels}
    lines = synthetic("triton", plan)
    auto = registry.load("triton/auto")
    gone = next(r for r in ROWS if auto.choose(r.shape, r.stats, GPU, heuristics="default").kernel == "unpaged")
    left = [line for line in lines if (line["kernel"], line["row"]) != ("triton/unpaged", gone.label)]
    assert Fitted("triton", lines, ROWS, plan, GPU).auto is not None
    fitted = Fitted("triton", left, ROWS, plan, GPU)
    assert fitted.auto is None and gone.label in fitted.summary()[-1]
    assert "return default.auto(shape, stats, gpu)" in fitted.source(PROVENANCE)


def test_the_trees_follow_the_moods(written):
    """Decodes and the others want different policies of most kernels, and the trees hear of it."""
    _, plan, _, module = written
    different = 0
    for kernel_id, policies in plan.items():
        assert policies[0] == DEFAULT
        answers = {str(getattr(module, kernel_id.split("/")[1])(r.shape, r.stats, GPU)) for r in ROWS}
        different += len(answers) > 1
    assert different > len(plan) // 2
