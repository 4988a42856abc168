"""As much of vLLM as the adapter imports, for machines that have none: names and defaults as vLLM 0.25.1 and 0.33 have
them. tests/common/engines/test_vllm.py runs the same tests with the real one where it is installed."""

import enum
import importlib
import sys
import types
from abc import ABC
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class AttentionType(enum.StrEnum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class AttentionCGSupport(enum.Enum):
    ALWAYS, UNIFORM_BATCH, UNIFORM_SINGLE_TOKEN_DECODE, NEVER = 3, 2, 1, 0


class MultipleOf:
    def __init__(self, base: int) -> None:
        self.base = base


class AttentionBackend(ABC):  # noqa: B024 - as vLLM's
    pass


class AttentionImpl(ABC, Generic[T]):
    pass


class AttentionMetadataBuilder(ABC, Generic[T]):
    reorder_batch_threshold: int | None = None

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    def _init_reorder_batch_threshold(self, threshold: int = 1, supports_spec_as_decode: bool = False) -> None:
        self.reorder_batch_threshold = threshold


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True
    seq_lens_cpu_upper_bound: torch.Tensor | None = None  # 0.33
    _seq_lens_cpu: torch.Tensor | None = None


class AttentionBackendEnum(enum.Enum):
    CUSTOM = None


registered: dict[Any, str] = {}


def modules() -> dict[str, types.ModuleType]:
    """By name, as sys.modules wants them."""
    backend = types.ModuleType("vllm.v1.attention.backend")
    for one in (AttentionType, AttentionCGSupport, MultipleOf, AttentionBackend, AttentionImpl,
                AttentionMetadataBuilder, CommonAttentionMetadata):  # fmt: skip
        setattr(backend, one.__name__, one)
    config = types.ModuleType("vllm.config")
    config.get_current_vllm_config = lambda: None
    registry = types.ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = AttentionBackendEnum
    registry.register_backend = registered.__setitem__
    empty = ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends")
    return {
        **{name: types.ModuleType(name) for name in empty},
        "vllm.config": config, "vllm.v1.attention.backend": backend, registry.__name__: registry,
    }  # fmt: skip


def install() -> None:
    sys.modules.update(modules())


def backend(monkeypatch, *, real=False):
    """For a fixture: common.engines.vllm_backend over these modules, or over vLLM's; a kernel is named, none compiled
    ahead."""
    for name, module in ({} if real else modules()).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("DIPTYCH_KERNEL", "triton/auto")
    monkeypatch.setenv("DIPTYCH_WARM", "none")
    monkeypatch.delitem(sys.modules, "common.engines.vllm_backend", raising=False)
    yield importlib.import_module("common.engines.vllm_backend")
    sys.modules.pop("common.engines.vllm_backend", None)


class Config(types.SimpleNamespace):
    """What the adapter reads of an engine's config, which may be referred to weakly."""


def config(page: int, most_keys: int, dtype: torch.dtype = torch.float32) -> Config:
    """An engine of 64 tokens and 4 sequences a step, on a CPU."""
    return Config(
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=4),
        model_config=types.SimpleNamespace(max_model_len=most_keys, dtype=dtype),
        device_config=types.SimpleNamespace(device=torch.device("cpu")),
        cache_config=types.SimpleNamespace(block_size=page, num_gpu_blocks=None),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1),
        speculative_config=None,
    )


def metadata(batch, lens, slots: torch.Tensor, padding: int = 0):
    """vLLM's own metadata of a step; tokens and sequences of padding behind, as a full graph has them."""
    starts = torch.cat([batch.query_start_loc, batch.query_start_loc[-1:].expand(padding)])
    table = torch.cat([batch.block_table, batch.block_table.new_zeros(padding, batch.block_table.shape[1])])
    return sys.modules["vllm.v1.attention.backend"].CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts.clone(),
        seq_lens=torch.cat([batch.seq_lens, batch.seq_lens.new_zeros(padding)]), num_reqs=len(lens) + padding,
        num_actual_tokens=len(slots), max_query_len=max(query for query, _ in lens),
        max_seq_len=max(keys for _, keys in lens), slot_mapping=slots,
        block_table_tensor=table,
    )  # fmt: skip
