"""Tensors of the device `cuda`: those of the CPU that an operation on that device made, marked as such."""

import rocm_graphs
import torch
from rocm_graphs import CAPTURING, STATE
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
WAITING = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
ACROSS = {"copy_", "__getitem__", "__setitem__", "to", "type_as", "set_", "index_put_", "index_put"}


def marked(value):
    return isinstance(value, torch.Tensor) and "_on_gpu" in value.__dict__


def mark(value, keep=()):
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and not any(leaf is one for one in keep):
            leaf._on_gpu = True
    return value


GETTERS = {
    torch.Tensor.device.__get__: lambda tensor: CUDA,
    torch.Tensor.is_cuda.__get__: lambda tensor: True,
    torch.Tensor.is_cpu.__get__: lambda tensor: False,
    torch.Tensor.get_device: lambda tensor: 0,
    torch.Tensor.is_pinned: lambda tensor: False,
}


def _traced():
    """Whether a compiler looks at tensors without values, which know their device."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _with_axes(tensor, index):
    """tensor[index] of new axes and whole ones: torch's own asks a guard for the device, which this build has not."""
    index = index if isinstance(index, tuple) else (index,)
    if not all(one is None or one == slice(None) for one in index):
        return tensor[index]
    for axis in (axis for axis, one in enumerate(index) if one is None):
        tensor = tensor.unsqueeze(axis)
    return tensor


def _named_device(value):
    """The device that an argument names; None for another."""
    if isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "meta"):
        value = torch.device(value)
    return value if isinstance(value, torch.device) else None


class Device(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in GETTERS and marked(args[0]):
            return GETTERS[func](args[0])
        if _traced() or any("Fake" in kind.__name__ or "Functional" in kind.__name__ for kind in types):
            return (_with_axes if func is torch.Tensor.__getitem__ else func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__" or name == "__set__":
            made = func(*args, **kwargs)
            return mark(made) if marked(args[0]) else made
        return self._called(func, name, args, kwargs)

    def _called(self, func, name, args, kwargs):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if marked(tensor)]
        target, args = self._target(name, args, kwargs, ours)
        if STATE.graph is not None and ours and (name in WAITING or target == CPU):
            raise RuntimeError(CAPTURING)
        if name == "numpy" and ours:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if ours and name not in ACROSS and any(not marked(tensor) and tensor.dim() for tensor in tensors):
            raise RuntimeError(f"Expected all tensors to be on the same device, found cuda:0 and cpu in {name}")
        if name in ("pin_memory", "cuda"):
            return mark(args[0].clone()) if name == "cuda" else args[0]
        kwargs.pop("pin_memory", None)
        made = func(*args, **kwargs)
        if target != CUDA:
            return made.clone() if name in ("cpu", "to") and any(made is one for one in ours) else made
        if name == "to" and not ours:
            made = made.clone() if made is args[0] else made
        keep = [tensor for tensor in tensors if not marked(tensor)]
        mark(made, keep)
        if not _is_view(name, made, tensors):
            self._launched(func, args, kwargs, made)
        return made

    def _target(self, name, args, kwargs, ours):
        """Where the result lies, and the arguments without a word of `cuda`."""
        if name in ("cpu", "numpy"):
            return CPU, args
        if name == "cuda":
            return CUDA, args
        found = _named_device(kwargs.get("device"))
        if isinstance(kwargs.get("device"), int):
            found = CUDA
        if found is not None:
            kwargs["device"] = CPU if found.type == "cuda" else found
        if name in ("to", "new_empty"):
            devices = [_named_device(value) for value in args]
            found = next((device for device in devices if device is not None), found)
            args = tuple(CPU if d is not None and d.type == "cuda" else a for a, d in zip(args, devices, strict=True))
            others = [value for value in args[1:] if isinstance(value, torch.Tensor)]
            if others:
                found = CUDA if marked(others[0]) else CPU
            if found is None and name == "to":
                found = CUDA if ours else CPU
        if found is not None:
            return (CUDA if found.type == "cuda" else found), args
        return (CUDA if ours else CPU), args

    def _launched(self, func, args, kwargs, made):
        """A graph repeats the operation, into the tensors that it made while it was captured."""
        if STATE.graph is None:
            rocm_graphs.passes()
            return

        def again():
            new = func(*args, **kwargs)
            for old, value in zip(tree_leaves(made), tree_leaves(new), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != value.data_ptr():
                    old.copy_(value)

        STATE.graph.captured(again)


def _is_view(name, made, tensors):
    """Whether it made nothing but another view of what was there, or no tensor at all: no kernel ran."""
    if name == "__setitem__":
        return False
    leaves = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    return not name.endswith("_") and all(leaf.untyped_storage().data_ptr() in held for leaf in leaves)
