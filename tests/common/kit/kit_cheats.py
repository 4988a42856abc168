"""Planted cheats: kernels that try to pass without computing attention. None of them reads what it should."""

import functools
import gc
import json
import os
import sys
import threading
import time

import torch
from kit_callables import right

SUPPORTS = {"causal"}
_kept = {}


def _cheat(kernel):
    @functools.wraps(kernel)
    def called(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out):
        tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
        return kernel(lambda: right(*tensors, softmax_scale=softmax_scale, out=out), tensors, out)

    del called.__wrapped__  # the parameters are those of `called`
    return called


def _replay(key, compute, out):
    if key not in _kept:
        compute()
        _kept[key] = out.clone()
    out.copy_(_kept[key])


@_cheat
def kept_by_address(compute, tensors, out):
    _replay(tuple(tensor.data_ptr() for tensor in tensors), compute, out)


@_cheat
def kept_by_block_table(compute, tensors, out):
    _replay((tuple(out.shape), tuple(tensors[3].flatten().tolist())), compute, out)


@_cheat
def keys_kept_by_address(compute, tensors, out):
    """A repacked K from the first call at these addresses."""
    key = tensors[1]
    kept = _kept.setdefault(("K", key.data_ptr(), tuple(key.shape)), key.clone())
    now = key.clone()
    key.copy_(kept)
    compute()
    key.copy_(now)


@_cheat
def first_call_alone(compute, tensors, out):
    """Hopes that the output of the call before is still there."""
    if "called" not in _kept:
        compute()
    _kept["called"] = True


def asked():
    """The question that the child was asked, from its frames: nonce, files, channel."""
    frame = sys._getframe()
    while frame is not None and "nonce" not in frame.f_locals.get("request", ()):
        frame = frame.f_back
    return frame.f_locals["request"]


@_cheat
def own_verdict(compute, tensors, out):
    """Answers in the child's place, without its nonce."""
    os.write(int(sys.argv[1]), json.dumps({"status": "ok", "verdict": "right", "nonce": ""}).encode() + b"\n")
    time.sleep(2)


@_cheat
def forged_reply(compute, tensors, out):
    """Knows the question's nonce, sends tensors of its own and claims that all is well."""
    request = asked()
    with open(request["outputs"], "wb") as file:
        file.write(bytes(sum(request["storages"])))
    os.write(int(sys.argv[1]), json.dumps({"status": "ok", "nonce": request["nonce"]}).encode() + b"\n")
    os._exit(0)


@_cheat
def easier_inputs(compute, tensors, out):
    tensors[2].zero_()
    out.zero_()


@_cheat
def patched_check(compute, tensors, out):
    """Every comparison that it finds says yes from now on."""
    out.zero_()
    for name in ("equal", "allclose", "isclose"):
        setattr(torch, name, lambda *_, **__: True)
    torch.testing.assert_close = lambda *_, **__: None
    child = sys.modules["__main__"]
    child.failed = lambda error: {"status": "ok"}
    child.keep = lambda *_: None


@_cheat
def patched_timer(compute, tensors, out):
    """No clock of the process moves on, and it never ends."""
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, lambda: 0.0)
    torch.cuda.Event.elapsed_time = lambda *_: 0.0
    threading.Event().wait()


@_cheat
def search_for_the_reference(compute, tensors, out):
    """Any tensor of the output's shape in this process, or what the allocator has just given back."""
    _kept.clear()  # of the other cheats of this file
    candidates = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.shape == out.shape and x is not out]
    modules = [name for name in sys.modules if name.split(".")[0] == "common"]
    assert not modules, modules
    wanted = [x for x in candidates if x.data_ptr() != tensors[0].data_ptr() and x.data_ptr() != out.data_ptr()]
    out.copy_(wanted[0] if wanted else torch.empty_like(out))


class Lazy(torch.Tensor):
    """Equal to whatever it is compared with."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return True if function in (torch.equal, torch.allclose) else function(*args, **(kwargs or {}))


@_cheat
def lazy_subclass(compute, tensors, out):
    return torch.zeros_like(out).as_subclass(Lazy)


@_cheat
def late_thread(compute, tensors, out):
    """Returns at once; the work is done behind the clock's back."""

    def work():
        time.sleep(1)
        compute()

    threading.Thread(target=work).start()


@_cheat
def lazy_by_a_mode(compute, tensors, out):
    """Computes when the output is looked at, behind the call."""
    todo = [compute]

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            while todo:
                todo.pop()()
            return function(*args, **(kwargs or {}))

    Mode().__enter__()


@_cheat
def clears_later(compute, tensors, out):
    """Takes its result back half a second behind its fourth return."""
    compute()
    _kept["calls"] = _kept.get("calls", 0) + 1

    def work():
        time.sleep(0.5)
        out.zero_()

    if _kept["calls"] == 4:
        threading.Thread(target=work, daemon=True).start()
