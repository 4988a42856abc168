"""torch as built for ROCm, on an MI300X: what it says of itself, tensors of a device `cuda`, streams, events, graphs.

Tensors of the device are tensors of the CPU that say otherwise: every operation of torch comes by `Device`, which keeps
the two apart and refuses what a GPU would. Calls of torch.cuda that are not here fail as in a build without a GPU.
"""

import contextlib
import itertools
import os
import random
from types import SimpleNamespace

import rocm_graphs
from rocm_graphs import STATE

UNITS, MEMORY = 304, 205_822_885_888  # bytes that an MI300X tells, 0.2% below its 192 GiB
PROPERTIES = SimpleNamespace(
    name="AMD Instinct MI300X",
    gcnArchName="gfx942:sramecc+:xnack-",
    major=9,
    minor=4,
    multi_processor_count=UNITS,
    total_memory=MEMORY,
    warp_size=64,
    L2_cache_size=4 << 20,
    shared_memory_per_block=64 << 10,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    is_integrated=0,
    is_multi_gpu_board=0,
    pci_domain_id=0,
    pci_bus_id=0x1D,
    pci_device_id=0,
    uuid="63386665-3539-3862-3636-393137373738",
)


def visible():
    """As ROCm's runtime does: an empty list hides nothing, and the first that is no device ends it."""
    named = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    return len(list(itertools.takewhile(lambda number: number.strip() == "0", named.split(","))))


def change(torch):
    from rocm_tensors import Device

    device = torch.device("cuda", 0)
    cuda = torch.cuda
    cuda.is_available = lambda: visible() > 0
    cuda.device_count = visible
    cuda.is_initialized = lambda: True
    cuda.current_device = lambda: 0
    cuda.set_device = lambda device: None
    cuda.get_device_properties = lambda device=None: PROPERTIES
    cuda.get_device_name = lambda device=None: PROPERTIES.name
    cuda.get_device_capability = lambda device=None: (PROPERTIES.major, PROPERTIES.minor)
    cuda.empty_cache = rocm_graphs.unless_capturing(lambda: None)
    cuda.set_per_process_memory_fraction = lambda share, device=None: None
    cuda.memory_reserved = cuda.memory_allocated = lambda device=None: 0
    cuda.mem_get_info = lambda device=None: (MEMORY, MEMORY)
    cuda.synchronize = rocm_graphs.unless_capturing(lambda device=None: None)
    cuda.Stream, cuda.Event, cuda.CUDAGraph = rocm_graphs.Stream, rocm_graphs.Event, rocm_graphs.Graph
    cuda.graph_pool_handle = lambda: (0, 1)
    cuda.current_stream = lambda device=None: STATE.stream
    cuda.default_stream = lambda device=None: rocm_graphs.DEFAULT
    cuda.stream = rocm_graphs.on_stream
    cuda.is_current_stream_capturing = lambda: STATE.graph is not None
    cuda.device = lambda device: contextlib.nullcontext()
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda device: STATE.stream.cuda_stream
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")

    class Generator(torch.Generator):
        def __new__(cls, device="cpu"):
            return super().__new__(cls, "cpu")

    torch.Generator = Generator
    random.seed(os.getpid())
    rocm_graphs.DEFAULT.device = device
    Device().__enter__()


def built(version):
    """Before the rest of torch is imported, which asks for it."""
    version.hip, version.cuda = "6.4.43484-123eb5128", None


AFTER = {"torch.version": built, "torch": change}
