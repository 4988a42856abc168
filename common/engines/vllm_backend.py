"""vLLM's attention backend: what it serves, a step's metadata, a layer's call.

KV caches of both generations are read in place, as strided views: [blocks, 2, page, KV heads, head size] (vLLM 0.25)
and [blocks, KV heads, page, K's lanes and V's] (0.33).
"""

import os
import weakref
from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from common.engines.options import Options, kernel_of
from common.engines.server import Limits, Server, Step, capturing, counted
from common.serving.plan import Plan
from common.spec import AttentionShape, Features, SpecError, UnsupportedFeature
from common.spec.paged_batch import MAX_HEAD_SIZE

FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
PER_TOKEN = {"int8_per_token_head": torch.int8, "fp8_per_token_head": torch.float8_e4m3fn}  # scales behind their lanes
EIGHT_BITS = FP8 | PER_TOKEN
PLAIN = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16}  # None: the model's
_servers: dict[int, tuple[Any, Server]] = {}  # by id of the engine's config, which is not hashable


def server_of(config: Any) -> Server:
    """The server of the engine that a config belongs to; made at its first layer."""
    for key, (alive, _) in list(_servers.items()):
        if alive() is None:
            del _servers[key]
    known = _servers.get(id(config))
    if known is None:
        place = torch.empty(0).device if config.device_config is None else config.device_config.device
        made = Server(Options.of(), limits_of(config), torch.empty(0, device=place).device)
        known = _servers[id(config)] = weakref.ref(config), made
    return known[1]


def limits_of(config: Any) -> Limits:
    """The limits of an engine's steps. Chunked attention makes a sequence of each chunk that contains new tokens."""
    tokens, seqs = config.scheduler_config.max_num_batched_tokens, config.scheduler_config.max_num_seqs
    if chunk := getattr(config.model_config, "attention_chunk_size", None):
        seqs = 2 * seqs + tokens // chunk  # q tokens touch at most 2 + (q - 2) // chunk chunks
    return Limits(tokens, seqs, config.model_config.max_model_len)


def lengths_of(step: CommonAttentionMetadata) -> torch.Tensor | None:
    """The lengths of a step on the host: an upper bound that counts drafts as accepted (vLLM 0.33), or a copy (older).
    None where there is neither: `seq_lens_cpu` would wait for the device."""
    for name in ("seq_lens_cpu_upper_bound", "_seq_lens_cpu"):
        lengths = getattr(step, name, None)
        if lengths is not None and lengths.shape[0] == step.num_reqs:
            return lengths
    return None


class MetadataBuilder(AttentionMetadataBuilder[Step]):
    """Makes a step's metadata. Full graphs hold decodes, verifications of one length or, where vLLM is asked for them
    (cudagraph_mode FULL), any mixture; else batches with prompts run between partial graphs."""

    supports_update_block_table: bool = True
    requires_block_table_width: ClassVar[bool] = True

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
        block_table_width: int | None = None,
    ) -> None:
        """block_table_width: columns of the block tables, which vLLM 0.33 tells."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        if block_table_width is not None:
            server_of(vllm_config).table_widths[kv_cache_spec.block_size] = block_table_width

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """NEVER where a kernel's grid depends on the lengths of the step."""
        full = "full_graph" in kernel_of(Options.of().kernel).supports
        return AttentionCGSupport.ALWAYS if full else AttentionCGSupport.NEVER

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Step:
        step = common_attn_metadata
        if step.causal is not True:
            raise UnsupportedFeature("diptych", "non_causal", "causal attention of a decoder")
        starts = step.query_start_loc_cpu
        query_lens = None if step.max_query_len == 1 else starts[1:] - starts[:-1]
        return Step(
            step.num_actual_tokens, int(step.max_query_len), int(step.max_seq_len),
            *counted(step.num_reqs, query_lens, lengths_of(step)),
            step.query_start_loc, step.seq_lens, step.block_table_tensor, step.slot_mapping,
        )  # fmt: skip

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Step:
        """A graph keeps the choice that it was captured with: for a typical length, not for the longest."""
        found, blocks = self.build(0, common_attn_metadata), self.vllm_config.cache_config.num_gpu_blocks
        held = None if blocks is None else blocks * self.kv_cache_spec.block_size
        length = server_of(self.vllm_config).captured_seq_len(common_attn_metadata.num_reqs, held)
        decodes = found.num_decodes if found.max_query_len == 1 else 0  # a graph of prompts serves any mixture
        return replace(found, max_seq_len=length, num_decodes=decodes, total_seq_len=None, prompt_seq_len=None)

    def update_block_table(self, metadata: Step, blk_table: torch.Tensor, slot_mapping: torch.Tensor) -> Step:
        return replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)


def supporting(feature: str) -> classmethod:
    """A class method that says whether the engine's kernel has a feature."""
    return classmethod(lambda cls: feature in kernel_of(Options.of().kernel).supports)


class DiptychBackend(AttentionBackend):
    """What vLLM asks before it takes a backend; what is not supported is refused at start, by name."""

    accept_output_buffer: bool = True
    forward_includes_kv_cache_update: bool = (
        False  # so that partial graphs contain the write, which then costs no launch on the host
    )
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = [*PLAIN, *EIGHT_BITS]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> "type[Impl]":
        return Impl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """vLLM 0.25's shape; newer versions lay the cache out themselves."""
        return num_blocks, 2, block_size, num_kv_heads, head_size + scale_lanes(cache_dtype_str)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Layers behind the blocks, where the engine puts all layers into one tensor."""
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        orders = {"NHD": ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4, 5)), "HND": ((0, 1, 3, 2, 4), (1, 4, 0, 2, 3, 5))}
        return orders[get_kv_cache_layout()][include_num_layers_dimension]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= MAX_HEAD_SIZE

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    supports_sink = supporting("sinks")
    supports_alibi_sqrt = supporting("alibi_sqrt")
    supports_batch_invariance = supporting("batch_invariant")
    supports_sliding_window = supporting("sliding_window")

    @classmethod
    def supports_combination(cls, *args: Any, **kwargs: Any) -> str | None:
        """Refuse an unknown kernel when a backend is chosen."""
        try:
            kernel_of(Options.of().kernel)
        except (SpecError, ImportError) as error:
            return str(error)
        return None

    @staticmethod
    def use_cascade_attention(*args: Any, **kwargs: Any) -> bool:
        return False


class Impl(AttentionImpl[Step]):
    """The attention of one layer. Raises SpecError or UnsupportedFeature at construction, for what no step could
    serve."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        use_alibi_sqrt: bool = False,
        **others: Any,
    ) -> None:
        config = get_current_vllm_config()
        for name, value in others.items():
            raise UnsupportedFeature("diptych", name, f"a layer without it, not {value!r}")
        if attn_type != AttentionType.DECODER:
            raise UnsupportedFeature("diptych", f"attn_type {attn_type}", AttentionType.DECODER)
        if kv_cache_dtype not in (*PLAIN, *EIGHT_BITS):
            raise SpecError("kv_cache_dtype", kv_cache_dtype, ", ".join((*PLAIN, *EIGHT_BITS)))
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if (found := getattr(config.parallel_config, name, 1)) > 1:
                raise UnsupportedFeature("diptych", f"{name} {found}", "1")
        if getattr(config.model_config, "rswa_window", None) is not None:
            raise UnsupportedFeature("diptych", "rswa_window: prompts outside of the window", "a window for all keys")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.kv_sharing_target_layer_name = kv_cache_dtype, kv_sharing_target_layer_name
        self.shares_cache = kv_sharing_target_layer_name is not None
        self.attn_type, self.sinks = attn_type, sinks
        self.server = server_of(config)
        slopes = None
        if alibi_slopes is not None:
            slopes = torch.tensor(alibi_slopes, dtype=torch.float32, device=self.server.device)
        self.features = Features(
            True,
            sliding_window,
            float(logits_soft_cap) if logits_soft_cap else None,
            sinks,
            slopes,
            use_alibi_sqrt,
            batch_invariant=is_batch_invariant(),
        )
        dtype = config.model_config.dtype if config.model_config is not None else torch.get_default_dtype()
        self.dtype, self.stored = dtype, (EIGHT_BITS | PLAIN)[kv_cache_dtype] or dtype
        if self.stored not in (dtype, *EIGHT_BITS.values()):
            allowed = f"auto, {', '.join(EIGHT_BITS)}: pages of the model's dtype, {dtype}, or of 8 bits"
            raise SpecError("kv_cache_dtype", kv_cache_dtype, allowed)
        if self.stored != dtype and torch.version.hip and self.server.options.writer == "engine":
            raise SpecError("DIPTYCH_WRITER", "engine", "diptych: on AMD's GPUs an engine's fp8 may be another format")
        if kv_cache_dtype in PER_TOKEN and self.server.options.writer == "engine":
            raise SpecError("DIPTYCH_WRITER", "engine", f"diptych, which writes the scales of {kv_cache_dtype}")
        self.shape = self._shape(config.cache_config.block_size or 16)
        self.server.admit(self.shape, replace(self.features, **self._scales_to_come()))
        self._cache: torch.Tensor | None = None
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None
        self._plan: Plan | None = None

    def _shape(self, page: int) -> AttentionShape:
        return AttentionShape(self.num_heads, self.num_kv_heads, self.head_size, page, self.dtype, None, self.stored)

    def _scales_to_come(self) -> dict[str, torch.Tensor]:
        """Stand-ins for the scales of a cache of 8 bits, which a layer has when its cache is there."""
        if self.stored == self.dtype:
            return {}
        sizes = (1, 1, 1) if self.kv_cache_dtype in PER_TOKEN else (1,)
        return {name: torch.ones(sizes, device=self.server.device) for name in ("key_scale", "value_scale")}

    def _bind(self, layer: Any, kv_cache: torch.Tensor, table: torch.Tensor | None) -> Plan:
        """Views of the layer's cache and its compiled plan, made once a cache."""
        key_cache, value_cache = views(kv_cache, self.head_size, self.stored, scale_lanes(self.kv_cache_dtype))
        if self.kv_cache_dtype in PER_TOKEN:
            scales = kv_cache.view(torch.float32)[..., self.head_size * self.stored.itemsize // 4]
            self.features = replace(self.features, key_scale=scales[:, 0], value_scale=scales[:, 1])
        elif self.stored != self.dtype:
            scales = {"key_scale": layer._k_scale, "value_scale": layer._v_scale}
            for name, one in scales.items():
                if one.numel() not in (1, self.num_kv_heads):
                    raise SpecError(
                        name, f"{one.numel()} numbers", f"one a layer, or one of {self.num_kv_heads} KV heads"
                    )
            self.features = replace(self.features, **{name: one.reshape(-1) for name, one in scales.items()})
        self.shape = self._shape(key_cache.shape[1])
        self._cache, self._views = kv_cache, (key_cache, value_cache)
        self._plan = self.server.bind(self.shape, self.features, self._views, table, new_kv=not self.shares_cache)
        return self._plan

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Step | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output [>= tokens, heads, head size], key and value [>= tokens, KV heads, head size]."""
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedFeature("diptych", "output_scale", "None: outputs are not quantised here")
        if attn_metadata is None:
            if kv_cache.numel() == 0:
                _ = self.server.workspace  # while the engine measures its memory, it must see the scratch
            elif self._cache is not kv_cache and not capturing(kv_cache.device):
                self._bind(layer, kv_cache, None)
            return output.fill_(0)
        step = attn_metadata
        plan = self._plan
        if self._cache is not kv_cache or plan is None:
            plan = self._bind(layer, kv_cache, step.block_table)
        count = step.num_actual_tokens
        if query.shape[0] != count:
            query, out = query[:count], output[:count]
            key, value = (None if one is None else one[:count] for one in (key, value))
        else:
            out = output
        # a layer that shares a cache has no K and V of its own, whatever it is given
        new = (None, None) if key is None or self.shares_cache else (key, value)
        self.server.attend(plan, self, step, query, new, self._views, out, self.features, self.scale)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write a step's K and V. vLLM calls it before `forward`, except where a layer shares another's cache."""
        if kv_cache.numel() == 0:
            return
        if self._cache is not kv_cache:
            self._bind(layer, kv_cache, None)
        if slot_mapping.shape[0] > key.shape[0]:
            slot_mapping = slot_mapping[: key.shape[0]]
        if self.server.options.writer == "diptych":
            scales = self.features.key_scale, self.features.value_scale
            self._plan.write(key, value, *self._views, slot_mapping, *scales)
            return
        from vllm import _custom_ops as ops

        caches = self._views if self.stored == self.dtype else [one.view(torch.uint8) for one in self._views]
        ops.reshape_and_cache_flash(
            key, value, *caches, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale
        )


def scale_lanes(kv_cache_dtype: str) -> int:
    """Lanes behind those of a head that hold its float32 scale."""
    return 4 // PER_TOKEN[kv_cache_dtype].itemsize if kv_cache_dtype in PER_TOKEN else 0


def is_batch_invariant() -> bool:
    """Whether vLLM is asked to give a row the same bits in any batch."""
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")


def views(
    cache: torch.Tensor, head_size: int, stored: torch.dtype, beside: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V views [blocks, page, KV heads, head size] of an engine's cache, without a copy. beside: lanes of a scale,
    behind those of its head. Raises SpecError."""
    if cache.dtype != stored:
        if cache.dtype != torch.uint8 or stored.itemsize != 1:  # bytes are how engines hold fp8; others have their type
            raise SpecError("kv_cache", cache.dtype, f"{stored}, which the layer was made for")
        cache = cache.view(stored)
    if cache.dim() == 5 and cache.shape[1] == 2 and cache.shape[-1] == head_size + beside:
        return cache[:, 0, ..., :head_size], cache[:, 1, ..., :head_size]
    if cache.dim() == 4 and cache.shape[-1] == 2 * head_size and not beside:
        key, value = cache.transpose(1, 2).split(head_size, dim=-1)
        return key, value
    allowed = f"[blocks, 2, page, KV heads, {head_size + beside}]"
    allowed += "" if beside else f" or [blocks, KV heads, page, {2 * head_size}]"
    raise SpecError("kv_cache", tuple(cache.shape), allowed)
