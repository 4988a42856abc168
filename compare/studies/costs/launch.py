"""What a call does on the GPU: number of kernels, busy time, span, and memory.

A call is captured into a graph and replayed alone, with the device idle before and after, under torch's profiler.
`busy` also sums fills and copies; `span` runs from the first start to the last end: the difference is what a second
launch costs beyond its own time. Profiled times are hot and single, so they are not compared with those of compare.run.
Where the profiler records nothing there are no times, and `kernels` counts the nodes of the graph. `host_us` is what
the CPU takes to enqueue one eager launch (compare.studies.host). `scratch_bytes` is the workspace, allocated once by
the caller; `hidden_bytes` is what a launch allocates in addition. Scratch needs no GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from common.cases.trial import ready
from common.gpus import Gpu
from common.spec import SpecError
from common.spec.kernel import Capacity, asked_of
from compare.bench.subject import failure
from compare.competitors import registry
from compare.record.records import Status
from compare.studies.host import enqueue_us
from compare.workloads import Workload
from compare.workloads.workload import empty_output

# Count a captured graph's nodes through the driver: kernels a call, without a profiler.


LIBRARIES = {"cu": "libcuda.so.1", "hip": "libamdhip64.so"}  # prefix of their functions -> library
WORK = (0, 1, 2)  # node types kernel, copy, fill; events, waits and empty nodes are no work


class CannotCount(RuntimeError):
    """The driver is missing or refuses; the message says why."""


def _ask(function: Callable[..., int], *arguments: Any) -> None:
    if code := function(*arguments):
        raise CannotCount(f"{getattr(function, '__name__', 'driver')}: found error {code}, allowed 0")


def count(graph: int, load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """Kernels, copies and fills of a `cudaGraph_t` (`torch.cuda.CUDAGraph.raw_cuda_graph`). Raises CannotCount.

    Child graphs are ignored: a capture makes none.
    """
    vendor = "hip" if torch.version.hip else "cu"
    try:
        driver = load(LIBRARIES[vendor])
    except OSError as error:
        raise CannotCount(str(error)) from error
    get_nodes, get_type = (getattr(driver, f"{vendor}Graph{name}") for name in ("GetNodes", "NodeGetType"))
    handle, size = ctypes.c_void_p(graph), ctypes.c_size_t()
    _ask(get_nodes, handle, None, ctypes.byref(size))
    if not size.value:  # driver 580 refuses to fill an empty array
        return 0
    nodes, kind = (ctypes.c_void_p * size.value)(), ctypes.c_int()
    _ask(get_nodes, handle, nodes, ctypes.byref(size))
    found = 0
    for node in nodes:
        _ask(get_type, ctypes.c_void_p(node), ctypes.byref(kind))
        found += kind.value in WORK
    return found


DEVICE = "cuda"
REPLAYS = 20
HOST_CALLS = 100  # a round; a GPU queues 1024 launches, and a call has at most four


class NoProfile(RuntimeError):
    """The profile holds no kernel; the message says why."""


class TornProfile(RuntimeError):
    """The number of kernels in the profile is no multiple of the calls."""


def tensor_bytes(value: Any) -> int:
    """Bytes of the distinct storages inside a workspace: tensors, and dataclasses, dicts and sequences of them."""
    seen: dict[int, int] = {}
    left, visited = [value], set()
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            seen[storage._cdata] = storage.nbytes()
        elif id(item) in visited:
            continue
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            left += [getattr(item, field.name) for field in dataclasses.fields(item)]
        elif isinstance(item, dict):
            left += list(item.values())
        elif isinstance(item, list | tuple):
            left += list(item)
        visited.add(id(item))
    return sum(seen.values())


def scratch(kernel_id: str, row: Workload, gpu: Gpu, device: str = "cpu") -> dict[str, Any]:
    """The scratch of a kernel's default config on a workload; on the CPU nothing is filled."""
    found: dict[str, Any] = {"cost": "scratch", "kernel": kernel_id, "workload": row.label}
    try:
        kernel = registry.load(kernel_id)
        batch = row.batches(1, device, fill=False)[0]
        config, _ = registry.default_config(kernel_id, kernel, row.shape, row.stats, gpu)
        made = kernel.workspace(row.shape, Capacity.of(batch), config)
    except (registry.Unavailable, SpecError, RuntimeError) as error:
        said = failure(error)
        return found | {"status": str(said["status"]), "reason": said["reason"]}
    return found | {"status": "ok", "scratch_bytes": tensor_bytes(made)}


def spans(events: Sequence[tuple[float, float]], calls: int) -> dict[str, float]:
    """kernels, busy_us and span_us of a call, medians over calls; events: (start, duration) in us of every kernel.

    Raises TornProfile where the kernels are no multiple of the calls.
    """
    if not events or len(events) % calls:
        raise TornProfile(f"profile: found {len(events)} kernels in {calls} calls, allowed a multiple above 0")
    ordered, each = sorted(events), len(events) // calls
    groups = [ordered[i : i + each] for i in range(0, len(ordered), each)]
    busy = [sum(took for _, took in group) for group in groups]
    span = [max(start + took for start, took in group) - group[0][0] for group in groups]
    return {"kernels": each, "busy_us": statistics.median(busy), "span_us": statistics.median(span)}


def _recorded(run: Callable[[], None], activities: Sequence[Any]) -> list[tuple[float, float]]:
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(REPLAYS):
            run()
            torch.cuda.synchronize()
    return [
        (event.time_range.start, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.time_range.elapsed_us() > 0
    ]


def profiled(run: Callable[[], None]) -> list[tuple[float, float]]:
    """(start, duration) in us of every kernel of REPLAYS calls of `run`, with the device idle between calls.

    If tracing the device alone records nothing, the host is traced too: kineto sometimes drops device events that it
    cannot match to a host event. Raises NoProfile.
    """
    host, device = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
    for activities in ((device,), (host, device)):
        if found := _recorded(run, activities):
            return found
    raise NoProfile("torch's profiler recorded no kernel: CUPTI is missing, or may not be used here")


def captured(call: Callable[[], None]) -> tuple[Callable[[], None], dict[str, int]]:
    """Capture `call`; returns its replay and {"kernels": number of kernels, fills and copies}, empty if unknown."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        call()
    graph.instantiate()
    try:
        return graph.replay, {"kernels": count(graph.raw_cuda_graph())}
    except CannotCount:
        return graph.replay, {}


def launch(kernel_id: str, row: Workload, gpu: Gpu) -> dict[str, Any]:
    """Measure a kernel on a workload, on the GPU that is here.

    Without a profile the row is `unavailable` and lacks `busy_us` and `span_us`; the rest is measured.
    """
    found: dict[str, Any] = {"cost": "launch", "kernel": kernel_id, "workload": row.label, "gpu": gpu.name}
    try:
        return found | _measure(kernel_id, row, gpu)
    except Exception as error:  # any error becomes the kernel's row
        said = failure(error)
        return found | {"status": str(said["status"]), "reason": said["reason"]}


def _measure(kernel_id: str, row: Workload, gpu: Gpu) -> dict[str, Any]:
    kernel = registry.load(kernel_id)
    batch = row.batches(1, DEVICE)[0]
    features = row.features(batch)
    asked = {"needs": asked_of(batch, features), "sees": features.sees}
    config, origin = registry.default_config(kernel_id, kernel, row.shape, row.stats, gpu, **asked)
    made, out = ready(kernel, batch, features, config), empty_output(batch, features)

    def call() -> None:
        kernel.launch(batch, features, out, config, made)

    call()  # compiles
    found: dict[str, Any] = {"config_origin": origin, "timer": "eager", "hidden_bytes": hidden_bytes(call)}
    found |= {"scratch_bytes": tensor_bytes(made), "host_us": enqueue_us(call, HOST_CALLS)}
    run = call
    if "full_graph" in kernel.SUPPORTS:
        run, nodes = captured(call)
        found |= nodes | {"timer": "graph"}
    run()
    torch.cuda.synchronize()
    try:
        return {"status": str(Status.OK)} | found | spans(profiled(run), REPLAYS)
    except NoProfile as error:
        return {"status": str(Status.UNAVAILABLE), "reason": str(error)} | found


def hidden_bytes(call: Callable[[], None]) -> int:
    """The most bytes that one call allocates."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
