"""Stand-ins for packages that baselines call: what each is given goes through the reference, and is kept."""

import sys
from types import ModuleType, SimpleNamespace

import torch

from common.cases.named import BY_NAME
from common.cases.trial import Trial, ready
from common.oracle.reference import reference
from common.spec import Features, PagedBatch
from common.spec.metadata import BatchStats, lens_of

HERE = "compare.competitors.baselines."
KERNEL_FILE = """\
import torch

import vllm.envs as envs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.v1.attention.ops.triton_attention_helpers import helped
from vllm.v1.kv_cache_interface import KVQuantMode

logger = init_logger(__name__)
float8_info = torch.finfo(current_platform.fp8_dtype())
calls = []


@triton.jit
def kernel(pointer, SIZE: tl.constexpr):
    tl.store(pointer + tl.arange(0, SIZE), tl.zeros([SIZE], tl.float32))


def unified_attention(*, kv_quant_mode=KVQuantMode.NONE, **given):
    assert not envs.VLLM_BATCH_INVARIANT and not current_platform.is_device_capability_family(100)
    calls.append(given)
    helped(given)
"""


def keeps(kernel, case_name):
    """One launch on a named case, judged without lse, which no baseline gives."""
    trial, config = Trial.of(BY_NAME[case_name], lse=False), kernel.DEFAULT
    scratch = ready(kernel, trial.batch, trial.features, config)
    if hasattr(kernel, "prepare"):
        assert kernel.prepare(trial.batch, trial.features, config, scratch) is scratch  # other values: nothing new
    kernel.launch(trial.batch, trial.features, trial.out, config, scratch)
    found = trial.judge(kernel.CONTRACT)
    assert found.ok, found.reason


def attend(query, caches, table, starts, lens, scale, features, out):
    """`out` from the float64 reference; lens: int32 on the host or the device."""
    stats = BatchStats.of(tuple(lens_of(starts, lens)))
    batch = PagedBatch(query, *caches, table, starts, lens, scale, stats)
    found = reference(batch, features)
    out[: found.num_tokens] = found.out.to(out.dtype)


def vllm_attend(given):
    """What `unified_attention` was asked, by the names of its arguments."""
    window = given["window_size"][0] + 1 or None
    features = Features(bool(given["causal"]), window, given["softcap"] or None, given["sinks"])
    caches = given["k"], given["v"]
    rest = given["block_table"], given["cu_seqlens_q"], given["seqused_k"], given["softmax_scale"]
    attend(given["q"], caches, *rest, features, given["out"])


def write_vllm(folder, package):
    """The two files of a bare package; the helper calls `fake_libraries`."""
    home = folder / package
    home.mkdir()
    (home / "triton_unified_attention.py").write_text(KERNEL_FILE)
    (home / "triton_attention_helpers.py").write_text("from fake_libraries import vllm_attend as helped\n")
    return home


class Wrapper:
    """FlashInfer's wrappers: `plan` keeps the pages, `run` attends over them."""

    def __init__(self, scratch, layout, **options):
        assert (scratch.dtype, layout) == (torch.uint8, "NHD")
        self.options = options

    def plan(self, *arguments, causal=True, window_left=-1, logits_soft_cap=0.0, sm_scale, q_data_type, kv_data_type):
        *pages, heads, kv_heads, _head_size, self.page_size = arguments
        assert heads % kv_heads == 0 and q_data_type is kv_data_type
        self.groups = [pages[i : i + 4] for i in range(0, len(pages), 4)]
        self.features = Features(causal, window_left + 1 or None, logits_soft_cap or None)
        self.scale = sm_scale

    def attend(self, group, query, caches, out):
        starts, indptr, indices, last = group
        counts = indptr.diff()
        table = torch.zeros(len(counts), max(int(counts.max()), 1), dtype=torch.int32)
        for i, row in enumerate(table):
            row[: counts[i]] = indices[indptr[i] : indptr[i + 1]]
        lens = ((counts - 1).clamp(min=0) * self.page_size + last).int()
        attend(query, caches, table, starts, lens, self.scale, self.features, out)
        return out

    def run(self, query, caches, *, out):
        self.attend(self.groups[0], query, caches, out)


class DecodeWrapper(Wrapper):
    def plan(self, indptr, *arguments, **options):
        super().plan(torch.arange(len(indptr), dtype=torch.int32), indptr, *arguments, **options)


class PodWrapper(Wrapper):
    def run(self, *given, causal_p):
        assert causal_p
        pairs = zip(self.groups, (given[:2], given[2:]), strict=True)
        return tuple(self.attend(group, query, caches, torch.empty_like(query)) for group, (query, caches) in pairs)


def flashinfer():
    """A module with the three wrappers."""
    module = ModuleType("flashinfer")
    module.__file__ = "fake"
    module.BatchPrefillWithPagedKVCacheWrapper = Wrapper
    module.BatchDecodeWithPagedKVCacheWrapper = DecodeWrapper
    module.BatchPODWithPagedKVCacheWrapper = PodWrapper
    return module


def varlen(module, name):
    """`module.name` with FlashAttention's signature over pages, as FlagGems has it."""

    def call(q, k, v, most_queries, starts, most_keys, *, seqused_k, softmax_scale, causal, window_size, softcap,
             block_table, out, fa_version):  # fmt: skip
        features = Features(causal, window_size[0] + 1 or None, softcap or None)
        attend(q, (k, v), block_table, starts, seqused_k, softmax_scale, features, out)

    setattr(module, name, call)
    return module


def flash_attn3():
    """vLLM's interface of FlashAttention 3: keeps what its calls were given in `calls`."""
    module = ModuleType("vllm_fa3.flash_attn_interface")
    module.__file__, module.FA3_AVAILABLE, module.calls = "fake", True, []

    def schedule(**given):
        if given["headdim"] > 256:
            raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
        return torch.zeros(1)

    def call(q, k, v, most_queries, starts, most_keys, *, seqused_k, softmax_scale, causal, window_size, softcap,
             block_table, out, num_splits, fa_version, scheduler_metadata, **descales):  # fmt: skip
        if q.dtype != k.dtype:
            raise RuntimeError("query and key must have the same dtype\nand more")
        given = {name: descales.get(f"{name}_descale") for name in "qkv"}
        scales = [None if one is None else one[0] for one in (given["k"], given["v"])]
        asked = {"query_scale": None if given["q"] is None else given["q"][0, :1]}
        features = Features(causal, window_size[0] + 1 or None, softcap or None, key_scale=scales[0],
                            value_scale=scales[1], **asked)  # fmt: skip
        module.calls.append(descales)
        attend(q, (k, v), block_table, starts, seqused_k, softmax_scale, features, out)

    module.get_scheduler_metadata, module.flash_attn_varlen_func = schedule, call
    return module


def pretend_gpu(monkeypatch, vendor="nvidia"):
    """torch says that a Hopper, or an AMD GPU, is here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0" if vendor == "nvidia" else None)
    monkeypatch.setattr(torch.version, "hip", None if vendor == "nvidia" else "6.4")


def forget(monkeypatch, *names):
    """Modules that a test imports anew, and that nobody keeps afterwards."""
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
        parent, _, child = name.rpartition(".")
        monkeypatch.delattr(sys.modules.get(parent, SimpleNamespace()), child, raising=False)
