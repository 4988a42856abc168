"""native.sm90_prefill on 2,000 random batches, five launches each onto different poisons: a race shows as other bits.

Lengths lie around every edge; forms differ in what is compiled, so that there are few of them. A launch that waits for
ever ends with its process: `--timeout 120 --timeout-method thread`.
"""

import math
import random
from dataclasses import replace

import pytest
import torch

from common.cases.case import Case
from common.cases.trial import Trial, ready
from common.oracle.integrity import same_bits
from dsl_triton.native import sm90_prefill as native

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no sm_90 here", allow_module_level=True)

CASES, LAUNCHES = 2000, 5
BF16, FP16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
# query heads, KV heads, head size, page, dtype, segments, other parts of the config, features
FORMS = [
    (8, 2, 128, 16, BF16, 1, {}, {}),
    (8, 2, 128, 16, BF16, 4, {"together": True}, {}),
    (8, 2, 128, 16, BF16, 16, {"together": True}, {}),
    (2, 2, 128, 32, FP16, 1, {}, {}),
    (4, 2, 128, 8, BF16, 3, {}, {}),
    (3, 1, 128, 24, BF16, 1, {"together": True}, {}),
    (5, 1, 128, 64, BF16, 1, {}, {"causal": False}),
    (14, 2, 128, 16, FP16, 2, {}, {}),
    (8, 1, 128, 128, BF16, 1, {}, {}),
    (12, 1, 128, 16, BF16, 1, {}, {"sliding_window": 200}),
    (16, 1, 128, 256, BF16, 5, {}, {"causal": False}),
    (8, 2, 64, 16, BF16, 1, {}, {"sliding_window": 128, "sinks": "near"}),
    (40, 1, 64, 16, FP16, 3, {}, {}),
    (4, 2, 256, 16, BF16, 1, {}, {"softcap": 20.0}),
    (8, 4, 256, 32, FP16, 2, {"together": True}, {"sinks": "some"}),
    (8, 2, 128, 16, BF16, 1, {"tile_size": 64, "num_stages": 4}, {}),
    (8, 1, 128, 16, BF16, 2, {}, {"alibi": "drawn"}),
    (5, 1, 128, 16, BF16, 1, {"together": True}, {"causal": False, "sliding_window": 100, "softcap": 30.0}),
    (8, 2, 96, 16, BF16, 1, {}, {}),
    (6, 2, 96, 32, FP16, 3, {"together": True}, {"sliding_window": 100, "sinks": "near"}),
    (8, 4, 80, 8, BF16, 2, {}, {"causal": False}),
    (4, 2, 192, 16, BF16, 1, {}, {}),
    (4, 1, 40, 24, FP16, 1, {}, {"softcap": 20.0}),
    (6, 1, 128, 16, BF16, 1, {}, {}),
    (12, 2, 80, 16, BF16, 3, {"together": True}, {"sliding_window": 300}),
    (6, 1, 64, 16, FP16, 1, {}, {"sinks": "near"}),
    (10, 1, 96, 16, BF16, 1, {}, {"softcap": 20.0}),
    (12, 1, 72, 32, BF16, 2, {}, {"causal": False}),
    (10, 1, 160, 16, FP16, 1, {}, {"alibi": "drawn"}),
    (8, 2, 512, 16, BF16, 1, {"together": True}, {}),
    (7, 1, 320, 32, FP16, 3, {}, {"sliding_window": 100, "sinks": "near"}),
    (6, 1, 96, 16, BF16, 1, {}, {"kv_dtype": E4M3, "scales": "heads"}),
    (8, 2, 128, 16, BF16, 1, {}, {"kv_dtype": E4M3, "scales": "one"}),
    (8, 2, 128, 16, FP16, 3, {"together": True}, {"kv_dtype": E4M3, "scales": "heads"}),
    (6, 2, 64, 32, BF16, 1, {}, {"kv_dtype": E4M3, "scales": "heads", "sliding_window": 100, "sinks": "near"}),
    (16, 1, 96, 8, BF16, 2, {}, {"kv_dtype": E4M3, "scales": "one", "causal": False}),
    (4, 2, 128, 64, BF16, 1, {"tile_size": 64, "num_stages": 4}, {"kv_dtype": E4M3}),
    (5, 1, 64, 24, FP16, 1, {"together": True}, {"kv_dtype": E5M2, "scales": "one", "softcap": 20.0}),
    (8, 2, 128, 16, BF16, 1, {}, {"fp8_query": E4M3, "scales": "heads"}),
    (14, 2, 128, 32, BF16, 3, {"together": True}, {"fp8_query": E4M3, "scales": "one"}),
    (4, 2, 64, 16, FP16, 1, {}, {"fp8_query": E4M3, "scales": "one", "sliding_window": 100, "sinks": "near"}),
    (6, 1, 96, 64, BF16, 2, {}, {"fp8_query": E4M3, "scales": "heads", "causal": False}),
    (4, 1, 80, 16, FP16, 1, {"tile_size": 64, "num_stages": 4}, {"fp8_query": E4M3, "softcap": 20.0}),
]  # fmt: skip
KERNEL_ID = "triton/native.sm90_prefill"
QUERIES = (0, 1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300, 513)
CONTEXTS = (0, 0, 1, 15, 16, 127, 128, 129, 1000)


def drawn(seed):
    """A batch of one of the FORMS: some long queries, some short ones, some empty, some longer than their keys."""
    rng = random.Random(seed)
    *heads, size, page, dtype, segments, parts, features = FORMS[seed % len(FORMS)]
    lens = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 17])):
        query = rng.choice([*QUERIES, rng.randint(1, 300), rng.randint(1, 700)])
        seq_len = query + rng.choice([*CONTEXTS, rng.randint(0, 900)])
        few = rng.random() < 0.05 and "sinks" not in features  # whose LSE no such row defines
        lens.append((query, rng.randint(0, query) if few else seq_len))
    case = Case.of(
        f"race-{seed}", (), tuple(lens), heads=tuple(heads), head_size=size, block_size=page, dtype=dtype, **features,
        style=rng.choice(["nhd", "hnd", "stacked", "interleaved"]), pad_tokens=rng.choice([0, 0, 9]),
        pad_out=rng.random() < 0.2,
    )  # fmt: skip
    programs = rng.choice([1, 7, torch.cuda.get_device_properties(0).multi_processor_count])
    parts = dict(parts)
    together = parts.pop("together", False)
    prefill = replace(native.DEFAULT.prefill, num_segments=segments, programs=programs, **parts)
    return case, replace(native.DEFAULT, prefill=prefill, together=together)


@pytest.mark.large
@pytest.mark.parametrize("form", [pytest.param(n, id=f"{KERNEL_ID}-from-{n}") for n in range(len(FORMS))])
def test_gpu_native_gives_the_same_right_bits(form):
    """The seeds of one form, which is compiled once; the forms are dealt to processes."""
    for seed in range(form, CASES, len(FORMS)):
        case, config = drawn(seed)
        trial = Trial.of(case, "cuda", math.nan)
        workspace = ready(native, trial.batch, trial.features, config)
        live, kept = int(trial.batch.query_start_loc[-1]), None
        for launch in range(LAUNCHES):
            trial.out.fill_(launch)
            trial.lse.fill_(launch)
            trial.poison = float(launch)
            native.launch(trial.batch, trial.features, trial.out, config, workspace, lse=trial.lse)
            kept = kept or (trial.out[:live].clone(), trial.lse[:live].clone())
            for found, first_found in zip((trial.out, trial.lse), kept, strict=True):
                assert same_bits(found[:live], first_found), f"{case.name}: other bits in launch {launch}: {case.lens}"
        found = trial.judge(native.CONTRACT)
        assert found.ok, f"{case.name}: {found.reason}: {case.lens} {config}"
        assert workspace.counters[:2].tolist() == [0, 0]
