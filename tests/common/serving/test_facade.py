"""FlashAttention's two calls: the words of its clients, the semantics of its windows, lengths and LSE, and refusals.

Around the reference, so that what is tested is the translation; the oracle is dense attention written out here.
"""

import math

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.serving.arguments import HINTS
from common.serving.facade import REFUSED, FlashAttention, get_scheduler_metadata
from common.spec import AttentionShape, Features, PagedBatch, SpecError, UnsupportedFeature
from common.spec.metadata import BatchStats

SHAPE = AttentionShape(4, 2, 16, 8, torch.float32)
LENS = [(3, 20), (1, 9), (5, 5)]


def by_reference(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, **options):
    """A `paged_attention` that writes what the reference says."""
    assert options.keys() == {"max_query_len", "max_seq_len", "out", "lse", "softmax_scale", "features"}
    scale = options["softmax_scale"] or query.shape[-1] ** -0.5
    stats = BatchStats(0, 0, 0, 0, 0, 0)
    batch = PagedBatch(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, scale, stats)
    expected = reference(batch, options["features"])
    options["out"].copy_(expected.out)
    if options["lse"] is not None:
        options["lse"].copy_(expected.lse)
    return options["out"]


FLASH = FlashAttention(by_reference)


def words(batch: PagedBatch) -> dict:
    """What vLLM passes with every call."""
    return {
        "q": batch.query, "k": batch.key_cache, "v": batch.value_cache, "cu_seqlens_q": batch.query_start_loc,
        "max_seqlen_q": 5, "seqused_k": batch.seq_lens, "max_seqlen_k": 20, "block_table": batch.block_table,
        "softmax_scale": batch.softmax_scale, "causal": True, "alibi_slopes": None, "window_size": [-1, -1],
        "softcap": 0, "scheduler_metadata": None, "fa_version": 3, "q_descale": None, "k_descale": torch.ones(3, 2),
        "v_descale": torch.ones(3, 2), "num_splits": 0, "s_aux": None,
    }  # fmt: skip


def keys_of(batch: PagedBatch, cache: torch.Tensor, seq: int) -> torch.Tensor:
    """[num_query_heads, seq_len, head_size] of one sequence, KV heads repeated for their queries."""
    pages = batch.block_table[seq, : -(-int(batch.seq_lens[seq]) // 8)].long()
    rows = cache[pages].flatten(0, 1)[: int(batch.seq_lens[seq])]
    return rows.transpose(0, 1).repeat_interleave(2, 0)


def dense(batch: PagedBatch, left: int, right: int) -> torch.Tensor:
    """FlashAttention's words: query i sees keys i + sk - sq - left .. i + sk - sq + right of its sequence; -1: all."""
    outs = []
    for seq, seq_len in enumerate(batch.seq_lens.tolist()):
        begin, end = batch.query_start_loc[seq : seq + 2].tolist()
        query_len, query = end - begin, batch.query[begin:end].transpose(0, 1)
        logits = query @ keys_of(batch, batch.key_cache, seq).mT * batch.softmax_scale
        distance = torch.arange(seq_len) - (torch.arange(query_len) + seq_len - query_len)[:, None]
        hidden = ((distance > right) & (right >= 0)) | ((distance < -left) & (left >= 0))
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0)  # of a row that sees no key
        outs.append((weights @ keys_of(batch, batch.value_cache, seq)).transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize(
    ("causal", "window", "as_flash"),
    [
        (True, (-1, -1), (-1, 0)),
        (True, (4, -1), (4, 0)),
        (True, (4, 7), (4, 0)),
        (False, (4, 0), (4, 0)),
        (False, (-1, 0), (-1, 0)),
        (False, (3, 3), (3, 3)),
        (False, (-1, -1), (-1, -1)),
        (False, None, (-1, -1)),
    ],
)
@pytest.mark.parametrize("lens", [LENS, [(5, 2), (3, 1), (1, 9)]], ids=["context", "fewer-keys"])
def test_windows_mean_what_they_mean_to_flash_attention(causal: bool, window, as_flash, lens: list) -> None:
    batch = make_batch(lens, SHAPE)
    found = FLASH.flash_attn_varlen_func(**words(batch) | {"causal": causal, "window_size": window})
    torch.testing.assert_close(found, dense(batch, *as_flash))


def test_lse_and_out_have_the_shapes_of_flash_attention() -> None:
    batch = make_batch(LENS, SHAPE)
    given = torch.empty_like(batch.query)
    out, lse = FLASH.flash_attn_varlen_func(**words(batch), return_softmax_lse=True, out=given)
    assert out is given
    assert lse.shape == (4, 9) and lse.is_contiguous()
    torch.testing.assert_close(lse, reference(batch, Features()).lse.t().float())


@pytest.mark.parametrize("name", ["s_aux", "sinks"])
def test_sinks_softcap_and_cumulative_key_lengths_arrive(name: str) -> None:
    batch, sinks = make_batch(LENS, SHAPE), torch.tensor([0.5, 1.0, -2.0, 3.0])
    asked = words(batch) | {"seqused_k": None, "cu_seqlens_k": torch.tensor([0, 20, 29, 34], dtype=torch.int32)}
    found = FLASH.flash_attn_varlen_func(**asked | {"s_aux": None, name: sinks, "softcap": 2.0})
    expected = reference(batch, Features(softcap=2.0, sinks=sinks)).out
    torch.testing.assert_close(found, expected.float())


@pytest.mark.parametrize("name", ["block_table", "page_table"])
def test_a_decode_with_a_kv_cache(name: str) -> None:
    batch = make_batch([(2, 20), (2, 9), (2, 2)], SHAPE)
    query = batch.query.view(3, 2, 4, 16)
    asked = {"cache_seqlens": batch.seq_lens, name: batch.block_table, "causal": True}
    out, lse = FLASH.flash_attn_with_kvcache(
        query, batch.key_cache, batch.value_cache, **asked, return_softmax_lse=True
    )
    expected = reference(batch, Features())
    torch.testing.assert_close(out, expected.out.float().view(query.shape))
    torch.testing.assert_close(lse, expected.lse.float().view(3, 2, 4).transpose(1, 2))
    ragged = FLASH.flash_attn_with_kvcache(
        batch.query, batch.key_cache, batch.value_cache, **asked, cu_seqlens_q=batch.query_start_loc, max_seqlen_q=2
    )
    torch.testing.assert_close(ragged.view(query.shape), out)


@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0], dtype=torch.int32)], ids=["in-order", "by-index"])
@pytest.mark.parametrize("lengths", [None, 7, torch.tensor([16, 3], dtype=torch.int32)], ids=["full", "one", "each"])
def test_a_dense_cache_is_one_page_a_sequence(rows, lengths) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(n, generator=generator) for n in ((2, 1, 4, 16), (3, 16, 2, 16), (3, 16, 2, 16)))
    found = FLASH.flash_attn_with_kvcache(query, key, value, cache_seqlens=lengths, cache_batch_idx=rows)
    for seq in range(2):
        row = seq if rows is None else int(rows[seq])
        keys = 16 if lengths is None else lengths if isinstance(lengths, int) else int(lengths[seq])
        k, v = (cache[row, :keys].transpose(0, 1).repeat_interleave(2, 0) for cache in (key, value))
        weights = (query[seq].transpose(0, 1) @ k.mT / 4).softmax(-1)
        torch.testing.assert_close(found[seq], (weights @ v).transpose(0, 1))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_result_is_refused_by_its_name(name: str) -> None:
    value = {"dropout_p": 0.1, "attention_chunk": 64, "return_attn_probs": True, "cp_world_size": 2}
    with pytest.raises(UnsupportedFeature, match=name) as refusal:
        FLASH.flash_attn_varlen_func(**words(make_batch(LENS, SHAPE)) | {name: value.get(name, torch.ones(4))})
    assert refusal.value.argument == name


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"block_table": None}, "block_table"),
        ({"seqused_k": None}, "seqused_k"),
        ({"causal": False, "window_size": (4, 2)}, "window_size"),
        ({"causal": False, "window_size": (-1, 2)}, "window_size"),
        ({"window_size": 4}, "window_size"),
        ({"window_size": (4, 0, 0)}, "window_size"),
        ({"q": None}, "q"),
        ({"v": torch.ones(())}, "v"),
        ({"seqused_k": None, "cu_seqlens_k": [0, 20, 29, 34]}, "cu_seqlens_k"),
        ({"s_aux": torch.ones(4), "sinks": torch.ones(4)}, "sinks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_what_cannot_be_translated_is_refused_by_its_name(changes: dict, argument: str) -> None:
    with pytest.raises(SpecError) as refusal:
        FLASH.flash_attn_varlen_func(**words(make_batch(LENS, SHAPE)) | changes)
    assert refusal.value.argument == argument


def decode(**changes) -> dict:
    """A decode of three sequences, two tokens each, as `flash_attn_with_kvcache` takes it."""
    batch = make_batch([(2, 20), (2, 9), (2, 2)], SHAPE)
    asked = {"q": batch.query.view(3, 2, 4, 16), "k_cache": batch.key_cache, "v_cache": batch.value_cache}
    return asked | {"cache_seqlens": batch.seq_lens, "block_table": batch.block_table, "causal": True} | changes


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"q": torch.ones(2, 2, 4, 16)}, "q"),
        ({"q": torch.ones(4, 2, 4, 16)}, "q"),
        ({"block_table": None, "k_cache": torch.ones(2, 24, 2, 16)}, "k_cache"),
        ({"block_table": None, "q": torch.ones(3, 4, 16), "cu_seqlens_q": torch.empty(0).int()}, "cu_seqlens_q"),
        ({"cache_seqlens": 10**6}, "cache_seqlens"),
        ({"cache_seqlens": -1}, "cache_seqlens"),
        ({"cache_seqlens": [20, 9, 2]}, "cache_seqlens"),
        ({"cache_batch_idx": torch.arange(3)}, "cache_batch_idx"),
        ({"block_table": [[0]]}, "block_table"),
        ({"out": torch.ones(3, 5, 4, 16)[:, :2]}, "out"),
        ({"out": torch.ones(6, 4, 16)}, "out"),
    ],
    ids=[
        "queries-of-fewer-sequences", "queries-of-more-sequences", "dense-cache-of-fewer", "no-starts",
        "length-beyond-the-table", "length-below-zero", "lengths-in-a-list", "index-beside-a-table",
        "table-in-a-list", "output-with-gaps", "output-of-tokens",
    ],
)  # fmt: skip
def test_what_kernels_could_not_follow_is_refused_by_its_name(changes: dict, argument: str) -> None:
    """The first four would send a launch outside the tensors; the index and an output with gaps would go unused."""
    with pytest.raises(SpecError) as refusal:
        FLASH.flash_attn_with_kvcache(**decode(**changes))
    assert refusal.value.argument == argument


@pytest.mark.parametrize(("batch", "queries"), [(0, 2), (3, 0)], ids=["no-sequence", "no-query"])
def test_nothing_asked_is_nothing_found(batch: int, queries: int) -> None:
    asked = decode()
    asked |= {"q": asked["q"][:batch, :queries], "block_table": asked["block_table"][:batch]}
    asked["cache_seqlens"] = asked["cache_seqlens"][:batch]
    out, lse = FLASH.flash_attn_with_kvcache(**asked, return_softmax_lse=True)
    assert out.shape == (batch, queries, 4, 16) and lse.shape == (batch, 4, queries)


def test_an_output_of_a_larger_buffer_is_written_in_place() -> None:
    buffer = torch.zeros(3, 2, 6, 16)
    FLASH.flash_attn_with_kvcache(**decode(out=buffer[:, :, 1:5]))
    assert torch.equal(buffer[:, :, 1:5], FLASH.flash_attn_with_kvcache(**decode()))
    assert not buffer[:, :, [0, 5]].any()


@pytest.mark.parametrize("name", ["k", "v"])
def test_appending_to_the_cache_is_refused_and_an_argument_that_nobody_knows_a_type_error(name: str) -> None:
    with pytest.raises(UnsupportedFeature) as refusal:
        FLASH.flash_attn_with_kvcache(**decode(**{name: torch.ones(1, 4, 16)}))
    assert refusal.value.argument == name
    with pytest.raises(TypeError, match="'windowsize'"):
        FLASH.flash_attn_varlen_func(**words(make_batch(LENS, SHAPE)), windowsize=3)
    for other in ("seqused_k", "cu_seqlens_k"):  # the other call's
        with pytest.raises(TypeError, match=f"flash_attn_with_kvcache: found argument '{other}'"):
            FLASH.flash_attn_with_kvcache(**decode(**{other: torch.ones(1, dtype=torch.int32)}))


@pytest.mark.parametrize("lens", [[(3, 20), (1, 9)], [(3, 20)], []], ids=len)
def test_descales_of_fp8_caches_are_scales_per_head_and_of_one_sequence_need_no_expansion(lens: list) -> None:
    batch = make_batch(lens, AttentionShape(4, 2, 16, 8, torch.bfloat16, None, torch.float8_e4m3fn))
    heads, one, count = torch.tensor([0.5, 2.0]), torch.tensor([0.25]), len(lens)
    wanted = reference(batch, Features(key_scale=heads, value_scale=one)).out.to(torch.bfloat16)
    asked = words(batch) | {"k_descale": heads.expand(count, 2), "v_descale": one.expand(count, 2)}
    assert torch.equal(FLASH.flash_attn_varlen_func(**asked), wanted)
    asked["k_descale"] = heads.repeat(count, 1)
    if count > 1:
        with pytest.raises(SpecError, match="k_descale"):
            FLASH.flash_attn_varlen_func(**asked)
    else:
        assert torch.equal(FLASH.flash_attn_varlen_func(**asked), wanted)


def test_slopes_and_chunks_are_ours() -> None:
    batch, slopes = make_batch(LENS, SHAPE), torch.tensor([0.5, 0.25, 0.125, 1.0])
    found = FLASH.flash_attn_varlen_func(**words(batch) | {"alibi_slopes": slopes, "attention_chunk": 4})
    wanted = reference(batch, Features(alibi_slopes=slopes, chunk=4))
    assert torch.equal(found, wanted.out.to(found.dtype))
    for changes in ({"causal": False}, {"alibi_slopes": slopes.expand(3, 4)}):
        with pytest.raises(UnsupportedFeature, match="alibi_slopes"):
            FLASH.flash_attn_varlen_func(**words(batch) | {"alibi_slopes": slopes} | changes)


def test_scheduler_metadata_is_made_once_and_gives_the_hints():
    heard = {}
    made = get_scheduler_metadata(2, 1, 40, num_decodes=2, total_seq_len=43, prompt_seq_len=0, num_splits=0)
    facade = FlashAttention(lambda *tensors, **named: heard.update(named))
    tensors = torch.zeros(2, 4, 16), torch.zeros(3, 16, 2, 16), torch.zeros(3, 16, 2, 16)
    more = {"cu_seqlens_q": torch.tensor([0, 1, 2]), "seqused_k": torch.tensor([3, 40])}
    more["block_table"] = torch.zeros(2, 3, dtype=torch.int32)
    facade.flash_attn_varlen_func(*tensors, **more, max_seqlen_q=9, scheduler_metadata=made)
    assert [heard[name] for name in HINTS] == [1, 40, 2, 43, 0]
    for wrong, argument in (
        ({"scheduler_metadata": torch.zeros(4, dtype=torch.int32)}, "scheduler_metadata"),
        ({"scheduler_metadata": get_scheduler_metadata(3, 1, 40)}, "scheduler_metadata"),
        ({"num_splits": 4}, "num_splits"),
    ):
        with pytest.raises(SpecError) as refused:
            facade.flash_attn_varlen_func(*tensors, **more, **wrong)
        assert refused.value.argument == argument
