"""Where there is no GPU, kernels are interpreted; the switch must be set before anything imports triton."""

import os

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # the workers share the cores: threads of theirs would only queue behind each other
    os.environ["OMP_NUM_THREADS"] = "1"

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from common import interpreter

interpreter.install()
