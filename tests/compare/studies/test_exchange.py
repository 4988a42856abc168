"""flashinfer-bench's files: ours come back as they were, theirs are read, asked and judged, malformed ones named."""

import importlib.util
import json
import re

import pytest
import torch

import synthetic_run
from common.spec import AttentionShape, SpecError
from compare import exits
from compare.__main__ import main
from compare.record.records import Evidence, Record, Status
from compare.studies.exchange.layout import Definition, Row, Solution, objects
from compare.workloads import Ask, Workload
from damaged import MISSING, damaged

safetensors = pytest.importorskip("safetensors.torch")
BF16 = AttentionShape(4, 2, 32, 16, torch.bfloat16)
ROWS = (
    Workload("3q1s20", ((1, 20), (1, 33), (1, 16)), BF16),
    Workload("shared", ((1, 50), (1, 70), (1, 40)), BF16, shared_pages=2, seed=7),
    Workload("mixed", ((5, 20), (1, 3), (9, 9)), AttentionShape(2, 1, 64, 24, torch.float16)),
)
REFUSED = Workload("window", ((1, 20),), BF16, Ask(sliding_window=5))


@pytest.fixture
def run(tmp_path):
    """A run's folder: what the rows of ROWS found, and one row with a window."""
    gate = synthetic_run.GateResult("S+W", {"row": 0.4, "lse": 0.6}, 2, 2, True)
    load = synthetic_run.workload("x", "decode", 1, 1, 20)
    infos = [synthetic_run.WorkloadInfo(**vars(load) | {"id": row.id, "label": row.label}) for row in ROWS]
    checked = {"evidence": (Evidence.INTERPRETED,), "gate": gate}
    records = [
        Record("run", "a", infos[0], "triton/auto", Status.OK, **checked),
        Record("run", "b", infos[0], "helion/auto", Status.CRASH, reason="it died"),
        Record("run", "c", infos[1], "triton/auto", Status.INCORRECT, reason="off", gate=gate),
        Record("run", "d", infos[1], "helion/auto", Status.UNSUPPORTED, reason="no"),
        Record("run", "e", infos[0], "triton/naive", Status.OK, **checked),
        synthetic_run.timed(infos[2], "triton/native.auto", 125.0),
    ]
    plain = [row.to_dict() | {"id": row.id, "kind": row.kind} for row in (*ROWS, REFUSED)]
    return synthetic_run.write(tmp_path / "run", records, workloads=plain)


def read_back(folder):
    """The rows and the Traces of a folder."""
    known = {one.name: one for one in map(Definition.of, objects(folder / "definitions", "*.json"))}
    lines = list(objects(folder / "workloads", "*.jsonl"))
    rows = [Row.of(known[line["definition"]], line["workload"], folder) for line in lines]
    return rows, list(objects(folder / "traces", "*.jsonl"))


def test_a_run_comes_back_as_the_rows_and_verdicts_that_it_was(run, tmp_path, capsys):
    assert main(["exchange", "export", str(run), str(tmp_path / "out")]) == exits.OK
    said = capsys.readouterr()
    assert "3 of 4 rows and 4 cells" in said.out
    assert "row window: found sliding_window=5, allowed plain causal attention over contiguous pages" in said.err
    rows, traces = read_back(tmp_path / "out")
    assert {row.workload for row in rows} == set(ROWS) and {row.scale for row in rows} == {32**-0.5, 64**-0.5}
    found = {(t["workload"]["uuid"], t["solution"].split("_gqa_")[0]): t["evaluation"] for t in traces}
    assert {key: one["status"] for key, one in found.items()} == {
        ("3q1s20", "diptych_triton_auto"): "PASSED",
        ("3q1s20", "diptych_helion_auto"): "RUNTIME_ERROR",
        ("shared@seed=7", "diptych_triton_auto"): "INCORRECT_NUMERICAL",
        ("mixed", "diptych_triton_native_auto"): "PASSED",
    }
    timed = found["mixed", "diptych_triton_native_auto"]
    assert timed["performance"] == {"latency_ms": 0.125} and timed["environment"]["hardware"] == "h200"
    extra = {"reference": "float64", "part_of_budget": 0.6, "verdict": "ok", "checker": "diptych abc1234"}
    assert found["3q1s20", "diptych_triton_auto"]["correctness"]["extra"] == extra
    solutions = [Solution.of(one) for one in objects(tmp_path / "out" / "solutions", "*.json")]
    assert len(solutions) == 3 and all(one.returned for one in solutions)


@pytest.mark.skipif(importlib.util.find_spec("flashinfer_bench") is None, reason="flashinfer-bench is not installed")
def test_flashinfer_bench_reads_what_is_written(run, tmp_path):
    from flashinfer_bench.bench.utils import load_safetensors
    from flashinfer_bench.data import TraceSet

    main(["exchange", "export", str(run), str(tmp_path / "out")])
    found = TraceSet.from_path(str(tmp_path / "out"))
    assert len(found.definitions) == 2 and sum(map(len, found.traces.values())) == 4
    for name, traces in found.workloads.items():
        for one in traces:
            assert load_safetensors(found.definitions[name], one.workload, tmp_path / "out")


# A folder as flashinfer-bench's own tools write one: pages of one token, lists without kv_last_page_len.


RUN = """import math
import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    output, lse = torch.zeros_like(q), torch.full(q.shape[:2], -math.inf)
    for i in range(len(q)):
        listed = kv_indices[kv_indptr[i]:kv_indptr[i + 1]].long()
        k, v = (c[listed, 0].float().repeat_interleave(2, 1) for c in (k_cache, v_cache))
        logits = torch.einsum("hd,khd->hk", q[i].float(), k) * sm_scale
        lse[i] = logits.logsumexp(-1) / math.log(2)
        output[i] = torch.einsum("hk,khd->hd", logits.softmax(-1), v).to(q.dtype)
    return output, lse
"""
NAME = "gqa_paged_decode_h4_kv2_d32_ps1"
CACHE = {"shape": ["num_pages", "page_size", "num_kv_heads", "head_dim"], "dtype": "bfloat16"}
QUERY = {"shape": ["batch_size", "num_qo_heads", "head_dim"], "dtype": "bfloat16"}
CONSTANT = ("num_qo_heads", "num_kv_heads", "head_dim", "page_size")
AXES = {name: {"type": "const", "value": n} for name, n in zip(CONSTANT, (4, 2, 32, 1), strict=True)}
AXES |= {name: {"type": "var"} for name in ("num_pages", "len_indptr", "num_kv_indices")}
DEFINITION = {
    "name": NAME, "op_type": "gqa_paged", "tags": ["stage:decode"], "reference": RUN,
    "axes": {"batch_size": {"type": "var", "description": "tokens"}} | AXES,
    "constraints": ["len_indptr == batch_size + 1"],
    "inputs": {
        "q": QUERY, "k_cache": CACHE, "v_cache": CACHE,
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32", "description": "offsets"},
        "kv_indices": {"shape": ["num_kv_indices"], "dtype": "int32"},
        "sm_scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"output": QUERY, "lse": {"shape": ["batch_size", "num_qo_heads"], "dtype": "float32"}},
}  # fmt: skip
LISTED = {"type": "safetensors", "path": "./blob/a.safetensors"}
WORKLOAD = {
    "uuid": "be0e9c07",
    "axes": {"batch_size": 2, "num_pages": 40, "len_indptr": 3, "num_kv_indices": 21},
    "inputs": {
        **{name: {"type": "random"} for name in ("q", "k_cache", "v_cache")},
        "kv_indptr": LISTED | {"tensor_key": "kv_indptr"},
        "kv_indices": LISTED | {"tensor_key": "kv_indices"},
        "sm_scale": {"type": "scalar", "value": 0.1767766922712326},
    },
}


def solution(name, text, **spec):
    spec = {"language": "Python", "target_hardware": ["cuda"], "entry_point": "main.py::run"} | spec
    sources = [{"path": "main.py", "content": text}]
    return {"name": name, "definition": NAME, "author": "x", "spec": spec, "sources": sources}


def lay(folder, definition=DEFINITION, workload=WORKLOAD, solutions=(), **lists):
    for name in ("definitions", "solutions", "workloads", "blob"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "definitions" / "one.json").write_text(json.dumps(definition, indent=2))
    line = {"definition": NAME, "solution": None, "workload": workload, "evaluation": None}
    (folder / "workloads" / "one.jsonl").write_text(json.dumps(line) + "\n")
    for one in solutions:
        (folder / "solutions" / f"{one['name']}.json").write_text(json.dumps(one))
    given = {"kv_indptr": torch.tensor([0, 8, 21]), "kv_indices": torch.arange(39, 18, -1)} | lists
    safetensors.save_file({name: one.int() for name, one in given.items()}, folder / "blob" / "a.safetensors")
    return folder


def test_solutions_of_their_layout_and_ours_get_verdicts_and_traces(tmp_path, capsys):
    returning = RUN.replace("return output, lse", 'return {"output": output, "lse": lse}')
    natural = RUN.replace("sm_scale):", "sm_scale, out, found):").replace(" / math.log(2)", "")
    natural = natural.replace("return output, lse", "out.copy_(output), found.copy_(lse)")
    given = (
        solution("in_a_dict", returning, destination_passing_style=False),
        solution("natural", natural),  # into its last arguments, unless it says otherwise
        solution("in_cuda", "x", language="cuda", entry_point="main.cu::run"),
        Solution.of_ours("triton/auto", Definition.of(DEFINITION)).to_dict(),
    )
    assert main(["exchange", "import", str(lay(tmp_path, solutions=given))]) == exits.WRONG
    said = capsys.readouterr()
    assert "row be0e9c07: --workload 1q1s8_1q1s13 --shape 4:2:32 --block-size 8 --dtype bfloat16" in said.out
    assert "solution in_cuda, language: found 'cuda', allowed python, triton, tilelang" in said.err
    traces = {one["solution"]: one for one in objects(tmp_path / "traces", "*.jsonl")}
    assert all(one["workload"] == WORKLOAD for one in traces.values())
    found = {name: one["evaluation"] for name, one in traces.items()}
    ours = given[-1]["name"]
    assert {name: one["status"] for name, one in found.items()} == {
        "in_a_dict": "PASSED", "natural": "INCORRECT_NUMERICAL", ours: "PASSED",
    }  # fmt: skip
    right = found["in_a_dict"]["correctness"]
    assert 0 < right["max_absolute_error"] < 0.01 and 0 < right["extra"]["part_of_budget"] < 1
    assert "LSE: found" in found["natural"]["log"] and "2 of 3 right" in said.out


def test_a_definition_with_an_lse_of_another_base_is_refused_by_its_reference(tmp_path, capsys):
    definition = DEFINITION | {"reference": RUN.replace(" / math.log(2)", "")}
    assert main(["exchange", "import", str(lay(tmp_path, definition))]) == exits.WRONG
    assert f"definition {NAME}, reference: found wrong, allowed causal attention with an LSE" in capsys.readouterr().err


def changed(plain, path, value):
    """A JSON object with another value at a path; None: without it."""
    return damaged(json.loads(json.dumps(plain)), path.split("/"), MISSING if value is None else value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("op_type", "mla_paged", "op_type: found 'mla_paged', allowed gqa_paged"),
        ("axes/head_dim", None, "axes, head_dim: found no head_dim, allowed dict"),
        ("axes/page_size", {"type": "var"}, "page_size, value: found no value, allowed int"),
        ("axes/page_size/value", 12, "block_size: found 12, allowed"),
        ("inputs/q/dtype", "float8_e4m3fn", "q, dtype: found 'float8_e4m3fn', allowed float"),
        ("inputs/k_cache/dtype", "float16", "k_cache, dtype: found float16, allowed bfloat16"),
        ("inputs/kv_indptr/dtype", "int64", "kv_indptr, dtype: found int64, allowed int32"),
        ("inputs/kv_indices", None, "inputs: found q, k_cache, v_cache, kv_indptr, sm_scale, allowed q"),
        ("inputs/k_scale", {"shape": None, "dtype": "float32"}, "inputs: found q, k_cache"),
        ("inputs/v_cache/shape", ["num_pages"], "v_cache, shape: found ['num_pages'], allowed ['num_pages', 'page"),
        ("outputs/lse", None, "outputs: found output, allowed output, lse"),
        ("reference", 3, "reference: found 3, allowed str"),
        ("name", "../../e", "name, path: found '../../e', allowed a path below the folder"),
        ("name", "a/b", "name: found 'a/b', allowed a name without /"),
        ("name", "a\0", r"name, path: found 'a\x00', allowed a path"),
    ],
)
def test_a_definition_that_is_something_else_is_named(path, value, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        Definition.of(changed(DEFINITION, path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("axes/num_kv_indices", None, "axes, num_kv_indices: found no num_kv_indices, allowed int"),
        ("axes/num_pages", 39, "kv_indices: found 39, allowed 0 to 38"),
        ("axes/num_kv_indices", 22, "kv_indices: found torch.int32 (21,), allowed torch.int32 (22,)"),
        ("axes/batch_size", 3, "axes, batch_size: found 3, allowed len_indptr - 1 = 2"),
        ("inputs/q", {"type": "safetensors", "path": "q"}, "q: found safetensors, allowed random"),
        ("inputs/kv_indices", {"type": "random"}, "kv_indices: found random, allowed safetensors"),
        ("inputs/kv_indptr/path", "../a", "path: found '../a', allowed a path below the folder"),
        ("inputs/kv_indptr/tensor_key", "x", "kv_indptr, path: found ./blob/a.safetensors: KeyError"),
        ("axes/num_pages", 10**30, "num_pages: found an integer of more than 64 bits, allowed one of 64"),
        ("inputs/sm_scale/value", 10**400, "sm_scale, value: found an integer of more than 64 bits"),
        ("inputs/sm_scale", {"type": "random"}, "sm_scale, value: found no value, allowed float or int"),
    ],
)
def test_a_workload_that_cannot_be_asked_is_named(path, value, message, tmp_path):
    lay(tmp_path)
    with pytest.raises(SpecError, match=re.escape(message)):
        Row.of(Definition.of(DEFINITION), changed(WORKLOAD, path, value), tmp_path)


def test_page_lists_that_are_none_are_named(tmp_path):
    lay(tmp_path, kv_indptr=torch.tensor([0, 22, 21]))
    with pytest.raises(
        SpecError, match=re.escape("kv_indptr: found [0, 22, 21], allowed 0 first, never less, 21 last")
    ):
        Row.of(Definition.of(DEFINITION), WORKLOAD, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec/entry_point", "main.py", "entry_point: found 'main.py', allowed FILE.py::FUNCTION of main.py"),
        ("sources", [{"path": "/main.py", "content": ""}], "path: found '/main.py', allowed a path below the folder"),
        ("sources", [{"path": "a" * 300, "content": ""}], "path: found 'aaaa"),
        ("sources", [{"path": "main.py", "content": "\ud800"}], "sources: found 'main.py', allowed text in a file"),
        (
            "sources",
            [{"path": p, "content": ""} for p in ("main.py", "main.py/x")],
            "sources: found 'main.py/x', allowed",
        ),
        ("spec/language", "cpp", "language: found 'cpp', allowed python"),
        ("name", None, "solution, name: found no name, allowed str"),
    ],
)
def test_a_solution_that_cannot_run_is_named(path, value, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        Solution.of(changed(solution("x", RUN), path, value))
