"""Twelve planted faults: what a kernel from outside may do to the process that runs it. Each is a right kernel else."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch
from kit_callables import right

SUPPORTS = {"causal"}


def _right(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale, out):
    right(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale=softmax_scale, out=out)


def _fault(act):
    """A right kernel that calls act(tensors) when it is done."""

    def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out):
        tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
        _right(*tensors, softmax_scale, out)
        return act(*tensors, out)

    return kernel


@_fault
def hang(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    while True:
        time.sleep(1)


@_fault
def busy(*_):
    while True:
        pass


def _lost(words):
    """What torch says of a GPU that answers no more; no fault of a CPU's."""

    def act(*_):
        raise RuntimeError(f"{words}: an illegal memory access was encountered")

    return act


@_fault
def illegal_access(*_):
    ctypes.string_at(0)


@_fault
def abort(*_):  # as a device assert or a failed check of a C++ library
    os.abort()


@_fault
def exit_0(*_):
    os._exit(0)


@_fault
def out_of_memory(*_):
    return torch.empty(2**44, dtype=torch.uint8)


@_fault
def nan(*tensors):
    tensors[-1][0, 0, 0] = torch.nan


@_fault
def wrong_dtype(*tensors):
    return tensors[-1].double()


@_fault
def mutated_input(*tensors):
    tensors[1][tensors[3][0, 0]] *= 2


@_fault
def write_behind(*tensors):
    torch.empty(0, dtype=torch.uint8).set_(tensors[-1].untyped_storage())[-4090] = 0


@_fault
def forked_child(*_):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)


@_fault
def flood(*_):
    while True:
        os.write(1, b"x" * 65536)


@_fault
def process_left(*_):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


cuda_lost, hip_lost, at_a_loss = _fault(_lost("CUDA error")), _fault(_lost("HIP error")), _fault(_lost("an error"))
