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

CASES, PART, LAUNCHES = 2000, 50, 5
# query heads, KV heads, page, dtype, causal, segments
FORMS = [
    (8, 2, 16, torch.bfloat16, True, 1), (8, 2, 16, torch.bfloat16, True, 4), (2, 2, 32, torch.float16, True, 1),
    (4, 2, 8, torch.bfloat16, True, 3), (3, 1, 24, torch.bfloat16, True, 1), (5, 1, 64, torch.bfloat16, False, 1),
    (14, 2, 16, torch.float16, True, 2), (8, 1, 128, torch.bfloat16, True, 1), (12, 1, 16, torch.bfloat16, True, 1),
    (16, 1, 256, torch.bfloat16, False, 5),
]  # fmt: skip
QUERIES = (0, 1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300, 513)
CONTEXTS = (0, 0, 1, 15, 16, 127, 128, 129, 1000)


def drawn(seed):
    """A batch of one of the FORMS: some long queries, some short ones, some empty, some longer than their keys."""
    rng = random.Random(seed)
    *heads, page, dtype, causal, segments = FORMS[seed % len(FORMS)]
    lens = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 17])):
        query = rng.choice([*QUERIES, rng.randint(1, 300), rng.randint(1, 700)])
        seq_len = query + rng.choice([*CONTEXTS, rng.randint(0, 900)])
        lens.append((query, rng.randint(0, query) if rng.random() < 0.05 else seq_len))
    case = Case.of(
        f"race-{seed}", (), tuple(lens), heads=tuple(heads), head_size=128, block_size=page, dtype=dtype, causal=causal,
        style=rng.choice(["nhd", "hnd", "stacked", "interleaved"]), pad_tokens=rng.choice([0, 0, 9]),
        pad_out=rng.random() < 0.2,
    )  # fmt: skip
    programs = rng.choice([1, 7, torch.cuda.get_device_properties(0).multi_processor_count])
    return case, replace(
        native.DEFAULT, prefill=replace(native.DEFAULT.prefill, num_segments=segments, programs=programs)
    )


@pytest.mark.large
@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_gpu_native_gives_the_same_right_bits(first):
    for seed in range(first, first + PART):
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
        assert workspace.counters.tolist() == [0, 0]
