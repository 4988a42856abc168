"""FlashAttention's two calls over paged caches, around any `paged_attention`, for clients written for FlashAttention.

Arguments have the names of FlashAttention 2, 3 and vLLM's fork; their orders differ after q, k, v, so the rest is by
keyword. Options that only steer FlashAttention's speed are ignored (IGNORED); options that change the result and are
not implemented are refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from common.serving.arguments import HINTS, hint_of, new_out
from common.spec import Features, SpecError, UnsupportedFeature
from common.spec.paged_batch import FP8
from common.spec.plain import integer, real, shown
from common.spec.refusals import expect, expect_flag, expect_integer, expect_stored, expect_tensor

MOST_WINDOW = 2**31 - 1
# Options that steer FlashAttention's schedule, never its result.
IGNORED = frozenset({"pack_gqa", "sm_margin", "fa_version", "deterministic", "rotary_interleaved", "cp_rank"})
# Options that change the result: refused unless the value means "off".
REFUSED: dict[str, tuple[Any, ...]] = {
    "dropout_p": (0.0,),
    "q_v": (None,),
    "qv": (None,),
    "rotary_cos": (None,),
    "rotary_sin": (None,),
    "rotary_seqlens": (None,),
    "cache_leftpad": (None,),
    "cu_seqlens_k_new": (None,),
    "seqused_q": (None,),
    "return_attn_probs": (False,),
    "cp_world_size": (None, 1),
    "cp_tot_seqused_k": (None,),
}
OF_VARLEN = {"seqused_k", "cu_seqlens_k"}  # lengths, which flash_attn_with_kvcache takes as cache_seqlens


@dataclass(frozen=True)
class SchedulerMetadata:
    """What `get_scheduler_metadata` knows of a step: the host integers by which its calls are chosen."""

    num_seqs: int
    max_query_len: int | None
    max_seq_len: int | None
    num_decodes: int | None = None
    total_seq_len: int | None = None
    prompt_seq_len: int | None = None


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    *,
    num_decodes: int | None = None,
    total_seq_len: int | None = None,
    prompt_seq_len: int | None = None,
    num_splits: int = 0,
    **others: Any,
) -> SchedulerMetadata:
    """Make `scheduler_metadata=` for the two calls from FlashAttention's arguments, once a step for all layers.

    Launches nothing: the choice depends on host integers. num_decodes (sequences of one token), total_seq_len (keys
    of all sequences) and prompt_seq_len (of those of more tokens) are our additions.
    """
    batch_size = expect_integer(batch_size, "batch_size", 0)
    _expect_splits("get_scheduler_metadata", num_splits)
    hints = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "num_decodes": num_decodes}
    hints |= {"total_seq_len": total_seq_len, "prompt_seq_len": prompt_seq_len}
    return SchedulerMetadata(batch_size, *(hint_of(name, hint) for name, hint in hints.items()))


def _expect_splits(call: str, num_splits: Any) -> None:
    """Refuse a number of splits, which would have to be kept; 0 is FlashAttention's "decide yourself"."""
    splits = integer(num_splits)
    expect(splits is None or type(splits) is int, "num_splits", shown(num_splits), "0")
    if splits:
        raise UnsupportedFeature(call, "num_splits", "0: the choice decides; batch_invariant features fix it")


def _hints(scheduled: Any, seqs: int, query_len: Any, seq_len: Any) -> dict[str, int | None]:
    """The hints of a call: those of its scheduler_metadata, if given. Raises SpecError for another library's."""
    own = {"max_query_len": hint_of("max_seqlen_q", query_len), "max_seq_len": hint_of("max_seqlen_k", seq_len)}
    if scheduled is None:
        return own
    expect(isinstance(scheduled, SchedulerMetadata), "scheduler_metadata", type(scheduled).__name__,
           "None, or what get_scheduler_metadata of this package made")  # fmt: skip
    expect(scheduled.num_seqs == seqs, "scheduler_metadata", f"of {scheduled.num_seqs} sequences", f"of {seqs}")
    return {name: getattr(scheduled, name) for name in HINTS}


def _refuse(call: str, others: dict[str, Any]) -> None:
    """Raises UnsupportedFeature for an argument that changes the result, TypeError for an unknown one."""
    for name, value in others.items():
        if name in IGNORED:
            continue
        if name not in REFUSED:
            raise TypeError(f"{call}: found argument {name!r}, allowed FlashAttention's arguments")
        plain = float(value) if isinstance(value, bool) else real(value)  # no tensor, whose comparison is another
        if not any(value is off or (isinstance(plain, float) and plain == off) for off in REFUSED[name]):
            raise UnsupportedFeature(call, name, " or ".join(map(str, REFUSED[name])))


def _descale(name: str, descale: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    """FlashAttention's [batch, kv_heads] as one number, or one per KV head. Raises SpecError.

    FlashAttention ignores it for dtypes other than fp8, and vLLM always passes it, expanded from one number.
    """
    allowed = "[batch, kv_heads] expanded over the batch: one number, or one per KV head"
    if descale is not None:
        expect_stored(descale, name, allowed)
    if descale is None or tensor.dtype not in FP8:
        return None
    expect_tensor(descale, name, 2, allowed)
    if descale.stride(0) and descale.shape[0] > 1:
        raise SpecError(name, f"strides {descale.stride()}", allowed)
    if descale.shape[0] == 0:  # nothing is read
        return None
    return descale[0, :1] if descale.stride(1) == 0 else descale[0]


def _expect_one(name: str, scale: torch.Tensor | None) -> torch.Tensor | None:
    if scale is not None and scale.numel() > 1:
        raise SpecError(name, f"{scale.numel()} numbers", "one number, expanded over batch and heads")
    return scale


def _alibi(slopes: torch.Tensor | None, causal: bool) -> torch.Tensor | None:
    """FlashAttention's slopes [heads] multiply -|q - k|, which equals ours where no key lies behind its query."""
    if slopes is None:
        return None
    expect_stored(slopes, "alibi_slopes", "None or float32 [heads]")
    if not causal or slopes.dim() != 1:
        found = f"slopes {tuple(slopes.shape)}, causal={causal}"
        raise UnsupportedFeature("flash_attn_varlen_func", "alibi_slopes", f"float32 [heads], causal=True; not {found}")
    return slopes


def _features(
    causal: Any, window_size: Any, softcap: Any, sinks: torch.Tensor | None, most_keys: int, tokens: int
) -> Features:
    """Our features. FlashAttention's window (left, right) excludes the query's own key, ours includes it.

    An unbounded side is -1, or any number that reaches past all keys of a row of the table.
    """
    window = (-1, -1) if window_size is None else window_size
    sides = [*map(integer, window)] if isinstance(window, tuple | list) else []
    if [type(side) for side in sides] != [int, int]:
        raise SpecError("window_size", shown(window_size), "None or two integers, (left, right)")
    left, right = sides
    every_left = left < 0 or left >= min(most_keys, MOST_WINDOW)
    every_right = right < 0 or right >= min(most_keys + tokens, MOST_WINDOW)  # queries may come before all keys
    softcap = real(softcap)
    softcap = None if type(softcap) is float and softcap == 0.0 else softcap
    if expect_flag(causal, "causal") or right == 0:
        return Features(True, None if every_left else left + 1, softcap, sinks)
    if left != right and not (every_left and every_right):
        raise SpecError("window_size", window_size, "(left, 0), (n, n), (-1, -1), or causal=True")
    return Features(False, None if every_left and every_right else left + 1, softcap, sinks)


def _chunk(chunk: Any) -> Any:
    """The chunk; FlashAttention writes "none" as 0."""
    chunk = integer(chunk)
    return None if type(chunk) is int and chunk == 0 else chunk


def _lengths(seqused_k: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None) -> torch.Tensor:
    """int32 [num_seqs] keys of each sequence, on the device; `seqused_k` has precedence, as in FlashAttention."""
    if cu_seqlens_k is not None:
        expect_tensor(cu_seqlens_k, "cu_seqlens_k", 1)
    if seqused_k is not None:
        return seqused_k
    if cu_seqlens_k is None:
        raise SpecError("seqused_k", None, "int32 [num_seqs], or cu_seqlens_k [num_seqs + 1]")
    return cu_seqlens_k[1:] - cu_seqlens_k[:-1]


def _one_of(**given: Any) -> Any:
    """The one argument of several synonyms that is not None; None where all are."""
    found = [name for name, value in given.items() if value is not None]
    if len(found) > 1:
        raise SpecError(found[1], "a value", f"one of {' and '.join(given)}")
    return given[found[0]] if found else None


@dataclass(frozen=True)
class FlashAttention:
    """`paged_attention` is the public call of a DSL's package, or any callable of its signature."""

    paged_attention: Callable[..., Any]

    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        cu_seqlens_q: torch.Tensor,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] | list[int] | None = None,
        softcap: float = 0.0,
        s_aux: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        attention_chunk: int = 0,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
        return_softmax_lse: bool = False,
        out: torch.Tensor | None = None,
        scheduler_metadata: SchedulerMetadata | None = None,
        num_splits: int = 0,
        **others: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """q [total_q, heads, head_size] over the paged caches k, v [num_blocks, block_size, kv_heads, head_size].

        Returns out, or (out, lse float32 [heads, total_q]); a row that sees no key has out 0 and lse -inf, or its sink.
        A sequence may have fewer keys than queries: the last query is at the last key. Reads no device value.
        Raises SpecError, UnsupportedFeature naming the argument, TypeError for an argument that nobody knows.
        """
        _refuse("flash_attn_varlen_func", others)
        _expect_splits("flash_attn_varlen_func", num_splits)
        for name, tensor, rank in (("q", q, 3), ("k", k, 4), ("v", v, 4)):
            expect_tensor(tensor, name, rank)
        if block_table is None:
            raise SpecError("block_table", None, "int32 [num_seqs, max_blocks]: K and V are read from a paged cache")
        expect_tensor(block_table, "block_table", 2)
        most, sinks = block_table.shape[1] * k.shape[1], _one_of(s_aux=s_aux, sinks=sinks)
        features = replace(
            _features(causal, window_size, softcap, sinks, most, q.shape[0]),
            alibi_slopes=_alibi(alibi_slopes, causal), chunk=_chunk(attention_chunk),
            query_scale=_expect_one("q_descale", _descale("q_descale", q_descale, q)),
            key_scale=_descale("k_descale", k_descale, k), value_scale=_descale("v_descale", v_descale, k),
        )  # fmt: skip
        asked = expect_flag(return_softmax_lse, "return_softmax_lse")
        lse = torch.empty(q.shape[1::-1], dtype=torch.float32, device=q.device) if asked else None
        out = self.paged_attention(
            q, k, v, block_table, cu_seqlens_q, _lengths(seqused_k, cu_seqlens_k),
            **_hints(scheduler_metadata, block_table.shape[0], max_seqlen_q, max_seqlen_k),
            out=new_out(q, k, v, features) if out is None else out,
            lse=None if lse is None else lse.t(),
            softmax_scale=softmax_scale,
            features=features,
        )  # fmt: skip
        return out if lse is None else (out, lse)

    def flash_attn_with_kvcache(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: torch.Tensor | None = None,
        v: torch.Tensor | None = None,
        *,
        cache_seqlens: torch.Tensor | int | None = None,
        cache_batch_idx: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        return_softmax_lse: bool = False,
        out: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """q [batch, seqlen_q, heads, head_size], or [total_q, heads, head_size] with cu_seqlens_q.

        k_cache, v_cache [num_blocks, block_size, kv_heads, head_size]; without a block table they are FlashAttention's
        dense cache [batch_cache, seqlen_cache, ...], served as one page a sequence. k, v: appending is refused; write
        them into the pages first. Returns out like q, or (out, lse float32 [batch, heads, seqlen_q], or [heads,
        total_q] with cu_seqlens_q). Raises what flash_attn_varlen_func raises.
        """
        _refuse("flash_attn_with_kvcache", {name: others[name] for name in others if name in OF_VARLEN})
        for name, value in (("k", k), ("v", v)):
            if value is not None:
                raise UnsupportedFeature("flash_attn_with_kvcache", name, "None, the new tokens already in the cache")
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            expect_tensor(cache, name, 4)
        expect_tensor(q, "q", 4 if cu_seqlens_q is None else 3, "[batch, seqlen_q, heads, head_size], or cu_seqlens_q")
        table = _one_of(block_table=block_table, page_table=page_table)
        if table is None:
            table = _dense_table(q, k_cache, cu_seqlens_q, cache_batch_idx)
        elif cache_batch_idx is not None:
            raise SpecError("cache_batch_idx", "a value beside block_table", "None: the table names the pages")
        expect_tensor(table, "block_table", 2)
        lengths = _cache_lengths(cache_seqlens, table, k_cache)
        options = dict(seqused_k=lengths, block_table=table, return_softmax_lse=return_softmax_lse, **others)
        if cu_seqlens_q is not None:
            options |= dict(cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, out=out)
            return self.flash_attn_varlen_func(q, k_cache, v_cache, **options)
        hint_of("max_seqlen_q", max_seqlen_q)
        sizes = batch, queries = q.shape[:2]
        expect(batch == table.shape[0], "q", f"a batch of {batch}", f"{table.shape[0]}, the rows of block_table")
        starts = torch.arange(0, batch * queries + 1, queries or 1, dtype=torch.int32, device=q.device)
        options |= dict(cu_seqlens_q=starts if queries else starts.expand(batch + 1).contiguous(), max_seqlen_q=queries)
        options |= dict(out=None if out is None else _joined(out, sizes))
        found = self.flash_attn_varlen_func(q.flatten(0, 1), k_cache, v_cache, **options)
        if not return_softmax_lse:
            return found.unflatten(0, sizes)
        return found[0].unflatten(0, sizes), found[1].unflatten(1, sizes).transpose(0, 1)


def _dense_table(
    q: torch.Tensor, cache: torch.Tensor, starts: torch.Tensor | None, rows: torch.Tensor | None
) -> torch.Tensor:
    """int32 or int64 [batch, 1]: the page of each sequence of a dense cache. Raises SpecError."""
    if rows is not None:
        expect_tensor(rows, "cache_batch_idx", 1)
        return rows.unsqueeze(1)
    if starts is not None:
        expect_tensor(starts, "cu_seqlens_q", 1)
        expect(len(starts) > 0, "cu_seqlens_q", "0 entries", "one more than sequences")
    batch = q.shape[0] if starts is None else starts.shape[0] - 1
    expect(batch <= cache.shape[0], "k_cache", f"{cache.shape[0]} rows", f"{batch}, the batch, or cache_batch_idx")
    return torch.arange(batch, dtype=torch.int32, device=q.device).unsqueeze(1)


def _cache_lengths(lengths: Any, table: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """int32 [batch]: one number for all, the whole cache for None, or as given. Raises SpecError."""
    most = table.shape[1] * cache.shape[1]
    lengths = min(most, MOST_WINDOW) if lengths is None else integer(lengths)
    if type(lengths) is int:
        expect(0 <= lengths <= most, "cache_seqlens", lengths, f"0 to {most}, what a row of the table can hold")
        return torch.full((table.shape[0],), lengths, dtype=torch.int32, device=table.device)
    expect_tensor(lengths, "cache_seqlens", 1, "None, an integer or a torch.Tensor")
    return lengths


def _joined(out: Any, sizes: tuple[int, int]) -> torch.Tensor:
    """[batch, seqlen_q, heads, size] viewed as [batch * seqlen_q, heads, size]. Raises SpecError."""
    expect_tensor(out, "out", 4)
    expect(out.shape[:2] == sizes, "out", tuple(out.shape), f"[{sizes[0]}, {sizes[1]}, heads, value size]")
    if min(sizes) > 1 and out.stride(0) != sizes[1] * out.stride(1):  # flatten would copy, and `out` stay as it is
        raise SpecError("out", f"strides {out.stride()}", "one batch entry right behind another")
    return out.flatten(0, 1)
