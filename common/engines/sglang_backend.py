"""SGLang's attention backend for a model runner: what it serves, a step's metadata, a layer's call.

An entry of `req_to_token` is a token's slot. Slots of a page are consecutive, so the slot of a page's first token
divided by the page size is the page's number: every `page_size`-th entry of a row makes a row of the block table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_exec, get_parallel, get_schedule, max_prefill_buffer_tokens

from common.engines.options import Options
from common.engines.server import Limits, Server, Step, counted
from common.serving.plan import Plan
from common.spec import AttentionShape, Features, SpecError, UnsupportedFeature
from common.spec.metadata import cdiv

PAGES_OF = 16  # pages must have a multiple of so many tokens
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NO_SLOT = {"diptych": -1, "engine": 0}  # of padding, by who writes: ours leaves it, SGLang's page 0 is nobody's


def limits_of(runner: Any) -> Limits:
    """The limits of a runner's steps. Decodes may run beside a chunk of a prompt; an uncut prompt has up to a whole
    context."""
    graph, schedule, longest = get_exec().graph, get_schedule(), runner.model_config.context_len
    seqs = max(runner.max_running_requests, graph.cuda_graph_config.decode.max_bs or 0)
    chunked = (schedule.chunked_prefill_size or 0) > 0
    tokens = max_prefill_buffer_tokens() if chunked else max(longest, schedule.max_prefill_tokens or 0)
    return Limits(tokens + seqs, seqs, longest)


def expect_served(runner: Any) -> None:
    """Refuse at construction what no step could serve. Raises SpecError, UnsupportedFeature."""
    page, parallel, model = runner.page_size, get_parallel(), runner.model_config
    if page % PAGES_OF:
        raise SpecError("page_size", page, f"--page-size 16, or another multiple of {PAGES_OF}; SGLang's default is 1")
    asked = {
        "multi-head latent attention": runner.use_mla_backend,
        "an encoder beside the decoder": model.is_encoder_decoder,
        "attention in chunks (attention_chunk_size)": runner.attention_chunk_size is not None,
        "speculative decoding (--speculative-algorithm)": not runner.spec_algorithm.is_none(),
        "context parallelism of prompts (attn_cp_size)": parallel.attn_cp_size > 1,
        "context parallelism of decodes (dcp_size)": parallel.attn_dcp_size > 1,
        "--enable-unified-memory": runner.kv_index_translator.is_translating,
        "--enable-deterministic-inference": get_exec().deterministic.enable_deterministic_inference,
        "images that see all of their own tokens": hasattr(runner.model, "prepare_attn_masks"),
    }
    for name, found in asked.items():
        if found:
            raise UnsupportedFeature("diptych", name, "a server without it")
    if runner.kv_cache_dtype not in (runner.dtype, *FP8) or runner.kv_cache_dtype_str == "mxfp8":
        found = f"{runner.kv_cache_dtype_str} ({runner.kv_cache_dtype})"
        allowed = "auto, fp8_e4m3 or fp8_e5m2: pages of the model's dtype, or fp8 with one scale for each layer"
        raise SpecError("kv_cache_dtype", found, allowed)


def features_of(layer: RadixAttention, sinks: torch.Tensor | None = None) -> Features:
    """The features of a layer. SGLang's window excludes the token itself, ours includes it. Raises SpecError."""
    refused = {
        f"attn_type {layer.attn_type.value}": layer.attn_type != AttentionType.DECODER,
        "cross attention": layer.is_cross_attention,
        f"pos_encoding_mode {layer.pos_encoding_mode}": layer.pos_encoding_mode != "NONE",
        f"logit_capping_method {layer.logit_capping_method}": layer.logit_cap and layer.logit_capping_method != "tanh",
        "xai_temperature_len": layer.xai_temperature_len > 0,
    }
    for name, found in refused.items():
        if found:
            raise UnsupportedFeature("diptych", name, f"layer {layer.layer_id} without it")
    before = -1 if layer.sliding_window_size is None else layer.sliding_window_size
    window, cap = before + 1 if before > -1 else None, layer.logit_cap
    return Features(True, window, float(cap) if cap else None, sinks)


@dataclass
class Steps:
    """A step in the slots of each pool. window is None where all layers share one pool."""

    full: Step
    window: Step | None


@dataclass
class Bound:
    """A layer's views of its cache, with their plan. `where`: the addresses that they were made from."""

    where: tuple[int, ...]
    caches: tuple[torch.Tensor, torch.Tensor]
    features: Features
    plan: Plan


class DiptychBackend(AttentionBackend):
    """One runner's. Raises SpecError or UnsupportedFeature when it is made, for what no step could serve.

    Full graphs for decodes; prompts and mixed steps run eagerly, or between the pieces of a prefill graph.
    """

    needs_cpu_seq_lens: bool = True  # kernels are chosen by lengths on the host

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        expect_served(model_runner)
        self.runner, self.page = model_runner, model_runner.page_size
        self.pool, self.req_to_token = model_runner.token_to_kv_pool, model_runner.req_to_token_pool.req_to_token
        self.device = self.req_to_token.device
        self.server = Server(Options.of(), limits_of(model_runner), self.device, beside=False)
        self.width = self.server.table_width(self.page)  # compilers specialise on it
        self.windows = isinstance(self.pool, SWAKVPool) and self.pool.swa_layer_nums > 0
        self.no_slot = NO_SLOT[self.server.options.writer]
        self.starts = torch.arange(self.server.limits.max_seqs + 1, dtype=torch.int32, device=self.device)
        self.forward_metadata: Steps | None = None
        self._bound: dict[RadixAttention, Bound] = {}
        self._graph: Steps | None = None
        self._admit()

    def _admit(self) -> None:
        """Admit each layer of the model and count its scratch; SGLang says only in the first call which layers have
        sinks."""
        seen = set()
        for layer in self.runner.model.modules():
            if isinstance(layer, RadixAttention):
                asked = self._shape(layer), features_of(layer)
                if asked not in seen:
                    seen.add(asked)
                    self.server.admit(*asked)
                    if "sinks" in self.server.kernel.supports:
                        sinks = torch.empty(layer.tp_q_head_num, device=self.device)
                        self.server.admit(asked[0], replace(asked[1], sinks=sinks))
        _ = self.server.workspace

    def _shape(self, layer: RadixAttention) -> AttentionShape:
        shape = AttentionShape(
            layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, self.page, self.runner.dtype,
            layer.v_head_dim, self.runner.kv_cache_dtype,
        )  # fmt: skip
        if shape.value_size is not None and self.server.options.writer == "diptych":
            found = f"diptych, where V has {shape.value_size} lanes and K {shape.head_size}"
            raise SpecError("DIPTYCH_WRITER", found, "engine: ours writes K and V of one size")
        return shape

    # A step

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Metadata of an eager step, in new tensors. Raises UnsupportedFeature for speculative and diffusion modes."""
        mode, count = forward_batch.forward_mode, forward_batch.batch_size
        if mode.is_idle() or count == 0:
            self.forward_metadata = None
            return
        if mode.is_decode():
            query_lens, starts, tokens = None, self.starts[: count + 1], count
        elif mode.is_extend_or_draft_extend_or_mixed():
            query_lens = torch.tensor(forward_batch.extend_seq_lens_cpu)
            sums = torch.cumsum(forward_batch.extend_seq_lens, 0, dtype=torch.int32)
            starts, tokens = torch.nn.functional.pad(sums, (1, 0)), int(query_lens.sum())
        else:
            raise UnsupportedFeature("diptych", f"forward mode {mode.name}", "decodes, prompts, and both in one step")
        longest, lengths = _known(forward_batch.seq_lens_cpu)
        full = Step(
            tokens, 1 if query_lens is None else int(query_lens.max()), longest,
            *counted(count, query_lens, lengths), starts,
            forward_batch.seq_lens.to(torch.int32), self._table(count), forward_batch.out_cache_loc,
        )  # fmt: skip
        self.forward_metadata = Steps(full, self._in_windows(full, self._table(count)))
        self._fill(self.forward_metadata, forward_batch.req_pool_indices, forward_batch.out_cache_loc, longest)

    def _table(self, count: int) -> torch.Tensor:
        return torch.empty(count, self.width, dtype=torch.int32, device=self.device)

    def _in_windows(self, full: Step, table: torch.Tensor) -> Step | None:
        """The same step in the slots of the window layers' pool, still to be filled; None where there is no such
        pool."""
        if not self.windows:
            return None
        return replace(full, block_table=table, slot_mapping=torch.empty_like(full.slot_mapping))

    def _fill(self, steps: Steps, requests: torch.Tensor, slots: torch.Tensor, longest: int | None) -> None:
        """Fill block tables up to the longest sequence, and the window layers' slots.

        Pages that a window has left were given back, and their mapping is arbitrary: page 0, which belongs to nobody,
        stands there.
        """
        columns = self.width if longest is None else cdiv(longest, self.page)
        held = self.req_to_token[:, : columns * self.page : self.page][requests]
        rows = steps.full.block_table[: held.shape[0], : held.shape[1]]
        torch.div(held, self.page, rounding_mode="floor", out=rows)
        if steps.window is not None:
            mapping = self.pool.full_to_swa_index_mapping
            rows = steps.window.block_table[: held.shape[0], : held.shape[1]]
            torch.div(mapping[held], self.page, rounding_mode="floor", out=rows).clamp_(min=0)
            steps.window.slot_mapping[: slots.shape[0]] = mapping[slots]

    # Graphs

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocate the tensors of all graphs, at fixed addresses. Raises SpecError, UnsupportedFeature."""
        if "full_graph" not in self.server.kernel.supports:
            allowed = "--disable-cuda-graph, or another DIPTYCH_KERNEL"
            raise UnsupportedFeature(self.server.kernel.id, "full_graph", allowed)
        if max_bs > self.server.limits.max_seqs:
            raise SpecError("max_bs", max_bs, f"up to {self.server.limits.max_seqs} sequences")
        slots = torch.full((max_num_tokens,), self.no_slot, dtype=torch.int64, device=self.device)
        lens = torch.zeros(max_bs, dtype=torch.int32, device=self.device)
        full = Step(max_num_tokens, 1, None, max_bs, None, None, self.starts, lens, self._table(max_bs).zero_(), slots)
        self._graph = Steps(full, self._in_windows(full, self._table(max_bs).zero_()))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Fill in place what the graph reads, before a capture or a replay.

        A graph keeps the choice that it was captured with: for a typical length, not for the longest. A capture writes
        no page, and neither do padding rows.
        """
        mode, count = forward_batch.forward_mode, forward_batch.batch_size
        if not mode.is_decode_or_idle():
            allowed = "decodes; --cuda-graph-backend-prefill breakable, or --disable-prefill-cuda-graph"
            raise UnsupportedFeature("diptych", f"a full graph of forward mode {mode.name}", allowed)
        longest, _ = _known(None if in_capture else forward_batch.seq_lens_cpu)
        chosen_for = self.server.captured_seq_len(count, self.runner.max_total_num_tokens)
        steps = Steps(*(
            one and replace(
                one, num_actual_tokens=count, max_seq_len=chosen_for, num_decodes=count,
                query_start_loc=one.query_start_loc[: count + 1], seq_lens=one.seq_lens[:count],
                block_table=one.block_table[:count], slot_mapping=one.slot_mapping[:count],
            )
            for one in (self._graph.full, self._graph.window)
        ))  # fmt: skip
        slots = forward_batch.out_cache_loc[: 0 if in_capture else count]
        for one in (steps.full, steps.window):
            if one is not None:
                one.slot_mapping.fill_(self.no_slot)
        steps.full.seq_lens.copy_(forward_batch.seq_lens[:count])
        steps.full.slot_mapping[: slots.shape[0]] = slots
        self._fill(steps, forward_batch.req_pool_indices[:count], slots, longest)
        self.forward_metadata = steps

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """The number of keys of a padding sequence: 1, because SGLang divides by it."""
        return 1

    # A layer

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """q [tokens, heads * size], k and v [tokens, KV heads, size]; gives [tokens, heads * V's size].

        Raises SpecError, UnsupportedFeature before any launch.
        """
        for name, value in others.items():
            if value is not None and value is not False:
                raise UnsupportedFeature("diptych", name, f"layer {layer.layer_id} without it")
        in_window = self.windows and self.pool.layers_mapping[layer.layer_id][1]
        step = self.forward_metadata.window if in_window else self.forward_metadata.full
        bound = self._bind(layer, step, sinks, new_kv=k is not None)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        given = getattr(forward_batch, "_attn_output", None)
        out = q.new_empty(query.shape[0], layer.tp_q_head_num * layer.v_head_dim) if given is None else given
        out = out.view(-1, layer.tp_q_head_num, layer.v_head_dim)
        count = min(query.shape[0], step.num_actual_tokens)
        if k is not None:
            k = k[:count].view(-1, layer.tp_k_head_num, layer.qk_head_dim)
            v = v[:count].view(-1, layer.tp_v_head_num, layer.v_head_dim)
            if save_kv_cache:
                self._write(layer, forward_batch, step, bound, k, v)
        self.server.attend(
            bound.plan, layer, step, query[:count], (k, v), bound.caches, out[:count], bound.features, layer.scaling
        )
        out[count:].zero_()
        return out.view(out.shape[0], -1)

    forward_extend = forward_decode

    def _write(
        self, layer: RadixAttention, forward_batch: Any, step: Step, bound: Bound, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        if self.server.options.writer == "diptych":
            scales = bound.features.key_scale, bound.features.value_scale
            bound.plan.write(k, v, *bound.caches, step.slot_mapping[: k.shape[0]], *scales)
            return
        window = None if self.forward_metadata.window is None else self.forward_metadata.window.slot_mapping
        where = KVWriteLoc.for_layer(forward_batch, layer, swa_loc=window)
        self.pool.set_kv_buffer(layer, where, k, v, layer.k_scale, layer.v_scale)

    def _bind(self, layer: RadixAttention, step: Step, sinks: torch.Tensor | None, *, new_kv: bool) -> Bound:
        """Views of the layer's cache and its compiled plan, made once a cache. The pool is asked in each call, because
        it may have to wait until a layer's pages are loaded."""
        buffers = self.pool.get_kv_buffer(layer.layer_id)
        where = tuple(one.data_ptr() for one in (*buffers, *(() if sinks is None else (sinks,))))
        known = self._bound.get(layer)
        if known is not None and known.where == where:
            return known
        features, shape = features_of(layer, sinks), self._shape(layer)
        if shape.kv_dtype is not None:
            scales = (scale_of(layer, name, self.device) for name in ("k_scale", "v_scale"))
            features = replace(features, **dict(zip(("key_scale", "value_scale"), scales, strict=True)))
        caches = tuple(
            paged(one, self.page, layer.tp_k_head_num, size)
            for one, size in zip(buffers, (layer.qk_head_dim, layer.v_head_dim), strict=True)
        )
        plan = self.server.bind(shape, features, caches, step.block_table, new_kv=new_kv)
        made = self._bound[layer] = Bound(where, caches, features, plan)
        return made


def paged(buffer: torch.Tensor, page: int, heads: int, size: int) -> torch.Tensor:
    """[pages, page, heads, size] view of a pool's buffer: [slots, heads, size], or by head [pages, heads, page, size].
    Raises SpecError."""
    if buffer.dim() == 4 and buffer.shape[1:] == (heads, page, size):
        return buffer.transpose(1, 2)
    if buffer.dim() == 3 and buffer.shape[1:] == (heads, size) and buffer.shape[0] % page == 0:
        return buffer.unflatten(0, (-1, page))
    allowed = f"[slots in pages of {page}, {heads}, {size}] or [pages, {heads}, {page}, {size}]"
    raise SpecError("token_to_kv_pool", tuple(buffer.shape), allowed)


def scale_of(layer: RadixAttention, name: str, device: torch.device) -> torch.Tensor:
    """float32 [1]: the factor of a stored element; 1 where the model brings none. Raises UnsupportedFeature."""
    given = getattr(layer, name)
    scale = torch.ones(1, device=device) if given is None else torch.as_tensor(given, device=device).float().reshape(-1)
    if scale.numel() != 1:
        raise UnsupportedFeature("diptych", "scales per head of an fp8 cache", "one scale for each layer")
    return scale


def _known(lengths: torch.Tensor | None) -> tuple[int | None, torch.Tensor | None]:
    """The longest length and the lengths, where the host has them."""
    if lengths is None or lengths.numel() == 0:
        return None, None
    return int(lengths.max()), lengths
