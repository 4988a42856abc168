"""Run folders with invented figures, for tests of what reads a run: timed, untimed for an absent GPU, and a trace."""

import json

from compare.record.records import Derived, Evidence, GateResult, Record, Status, Timing, WorkloadInfo

SPEED = {  # a kernel's time over FA3's
    "triton/naive": 22.0, "triton/q_block": 1.3, "triton/parallel_softmax": 0.9, "helion/naive": 30.0,
    "helion/q_block": 1.6, "helion/parallel_softmax": 1.05, "baseline/flash_attn3": 1.0, "baseline/sdpa": 6.0,
    "baseline/sdpa_dense": 0.8,
}  # fmt: skip
LOADS = (
    ("q1s512", "decode", 1, 1, 512, 11.0),
    ("32q1s2k~", "decode", 32, 32, 49000, 59.0),
    ("128q1s8k~", "decode", 128, 128, 786432, 723.0),
    ("q8k", "prefill", 1, 8192, 8192, 961.0),
    ("16q1s2k_16q512s1536", "mixed", 32, 8208, 57344, 386.0),
)
VERSIONS = {"python": "3.12.0", "torch": "2.11.0", "triton": "3.6.0"}


def workload(label, kind, seqs, tokens, kv_tokens, head_size=128):
    decodes = seqs if kind == "decode" else 0
    return WorkloadInfo(
        f"id-{label}", label, kind, seqs, tokens, decodes, tokens // seqs, kv_tokens // seqs, kv_tokens,
        32, 8, head_size, 16, "bfloat16", kv_bytes=kv_tokens * 4096, flops=kv_tokens * tokens * 16384,
    )  # fmt: skip


def fact(kernel, spills=0, arch="gfx942", registers=104):
    return {
        "kernel": "_" + kernel.split("/")[-1] + "_kernel", "arch": arch, "grid": [8, 40], "num_warps": 4,
        "num_stages": 2, "runtime_args": 20, "cache": "within 2 GiB", "dropped": [], "seconds": 0.7,
        "registers": registers, "agprs": 0, "sgprs": 60, "spills": spills, "spill_bytes": 4 * spills,
        "scalar_spills": 0, "scratch_bytes": 4 * spills, "shared_bytes": 16384, "matrix": {"mfma 16x16x16": 80},
        "loads": {"128": 17, "32": 12}, "instructions": 1427, "code_bytes": 8524,
        "sha256": (kernel.encode().hex() * 8)[:60] + f"{spills:04d}",
    }  # fmt: skip


def timed(load, kernel, us):
    timing = Timing("graph", "cold", us, us * 0.99, us * 1.02, 20, 40, 12, 520_000_000, (us,), order="interleaved")
    derived = Derived(3000.0, 400.0, us * 0.6, 0.6)
    return Record(
        "run", f"{load.label}-{kernel}", load, kernel, Status.OK, (Evidence.MEASURED, Evidence.CHECKED_ON_GPU),
        config={"block_m": 16, "tile_size": 64}, config_origin="DEFAULT", gpu="h200", timing=timing, derived=derived,
        gate=GateResult("S", {"row": 0.4}, 2, 1, True), facts=(fact(kernel, arch="sm_90"),), versions=VERSIONS,
        source_sha="0123456789abcdef",
    )  # fmt: skip


def checked(load, kernel, ratio, spills=0):
    return Record(
        "run", f"{load.label}-{kernel}", load, kernel, Status.OK, (Evidence.INTERPRETED, Evidence.COMPILED),
        config={"block_m": 16}, config_origin="heuristics", gate=GateResult("S", {"row": ratio}, 2, 1, True),
        facts=(fact(kernel, spills),), versions=VERSIONS,
    )  # fmt: skip


def failed(load, kernel, status=Status.CRASH):
    return Record(
        "run", f"{load.label}-{kernel}", load, kernel, status, reason="the worker died of signal 11",
        log_tail="first line\nSegmentation fault", command=f"python -m compare.run --kernels {kernel}",
        versions=VERSIONS,
    )  # fmt: skip


def write(folder, records, **manifest):
    folder.mkdir(parents=True, exist_ok=True)
    known = {"run_id": "run", "command": "python -m compare.run", "suite": "peers", "planned": len(records)}
    known |= {"versions": VERSIONS, "commit": "abc1234", "dirty": False, "started": "2026-11-21T12:00:00Z"}
    (folder / "manifest.json").write_text(json.dumps(known | manifest))
    (folder / "cells.jsonl").write_text("".join(record.to_json() + "\n" for record in records))
    return folder


def timed_run(folder):
    records = []
    for number, (label, kind, seqs, tokens, kv, us) in enumerate(LOADS):
        load = workload(label, kind, seqs, tokens, kv)
        for kernel, speed in SPEED.items():
            wobble = 1.0 + 0.02 * number if kernel != "baseline/flash_attn3" else 1.0
            records.append(timed(load, kernel, us * speed * wobble))
    records[-1] = failed(records[-1].workload, records[-1].kernel)
    gpu = {"asked": "h200", "name": "h200", "title": "NVIDIA H200 SXM 141 GB", "present": True}
    return write(
        folder, records, gpu=gpu, trace={"name": "a trace", "assumptions": "a step lasts 5 ms + 25 us a token"}
    )


def absent_run(folder, spills=0):
    records = []
    for head_size in (64, 128, 256):
        load = workload(f"row-{head_size}", "decode", 4, 4, 200, head_size)
        for kernel in list(SPEED)[:6]:
            records.append(checked(load, kernel, 0.3 + head_size / 1000, spills if head_size == 256 else 0))
    gpu = {"asked": "mi300x", "name": "mi300", "title": "AMD Instinct MI300X", "present": False}
    return write(folder, records, gpu=gpu, suite="smoke")


def failing(load_label="q1s512"):
    return failed(workload(load_label, "decode", 1, 1, 512), "triton/naive")
