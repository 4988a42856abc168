"""As much of SGLang as the adapter imports, for machines that have none: names and defaults as SGLang 0.5.23 has them.
tests/common/engines/test_sglang.py runs the same tests with the real one where it can be imported."""

import enum
import importlib
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch


class ForwardMode(enum.IntEnum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY, DRAFT_EXTEND_V2 = range(1, 7)

    def is_decode(self):
        return self == ForwardMode.DECODE

    def is_idle(self):
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self):
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_extend_or_draft_extend_or_mixed(self):
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


class AttentionType(enum.Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class RadixAttention(torch.nn.Module):
    def __init__(
        self, num_heads, head_dim, scaling, num_kv_heads, layer_id, logit_cap=0.0, v_head_dim=-1,
        sliding_window_size=-1, is_cross_attention=False, pos_encoding_mode="NONE", logit_capping_method="tanh",
        attn_type=AttentionType.DECODER,
    ):  # fmt: skip
        super().__init__()
        self.tp_q_head_num, self.tp_k_head_num, self.tp_v_head_num = num_heads, num_kv_heads, num_kv_heads
        self.qk_head_dim, self.v_head_dim = head_dim, head_dim if v_head_dim == -1 else v_head_dim
        self.scaling, self.layer_id, self.logit_cap = scaling, layer_id, logit_cap
        self.sliding_window_size, self.is_cross_attention = sliding_window_size, is_cross_attention
        self.k_scale = self.v_scale = None
        self.attn_type, self.pos_encoding_mode = attn_type, pos_encoding_mode
        self.logit_capping_method, self.xai_temperature_len = logit_capping_method, -1


class AttentionBackend:
    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        pass

    def init_forward_metadata_in_graph(self, forward_batch):
        pass

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        one = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        return one(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


@dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None

    @classmethod
    def for_layer(cls, forward_batch, layer, *, swa_loc=None):
        return cls(forward_batch.out_cache_loc, swa_loc)


class SWAKVPool:
    pass


ATTENTION_BACKENDS: dict[str, Any] = {}
ATTENTION_BACKEND_CHOICES = ["triton", "fa3"]


def register_attention_backend(name):
    return lambda made: ATTENTION_BACKENDS.setdefault(name, made)


_HOLD = {
    "layers.attention.base_attn_backend": {"AttentionBackend": AttentionBackend},
    "layers.attention.attention_registry": {
        "ATTENTION_BACKENDS": ATTENTION_BACKENDS, "register_attention_backend": register_attention_backend,
    },
    "layers.radix_attention": {"AttentionType": AttentionType, "RadixAttention": RadixAttention},
    "mem_cache.memory_pool": {"KVWriteLoc": KVWriteLoc},
    "mem_cache.swa_memory_pool": {"SWAKVPool": SWAKVPool},
    "model_executor.forward_batch_info": {"ForwardMode": ForwardMode},
    "runtime_context": dict.fromkeys(("get_exec", "get_parallel", "get_schedule", "max_prefill_buffer_tokens")),
    "server_args": {
        "ATTENTION_BACKEND_CHOICES": ATTENTION_BACKEND_CHOICES,
        "add_attention_backend_choices": ATTENTION_BACKEND_CHOICES.extend,
    },
}  # fmt: skip


def modules() -> dict[str, types.ModuleType]:
    """By name, as sys.modules wants them."""
    made = {}
    for path, names in _HOLD.items():
        parts = ["sglang", "srt", *path.split(".")]
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        vars(made[".".join(parts)]).update(names)
    return made


def backend(monkeypatch, *, real=False):
    """For a fixture: common.engines.sglang_backend over these modules, or over SGLang's; a kernel is named, none
    compiled ahead."""
    for name, module in ({} if real else modules()).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("DIPTYCH_KERNEL", "triton/auto")
    monkeypatch.setenv("DIPTYCH_WARM", "none")
    monkeypatch.delitem(sys.modules, "common.engines.sglang_backend", raising=False)
    yield importlib.import_module("common.engines.sglang_backend")
    sys.modules.pop("common.engines.sglang_backend", None)
