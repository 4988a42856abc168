"""Compile the Triton probe for the arches of the command line, in a process that does not interpret; pickle to stdout.

Launches come back without their tensors, which no reader of code needs.
"""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from compare.process.crew import environment

SHAPE = AttentionShape(2, 1, 64, 64, torch.bfloat16)


def compiled(arches, **config):
    """{arch: CompiledLaunch} of the probe under a config, from one child."""
    command = [sys.executable, __file__, repr(config), *arches]
    done = subprocess.run(command, capture_output=True, env=environment("compile"), timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return pickle.loads(done.stdout)


def _main(config, arches):
    sys.path.insert(0, str(Path(__file__).parents[2] / "support" / "probes"))
    import ast

    from diptych_probe import triton_product as probe

    from common.absent import gpu_target
    from compare.static import jit
    from compare.static.compiled import from_triton

    batch = make_batch(((64, 64),), SHAPE)
    with jit.recorded() as launches:
        out = torch.empty_like(batch.query)
        probe.launch(batch, Features(), out, probe.Config(**ast.literal_eval(config)), None)
    (launch,) = launches
    found = {}
    for arch in arches:
        target = gpu_target(arch)
        bound = jit.bind(launch, target)
        result = from_triton(jit.compile_for(bound, target), "probe", launch.grid, bound.arguments, bound.dropped, 0.0)
        bare = tuple(dataclasses.replace(one, value=None) for one in result.arguments)
        found[arch] = dataclasses.replace(result, arguments=bare)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
