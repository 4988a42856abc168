"""transformers' adapter: a tiny Llama with random weights says the same tokens as with sdpa."""

import importlib.util
import types

import pytest
import torch

from common.engines import transformers as adapter
from common.spec import Features, SpecError, UnsupportedFeature

needs = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed here"
)
HEADS, KV_HEADS, SIZE = 4, 2, 16


def dense(query, key, value, causal=True, window=None):
    """[1, heads, tokens, size] each, queries the last of the keys."""
    tokens, keys = query.shape[2], key.shape[2]
    q, k = torch.arange(keys - tokens, keys)[:, None], torch.arange(keys)
    seen = (k <= q) if causal else torch.ones(tokens, keys, dtype=torch.bool)
    if window:
        seen &= q - k < window
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, seen).transpose(1, 2)


def tensors(tokens, keys, batch=1):
    draw = torch.Generator().manual_seed(tokens + keys)
    shapes = (HEADS, tokens), (KV_HEADS, keys), (KV_HEADS, keys)
    return [torch.randn(batch, heads, count, SIZE, generator=draw) for heads, count in shapes]


MODULE = types.SimpleNamespace(is_causal=True)


@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (21, 21), (1, 33), (5, 40)])
@pytest.mark.parametrize("window", [None, 7])
def test_a_dense_cache_is_served_as_sdpa_does(tokens, keys, window):
    query, key, value = tensors(tokens, keys, batch=2)
    out, weights = adapter.forward(MODULE, query, key, value, None, scaling=SIZE**-0.5, sliding_window=window)
    assert weights is None
    torch.testing.assert_close(out, dense(query, key, value, window=window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 20])
def test_padding_to_the_left_is_no_key(tokens):
    query, key, value = tensors(tokens, 20, batch=2)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1, :6] = False
    key[1, :, :6] = float("nan")
    out, _ = adapter.forward(MODULE, query, key, value, mask)
    torch.testing.assert_close(out[0], dense(query[:1], key[:1], value[:1])[0], rtol=1e-4, atol=1e-5)
    live = query[1:, :, -min(tokens, 14) :]
    expected = dense(live, key[1:, :, 6:], value[1:, :, 6:])[0]
    torch.testing.assert_close(out[1, -min(tokens, 14) :], expected, rtol=1e-4, atol=1e-5)


def test_packed_sequences_are_apart_and_padding_behind_them_is_nobodys():
    query, key, value = tensors(9, 24)
    key[:, :, 22:] = value[:, :, 22:] = float("nan")
    starts, ends = torch.tensor([0, 1, 8]), torch.tensor([0, 15, 22])
    more = {"cu_seq_lens_q": starts, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 15}
    more |= {"is_causal": False}  # as continuous batching says it: of its mask
    out, _ = adapter.forward(MODULE, query, key, value, None, **more)
    parts = [dense(query[:, :, :1], key[:, :, :15], value[:, :, :15]),
             dense(query[:, :, 1:8], key[:, :, 15:22], value[:, :, 15:22])]  # fmt: skip
    torch.testing.assert_close(out[:, :8], torch.cat(parts, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "options", "named"),
    [
        (torch.ones(1, 1, 2, 2), {}, "attention_mask"),  # of four dimensions
        (torch.zeros(1, 2), {}, "attention_mask"),  # numbers to be added
        # transformers 5.20's continuous batching has lengths by the kind of layer
        (None, {"cu_seq_lens_q": torch.tensor([0, 2]), "cu_seq_lens_k": {"full_attention": torch.tensor([0, 2])}},
         "cu_seq_lens_k: found Tensor and dict"),
    ],
    ids=["four-dimensions", "numbers", "lengths-by-kind"],
)  # fmt: skip
def test_masks_and_lengths_of_another_form_are_refused(mask, options, named):
    with pytest.raises(SpecError, match=named):
        adapter.forward(MODULE, *tensors(2, 2), mask, **options)


@pytest.mark.parametrize(
    ("named", "options"),
    [("dropout", {"dropout": 0.1}), ("position_bias", {"position_bias": torch.zeros(1)}),
     ("output_attentions", {"output_attentions": True}), ("indices", {"indices": torch.zeros(1)})],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(named, options):
    with pytest.raises(UnsupportedFeature, match=named):
        adapter.forward(MODULE, *tensors(2, 2), None, **options)


def test_gradients_are_refused():
    query, key, value = tensors(2, 2)
    with pytest.raises(UnsupportedFeature, match="gradients"):
        adapter.forward(MODULE, query.requires_grad_(), key, value, None)


def test_padding_between_keys_moves_no_window():
    """Packed, a window would reach over it."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    with pytest.raises(SpecError, match="padding between keys"):
        adapter.forward(MODULE, *tensors(6, 6), mask, sliding_window=3)
    assert adapter.forward(MODULE, *tensors(6, 6), mask)[0].isfinite().all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("tokens", "keys"), [(12, 5), (4, 9)])
def test_an_encoders_keys_are_any_number_and_all_of_them_are_seen(tokens, keys, padded):
    query, key, value = tensors(tokens, keys)
    mask = None
    if padded:
        mask = torch.arange(keys)[None] < keys - 2
        key[:, :, -2:] = value[:, :, -2:] = float("nan")
    out, _ = adapter.forward(MODULE, query, key, value, mask, is_causal=False)
    live = keys - 2 * padded
    expected = dense(query, key[:, :, :live], value[:, :, :live], causal=False)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@needs
def test_a_mask_has_the_last_word_over_its_layer():
    from transformers import masking_utils as known

    query, key, value = tensors(9, 9)
    for function, causal, window in (
        (known.causal_mask_function, True, None),
        (known.bidirectional_mask_function, False, None),
        (known.sliding_window_causal_mask_function(4), True, 4),
        (known.and_masks(known.causal_mask_function, known.sliding_window_overlay(3)), True, 3),
        (known.sliding_window_bidirectional_mask_function(3), False, 4),
    ):
        mask = adapter.mask_of(1, 9, 9, mask_function=function)
        assert getattr(mask, adapter._SEEN) == adapter.Seen(causal, window, False)
        if causal or window is None:
            out, _ = adapter.forward(MODULE, query, key, value, mask, sliding_window=2, is_causal=not causal)
            torch.testing.assert_close(out, dense(query, key, value, causal, window), rtol=1e-4, atol=1e-5)


@needs
def test_patterns_that_no_kernel_call_has_are_refused_by_their_name():
    from transformers import masking_utils as known

    ids = torch.zeros(1, 9, dtype=torch.long)
    for name, function in {
        "chunked_overlay": known.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long)),
        "or_masks": known.or_masks(known.causal_mask_function, known.blockwise_overlay(ids)),
        "remap_positions": known.remap_positions_for_packed_sequence(known.causal_mask_function, ids),
        "lambda": known.and_masks(known.causal_mask_function, lambda b, h, q, k: k != 3),
        "alone": known.sliding_window_overlay(4),
    }.items():
        with pytest.raises(UnsupportedFeature, match=name):
            adapter.mask_of(1, 9, 9, mask_function=function)


@needs
def test_keys_that_a_static_cache_holds_beyond_those_written_are_nobodys():
    query, key, value = tensors(3, 20)
    key[:, :, 11:] = value[:, :, 11:] = float("nan")
    mask = adapter.mask_of(1, 3, 20, torch.tensor(8))
    out, _ = adapter.forward(MODULE, query, key, value, mask)
    torch.testing.assert_close(out, dense(query, key[:, :, :11], value[:, :, :11]), rtol=1e-4, atol=1e-5)


def test_a_kernel_of_one_config_is_refused(monkeypatch):
    monkeypatch.setenv("DIPTYCH_KERNEL", "triton/static_grid")
    with pytest.raises(SpecError, match="DIPTYCH_KERNEL"):
        adapter.varlen(*(torch.zeros(1, 2, 16) for _ in range(3)), *(torch.tensor([0, 1]).int(),) * 2, 1, 1, None,
                       Features())  # fmt: skip


def llama(implementation, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    config = LlamaConfig(num_hidden_layers=2, vocab_size=101, max_position_embeddings=128, **sizes, **more)
    config._attn_implementation = implementation
    return LlamaForCausalLM(config).eval()


@needs
@pytest.mark.parametrize("kernel", ["triton/auto", pytest.param("helion/auto", marks=pytest.mark.slow)])
def test_a_llama_says_the_same_tokens_as_with_sdpa(monkeypatch, kernel):
    monkeypatch.setenv("DIPTYCH_KERNEL", kernel)
    adapter.register()
    prompts = torch.tensor([[5, 17, 3, 99, 42, 7, 8], [0, 0, 0, 1, 2, 3, 4]])
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    said = [
        llama(name).generate(prompts, attention_mask=mask, max_new_tokens=9, do_sample=False, pad_token_id=0)
        for name in ("sdpa", "diptych")
    ]
    assert torch.equal(*said)


@needs
def test_continuous_batching_says_the_same_tokens_as_with_sdpa(monkeypatch):
    from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig

    monkeypatch.setattr(AttentionInterface, "_global_mapping", dict(AttentionInterface._global_mapping))
    adapter.register(paged=True)
    prompts = [[5, 17, 3, 99, 42, 7, 8], [1, 2, 3], [9] * 20]
    how = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
    small = ContinuousBatchingConfig(page_size=32, num_blocks=8, max_batch_tokens=32)
    said, calls, varlen = [], [], adapter.varlen
    monkeypatch.setattr(adapter, "varlen", lambda *given: calls.append(given) or varlen(*given))
    for name in ("sdpa", "paged|eager"):
        found = llama(name).generate_batch(inputs=prompts, generation_config=how, continuous_batching_config=small)
        said.append([one.generated_tokens for one in found.values()])
    assert said[0] == said[1] and all(len(one) == 6 for one in said[1]) and calls


@needs
def test_a_model_of_chunks_is_refused_and_no_token_said(monkeypatch):
    from transformers import AutoModelForCausalLM, Llama4TextConfig

    adapter.register()
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 31}
    sizes |= {"intermediate_size": 32, "intermediate_size_mlp": 32, "num_local_experts": 1, "num_experts_per_tok": 1}
    config = Llama4TextConfig(num_hidden_layers=1, attention_chunk_size=4, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="diptych").eval()
    with torch.no_grad(), pytest.raises(UnsupportedFeature, match="chunked_overlay"):
        model(torch.arange(9)[None])
