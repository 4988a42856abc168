"""Default configs spill nothing on AMD at head sizes 64, 128 and 256 in bf16, and fit everywhere.

On NVIDIA spills are reported and not refused: a config that was chosen by its time may keep a few bytes in local memory
(the fastest prefill shape of an H200 does), and ptxas spills single words below its limit to gain occupancy.
"""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare import registry
from compare.compile_child import CompileJob, compile_in_child

BATCHES = {
    "decode-8x2k": ((1, 2048),) * 8,
    "decode-128x2k": ((1, 2048),) * 128,
    "decode-1x32k": ((1, 32768),),
    "verify-32x4": ((4, 4096),) * 32,
    "prefill-2k": ((2048, 2048),),
    "mixed": ((1, 2048),) * 4 + ((512, 1536),) * 4,
}

WITH_NEW_KV = {"prefill-2k", "mixed"}  # kernels that read the step's new K and V hold tiles of them too
MULTIPLY = ("_q_block_kernel", "_prefill_kernel", "_decode_kernel", "_segments_kernel")


def _job(kernel, head_size, batch, large_cache):
    shape = AttentionShape(32, 8, head_size, 16, torch.bfloat16)
    return CompileJob(kernel, BATCHES[batch], shape, new_kv=batch in WITH_NEW_KV, large_cache=large_cache)


def _check(gpu, jobs, report):
    """One child per target; a kernel that could not launch comes back as compile_error and fails here too."""
    bad = []
    for outcome in compile_in_child(jobs, resolve(gpu)):
        job = outcome.job
        where = f"{job.kernel} head {job.shape.head_size} {job.lens[0]}x{len(job.lens)} on {gpu}"
        if outcome.status != "ok":
            bad.append(f"{where}: {outcome.status}: {outcome.reason}")
        for facts in outcome.facts:
            text = (
                f"{where} {facts['kernel']}: {facts['registers']} registers, {facts['spills']} spills, "
                f"{facts['scratch_bytes']} B scratch, {facts['shared_bytes']} B shared, {outcome.config}"
            )
            report(text)
            multiplies = facts["kernel"].endswith(MULTIPLY) and "reduce" not in facts["kernel"]
            if multiplies and not sum(facts["matrix"].values()):
                bad.append(f"{text}: no matrix instruction")
            if resolve(gpu).vendor == "amd" and (facts["spills"] or facts["scratch_bytes"]):
                bad.append(text)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("gpu", ["mi300", "h200"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_the_widest_head_neither_spills_nor_outgrows(dsl, gpu):
    kernels = [kernel for kernel in registry.OWN if kernel.startswith(dsl)]
    _check(gpu, [_job(kernel, 256, "prefill-2k", False) for kernel in kernels], print)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi250", "mi300", "mi355", "a100", "h200", "b200"])
@pytest.mark.parametrize("kernel", registry.OWN)
def test_no_default_spills_or_outgrows(kernel, gpu):
    """Also with a cache beyond 2 GiB, which AMD's compiler addresses by other instructions."""
    caches = (False, True) if resolve(gpu).vendor == "amd" else (False,)
    jobs = [
        _job(kernel, head_size, batch, large) for head_size in (64, 128, 256) for batch in BATCHES for large in caches
    ]
    _check(gpu, jobs, print)
