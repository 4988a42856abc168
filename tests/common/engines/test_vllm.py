"""vLLM's adapter: metadata, both cache layouts, outputs against the oracle, what is refused at start and by its name.

On a stand-in for vLLM's few names, and on the real one where it is installed."""

import dataclasses
import gc
import importlib
import importlib.util
import sys
import types

import numpy
import pytest
import torch

import stand_in_vllm
from common.cases.batch import make_batch
from common.engines.options import Options
from common.engines.server import Limits, Server
from common.oracle.reference import reference
from common.spec import AttentionShape, Features, PagedBatch, SpecError, UnsupportedFeature

HEADS, KV_HEADS, SIZE, PAGE, MOST_KEYS = 4, 2, 32, 16, 96


@pytest.fixture(params=["stand-in", "vllm"])
def adapter(request, monkeypatch):
    """common.engines.vllm_backend over the one or the other, its current config at hand."""
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here")
    yield from stand_in_vllm.backend(monkeypatch, real=request.param == "vllm")


def config(dtype=torch.float32):
    return stand_in_vllm.config(PAGE, MOST_KEYS, dtype)


def layer(adapter, monkeypatch, engine, **options):
    monkeypatch.setattr(adapter, "get_current_vllm_config", lambda: engine)
    made = adapter.Impl(HEADS, SIZE, SIZE**-0.5, KV_HEADS, **options)
    return made, types.SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))


def empty_cache(form, pages, dtype=torch.float32):
    """A cache as an engine allocates it, its old content NaN where the dtype has one."""
    sizes = {"0.25": (pages, 2, PAGE, KV_HEADS, SIZE), "0.33": (pages, KV_HEADS, PAGE, 2 * SIZE)}[form]
    return torch.full(sizes, float("nan")).to(dtype)


def step_of(lens, padding=0):
    """A step of (query length, sequence length); tokens and sequences of padding behind, as a full graph has them."""
    batch = make_batch(lens, AttentionShape(HEADS, KV_HEADS, SIZE, PAGE, torch.float32), fill=False)
    slots = [
        int(batch.block_table[s, k // PAGE]) * PAGE + k % PAGE
        for s, (query, keys) in enumerate(lens)
        for k in range(keys - query, keys)
    ]
    return batch, stand_in_vllm.metadata(batch, lens, torch.tensor(slots + [-1] * padding), padding)


def builder(adapter, engine):
    return adapter.MetadataBuilder(types.SimpleNamespace(block_size=PAGE), ["layer.0"], engine, torch.device("cpu"))


def run(adapter, impl, of, query, key, value, cache, common, out):
    """One layer of a step, as vLLM runs it: the write, then attention."""
    impl.do_kv_cache_update(of, key, value, cache, common.slot_mapping)
    impl.forward(of, query, key, value, cache, builder(adapter, config()).build(0, common), out)


@pytest.mark.parametrize("form", ["0.25", "0.33"])
@pytest.mark.parametrize("lens", [[(20, 20), (7, 7)], [(1, 40), (1, 17)], [(1, 33), (9, 30)]], ids=str)
def test_a_step_gives_attention_over_what_it_and_earlier_steps_wrote(adapter, monkeypatch, form, lens):
    engine, draw = config(), torch.Generator().manual_seed(0)
    impl, of = layer(adapter, monkeypatch, engine)
    batch, common = step_of(lens)
    cache = empty_cache(form, batch.key_cache.shape[0])
    key_cache, value_cache = adapter.views(cache, SIZE, torch.float32)
    filled = {}
    for name, view in (("key", key_cache), ("value", value_cache)):
        filled[name] = torch.randn(len(lens), MOST_KEYS, KV_HEADS, SIZE, generator=draw)
        for s, (query, keys) in enumerate(lens):
            for k in range(keys - query):
                view[batch.block_table[s, k // PAGE], k % PAGE] = filled[name][s, k]
    rows = torch.randn(batch.num_tokens, (HEADS + 2 * KV_HEADS) * SIZE, generator=draw)  # one projection
    query, key, value = rows.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=1)
    query, key, value = query.view(-1, HEADS, SIZE), key.view(-1, KV_HEADS, SIZE), value.view(-1, KV_HEADS, SIZE)
    out = torch.empty(batch.num_tokens, HEADS, SIZE)
    run(adapter, impl, of, query, key, value, cache, common, out)
    expected = reference(
        batch.replace(query=query.contiguous(), key_cache=key_cache, value_cache=value_cache, key=None, value=None),
        Features(),
    )
    torch.testing.assert_close(out, expected.out.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["0.25", "0.33"])
def test_padding_of_a_full_graph_is_neither_written_nor_read(adapter, monkeypatch, form):
    engine, draw = config(), torch.Generator().manual_seed(1)
    impl, of = layer(adapter, monkeypatch, engine)
    batch, common = step_of([(1, 1), (1, 1)], padding=2)
    cache = empty_cache(form, batch.key_cache.shape[0])
    shapes = ((4, HEADS, SIZE), (4, KV_HEADS, SIZE), (4, KV_HEADS, SIZE))
    query, key, value = (torch.randn(*shape, generator=draw) for shape in shapes)
    out = torch.full((4, HEADS, SIZE), 7.0)
    run(adapter, impl, of, query, key, value, cache, common, out)
    torch.testing.assert_close(out[:2], value[:2].repeat_interleave(HEADS // KV_HEADS, 1))
    assert (out[2:] == 7.0).all() and cache.isfinite().sum() == 2 * 2 * KV_HEADS * SIZE


def test_a_capture_is_chosen_for_the_typical_length(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_TYPICAL_SEQ_LEN", "32")
    engine = config()
    impl, _ = layer(adapter, monkeypatch, engine)
    _, common = step_of([(1, 1)])
    found = builder(adapter, engine).build_for_cudagraph_capture(common)
    assert (found.max_seq_len, found.total_seq_len, impl.server.typical_seq_len) == (32, None, 32)
    assert found.num_decodes == 1
    _, mixed = step_of([(1, 30), (9, 30)])
    assert builder(adapter, engine).build_for_cudagraph_capture(mixed).num_decodes == 0  # replays may hold prompts only


@pytest.mark.parametrize("kernel", ["triton/auto", "triton/static_grid"])
def test_a_graph_that_was_captured_for_decodes_serves_a_step_with_prompts(adapter, monkeypatch, kernel):
    """vLLM's runner V2 captures a graph of any mixture as so many decodes; a replay then brings other lengths."""
    monkeypatch.setenv("DIPTYCH_KERNEL", kernel)
    engine, draw = config(), torch.Generator().manual_seed(7)
    engine.scheduler_config.max_num_seqs = 40
    impl, of = layer(adapter, monkeypatch, engine)
    batch, step = step_of([(20, 40), (1, 17)], padding=19)
    _, decodes = step_of([(1, 1)] * 40)
    captured = builder(adapter, engine).build_for_cudagraph_capture(decodes)
    assert (captured.max_query_len, captured.num_decodes) == (1, 40)
    more = torch.zeros(19, dtype=torch.int32)  # of 21 sequences to 40
    replayed = dataclasses.replace(
        captured, query_start_loc=torch.cat([step.query_start_loc, more + 21]),
        seq_lens=torch.cat([step.seq_lens, more]),
        block_table=torch.nn.functional.pad(step.block_table_tensor, (0, 0, 0, 19)),
    )  # fmt: skip
    cache = empty_cache("0.25", batch.key_cache.shape[0])
    for view in adapter.views(cache, SIZE, torch.float32):
        view.copy_(torch.randn(view.shape, generator=draw))
    key_cache, value_cache = adapter.views(cache, SIZE, torch.float32)
    query, key, value = (torch.randn(40, n, SIZE, generator=draw) for n in (HEADS, KV_HEADS, KV_HEADS))
    out = torch.full((40, HEADS, SIZE), 7.0)
    impl.do_kv_cache_update(of, key, value, cache, step.slot_mapping)
    impl.forward(of, query, key, value, cache, replayed, out)
    expected = reference(
        batch.replace(query=query[:21], key_cache=key_cache, value_cache=value_cache, key=None, value=None), Features()
    )
    torch.testing.assert_close(out[:21], expected.out.float(), rtol=1e-4, atol=1e-5)
    assert (out[21:] == 7.0).all()


@pytest.mark.parametrize(("num_seqs", "length"), [(1, 8192), (64, 8192), (256, 4096), (2048, 1024)])
def test_a_capture_of_many_sequences_is_chosen_for_what_the_cache_holds_of_each(num_seqs, length):
    server = Server(Options.of({}), Limits(8192, 2048, 131072), torch.device("cpu"))
    assert server.captured_seq_len(num_seqs, 2**20) == length
    assert server.captured_seq_len(num_seqs, None) == 8192


def test_metadata_counts_decodes_and_leaves_lengths_to_the_device(adapter, monkeypatch):
    engine = config()
    _, common = step_of([(1, 30), (9, 30), (1, 5)])
    found = builder(adapter, engine).build(0, common)
    assert (found.num_decodes, found.max_query_len, found.max_seq_len) == (2, 9, 30)
    assert found.seq_lens is common.seq_lens and found.query_start_loc is common.query_start_loc


@pytest.mark.parametrize(
    ("given", "total", "of_prompts"),
    [
        ({}, None, None),
        ({"_seq_lens_cpu": [30, 30, 5]}, 65, 30),
        ({"seq_lens_cpu_upper_bound": [30, 32, 5], "_seq_lens_cpu": [30, 30, 5]}, 67, 32),
        ({"seq_lens_cpu_upper_bound": [30, 30]}, None, None),  # of another batch
    ],
    ids=["device", "copy", "bound", "shorter"],
)
def test_metadata_counts_the_keys_that_the_host_knows(adapter, monkeypatch, given, total, of_prompts):
    engine = config()
    _, common = step_of([(1, 30), (9, 30), (1, 5)])
    for name, lengths in given.items():
        monkeypatch.setattr(common, name, torch.tensor(lengths), raising=False)
    made = builder(adapter, engine)
    found, captured = made.build(0, common).hints, made.build_for_cudagraph_capture(common).hints
    assert (found["total_seq_len"], found["prompt_seq_len"]) == (total, of_prompts)
    assert captured["total_seq_len"] is captured["prompt_seq_len"] is None


@pytest.mark.parametrize(("kernel", "support"), [("triton/auto", "ALWAYS"), ("triton/static_grid", "ALWAYS")])
def test_graph_support_is_what_the_kernel_has(adapter, monkeypatch, kernel, support):
    monkeypatch.setenv("DIPTYCH_KERNEL", kernel)
    assert adapter.MetadataBuilder.get_cudagraph_support(config(), None).name == support


def test_layers_of_an_engine_and_a_kind_share_a_plan_kinds_a_workspace_and_engines_neither(adapter, monkeypatch):
    one, other = config(), config()
    plans = []
    for engine, window in ((one, None), (one, None), (other, None), (one, 24)):
        impl, _ = layer(adapter, monkeypatch, engine, sliding_window=window)
        plans.append(impl._bind(types.SimpleNamespace(), empty_cache("0.33", 3), None))
    assert plans[0] is plans[1] and plans[0] is not plans[2] and plans[0] is not plans[3]
    assert plans[0].workspace is plans[3].workspace is not plans[2].workspace


def test_the_scratch_is_there_when_the_engine_measures_its_memory(adapter, monkeypatch):
    engine = config()
    impl, of = layer(adapter, monkeypatch, engine)
    out = torch.full((4, HEADS, SIZE), float("nan"))
    impl.forward(of, *(torch.zeros(4, n, SIZE) for n in (HEADS, KV_HEADS, KV_HEADS)), torch.tensor([]), None, out)
    assert impl.server._workspace is not None and (out == 0).all()
    before = impl.server._workspace.data_ptr()
    assert impl._bind(of, empty_cache("0.33", 3), None).workspace.data_ptr() == before


def test_after_the_warm_up_no_step_meets_a_launch_that_it_had_not(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_WARM", "served")
    engine, draw = config(), torch.Generator().manual_seed(2)
    engine.scheduler_config.max_num_seqs = 2
    impl, of = layer(adapter, monkeypatch, engine)
    impl.forward(of, *(torch.zeros(4, n, SIZE) for n in (HEADS, KV_HEADS, KV_HEADS)), cache := empty_cache("0.33", 14),
                 None, torch.empty(4, HEADS, SIZE))  # fmt: skip
    assert impl.server.warmed > 0
    for lens in ([(1, 5)], [(1, 90), (1, 3)], [(30, 30)], [(1, 40), (20, 20)]):
        batch, common = step_of(lens)
        tokens = batch.num_tokens
        shapes = (tokens, HEADS, SIZE), (tokens, KV_HEADS, SIZE), (tokens, KV_HEADS, SIZE)
        tensors = [torch.randn(*shape, generator=draw) for shape in shapes]
        run(adapter, impl, of, *tensors, cache, common, torch.empty(tokens, HEADS, SIZE))
    assert impl.server.unmet == 0


@pytest.mark.parametrize(
    ("said", "stored"),
    [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2), ("int8_per_token_head", torch.int8),
     ("fp8_per_token_head", torch.float8_e4m3fn)],
)  # fmt: skip
def test_eight_bit_pages_are_written_and_read_with_their_scales(adapter, monkeypatch, said, stored):
    """Scales are the layer's, or lie behind each head's lanes, where vLLM's own kernel has them too."""
    engine, draw = config(torch.bfloat16), torch.Generator().manual_seed(3)
    impl, of = layer(adapter, monkeypatch, engine, kv_cache_dtype=said)
    batch, common = step_of([(5, 5)])
    shape = adapter.DiptychBackend.get_kv_cache_shape(batch.key_cache.shape[0], PAGE, KV_HEADS, SIZE, said)
    per_token = said.endswith("per_token_head")
    assert shape[-1] == SIZE + 4 * per_token
    cache = torch.full(shape, 0xFF, dtype=torch.uint8)  # what is left of others: NaN as a scale, and as fp8
    cache = cache.view(torch.int8) if stored == torch.int8 else cache
    tensors = [torch.randn(5, n, SIZE, generator=draw).bfloat16() for n in (HEADS, KV_HEADS, KV_HEADS)]
    out = torch.empty(5, HEADS, SIZE, dtype=torch.bfloat16)
    run(adapter, impl, of, *tensors, cache, common, out)
    key_cache, value_cache = adapter.views(cache, SIZE, stored, 4 * per_token)
    scales = {"key_scale": torch.tensor([0.5]), "value_scale": torch.tensor([0.25])}
    if per_token:
        scales = {"key_scale": impl.features.key_scale, "value_scale": impl.features.value_scale}
        assert scales["key_scale"].data_ptr() == cache.data_ptr() + SIZE
    scale = scales["value_scale"][batch.block_table[0, 0], 0, :, None] if per_token else 0.25
    first = value_cache[batch.block_table[0, 0], 0].float() * scale
    torch.testing.assert_close(first, tensors[2][0].float(), rtol=0.14 if "e5m2" in said else 0.07, atol=0.02)
    asked = PagedBatch(tensors[0], key_cache, value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
                       SIZE**-0.5, batch.stats)  # fmt: skip
    assert asked.shape == AttentionShape(HEADS, KV_HEADS, SIZE, PAGE, torch.bfloat16, None, stored)
    expected = reference(asked, Features(**scales))
    torch.testing.assert_close(out.float(), expected.out.float(), rtol=2e-2, atol=2e-2)


def test_a_batch_invariant_engine_gets_the_same_bits_of_a_row_in_any_batch(adapter, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert adapter.DiptychBackend.supports_batch_invariance()
    engine, draw, rows = config(), torch.Generator().manual_seed(5), []
    tensors = [torch.randn(20, n, SIZE, generator=draw) for n in (HEADS, KV_HEADS, KV_HEADS)]
    for lens in ([(20, 20)], [(20, 20), (1, 1), (3, 3)]):
        impl, of = layer(adapter, monkeypatch, engine)
        assert impl.features.batch_invariant
        batch, common = step_of(lens)
        more = batch.num_tokens - 20
        given = [torch.cat([one, torch.randn(more, *one.shape[1:], generator=draw)]) for one in tensors]
        out = torch.empty(batch.num_tokens, HEADS, SIZE)
        run(adapter, impl, of, *given, empty_cache("0.25", batch.key_cache.shape[0]), common, out)
        rows.append(out[:20])
    assert torch.equal(*rows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_cache_dtype": "int4_per_token_head"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype"),  # of a model in float32: its bits would be read as those
        ({"attn_type": "encoder_only"}, "attn_type"),
        ({"chunk_lookback": 2}, "chunk_lookback"),
    ],
)
def test_what_no_step_could_serve_is_refused_when_the_layer_is_made(adapter, monkeypatch, options, named):
    with pytest.raises(SpecError, match=named):
        layer(adapter, monkeypatch, config(), **options)


@pytest.mark.parametrize("named", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_context_parallelism_is_refused_when_the_layer_is_made(adapter, monkeypatch, named):
    engine = config()
    setattr(engine.parallel_config, named, 2)
    with pytest.raises(UnsupportedFeature, match=f"{named} 2"):
        layer(adapter, monkeypatch, engine)


def test_scales_are_those_of_a_layer_or_of_each_kv_head(adapter, monkeypatch):
    assert adapter.DiptychBackend.supports_per_head_quant_scales()
    engine, draw = config(torch.bfloat16), torch.Generator().manual_seed(6)
    impl, of = layer(adapter, monkeypatch, engine, kv_cache_dtype="fp8")
    of._k_scale, of._v_scale = torch.tensor([0.5, 0.125]), torch.tensor([0.25, 1.0])
    batch, common = step_of([(5, 5)])
    cache = empty_cache("0.33", batch.key_cache.shape[0], torch.float8_e4m3fn).view(torch.uint8)
    tensors = [torch.randn(5, n, SIZE, generator=draw).bfloat16() for n in (HEADS, KV_HEADS, KV_HEADS)]
    out = torch.empty(5, HEADS, SIZE, dtype=torch.bfloat16)
    run(adapter, impl, of, *tensors, cache, common, out)
    caches = adapter.views(cache, SIZE, torch.float8_e4m3fn)
    first = caches[1][batch.block_table[0, 0], 0].float() * of._v_scale[:, None]
    torch.testing.assert_close(first, tensors[2][0].float(), rtol=0.07, atol=0.02)
    asked = PagedBatch(tensors[0], *caches, batch.block_table, batch.query_start_loc, batch.seq_lens, SIZE**-0.5,
                       batch.stats)  # fmt: skip
    expected = reference(asked, Features(key_scale=of._k_scale, value_scale=of._v_scale))
    torch.testing.assert_close(out.float(), expected.out.float(), rtol=2e-2, atol=2e-2)
    other, of = layer(adapter, monkeypatch, engine, kv_cache_dtype="fp8")
    of._k_scale = torch.ones(KV_HEADS + 1)
    with pytest.raises(SpecError, match="key_scale: found 3 numbers"):
        other._bind(of, cache, None)


def test_a_window_that_leaves_prompts_out_is_refused_when_the_layer_is_made(adapter, monkeypatch):
    engine = config()
    engine.model_config.rswa_window = 64
    with pytest.raises(UnsupportedFeature, match="rswa_window"):
        layer(adapter, monkeypatch, engine)


@pytest.mark.parametrize(("size", "served"), [(64, True), (320, True), (512, True), (100, False), (520, False)])
def test_head_sizes_are_those_of_the_kernels(adapter, size, served):
    assert adapter.DiptychBackend.supports_head_size(size) is served


def test_chunks_of_prompts_are_sequences_of_a_step_and_their_counts_numpys(adapter, monkeypatch):
    """vLLM splits a prompt at its chunks (Llama 4); there may be more of them than the engine has sequences."""
    engine, draw = config(), torch.Generator().manual_seed(4)
    engine.model_config.attention_chunk_size = PAGE
    engine.scheduler_config.max_num_seqs = 2
    impl, of = layer(adapter, monkeypatch, engine)
    batch, common = step_of([(1, 9), (3, 16), (16, 16), (16, 16), (2, 2)])  # of two sequences
    common.max_query_len = numpy.int32(16)
    cache = empty_cache("0.33", batch.key_cache.shape[0])
    key_cache, value_cache = adapter.views(cache, SIZE, torch.float32)
    key_cache.copy_(torch.randn(key_cache.shape, generator=draw))
    value_cache.copy_(torch.randn(value_cache.shape, generator=draw))
    query, out = torch.randn(batch.num_tokens, HEADS, SIZE, generator=draw), torch.empty(batch.num_tokens, HEADS, SIZE)
    impl.forward(of, query, None, None, cache, builder(adapter, engine).build(0, common), out)
    asked = batch.replace(query=query, key_cache=key_cache, value_cache=value_cache, key=None, value=None)
    torch.testing.assert_close(out, reference(asked, Features()).out.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("said", "width"), [(None, 8), (24, 24)])
def test_the_warm_ups_table_is_as_wide_as_the_engines(adapter, monkeypatch, said, width):
    """For 96 keys vLLM's tables have columns for 128; what 16 does not divide is other code."""
    monkeypatch.setenv("DIPTYCH_WARM", "1")
    engine, widths = config(), []
    impl, of = layer(adapter, monkeypatch, engine)
    adapter.MetadataBuilder(types.SimpleNamespace(block_size=PAGE), ["0"], engine, torch.device("cpu"), said)
    monkeypatch.setattr(impl.server, "warm", lambda plan, block_table, **more: widths.append(block_table.shape[1]))
    impl._bind(of, empty_cache("0.33", 3), None)
    assert widths == [width]


def test_a_feature_that_the_chosen_kernel_lacks_is_refused_by_its_name(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_KERNEL", "triton/naive")
    lacks = sorted({"sinks", "alibi", "softcap"} - adapter.kernel_of("triton/naive").supports)
    if not lacks:
        monkeypatch.setattr(sys.modules["dsl_triton.naive"], "SUPPORTS", frozenset({"causal"}))
    with pytest.raises(UnsupportedFeature, match="softcap"):
        layer(adapter, monkeypatch, config(), logits_soft_cap=30.0)


def test_an_engine_that_may_write_another_fp8_or_no_scales_of_tokens_is_refused(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_WRITER", "engine")
    with pytest.raises(SpecError, match="DIPTYCH_WRITER"):
        layer(adapter, monkeypatch, config(torch.bfloat16), kv_cache_dtype="int8_per_token_head")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    layer(adapter, monkeypatch, config(torch.bfloat16))
    with pytest.raises(SpecError, match="DIPTYCH_WRITER"):
        layer(adapter, monkeypatch, config(torch.bfloat16), kv_cache_dtype="fp8")


def test_an_output_to_be_quantised_is_refused(adapter, monkeypatch):
    impl, of = layer(adapter, monkeypatch, config())
    given = [torch.zeros(4, n, SIZE) for n in (HEADS, KV_HEADS, KV_HEADS)]
    with pytest.raises(UnsupportedFeature, match="output_scale"):
        impl.forward(of, *given, empty_cache("0.33", 3), None, torch.empty(4, HEADS, SIZE), torch.ones(1))


@pytest.mark.parametrize(
    "sizes", [(2, KV_HEADS, PAGE, 2 * SIZE), (2, 3, PAGE, KV_HEADS, SIZE)], ids=["dtype", "layout"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32])
def test_a_cache_of_another_dtype_or_no_known_layout_is_refused(adapter, dtype, sizes):
    with pytest.raises(SpecError, match="kv_cache"):
        adapter.views(torch.zeros(sizes, dtype=dtype), SIZE, dtype if len(sizes) == 5 else torch.float16)


def test_a_kernel_that_is_none_is_said_when_a_backend_is_chosen(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_KERNEL", "triton/nothing")
    assert "triton/nothing" in adapter.DiptychBackend.supports_combination()


def test_an_engine_that_ended_leaves_no_server(adapter, monkeypatch):
    engine = config()
    layer(adapter, monkeypatch, engine)
    assert len(adapter._servers) == 1
    del engine
    monkeypatch.undo()
    gc.collect()
    other = config()
    adapter.server_of(other)
    assert len(adapter._servers) == 1
