"""The study of engines: rows of a pretended engine, the counter's weights, what is refused, the page of its rows."""

import _thread
import argparse
import os
import signal
import sys
import threading
import types
from dataclasses import replace

import pytest
import torch

from common.process import Child
from common.spec import SpecError
from compare.exits import NOTHING, USAGE
from compare.studies.engine import child, engine, measure, page
from compare.studies.engine.child import rows as child_rows
from compare.studies.engine.child import steps
from compare.studies.engine.model import SIZES, STREAM, Sizes, expected, fill
from compare.workloads.trace import Request


class Pretended:
    """Counts, a token a step for each request, at most `beside` of them at once; a slip on demand."""

    vocabulary = 97

    def __init__(self, beside=2, slip=None):
        self.beside, self.slip, self.waiting, self.steps = beside, slip, {}, 0

    def add(self, name, prompt, count, logprobs):
        self.waiting[name] = (prompt, count, [], logprobs)

    def step(self):
        self.steps += 1
        heard = []
        for name in list(self.waiting)[: self.beside]:
            prompt, count, tokens, logprobs = self.waiting[name]
            tokens.append(expected(prompt, len(tokens) + 1, self.vocabulary)[-1] + (self.steps == self.slip))
            heard.append((name, list(tokens), [-0.5] * len(tokens) if logprobs else None))
            if len(tokens) == count:
                del self.waiting[name]
        return heard


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_a_row_for_each_length_comes_of_one_request():
    found = list(measure.latency(Pretended(), [3, 1, 8], 0, Clock()))
    assert [(row["n"], row["seconds"], row["wrong"]) for row in found] == [(1, 1.0, 0), (3, 3.0, 0), (8, 8.0, 0)]


def test_a_wrong_token_is_counted_from_where_it_is():
    found = list(measure.latency(Pretended(slip=4), [3, 8], 0, Clock()))
    assert [row["wrong"] for row in found] == [0, 1]


def test_serving_counts_tokens_and_times_between_them():
    requests = [Request(0.0, 4, 3), Request(0.0, 5, 2), Request(0.0, 6, 2)]
    row = measure.serving(Pretended(), requests, 1, 1e9)
    assert (row["done"], row["tokens_in"], row["tokens_out"], row["wrong"]) == (3, 15, 7, 0)
    assert row["ttft_p50_ms"] is not None and row["itl_p50_ms"] is not None


def test_serving_ends_at_its_limit_and_says_how_many_ended():
    row = measure.serving(Pretended(), [Request(0.0, 4, 50)], 0, 5.0, Clock())
    assert (row["done"], row["requests"]) == (0, 1) and 0 < row["tokens_out"] < 50


class Shifting(Pretended):
    """Gives other log-probabilities to a request that runs beside others."""

    def step(self):
        beside = len(self.waiting) > 1
        return [
            (name, tokens, values and [-0.5 - 0.25 * beside] * len(values)) for name, tokens, values in super().step()
        ]


def test_requests_that_join_one_by_one_say_whether_log_probabilities_move():
    still, moving, slipped = Pretended(beside=99), Shifting(beside=99), Pretended(beside=99, slip=90)
    row = measure.mixed(still)
    assert (row["requests"], row["tokens_out"]) == (49, 24 * 40 + 64 + 24 * 20)
    assert (row["wrong"], row["moved"], measure.mixed(moving)["moved"]) == (0, 0.0, 0.25)
    assert measure.mixed(slipped)["wrong"] > 0


def test_a_start_is_timed_without_the_wait_for_the_gpu(monkeypatch):
    calls = []
    worker = types.SimpleNamespace(**{name: lambda *_: calls.append("worker") for name in child.Phases.PARTS})
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    for name in ("vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu_worker"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm.v1.worker.gpu_worker"].Worker = worker
    times = iter([0.0, 5.0, 5.0, 7.0])
    monkeypatch.setattr(child.time, "monotonic", lambda: next(times))
    phases = child.Phases(lambda: calls.append("turn"))
    worker.load_model()
    assert calls == ["turn", "worker"] and (phases.waited, phases.seconds) == (5.0, {"load_model": 2.0})


def test_a_child_gives_every_part_that_it_is_told():
    task = {
        "parts": ["logprobs", "mixed", "latency", "serving"], "lengths": [2, 900], "repeats": 2,
        "requests": [(5, 2)], "serving_passes": 2, "serving_limit_s": 100.0, "trace": "code",
    }  # fmt: skip
    found = list(child_rows(Pretended(), task))
    assert [(row["part"], row.get("pass"), row.get("n")) for row in found] == [
        ("logprobs", None, None), ("mixed", None, None), ("latency", 0, 2), ("latency", 1, 2), ("latency", 1, 900),
        ("serving", 0, None), ("serving", 1, None), ("latency", 2, 2),
    ]  # fmt: skip
    assert all(row["wrong"] == 0 for row in found) and len(found[0]["values"]) == 64


@pytest.mark.parametrize("joined", [True, False], ids=["qkv_proj", "apart"])
def test_the_weights_count_and_only_by_attention(joined):
    """Layer 0 written out: the token behind the one whose value attention took."""
    sizes = Sizes(layers=1, hidden=512, heads=4, kv_heads=2, head_size=64, mlp=32, vocabulary=256)
    rows = {"q": 256, "k": 128, "v": 128}
    names = {"qkv_proj": 512} if joined else {f"{part}_proj": count for part, count in rows.items()}
    given = {f"model.layers.0.self_attn.{name}.weight": torch.empty(count, 512) for name, count in names.items()}
    given |= {
        "model.embed_tokens.weight": torch.empty(256, 512), "lm_head.weight": torch.empty(256, 512),
        "model.layers.0.self_attn.o_proj.weight": torch.empty(512, 256), "model.norm.weight": torch.empty(512),
    }  # fmt: skip
    fill(given.items(), sizes)
    projections = torch.cat([given[f"model.layers.0.self_attn.{name}.weight"] for name in names])
    tokens = torch.tensor([3, 77, 200])
    hidden = given["model.embed_tokens.weight"][tokens]
    query, key, value = (hidden * 2**0.5 @ projections.T).split([256, 128, 128], dim=1)
    scores = torch.einsum("hd,thd->ht", query[-1].view(2, 2, 64)[:, 0], key.view(3, 2, 64)) / 8
    assert (scores.softmax(1)[:, 2] > 0.99).all()  # the own token fits best

    def following(row):
        attended = value[row].view(2, 1, 64).expand(2, 2, 64).reshape(256)
        stream = hidden[-1] + given["model.layers.0.self_attn.o_proj.weight"] @ attended
        return int((given["lm_head.weight"] @ (stream / stream.square().mean().sqrt())).argmax())

    assert following(2) == 201 and following(0) == 4 and following(1) == 78


@pytest.mark.parametrize("model", ["gemma-4-256", "gemma-4-512"])
def test_of_two_head_sizes_the_layer_that_is_said_counts(model):
    """That layer written out, with the norms of Gemma 4: they make up for what the others add."""
    sizes, norm = SIZES[model], lambda rows: rows / rows.square().mean(-1, keepdim=True).sqrt()
    head, half, lanes = sizes.counting_head, sizes.hidden // 2, sizes.hidden // 4
    config = sizes.config(1024)
    assert head == int(model[-3:]) == config["head_dim" if sizes.counts == 0 else "global_head_dim"]
    here = f"model.layers.{sizes.counts}"
    given = {
        "model.embed_tokens.weight": (512, sizes.hidden), "lm_head.weight": (512, sizes.hidden),
        f"{here}.self_attn.qkv_proj.weight": (12 * head, sizes.hidden),
        f"{here}.self_attn.o_proj.weight": (sizes.hidden, 8 * head),
        f"{here}.post_attention_layernorm.weight": (sizes.hidden,),
        "model.layers.3.post_feedforward_layernorm.weight": (sizes.hidden,),
    }  # fmt: skip
    given = {name: torch.empty(shape) for name, shape in given.items()}
    fill(given.items(), sizes)
    tokens, draw = torch.tensor([3, 77, 200]), torch.Generator().manual_seed(1)
    stream = given["model.embed_tokens.weight"][tokens] * sizes.hidden**0.5
    others = torch.randn(3, lanes, generator=draw) * given["model.layers.3.post_feedforward_layernorm.weight"][0] * 2
    stream[:, half + lanes :] += others * (2 * sizes.layers) ** 0.5
    projected = norm(stream) @ given[f"{here}.self_attn.qkv_proj.weight"].T
    query, key, value = (
        norm(rows.unflatten(1, (-1, head))) for rows in projected.split([8 * head, 2 * head, 2 * head], 1)
    )
    assert (torch.einsum("hd,td->ht", query[-1, :4], key[:, 0]).softmax(1)[:, 2] > 0.99).all()

    def following(row):
        attended = given[f"{here}.self_attn.o_proj.weight"] @ value[row].repeat_interleave(4, 0).reshape(-1)
        added = stream[-1] + norm(attended) * given[f"{here}.post_attention_layernorm.weight"]
        return (given["lm_head.weight"] @ norm(added)).topk(2)

    for row, token in enumerate(tokens.tolist()):
        values, found = following(row)
        assert found[0] == token + 1 and values[0] > values[1] + 5


@pytest.mark.parametrize("model", ["llama-3-70b-tp8", "gpt-oss-20b"])
def test_shapes_of_clients_count_beside_the_noise_of_their_layers(model):
    """The layer that counts, written out: one KV head, and heads of 64 with sinks."""
    sizes = replace(SIZES[model], vocabulary=512)
    head, half, group = sizes.head_size, sizes.hidden // 2, sizes.heads // sizes.kv_heads
    here, queries, keys = f"model.layers.{sizes.counts}.self_attn", sizes.heads * head, sizes.kv_heads * head
    given = {
        "model.embed_tokens.weight": (512, sizes.hidden), "lm_head.weight": (512, sizes.hidden),
        f"{here}.qkv_proj.weight": (queries + 2 * keys, sizes.hidden), f"{here}.attn.sinks": (sizes.heads,),
        f"{here}.o_proj.weight": (sizes.hidden, queries),
    }  # fmt: skip
    given = {name: torch.empty(shape) for name, shape in given.items()}
    fill(given.items(), sizes)
    stream, norm = given["model.embed_tokens.weight"][[3, 77, 200]], lambda x: x / x.square().mean(-1, True).sqrt()
    noise = torch.randn(3, sizes.hidden - half - keys, generator=torch.Generator().manual_seed(1))
    stream[:, half + keys :] += noise * STREAM
    query, key, value = (norm(stream) @ given[f"{here}.qkv_proj.weight"].T).split([queries, keys, keys], 1)
    scores = torch.einsum("kgd,tkd->kgt", query[-1].view(-1, group, head), key.view(3, -1, head)) * head**-0.5
    sinks = given[f"{here}.attn.sinks"].view(-1, group, 1) if sizes.sinks else scores[..., :0]
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :3]
    assert (weights[..., 2] > 0.99).all()
    out = torch.einsum("kgt,tkd->kgd", weights, value.view(3, -1, head)).reshape(-1)
    values, found = (given["lm_head.weight"] @ norm(stream[-1] + given[f"{here}.o_proj.weight"] @ out)).topk(2)
    assert found[0] == 201 and values[0] > values[1] + 5


def test_noise_of_all_layers_stays_shorter_than_the_codes():
    """Two products a layer, each of a stream of ones, add up to STREAM, whatever a model's width and depth."""
    sizes = replace(SIZES["tiny"], layers=32)
    outer = {"model.embed_tokens.weight": torch.empty(512, 512), "lm_head.weight": torch.empty(512, 512)}
    down = {"model.layers.7.mlp.down_proj.weight": torch.empty(512, 4096)}
    fill((outer | down).items(), sizes)
    added = down["model.layers.7.mlp.down_proj.weight"] @ torch.randn(4096, generator=torch.Generator().manual_seed(1))
    assert not added[:384].any()  # the code and the value's lanes
    assert added[384:].std() * (2 * sizes.layers) ** 0.5 == pytest.approx(STREAM, rel=0.3)


@pytest.mark.parametrize("text", ["", "fa3", "fa3:whole", "triton/none:full", "nothing:full"])
def test_an_engine_that_is_none_is_named(text):
    with pytest.raises(SpecError, match=r"found .*, allowed "):
        engine.engines_of(text)


def asked(tmp_path, *words):
    parser = argparse.ArgumentParser()
    engine.options(parser)
    return parser.parse_args([*words, "--out", str(tmp_path)])


def test_without_vllm_it_says_so_and_measures_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    assert engine.main(asked(tmp_path, "--engines", "fa3:full")) == NOTHING
    assert "vLLM is not installed" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("--lengths", "131072"), ("--lengths", "x"), ("--parts", "speed"), ("--trace", "absent.csv")]
)
def test_bad_options_are_usage(tmp_path, words):
    assert engine.main(asked(tmp_path, "--engines", "fa3:full", *words)) == USAGE


def test_what_clients_differ_in_is_an_option_and_stands_in_rows(tmp_path):
    trace = tmp_path / "code.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,9000,44\n")
    words = ("--lengths", "12800", "--max-tokens", "2048", "--prefix-caching", "--max-seqs", "8", "--trace", str(trace))
    usual, found = (
        engine.tasks_of(asked(tmp_path, *some), [("fa3", "always")], tmp_path / "lock")[0] for some in ((), words)
    )
    assert usual["scenario"] == {} and (usual["max_seqs"], usual["most_captured"]) == (256, 256)
    scenario = {"max_seq_len": 16384, "max_tokens": 2048, "max_seqs": 8, "prefix_caching": True}
    assert all(isinstance(found[name], int) for name in (*scenario, "repeats", "serving_passes"))
    assert found["scenario"] == scenario and (found["trace"], found["requests"]) == ("code", [(9000, 44)])
    given = child.settings(found)
    assert (given["max_model_len"], given["max_num_batched_tokens"], given["enable_prefix_caching"]) == (
        16384,
        2048,
        True,
    )
    assert given["compilation_config"] == {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4, 8]}
    run = engine.Run(tmp_path, "source", VERSIONS)
    who = {"engine": "fa3", "graphs": "always", "model": "llama-3-8b", "vllm": "0.25.1", "part": "latency", "wrong": 0}
    for number in (0, 1):
        run.add(who | scenario | {"n": 12800, "pass": number, "seconds": 99.0})
    run.add(who | scenario | {"part": "start", "start_s": 1.0, "at_once": True})
    run.close()
    assert run.left(found | {"parts": ["latency"]}) is None
    assert run.left(usual | {"parts": ["latency"], "lengths": [12800]})["steps"] == [("latency", 1, [12800])]
    text = page.render(run.rows, None)
    assert "steps of at most 2,048 tokens; at most 8 sequences beside each other; the prefix cache on" in text
    assert "What a start takes" not in text, "engines that start beside each other tell nothing of a start"


def test_a_trace_of_another_name_is_served_anew(tmp_path):
    (task,) = tasks("fa3")
    task |= {"parts": ["serving"], "serving_passes": 1}
    run = engine.Run(tmp_path, "source", VERSIONS)
    who = {"engine": "fa3", "graphs": "full", "model": "tiny", "vllm": "0.25.1"}
    run.add(who | {"part": "serving", "pass": 0, "requests": 1, "trace": "code"})
    run.close()
    assert run.left(task | {"trace": "code"}) is None and run.left(task) is not None


AT_ONCE = """
import fcntl, json, os, sys, time
task = json.loads(sys.stdin.readline())
about = {"engine": task["name"], "graphs": task["graphs"]}
with open(task["lock"], "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_SH)
    open(task["lock"] + task["name"], "w").close()
    deadline = time.time() + 30
    while time.time() < deadline and not all(os.path.exists(task["lock"] + name) for name in ("fa3", "vllm_triton")):
        time.sleep(0.01)
    fcntl.flock(lock, fcntl.LOCK_EX)
    print(json.dumps(about | {"part": "latency", "n": 1, "pass": 0, "seconds": time.time() - deadline, "wrong": 0}))
"""


def test_engines_that_start_at_once_do_not_wait_for_each_other_to_start(tmp_path):
    some = [task | {"lock": str(tmp_path / "lock")} for task in tasks("fa3", "vllm_triton")]
    run = engine.Run(tmp_path, "source", VERSIONS)
    engine.all_engines(run, some, 1e12, [sys.executable, "-c", AT_ONCE], at_once=True)
    run.close()
    assert {row["engine"]: row["seconds"] < 0 for row in run.rows if row["part"] == "latency"} == {
        "fa3": True, "vllm_triton": True,
    }  # fmt: skip


def test_a_start_reads_bytecode_as_where_packages_are_installed(tmp_path, monkeypatch):
    """Without it each start of an engine compiles the sources of Helion and of what it imports."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    run = engine.Run(tmp_path, "source", VERSIONS)
    said = """import json, sys; print(json.dumps({"part": "said", "writes": not sys.dont_write_bytecode}))"""
    engine.all_engines(run, tasks("fa3"), 1e12, [sys.executable, "-c", said])
    run.close()
    assert [row["writes"] for row in run.rows if row["part"] == "said"] == [True]


CHILD = """
import json, sys
task = json.loads(sys.stdin.readline())
about = {"engine": task["name"], "graphs": task["graphs"], "gpu": "a GPU", "vllm": "0.25.1"}
print(json.dumps(about | {"part": "start", "start_s": 1.0, "import_s": 2.0}))
speed = 2.0 if task["name"] == "fa3" else 1.0
for n in task["lengths"]:
    print(json.dumps(about | {"part": "latency", "n": n, "pass": 0, "seconds": n * speed, "wrong": 0}))
sys.exit(3 if task["name"] == "vllm_triton" else 0)
"""


def tasks(*names):
    rest = {
        "repeats": 1,
        "requests": [(5, 2)],
        "serving_passes": 2,
        "model": "tiny",
        "kv_dtype": "auto",
        "caches": None,
        "scenario": {},
        "trace": "conversation",
    }
    return [{"name": name, "graphs": "full", "parts": ["latency"], "lengths": [100, 800], **rest} for name in names]


VERSIONS = {"vllm": "0.25.1"}


def test_rows_are_kept_as_they_come_and_an_engine_that_ended_is_not_run_again(tmp_path):
    run = engine.Run(tmp_path, "source", VERSIONS)
    engine.all_engines(run, tasks("fa3", "triton/auto", "vllm_triton"), 1e12, [sys.executable, "-c", CHILD])
    run.close()
    again = engine.Run(tmp_path, "source", VERSIONS)
    again.close()
    assert [again.left(task) for task in tasks("fa3", "triton/auto", "vllm_triton")] == [None] * 3
    lost = [row for row in again.rows if row["part"] == "lost"]
    assert [(row["engine"], row["status"]) for row in lost] == [("vllm_triton", "crash")]
    assert page.bad(again.rows) and not page.bad([row for row in again.rows if row["engine"] != "vllm_triton"])


@pytest.fixture
def interruptible():
    """Ctrl-C raises, in a background job too, whose shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_study_ends_its_engines_alone_and_keeps_a_row_of_where_each_was(tmp_path):
    other = Child([sys.executable, "-c", "input()"], dict(os.environ))
    run = engine.Run(tmp_path, "source", VERSIONS)
    asleep = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(60)"
    threading.Timer(1.0, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        engine.all_engines(run, tasks("triton/auto"), 1e12, [sys.executable, "-c", asleep])
    run.close()
    (row,) = page.read(tmp_path / engine.LINES)
    assert (row["part"], row["reason"], row["log"].strip()) == ("cut", "the call was interrupted", "loading")
    assert not page.bad([row])
    assert not other.ended
    other.end()


def test_a_study_that_was_cut_goes_on_with_the_steps_that_no_row_answers(tmp_path):
    (task,) = tasks("triton/auto")
    task |= {"parts": ["logprobs", "latency", "serving"], "lengths": [100, 800, 1600], "repeats": 2}
    run = engine.Run(tmp_path, "source", VERSIONS)
    who = {"engine": "triton/auto", "graphs": "full", "model": "tiny", "vllm": "0.25.1"}
    assert run.left(task)["steps"] == list(steps(task))
    for row in (
        {"part": "start"}, {"part": "logprobs"}, {"part": "latency", "n": 100, "pass": 0},
        {"part": "latency", "n": 800, "pass": 0}, {"part": "latency", "n": 100, "pass": 1},
        {"part": "latency", "n": 800, "pass": 1}, {"part": "serving", "pass": 0, "requests": 1},
        {"part": "cut", "status": "cut", "reason": "over"},
    ):  # fmt: skip
        run.add(who | row)
    # the last length of the long pass; both passes over the requests, for the second follows the first; a short pass
    assert run.left(task)["steps"] == [("latency", 1, [1600]), ("serving", 0, []), ("latency", 2, [100, 800])]
    assert run.left(task | {"graphs": "partial"})["steps"] == run.left(task | {"model": "llama-3-8b"})["steps"]
    run.close()


def test_rows_of_other_sources_are_not_ours_but_stay_those_of_vllms_backends(tmp_path):
    run = engine.Run(tmp_path, "source", VERSIONS)
    engine.all_engines(run, tasks("fa3", "triton/auto"), 1e12, [sys.executable, "-c", CHILD])
    run.close()
    other, newer = engine.Run(tmp_path, "other", VERSIONS), {"vllm": "0.33.0"}
    other.close()
    assert [other.left(task) is None for task in tasks("fa3", "triton/auto")] == [True, False]
    other = engine.Run(tmp_path, "other", newer)
    other.close()
    assert [other.left(task) is None for task in tasks("fa3", "triton/auto")] == [False, False]


def test_the_page_tells_how_an_engines_last_process_ended():
    who = {"engine": "triton/auto", "graphs": "full", "source": "a"}
    lost = who | {"part": "lost", "status": "timeout", "reason": "no sign of life"}
    row = who | {"part": "latency", "n": 1, "pass": 0, "seconds": 1.0, "wrong": 0}
    assert "Engines that did not end" in page.render([row, lost], None)
    assert "Engines that did not end" not in page.render([row, lost, who | {"part": "end", "source": "b"}], None)


def test_the_page_says_how_far_log_probabilities_moved():
    who = {"engine": "triton/auto", "graphs": "always", "source": "a"}
    rows = [who | {"part": "logprobs", "values": [-1.0], "wrong": 0}]
    assert "| triton/auto | always |  |  |" in page.render(rows, None)
    rows.append(who | {"part": "mixed", "wrong": 0, "moved": 0.0})
    assert "| triton/auto | always |  | 0.00e+00 | 0 |  |" in page.render(rows, None)


def test_the_page_has_shares_of_fa3_and_names_what_was_lost(tmp_path):
    run = engine.Run(tmp_path, "source", VERSIONS)
    engine.all_engines(run, tasks("fa3", "triton/auto", "vllm_triton"), 1e12, [sys.executable, "-c", CHILD])
    run.close()
    text = page.write(tmp_path, run.rows).read_text()
    assert "| triton/auto | full | 2.000 | 2.000 | 0 |" in text and "| fa3 | full | 1.000 | 1.000 | 0 |" in text
    assert "- vllm_triton, full graphs: crash: vllm_triton:full exited with 3" in text
    assert (tmp_path / "engine.svg").exists()
