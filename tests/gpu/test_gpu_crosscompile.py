"""What is compiled for a GPU without having it is what runs on it: proved on the GPU that is here."""

from unittest import mock

import pytest
import torch

from common.cases.batch import make_batch
from common.gpus import detect
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.static import jit
from compare.static.compile import compile_in_child
from compare.static.compiled import from_triton
from compare.static.crosscompile import facts_of
from compilations import compilation

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
LENS = ((1, 700), (33, 97), (1, 1), (5, 40))
SAME = ("kernel", "arch", "grid", "num_warps", "registers", "spills", "shared_bytes", "matrix", "loads", "instructions")


def launched_code(call):
    """What a call launches on the GPU that is here, in order."""
    from triton.runtime.jit import JITFunction

    seen, original = [], JITFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        compiled = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        launch = jit.Launch(self, jit.plain_grid(self, grid, args, kwargs), args, kwargs)
        bound = jit.bind(launch, compiled.metadata.target)
        name = launch.function.__name__
        seen.append(from_triton(compiled, name, launch.grid, bound.arguments, bound.dropped, 0.0))
        return compiled

    with mock.patch.object(JITFunction, "run", run):
        call()
    return seen


@pytest.mark.parametrize("kernel_id", registry.OWN)
def test_the_code_compiled_without_the_gpu_is_the_code_that_runs(kernel_id):
    gpu = detect()
    (outcome,) = compile_in_child([compilation(kernel_id, LENS, SHAPE)], gpu)
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)

    kernel = registry.load(kernel_id)
    batch = make_batch(LENS, SHAPE, device="cuda")
    config, _ = registry.default_config(kernel_id, kernel, SHAPE, batch.stats, gpu)
    workspace = kernel.workspace(SHAPE, Capacity.of(batch), config)
    out = torch.empty_like(batch.query)
    ran = launched_code(lambda: kernel.launch(batch, Features(), out, config, workspace))
    torch.cuda.synchronize()

    there = [{name: fact[name] for name in SAME} for fact in outcome.facts]
    here = [{name: facts_of(code, "as allocated").as_dict()[name] for name in SAME} for code in ran]
    assert there == here


def test_the_table_recognises_this_gpu_and_its_properties():
    gpu, properties = detect(), torch.cuda.get_device_properties(0)
    assert gpu.units == properties.multi_processor_count
    if gpu.name != "other" and gpu.vendor == "nvidia":  # ROCm reports the L2 of one die and never the last-level cache
        assert gpu.llc_bytes == properties.L2_cache_size
        assert gpu.shared_bytes == properties.shared_memory_per_block_optin
