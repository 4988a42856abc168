"""The suite `features`: three plain rows, and each of them again under one feature at a time."""

from __future__ import annotations

from dataclasses import replace

import torch

from compare.workloads.asked import Ask
from compare.workloads.workload import LLAMA_3_8B, Workload, parse_lens

KERNELS = tuple(f"{dsl}/{name}" for dsl in ("triton", "helion") for name in ("q_block", "parallel_softmax", "auto"))
PLAIN = {"decode": "32q1s4k~", "verification": "32q8s4k", "prompts": "4q2k"}  # what a figure calls them: their label
MARK = "+"  # between a plain row's label and its feature's name
_FP8, _INT8 = torch.float8_e4m3fn, torch.int8

# name: what is asked, and what differs in the shape
_LOGITS = {
    "softcap": (Ask(softcap=30.0), {}), "sinks": (Ask(sinks=True), {}), "alibi": (Ask(alibi="linear"), {}),
    "alibi-sqrt": (Ask(alibi="sqrt"), {}),
}  # fmt: skip
_MASKS = {
    **{f"window-{size}": (Ask(sliding_window=size), {}) for size in (256, 1024, 2048)},
    "chunk-1024": (Ask(chunk=1024), {}), "encoders": (Ask(encoders=True), {}), "cross": (Ask(cross=True), {}),
}  # fmt: skip
_STORED = {
    "fp8-kv": (Ask(scales="one"), {"kv_dtype": _FP8}), "fp8-kv-heads": (Ask(scales="heads"), {"kv_dtype": _FP8}),
    "fp8-kv-tokens": (Ask(scales="tokens"), {"kv_dtype": _FP8}),
    "int8-kv-tokens": (Ask(scales="tokens"), {"kv_dtype": _INT8}),
    "fp8-query": (Ask(scales="one"), {"dtype": _FP8}), "fp8-out": (Ask(fp8_out=True), {}),
    "value-64": (Ask(), {"value_size": 64}), "batch-invariant": (Ask(batch_invariant=True), {}),
}  # fmt: skip
ASKED = {
    "decode": _LOGITS | _MASKS | _STORED,
    "verification": {"tree-8": (Ask(tree=8), {}), "fp8-kv": _STORED["fp8-kv"]},
    "prompts": _LOGITS | _MASKS | {"spans-576": (Ask(spans=576), {})} | _STORED,  # 576 tokens: an image of 24 x 24
}


def rows() -> list[Workload]:
    """Each plain row, then what is asked of it."""
    made = []
    for name, label in PLAIN.items():
        plain = Workload(label, parse_lens(label))
        made.append(plain)
        for feature, (ask, sizes) in ASKED[name].items():
            shape = replace(LLAMA_3_8B, **sizes)
            made.append(replace(plain, label=f"{label}{MARK}{feature}", shape=shape, ask=ask))
    return made
