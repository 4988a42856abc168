"""What a server compiles before the first request: every step that its limits allow, whatever kernel is chosen."""

import gc
import random

import pytest
import torch

import common.engines.server
import common.serving.reach
from common import gpus
from common.engines.options import Options, kernel_of
from common.engines.server import Limits, Server
from common.serving.grid import hinted_stats
from common.serving.plan import compiled_by
from common.spec import AttentionShape, Features, SpecError

LIMITS = Limits(max_tokens=512, max_seqs=24, max_seq_len=3000)
SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)


def batches(count):
    """Query lengths, the longest sequence and all keys: decodes, verifications, prompts, and mixtures of them."""
    draw = random.Random(0)
    while count:
        seqs, keys = draw.randint(1, LIMITS.max_seqs), int(LIMITS.max_seq_len ** draw.random())
        kind = draw.choice(["decodes", "verifications", "prompts", "mixed"])
        prompts = {"decodes": 0, "mixed": draw.randint(1, seqs)}.get(kind, seqs)
        longest = min(8 if kind == "verifications" else LIMITS.max_tokens, keys)
        queries = [1] * (seqs - prompts) + [draw.randint(1, longest) for _ in range(prompts)]
        if sum(queries) <= LIMITS.max_tokens:
            count -= 1
            yield queries, keys, draw.randint(keys, keys * seqs)


KERNELS = ("triton/native.auto", "triton/auto", "triton/static_grid", "helion/auto")
WINDOWED = [pytest.param(kernel, 256, marks=[pytest.mark.slow] * (kernel != "triton/auto")) for kernel in KERNELS]


@pytest.mark.parametrize(("kernel", "window"), [*((kernel, None) for kernel in KERNELS), *WINDOWED])
def test_no_step_within_the_limits_is_left_to_compile(monkeypatch, kernel, window):
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: gpus.resolve("h200"))
    server = Server(Options(kernel), LIMITS, torch.device("cpu"))
    features = Features(True, window)
    plan = server.plan(SHAPE, features)
    warm = set()
    for stated, _ in server._stated(new_kv=True):
        for tokens, seqs, stats in plan.sizes(stated):
            warm |= compiled_by(plan._choice_at(tokens, seqs, stats), tokens, seqs)
    plan._warm = warm
    for queries, keys, total in batches(200):
        tokens, seqs = sum(queries), len(queries)
        stats = hinted_stats(seqs, tokens, LIMITS.max_seq_len, max(queries), keys, queries.count(1), total)
        choice = plan.choice_of(stats, plan.reach.needs, features.sees)
        assert compiled_by(choice, tokens, seqs) <= warm, (queries, keys)


@pytest.mark.parametrize("kernel", ["triton/native.auto", "helion/auto"])
def test_an_engine_compiles_fewer_kernels_than_all_that_a_choice_may_take(monkeypatch, kernel):
    """What is to be measured is none of them."""
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: gpus.resolve("h200"))
    all_of_them, few = (
        Server(Options(kernel, measure=count), LIMITS, torch.device("cpu")).plan(SHAPE, Features()) for count in (5, 0)
    )
    assert len(few.reach.parts) < len(all_of_them.reach.parts)


def test_a_plan_does_not_follow_torchs_default_device(monkeypatch):
    """vLLM makes it the GPU while a model is loaded."""
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: gpus.resolve("h200"))
    family = kernel_of("triton/auto").module.FAMILY
    monkeypatch.setattr(family, "_learned", {})  # a net that has answered nothing yet
    monkeypatch.setattr(family, "_files", {})
    shape = AttentionShape(24, 3, 64, 16, torch.bfloat16)  # that no other test ranks for
    with torch.device("meta"):
        plan = Server(Options("triton/auto"), LIMITS, torch.device("cpu")).plan(shape, Features())
    assert len(plan.reach.parts) > 1


@pytest.mark.parametrize("slack", [-0.1, 1, "a little"])
def test_a_slack_that_is_no_share_is_refused(slack):
    with pytest.raises(SpecError, match="slack"):
        kernel_of("triton/auto").module.plan_paged_attention(SHAPE, *LIMITS, "cpu", slack=slack)


def test_prompts_that_bring_no_keys_are_warmed_up_where_layers_share_a_cache(monkeypatch):
    server, asked = Server(Options(), LIMITS, torch.device("cpu")), []
    plan = server.plan(SHAPE, Features())
    monkeypatch.setattr(plan, "warmup", lambda points, new_kv, progress: asked.append((len(points), new_kv)) or 1)
    for new_kv in (True, True, False):
        server.warm(plan, new_kv)
    (decodes, _), (prompts, _), _ = asked
    assert asked == [(decodes, False), (prompts, True), (prompts, False)]
    assert Options(warm="none") and list(Server(Options(warm="none"), LIMITS, torch.device("cpu"))._stated(True)) == []


def test_a_fork_of_the_process_that_made_the_server_is_refused_where_there_is_a_gpu():
    server = Server(Options(), LIMITS, torch.device("cpu"))
    server._pid -= 1
    server.plan(SHAPE, Features())
    server.device = torch.device("cuda")
    with pytest.raises(SpecError, match="spawned"):
        server.plan(SHAPE, Features(True, 64))


class Noted(list):
    """Takes works in the place of Children."""

    def __init__(self, count):
        self.count = count

    add = list.append


@pytest.mark.parametrize("kernel", ["triton/auto", "helion/auto"])
@pytest.mark.parametrize(
    ("dtype", "tensors", "count"),
    [
        (None, {}, 2),
        (None, {"sinks": torch.ones(32)}, 2),
        (torch.float8_e4m3fn, {"key_scale": torch.ones(1), "value_scale": torch.ones(1)}, 2),
        (torch.int8, {"key_scale": torch.ones(4, 16, 8), "value_scale": torch.ones(4, 16, 8)}, 0),
    ],
    ids=["plain", "sinks", "a scale", "scales by token"],
)
def test_children_compile_all_layers_whose_code_follows_from_sizes(monkeypatch, kernel, dtype, tensors, count):
    h200 = gpus.resolve("h200")
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: h200)
    monkeypatch.setattr(common.engines.server, "gpu_of", lambda device: h200)
    monkeypatch.setattr(common.engines.server, "Children", Noted)
    server = Server(Options(kernel, children=3), LIMITS, torch.device("cpu"))
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16, None, dtype)
    for window in (None, 256, 256):
        server.admit(shape, Features(True, window, **tensors))
    given = server._children
    assert given.count == 3 and [work.features.sliding_window for work in given] == [None, 256][:count]
    for work in given:
        assert work.columns == 192 and work.gpu == h200 and len(work.stated) == 2
        assert all(getattr(work.features, name).eq(0).all() for name in tensors)


def test_the_collector_rests_while_a_layer_is_admitted(monkeypatch):
    server, seen = Server(Options(), LIMITS, torch.device("cpu")), []
    ask = server.kernel.module.workspace_bytes
    asked = lambda *of, **options: (seen.append(gc.isenabled()), ask(*of, **options))[1]  # noqa: E731
    monkeypatch.setattr(server.kernel.module, "workspace_bytes", asked)
    server.admit(SHAPE, Features())
    assert seen == [False] and gc.isenabled()
