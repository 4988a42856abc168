"""The child of `common.kit.isolate`: imports a kernel and calls it on tensors that it is given.

Run as a script by its path, so that a package `common` beside the kernel stays the kernel's. It holds no reference, no
tolerance and no verdict: the bytes of every tensor go back, and the parent judges them. Standard library and torch
only. `common/interpreter` is run, also by its path, before the kernel is imported, where argv names it.

Exchanges one JSON object a line over the socket argv[1]. `gpu`: whether torch finds one. `describe`: what the kernel
declares. `call`: read the tensors from a file into buffers that keep their addresses between calls, call the kernel,
and write them to another file; the descriptors of both come with the question. `look`: write them there once more.
"""

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import torch

INPUTS = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
HINTS = ("max_query_len", "max_seq_len", "num_decodes", "total_seq_len", "prompt_seq_len")
FEATURES = ("causal", "sliding_window", "softcap", "alibi_sqrt", "chunk", "chunk_lookback", "cross", "batch_invariant")
SCALES = ("key_scale", "value_scale", "query_scale", "out_scale")
OPERANDS = ("sinks", "alibi_slopes", "spans", "causal_per_sequence", "tree_bias", *SCALES)  # tensors
IMPLIED = {"cross", "batch_invariant"}  # a kernel may support these without being told
FLASH = {"causal", "sliding_window", "softcap", "sinks"} | IMPLIED  # its ALiBi differs: -slope |q - k|
_memory: dict[tuple[int, ...], list[torch.Tensor]] = {}  # sizes of the storages -> the buffers of a call
_workspaces: dict[Any, Any] = {}
_last: dict[str, Any] = {}  # what the last call wrote and returned
COMMON = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
JUDGE = tuple(os.path.join(COMMON, room, "") for room in ("oracle", "cases", "mutants"))
LOST = ("CUDA error", "HIP error")  # torch's errors for a dead context


class Declined(Exception):
    """What the kernel returned or lacks, in one sentence."""


def load(kernel: str) -> Any:
    """The object `package.module` or `package.module:name`."""
    path, _, attribute = kernel.partition(":")
    found = importlib.import_module(path)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found


def signature_of(target: Any) -> inspect.Signature:
    """The parameters of a target; of a module of torch those of `forward`, of TorchScript those of its schema. Raises
    TypeError or ValueError for an extension without any."""
    target = target.forward if isinstance(target, torch.nn.Module) else target
    schema = getattr(target, "schema", None)
    if not isinstance(schema, torch._C.FunctionSchema):
        return inspect.signature(target)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    of = {argument.name: argument for argument in schema.arguments if argument.name != "self"}
    default = {
        name: one.default_value if one.has_default_value() else inspect.Parameter.empty for name, one in of.items()
    }
    return inspect.Signature(
        [inspect.Parameter(name, kinds[one.kwarg_only], default=default[name]) for name, one in of.items()]
    )


def accepted(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The names of the parameters, and whether any other keyword is accepted."""
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset(), True
    return frozenset(p.name for p in parameters), any(p.kind is p.VAR_KEYWORD for p in parameters)


def ensure_computes(target: Any) -> None:
    """Raise TypeError for a target whose call computes nothing yet: a coroutine, or a generator."""
    for called in (target, getattr(target, "__call__", None), getattr(target, "launch", None)):  # noqa: B004
        for kind in ("coroutine", "asyncgen", "generator"):
            if getattr(inspect, f"is{kind}function")(called):
                raise TypeError(f"kernel: found a {kind} function, allowed one that computes before it returns")


def adapter_of(target: Any) -> str:
    """How to call a target: protocol, flash_attn_kvcache, flash_attn_varlen or paged."""
    ensure_computes(target)
    if hasattr(target, "launch") and hasattr(target, "workspace"):
        return "protocol"
    if not callable(target) or inspect.isclass(target):
        found = f"the class {target.__name__}" if inspect.isclass(target) else f"a {type(target).__name__}"
        raise TypeError(f"kernel: found {found}, allowed a callable object or a module with launch")
    names, _ = accepted(target)
    if {"cache_seqlens", "k_cache"} <= names:
        return "flash_attn_kvcache"
    return "flash_attn_varlen" if "cu_seqlens_q" in names else "paged"


def ensure_callable(target: Any) -> None:
    """Raise TypeError for a target that no call of the adapter `paged` can satisfy."""
    try:
        signature = signature_of(target)
    except (TypeError, ValueError):
        return
    offered = {*HINTS, *FEATURES, *OPERANDS, "softmax_scale", "out", "lse", "return_lse", "key", "value"}
    named = offered.intersection([*signature.parameters][len(INPUTS) :])
    try:
        signature.bind(*INPUTS, **dict.fromkeys(named))
    except TypeError as error:
        given = f"{', '.join(INPUTS)} by position, and by name softmax_scale, out, lse, hints and features"
        raise TypeError(f"{error}; a call gives {given}") from None


def declared(kernel: str, target: Any, name: str) -> Any:
    """What the callable, else its module, declares under `name`; None where neither does."""
    owners = (target, sys.modules.get(kernel.partition(":")[0]))
    return next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)


def _plain(value: Any) -> Any:
    """The value for JSON; unsupported types become text, so that the parent can show them."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)[:80]


def without_lse(target: Any, adapter: str) -> bool:
    """Whether a target may be called without an LSE: it has no parameter `lse`, or one whose default is None."""
    try:
        parameter = signature_of(target).parameters.get("lse") if adapter == "paged" else None
    except (TypeError, ValueError):
        parameter = None
    return parameter is None or parameter.default is None


COMPILED = ("JITFunction", "InterpretedFunction", "Autotuner", "Heuristics", "Kernel")  # of Triton and Helion
_OTHERS = ("triton", "helion", "torch", "diptych_interpreter")  # packages whose own kernels do not count


def interpreted() -> bool:
    """Whether Triton's interpreter runs here and an imported module contains a kernel of Triton or Helion."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return False
    theirs = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] not in _OTHERS]
    kinds = {type(value) for module in theirs for value in list(getattr(module, "__dict__", {}).values())}
    # A class that defines `__module__` for its objects has a descriptor there, not text.
    return any(str(k.__module__).partition(".")[0] in _OTHERS[:2] and k.__name__ in COMPILED for k in kinds)


def describe(kernel: str, adapter: str) -> dict[str, Any]:
    """Plain values: adapter, supports, limits, contract, version."""
    return described(kernel, load(kernel), adapter)


def described(kernel: str, target: Any, adapter: str) -> dict[str, Any]:
    """`describe` of a target that is here."""
    supports, limits, contract = (declared(kernel, target, name) for name in ("SUPPORTS", "LIMITS", "CONTRACT"))
    if not isinstance(contract, dict | str | None):  # Diptych's Precision, or a similar class
        contract = getattr(contract, "__dict__", repr(contract))
    adapter = adapter_of(target) if adapter == "auto" else adapter
    if adapter == "paged":
        ensure_callable(target)
    return {
        "adapter": adapter,
        "without_lse": without_lse(target, adapter),
        "supports": _plain(supports),
        "limits": {} if limits is None else _plain(limits),
        "contract": {} if contract is None else _plain(contract),
        "interpreted": interpreted(),
        "torch": torch.__version__,
    }


def buffers(request: dict[str, Any]) -> list[torch.Tensor]:
    """A byte tensor for each storage, with the file's content, at the addresses of the last call of these sizes."""
    sizes = tuple(request["storages"])
    if sizes not in _memory:
        _memory.clear()
        _memory[sizes] = [torch.empty(max(size, 1), dtype=torch.uint8, device=request["device"]) for size in sizes]
    with open(request["inputs"], "rb", closefd=False) as file:
        file.seek(0)
        for size, buffer in zip(sizes, _memory[sizes], strict=True):
            if size:
                buffer.copy_(torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8))
    return _memory[sizes]


def views(request: dict[str, Any], memory: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, (storage, dtype, shape, stride, offset) in request["tensors"].items():
        empty = torch.empty(0, dtype=getattr(torch, dtype), device=memory[storage].device)
        found[name] = empty.set_(memory[storage].untyped_storage(), offset, shape, stride)
    return found


def asked_for(t: dict[str, torch.Tensor], call: dict[str, Any]) -> dict[str, Any]:
    """What a case asks for beyond plain causal attention."""
    on = {name: call[name] for name in FEATURES if (call[name] is False if name == "causal" else call[name])}
    return on | {name: t[name] for name in OPERANDS if name in t}


def paged(target: Any, t: dict[str, torch.Tensor], call: dict[str, Any]) -> Any:
    """Call target(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, the keywords that it
    accepts)."""
    names, anything = accepted(target)
    asked = asked_for(t, call)
    if missing := set() if anything else set(asked) - names - IMPLIED:
        raise Declined(f"SUPPORTS names {', '.join(sorted(missing))}, and there is no parameter of that name")
    offered = {name: call[name] for name in ("softmax_scale", *HINTS, *FEATURES)}
    offered |= {name: t[name] for name in ("out", "lse", "key", "value") if name in t}
    if "lse" in t:
        if not anything and not names & {"lse", "return_lse"}:
            raise Declined("SUPPORTS names lse, and there is no parameter lse to write to, and no return_lse")
        offered["return_lse"] = True
    needed = names if not anything else names | set(asked) | {"softmax_scale", "out", "lse"}
    options = {name: value for name, value in (asked | offered).items() if name in needed}
    return target(*(t[name] for name in INPUTS), **options)


def _flash_options(t: dict[str, torch.Tensor], call: dict[str, Any], names: frozenset[str], anything: bool) -> dict:
    """The arguments shared by FlashAttention's two calls; its window excludes the query's own key."""
    if missing := sorted(set(asked_for(t, call)) - FLASH):
        raise NotImplementedError(f"FlashAttention's call has no argument for {', '.join(missing)}")
    window = call["sliding_window"]
    left = -1 if window is None else window - 1
    both = (left, 0 if call["causal"] and window is not None else left)
    options = {"softmax_scale": call["softmax_scale"], "causal": call["causal"], "window_size": both}
    options |= {"softcap": call["softcap"]} if call["softcap"] else {}
    if "sinks" in t:
        options["s_aux" if "s_aux" in names or anything else "sinks"] = t["sinks"]
    if "lse" in t:
        options["return_softmax_lse"] = True
    return options


def _flash_result(found: Any, with_lse: bool) -> Any:
    """FlashAttention's LSE is [heads, tokens]; ours is [tokens, heads]."""
    out, *rest = found if isinstance(found, tuple) else (found,)
    return (out, rest[0].t()) if with_lse and rest else out


def flash_attn_varlen(target: Any, t: dict[str, torch.Tensor], call: dict[str, Any]) -> Any:
    names, anything = accepted(target)
    options = _flash_options(t, call, names, anything)
    options |= {"cu_seqlens_q": t["query_start_loc"], "block_table": t["block_table"]}
    options |= {"max_seqlen_q": call["max_query_len"], "max_seqlen_k": call["max_seq_len"]}
    if "seqused_k" in names or anything:
        options["seqused_k"] = t["seq_lens"]
    else:
        options["cu_seqlens_k"] = torch.nn.functional.pad(t["seq_lens"].cumsum(0, dtype=torch.int32), (1, 0))
    return _flash_result(target(t["query"], t["key_cache"], t["value_cache"], **options), "lse" in t)


def flash_attn_kvcache(target: Any, t: dict[str, torch.Tensor], call: dict[str, Any]) -> Any:
    names, anything = accepted(target)
    options = _flash_options(t, call, names, anything) | {"cache_seqlens": t["seq_lens"]}
    options["page_table" if "page_table" in names else "block_table"] = t["block_table"]
    if "cu_seqlens_q" in names or anything:
        options |= {"cu_seqlens_q": t["query_start_loc"], "max_seqlen_q": call["max_query_len"]}
        return _flash_result(target(t["query"], t["key_cache"], t["value_cache"], **options), "lse" in t)
    starts = t["query_start_loc"].tolist()
    if {b - a for a, b in itertools.pairwise(starts)} - {1}:
        raise NotImplementedError("without cu_seqlens_q this call takes one query token a sequence")
    tokens = starts[-1]
    found = target(t["query"][:tokens, None], t["key_cache"], t["value_cache"], **options)
    out, lse = (*found, None)[:2] if isinstance(found, tuple) else (found, None)
    return (out.squeeze(1), lse.squeeze(-1)) if "lse" in t else out.squeeze(1)


def protocol(target: Any, t: dict[str, torch.Tensor], call: dict[str, Any]) -> None:
    """Call a kernel of Diptych's Protocol with the types that it imported; its workspace is kept, as in servers."""
    try:
        spec, kernel, metadata = (sys.modules[f"common.spec{name}"] for name in ("", ".kernel", ".metadata"))
    except KeyError as error:
        raise Declined("launch: the kernel imports no common.spec of Diptych; pass a plain function instead") from error
    stats = metadata.BatchStats(**call["stats"])
    new = {name: t[name] for name in ("key", "value") if name in t}
    layout = spec.Layout(call["layout"])
    batch = spec.PagedBatch(*(t[name] for name in INPUTS), call["softmax_scale"], stats, layout, **new)
    features = spec.Features(**{"causal": True} | asked_for(t, call))
    capacity, config = kernel.Capacity.of(batch), target.DEFAULT
    key = (id(target), batch.shape, capacity)
    if key not in _workspaces:
        _workspaces[key] = target.workspace(batch.shape, capacity, config)
    workspace = _workspaces[key]
    if hasattr(target, "prepare"):
        workspace = target.prepare(batch, features, config, workspace)
    target.launch(batch, features, t["out"], config, workspace, lse=t.get("lse"))


ADAPTERS = {f.__name__: f for f in (paged, flash_attn_varlen, flash_attn_kvcache, protocol)}


def returned(found: Any, target: Any) -> tuple[Any, Any]:
    """What a call gave back as `out` and LSE; None for what it wrote in place. Behind these two others may stand. A
    status or a handle, from a target that is given `out`, is no result. Raises Declined for a list or the like, which
    a caller can take for neither."""
    plain = isinstance(found, tuple) and type(found).__iter__ is tuple.__iter__  # another's could compute now
    out, lse = (*found, None, None)[:2] if plain else (found, None)
    if isinstance(out, Iterable | Awaitable) and not isinstance(out, torch.Tensor | str):
        raise Declined(
            f"out: found a {type(out).__name__}, allowed None, a torch.Tensor, or a tuple that begins with it"
        )
    names, anything = accepted(target)
    return (out if isinstance(out, torch.Tensor) or not (anything or "out" in names) else None), lse


def forms(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    """What a call must leave of each tensor beside its elements: where they lie, and as what."""
    found = ((name, x, x.untyped_storage()) for name, x in tensors.items())
    return {name: (x.data_ptr(), x.dtype, x.shape, x.stride(), memory.nbytes()) for name, x, memory in found}


def modes() -> tuple[Any, ...]:
    """What of torch outlives a call and is no tensor: a mode that is still on could compute when it is looked at."""
    counts = (getattr(torch._C, f"_len_torch_{kind}_stack", int)() for kind in ("function", "dispatch"))
    return torch.get_default_dtype(), *counts


def ensure_left(tensors: dict[str, torch.Tensor], before: dict[str, tuple[Any, ...]], on: tuple[Any, ...]) -> None:
    """Raises Declined where a kernel resized, transposed or moved a tensor of its call, or left other `modes`."""
    if modes() != on:
        raise Declined("left torch in another mode, or with another default dtype, than before the call")
    after = forms(tensors)
    if changed := [name for name, form in before.items() if after[name] != form]:
        raise Declined(f"changed the shape, the strides or the memory of {', '.join(changed)}")


def keep(name: str, found: Any, into: torch.Tensor, tokens: int) -> None:
    """Copy the kernel's result into the tensor that goes back. Raises Declined where it is no such tensor."""
    if type(found) is not torch.Tensor:
        raise Declined(f"{name}: found a {type(found).__name__}, allowed a torch.Tensor and no class derived of it")
    if found.dtype != into.dtype or found.device != into.device:
        raise Declined(f"{name}: found {found.dtype} on {found.device}, allowed {into.dtype} on {into.device}")
    if found.shape[1:] != into.shape[1:] or not tokens <= found.shape[0] <= into.shape[0]:
        raise Declined(f"{name}: found shape {tuple(found.shape)}, allowed {tuple(into.shape)}")
    if found.data_ptr() != into.data_ptr():
        into[:tokens].copy_(found[:tokens])


def call(request: dict[str, Any]) -> dict[str, Any]:
    memory = buffers(request)
    t = views(request, memory)
    target, before, on = load(request["kernel"]), forms(t), modes()
    found = ADAPTERS[request["adapter"]](target, dict(t), request["call"])
    ensure_left(t, before, on)
    results = dict(zip(("out", "lse"), returned(found, target), strict=True))
    cuda = memory[0].is_cuda
    if cuda:
        torch.cuda.current_stream().synchronize()  # only this stream: work that nobody waits for is not done
    _last.update(t=t, memory=memory, results=results, tokens=int(t["query_start_loc"][-1]))
    send(request)
    if cuda:
        torch.cuda.synchronize()
    return {"status": "ok"}


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Send what the last call wrote and returned once more, as it is now."""
    if not _last:
        return {"status": "crash", "reason": "ended its process behind the call"}
    send(request)
    return {"status": "ok"}


def send(request: dict[str, Any]) -> None:
    """Write the tensors of the last call to the file of outputs."""
    t, memory = _last["t"], _last["memory"]
    for name, tensor in _last["results"].items():
        if tensor is not None and name in t:
            keep(name, tensor, t[name], _last["tokens"])
    with open(request["outputs"], "wb", closefd=False) as file:
        for size, buffer in zip(request["storages"], memory, strict=True):
            file.write(memoryview(buffer[:size].cpu().numpy()))


def failed(error: BaseException) -> dict[str, Any]:
    """The status of an exception, and a reason of one line."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if isinstance(error, Declined):
        return {"status": "incorrect", "reason": str(error)}
    if isinstance(error, NotImplementedError) or hasattr(error, "argument"):
        return {"status": "unsupported", "reason": reason, "argument": str(getattr(error, "argument", ""))}
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    return {"status": "oom" if memory else "crash", "reason": reason}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["ask"] == "gpu":
            return {"status": "ok", "gpu": torch.cuda.is_available()}
        if request["ask"] == "describe":
            return {"status": "ok"} | describe(request["kernel"], request["adapter"])
        return look(request) if request["ask"] == "look" else call(request)
    except BaseException as error:  # includes SystemExit: a kernel may not end the run
        return failed(error)


def limit_memory(num_bytes: int) -> None:
    """Limit this process, on a CPU, to so many bytes beyond the imports. A GPU's driver reserves unbounded address
    space."""
    import resource

    with open("/proc/self/statm") as file:
        here = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (here + num_bytes, here + num_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watching(tell: Callable[[bytes], Any]) -> Callable[[str, tuple[Any, ...]], None]:
    """Python's audit hook, which tells at once which of the judge's files are opened, imported or read: what is kept
    here, or found here by its name, a kernel could change."""
    real, decoded, split, judge = os.path.realpath, os.fsdecode, os.path.split, JUDGE
    within, told, dumps = len(os.path.dirname(COMMON)) + 1, set(), json.dumps

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = real(decoded(arguments[0]))
            if path.startswith(judge):
                folder, name = split(path)
                if folder.endswith("__pycache__"):
                    path = f"{split(folder)[0]}/{name.partition('.')[0]}.py"
                if path not in told:
                    told.add(path)
                    tell(dumps({"read": path[within:]}).encode() + b"\n")

    return watch


def questions(channel: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield each question with its descriptors, as `inputs` and `outputs`; they are closed after its answer."""
    heard, files = b"", []
    while True:
        while b"\n" not in heard:
            some, came, _, _ = socket.recv_fds(channel, 1 << 16, 2)
            if not some:
                return
            heard, files = heard + some, files + came
        line, heard = heard.split(b"\n", 1)
        yield json.loads(line) | dict(zip(("inputs", "outputs"), files, strict=False))
        for file in files:
            with contextlib.suppress(OSError):
                os.close(file)
        files = []


def main() -> None:
    channel, interpreter, num_bytes, me = socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:4], os.getpid()
    sys.addaudithook(watching(channel.sendall))  # before any file of the kernel's folder can run
    if interpreter:
        spec = importlib.util.spec_from_file_location("diptych_interpreter", interpreter)
        repairs = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(repairs)
        repairs.install()
    if int(num_bytes) and os.path.exists("/proc/self/statm"):
        limit_memory(int(num_bytes))
    sys.path.insert(0, os.getcwd())  # a file resource.py there is the kernel's own alone
    for request in questions(channel):
        channel.sendall(json.dumps({"status": "begun", "nonce": request["nonce"]}).encode() + b"\n")
        reply = answer(request)
        if os.getpid() != me:
            os._exit(0)  # a fork of the kernel returned from the call
        channel.sendall(json.dumps(reply | {"nonce": request["nonce"]}).encode() + b"\n")
        if reply["status"] == "crash" and any(words in reply["reason"] for words in LOST):
            os._exit(3)  # the parent starts another process


if __name__ == "__main__":
    main()
