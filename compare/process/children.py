"""The table of child processes by their modules, and which GPUs a child sees."""

import os
import sys

import torch

WORKER = "compare.bench.worker"
COMPILE = "compare.static.compile"
TUNE_COMPILE, TUNE_WORKER, TUNE_HELION = "compare.tune.compile", "compare.tune.worker", "compare.tune.helion"
MUTATION = "compare.studies.mutation.worker"
ENGINE, PROBE = "compare.studies.engine.child", "compare.fleet.probe"
CHILDREN = (
    WORKER,
    COMPILE,
    TUNE_COMPILE,
    TUNE_WORKER,
    TUNE_HELION,
    MUTATION,
    ENGINE,
    PROBE,
)


def command(child: str) -> list[str]:
    """The command that starts a child."""
    return [sys.executable, "-m", child]


# ROCm's runtime takes an empty list for none given, and an index that no GPU has for the end of the list; CUDA's takes
# both for none.
NO_GPU = "-1"


def seeing(gpu: str) -> dict[str, str]:
    """Environment variables that let a child see one GPU of `visible`, or NO_GPU."""
    return {"CUDA_VISIBLE_DEVICES": gpu, "HIP_VISIBLE_DEVICES": gpu}


def visible() -> list[str]:
    """The GPUs that this process sees, named for a child's environment (masks do not nest)."""
    masks = ["HIP_VISIBLE_DEVICES"] if torch.version.hip else []
    given = next((mask for name in [*masks, "CUDA_VISIBLE_DEVICES"] if (mask := os.environ.get(name))), "")
    here = torch.cuda.device_count()
    return [name.strip() for name in given.split(",")][:here] if given else [str(number) for number in range(here)]
