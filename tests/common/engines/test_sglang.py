"""SGLang's adapter: pages by req_to_token, both pools, graphs' tensors, outputs against the oracle, what is refused.

On a stand-in for SGLang's few names, and on the real ones where SGLang is installed."""

import importlib
import importlib.util
import sys
import types
import warnings
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

import stand_in_sglang
from common.engines import sglang as plugin
from common.oracle.reference import reference
from common.spec import Features, PagedBatch, SpecError, UnsupportedFeature
from common.spec.metadata import BatchStats

HEADS, KV_HEADS, SIZE, PAGE, MOST_KEYS, PAGES, ROWS = 4, 2, 32, 16, 96, 40, 6


@pytest.fixture(params=["stand-in", "sglang"])
def adapter(request, monkeypatch):
    """common.engines.sglang_backend over the one or the other."""
    if request.param == "sglang" and importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed here")
    yield from stand_in_sglang.backend(monkeypatch, real=request.param == "sglang")


class Pool:
    """As much of SGLang's pools as a backend calls: a buffer of slots for K and V of each layer."""

    def __init__(self, layers, dtype=torch.float32, by_head=False):
        sizes = (PAGES, KV_HEADS, PAGE, SIZE) if by_head else (PAGES * PAGE, KV_HEADS, SIZE)
        self.buffers = [[torch.full(sizes, float("nan")).to(dtype) for _ in range(2)] for _ in range(layers)]
        self.written = []

    def get_kv_buffer(self, layer_id):
        return tuple(self.buffers[layer_id])

    def set_kv_buffer(self, layer, where, key, value, key_scale, value_scale):
        self.written.append(where)
        for buffer, new in zip(self.buffers[layer.layer_id], (key, value), strict=True):
            buffer[where.loc[: new.shape[0]]] = new


class Engine:
    """One runner with its layers, on pages in a random order; page 0 is nobody's, as SGLang has it."""

    def __init__(self, adapter, monkeypatch, layers=({},), dtype=torch.float32, window_pool=False, **changed):
        self.adapter, self.draw = adapter, torch.Generator().manual_seed(0)
        graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(max_bs=4)))
        deterministic = SimpleNamespace(enable_deterministic_inference=False)
        context = {
            "get_exec": SimpleNamespace(graph=graph, deterministic=deterministic),
            "get_parallel": SimpleNamespace(attn_cp_size=1, attn_dcp_size=1),
            "get_schedule": SimpleNamespace(chunked_prefill_size=64, max_prefill_tokens=256),
            "max_prefill_buffer_tokens": 64,
        }
        for name, value in context.items():
            monkeypatch.setattr(adapter, name, lambda value=value: value)
        self.context = context
        self.layers = [
            adapter.RadixAttention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, index, **given)
            for index, given in enumerate(layers)
        ]
        self.modes = sys.modules["sglang.srt.model_executor.forward_batch_info"].ForwardMode
        order = torch.randperm(PAGES - 1, generator=self.draw) + 1
        slots = order[:, None] * PAGE + torch.arange(PAGE)
        each = MOST_KEYS // PAGE
        self.table = torch.zeros(ROWS, MOST_KEYS, dtype=torch.int32)
        self.table[1:] = slots[: each * (ROWS - 1)].reshape(ROWS - 1, MOST_KEYS)
        self.pool = Pool(len(layers), changed.get("kv_cache_dtype", dtype), changed.pop("by_head", False))
        if window_pool:
            self._lay_out_windows()
        given = dict(
            page_size=PAGE, device="cpu", dtype=dtype, kv_cache_dtype=dtype, kv_cache_dtype_str="auto",
            use_mla_backend=False, attention_chunk_size=None, max_running_requests=4, max_total_num_tokens=PAGES * PAGE,
            model_config=SimpleNamespace(context_len=MOST_KEYS, is_encoder_decoder=False),
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
            kv_index_translator=SimpleNamespace(is_translating=False), token_to_kv_pool=self.pool,
            req_to_token_pool=SimpleNamespace(req_to_token=self.table), model=torch.nn.ModuleList(self.layers),
        )  # fmt: skip
        self.runner = SimpleNamespace(**(given | changed))
        self.backend = adapter.DiptychBackend(self.runner)

    def _lay_out_windows(self):
        """Layers with a window in slots of their own: page p of all tokens is page PAGES - p of theirs."""
        pool, plain = self.adapter.SWAKVPool.__new__(self.adapter.SWAKVPool), self.pool
        pool.swa_layer_nums = sum(layer.sliding_window_size > -1 for layer in self.layers)
        pool.layers_mapping = {layer.layer_id: (0, layer.sliding_window_size > -1) for layer in self.layers}
        slots = torch.arange(PAGES * PAGE)
        pool.full_to_swa_index_mapping = (PAGES - slots // PAGE) % PAGES * PAGE + slots % PAGE
        pool.buffers, pool.written = plain.buffers, plain.written
        for name in ("get_kv_buffer", "set_kv_buffer"):
            setattr(pool, name, getattr(plain, name))
        self.pool = pool

    def step(self, lens, rows=None, mode=None):
        """A ForwardBatch of (query length, sequence length), in rows of req_to_token."""
        rows = list(range(len(lens), 0, -1)) if rows is None else rows
        queries, keys = [torch.tensor(part) for part in zip(*lens, strict=True)]
        where = [self.table[row, n - q : n] for row, (q, n) in zip(rows, lens, strict=True)]
        decode = all(query == 1 for query, _ in lens)
        return SimpleNamespace(
            forward_mode=mode or (self.modes.DECODE if decode else self.modes.EXTEND), batch_size=len(lens),
            req_pool_indices=torch.tensor(rows), seq_lens=keys, seq_lens_cpu=keys.clone(), seq_lens_sum=int(keys.sum()),
            out_cache_loc=torch.cat(where).long(), extend_seq_lens=None if decode else queries.int(),
            extend_seq_lens_cpu=None if decode else queries.tolist(), spec_info=None, _attn_output=None,
            out_cache_loc_is_physical=True,
        )  # fmt: skip

    def views(self, layer):
        return [self.adapter.paged(one, PAGE, KV_HEADS, SIZE) for one in self.pool.get_kv_buffer(layer.layer_id)]

    def slots(self, layer, slots):
        in_window = hasattr(self.pool, "layers_mapping") and self.pool.layers_mapping[layer.layer_id][1]
        return self.pool.full_to_swa_index_mapping[slots.long()] if in_window else slots.long()

    def remember(self, layer, step, lens):
        """K and V of what earlier steps wrote."""
        for row, (query, keys) in zip(step.req_pool_indices, lens, strict=True):
            where = self.slots(layer, self.table[row, : keys - query])
            for view in self.views(layer):
                view[where // PAGE, where % PAGE] = self.draws(len(where), KV_HEADS, SIZE).to(view.dtype)

    def draws(self, *shape):
        return torch.randn(*shape, generator=self.draw)

    def expected(self, layer, step, lens, query, features):
        """The oracle's, over the pages as they are."""
        places = torch.stack([self.slots(layer, self.table[row, ::PAGE]) // PAGE for row in step.req_pool_indices])
        starts = torch.tensor([0, *torch.tensor([q for q, _ in lens]).cumsum(0)], dtype=torch.int32)
        batch = PagedBatch(
            query.reshape(-1, HEADS, SIZE), *self.views(layer), places.int(), starts, step.seq_lens.int(), SIZE**-0.5,
            BatchStats.of(tuple(lens)),
        )  # fmt: skip
        return reference(batch, features).out.float().reshape(query.shape[0], -1)

    def call(self, layer, step, rows, padding=0, **more):
        """(query, key, value, out) of a layer's call; slices of one projection, as models hand them over."""
        both = self.draws(rows + padding, (HEADS + 2 * KV_HEADS) * SIZE).to(self.runner.dtype)
        query, key, value = both.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=1)
        key, value = key.view(-1, KV_HEADS, SIZE), value.view(-1, KV_HEADS, SIZE)
        return query, key, value, self.backend.forward(query, key, value, layer, step, **more)


def served(engine, lens, features, layer=None, **more):
    """One layer of an eager step, held to the oracle."""
    layer, step = layer or engine.layers[0], engine.step(lens)
    engine.remember(layer, step, lens)
    engine.backend.init_forward_metadata(step)
    query, *_, out = engine.call(layer, step, sum(query for query, _ in lens), **more)
    torch.testing.assert_close(out, engine.expected(layer, step, lens, query, features), rtol=1e-4, atol=1e-5)
    return step, out


@pytest.mark.parametrize("by_head", [False, True], ids=["slots", "by head"])
@pytest.mark.parametrize(
    "lens", [[(1, 40), (1, 17)], [(20, 20), (7, 7)], [(9, 30), (5, 96)], [(12, 30), (1, 33), (1, 1)]],
    ids=["decode", "extend", "extend behind prefixes", "mixed"],
)  # fmt: skip
def test_a_step_gives_attention_over_what_it_and_earlier_steps_wrote(adapter, monkeypatch, lens, by_head):
    served(Engine(adapter, monkeypatch, by_head=by_head), lens, Features())


def test_every_sixteenth_slot_of_a_request_is_a_page_of_its_row(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    step = engine.step([(1, 40), (9, 17)], rows=[5, 2])
    engine.backend.init_forward_metadata(step)
    table = engine.backend.forward_metadata.full.block_table
    assert table.dtype == torch.int32 and table.shape == (2, engine.backend.width)
    assert table[:, :3].tolist() == (engine.table[[5, 2], ::PAGE][:, :3] // PAGE).tolist()


def test_hints_are_what_the_host_knows_and_nothing_waits_for_what_it_does_not(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    step = engine.step([(12, 30), (1, 33), (1, 1)], mode=engine.modes.MIXED)
    engine.backend.init_forward_metadata(step)
    assert tuple(engine.backend.forward_metadata.full.hints.values()) == (12, 33, 2, 64, 30)
    step.seq_lens_cpu = None
    engine.backend.init_forward_metadata(step)
    assert tuple(engine.backend.forward_metadata.full.hints.values()) == (12, None, 2, None, None)


def test_a_softcap_sinks_and_a_window_that_counts_the_keys_before_a_token_are_served(adapter, monkeypatch):
    served(Engine(adapter, monkeypatch, [{"sliding_window_size": 9}]), [(1, 40), (1, 17)], Features(True, 10))
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    engine = Engine(adapter, monkeypatch, [{"logit_cap": 5.0}])
    served(engine, [(9, 30), (1, 17)], Features(True, None, 5.0, sinks), sinks=sinks)


def test_layers_with_windows_read_and_write_the_slots_of_their_own_pool(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch, [{}, {"sliding_window_size": 9}], window_pool=True)
    for lens in ([(20, 40), (1, 17)], [(1, 41), (1, 18)]):
        for layer, window in zip(engine.layers, (None, 10), strict=True):
            served(engine, lens, Features(True, window), layer)


def test_pages_that_a_window_has_left_are_not_read(adapter, monkeypatch):
    """SGLang maps their slots to 0, or to -1."""
    engine = Engine(adapter, monkeypatch, [{"sliding_window_size": 9}], window_pool=True)
    engine.pool.full_to_swa_index_mapping[engine.table[2, :32].long()] = -1
    layer, lens = engine.layers[0], [(1, 60)]
    step = engine.step(lens, rows=[2])
    held = engine.slots(layer, engine.table[2, 32:59])
    for view in engine.views(layer):
        view[held // PAGE, held % PAGE] = engine.draws(len(held), KV_HEADS, SIZE)
    engine.backend.init_forward_metadata(step)
    assert engine.backend.forward_metadata.window.block_table[0, :2].tolist() == [0, 0]
    *_, out = engine.call(layer, step, 1)
    assert out.isfinite().all()


@pytest.mark.parametrize("adapter", ["sglang"], indirect=True)
def test_sglangs_own_pools_are_read_and_written(adapter, monkeypatch):
    memory = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    size = (PAGES - 1) * PAGE  # beside page 0
    pool = adapter.SWAKVPool(
        size=size, size_swa=size, page_size=PAGE, dtype=torch.float32, head_num=KV_HEADS, head_dim=SIZE,
        swa_attention_layer_ids=[1], full_attention_layer_ids=[0], device="cpu",
    )  # fmt: skip
    requests = memory.ReqToTokenPool(ROWS - 1, MOST_KEYS, "cpu", enable_memory_saver=False)
    given = {"token_to_kv_pool": pool, "req_to_token_pool": requests, "window_pool": True}
    engine = Engine(adapter, monkeypatch, [{}, {"sliding_window_size": 9}], **given)
    pool.full_to_swa_index_mapping, engine.pool = engine.pool.full_to_swa_index_mapping, pool
    requests.req_to_token.copy_(engine.table)
    for lens in ([(20, 40), (1, 17)], [(1, 41), (1, 18)]):
        for layer, window in zip(engine.layers, (None, 10), strict=True):
            served(engine, lens, Features(True, window), layer)


def test_a_graph_reads_the_tensors_of_its_capture_and_pads_without_a_write(adapter, monkeypatch):
    """A capture, then a replay with fewer sequences: the same tensors, filled anew."""
    engine = Engine(adapter, monkeypatch, [{}, {"sliding_window_size": 9}], window_pool=True)
    engine.backend.init_cuda_graph_state(4, 4)
    capture = engine.step([(1, 1)] * 4, rows=[0] * 4)
    engine.backend.init_forward_metadata_out_graph(capture, in_capture=True)
    captured = engine.backend.forward_metadata
    assert (captured.full.slot_mapping == -1).all() and captured.full.total_seq_len is None
    lens = [(1, 40), (1, 17)]
    step = engine.step(lens)
    for layer in engine.layers:
        engine.remember(layer, step, lens)
    view = engine.step([*lens, (1, 1), (1, 1)], rows=[2, 1, 0, 0])
    view.out_cache_loc = step.out_cache_loc  # SGLang's view of a replay has the slots of the real tokens alone
    engine.backend.init_forward_metadata_out_graph(view)
    engine.backend.forward_metadata = captured  # what a graph has
    for layer, window in zip(engine.layers, (None, 10), strict=True):
        query, *_, out = engine.call(layer, view, 2, padding=2)
        expected = engine.expected(layer, step, lens, query[:2], Features(True, window))
        torch.testing.assert_close(out[:2], expected, rtol=1e-4, atol=1e-5)
        assert all(one[0].isnan().all() for one in engine.views(layer))  # page 0 is nobody's


def test_a_graph_is_chosen_for_the_typical_length(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_TYPICAL_SEQ_LEN", "32")
    engine = Engine(adapter, monkeypatch)
    engine.backend.init_cuda_graph_state(4, 4)
    engine.backend.init_forward_metadata_out_graph(engine.step([(1, 1)] * 2, rows=[0, 0]), in_capture=True)
    assert engine.backend.forward_metadata.full.hints["max_seq_len"] == 32
    assert engine.backend.get_cuda_graph_seq_len_fill_value() == 1


def test_layers_of_a_kind_share_a_plan_and_all_kinds_a_workspace(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch, [{}, {}, {"sliding_window_size": 9}])
    step = engine.step([(1, 40)])
    engine.backend.init_forward_metadata(step)
    for layer in engine.layers:
        engine.call(layer, step, 1)
    first, second = engine.backend.server.plans
    assert first.workspace is second.workspace is engine.backend.server.workspace


def test_after_the_warm_up_no_step_meets_a_launch_that_it_had_not(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_WARM", "served")
    engine = Engine(adapter, monkeypatch, max_running_requests=2)
    for lens in ([(1, 5)], [(1, 90), (1, 3)], [(30, 30)], [(20, 40), (1, 20)]):
        served(engine, lens, Features())
    assert engine.backend.server.warmed > 0 and engine.backend.server.unmet == 0


def test_rows_of_padding_are_zero_and_an_output_that_is_given_is_written(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    step = engine.step([(5, 5)])
    step._attn_output = torch.full((8, HEADS * SIZE), 7.0)
    engine.backend.init_forward_metadata(step)
    *_, out = engine.call(engine.layers[0], step, 5, padding=3)
    assert out.data_ptr() == step._attn_output.data_ptr() and (out[5:] == 0).all() and out[:5].abs().sum() > 0


def test_a_layer_without_new_keys_reads_what_another_wrote(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    layer, lens = engine.layers[0], [(4, 20)]
    step = engine.step(lens)
    engine.backend.init_forward_metadata(step)
    engine.remember(layer, step, [(0, 20)])
    query = engine.draws(4, HEADS * SIZE)
    out = engine.backend.forward(query, None, None, layer, step, save_kv_cache=False)
    torch.testing.assert_close(out, engine.expected(layer, step, lens, query, Features()), rtol=1e-4, atol=1e-5)


def test_the_engines_writer_is_given_both_pools_slots(adapter, monkeypatch):
    monkeypatch.setenv("DIPTYCH_WRITER", "engine")
    engine = Engine(adapter, monkeypatch, [{}, {"sliding_window_size": 9}], window_pool=True)
    step, _ = served(engine, [(1, 40), (1, 17)], Features())
    (where,) = engine.pool.written
    assert where.loc.tolist() == step.out_cache_loc.tolist()
    assert where.swa_loc.tolist() == engine.pool.full_to_swa_index_mapping[step.out_cache_loc].tolist()


@pytest.mark.parametrize(("stored", "said"), [(torch.float8_e4m3fn, "fp8_e4m3"), (torch.float8_e5m2, "fp8_e5m2")])
def test_eight_bit_pages_are_written_and_read_with_the_layers_scales(adapter, monkeypatch, stored, said):
    fp8 = {"kv_cache_dtype": stored, "kv_cache_dtype_str": said}
    engine = Engine(adapter, monkeypatch, dtype=torch.bfloat16, **fp8)
    (layer,), lens = engine.layers, [(5, 5)]
    layer.k_scale, layer.v_scale = torch.tensor(0.5), torch.tensor(0.25)
    step = engine.step(lens)
    engine.backend.init_forward_metadata(step)
    query, _, value, out = engine.call(layer, step, 5)
    first = engine.pool.buffers[0][1][step.out_cache_loc[0]].float() * 0.25
    torch.testing.assert_close(first, value[0].float(), rtol=0.07 if "e4m3" in said else 0.14, atol=0.01)
    features = Features(key_scale=torch.tensor([0.5]), value_scale=torch.tensor([0.25]))
    expected = engine.expected(layer, step, lens, query, features)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"page_size": 1}, "--page-size 16"),
        ({"use_mla_backend": True}, "latent"),
        ({"model_config": SimpleNamespace(context_len=MOST_KEYS, is_encoder_decoder=True)}, "encoder"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"spec_algorithm": SimpleNamespace(is_none=lambda: False)}, "--speculative-algorithm"),
        ({"kv_index_translator": SimpleNamespace(is_translating=True)}, "--enable-unified-memory"),
        ({"kv_cache_dtype": torch.int8, "kv_cache_dtype_str": "int8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": torch.float8_e4m3fn, "kv_cache_dtype_str": "mxfp8"}, "mxfp8"),
        ({"kv_cache_dtype": torch.bfloat16}, "kv_cache_dtype"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_no_step_could_serve_is_refused_when_the_backend_is_made(adapter, monkeypatch, changed, named):
    with pytest.raises(SpecError, match=named):
        Engine(adapter, monkeypatch, **changed)


@pytest.mark.parametrize("named", ["attn_cp_size", "dcp_size", "deterministic"])
def test_what_sglangs_context_says_is_refused_too(adapter, monkeypatch, named):
    engine = Engine(adapter, monkeypatch)
    parallel, execution = engine.context["get_parallel"], engine.context["get_exec"]
    parallel.attn_cp_size, parallel.attn_dcp_size = 1 + (named == "attn_cp_size"), 1 + (named == "dcp_size")
    execution.deterministic.enable_deterministic_inference = named == "deterministic"
    with pytest.raises(UnsupportedFeature, match=named):
        adapter.DiptychBackend(engine.runner)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"is_cross_attention": True}, "cross attention"),
        ({"pos_encoding_mode": "ALIBI"}, "pos_encoding_mode"),
        ({"logit_cap": 30.0, "logit_capping_method": "sigmoid"}, "logit_capping_method"),
        ({"v_head_dim": 16}, "DIPTYCH_WRITER"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_layer_that_cannot_be_served_is_refused_when_the_backend_is_made(adapter, monkeypatch, layer, named):
    with pytest.raises(SpecError, match=named):
        Engine(adapter, monkeypatch, [{}, layer])


def test_an_encoder_a_graph_beyond_the_engine_and_a_pool_of_no_known_layout_are_refused(adapter, monkeypatch):
    with pytest.raises(UnsupportedFeature, match="encoder_only"):
        Engine(adapter, monkeypatch, [{"attn_type": adapter.AttentionType.ENCODER_ONLY}])
    with pytest.raises(SpecError, match="max_bs"):
        Engine(adapter, monkeypatch).backend.init_cuda_graph_state(5, 5)
    with pytest.raises(SpecError, match="token_to_kv_pool"):
        adapter.paged(torch.zeros(2, KV_HEADS, SIZE // 8, PAGE, 8), PAGE, KV_HEADS, SIZE)


@pytest.mark.parametrize(("name", "value"), [("q_rope", torch.zeros(1)), ("score_mod", max), ("return_lse", True)])
def test_an_argument_that_is_not_served_is_refused_before_a_write(adapter, monkeypatch, name, value):
    engine = Engine(adapter, monkeypatch)
    step = engine.step([(1, 1)])
    engine.backend.init_forward_metadata(step)
    with pytest.raises(UnsupportedFeature, match=name):
        engine.call(engine.layers[0], step, 1, **{name: value})
    assert all(one.isnan().all() for one in engine.pool.buffers[0])


def test_modes_of_speculation_and_full_graphs_of_prompts_are_refused(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    engine.backend.init_cuda_graph_state(4, 4)
    with pytest.raises(UnsupportedFeature, match="TARGET_VERIFY"):
        engine.backend.init_forward_metadata(engine.step([(3, 9)], mode=engine.modes.TARGET_VERIFY))
    with pytest.raises(UnsupportedFeature, match="EXTEND"):
        engine.backend.init_forward_metadata_out_graph(engine.step([(3, 9)]), in_capture=True)


def test_an_idle_step_needs_nothing(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch)
    idle = SimpleNamespace(forward_mode=engine.modes.IDLE, batch_size=0)
    engine.backend.init_forward_metadata(idle)
    query = torch.zeros(0, HEADS * SIZE)
    assert engine.backend.forward(query, None, None, engine.layers[0], idle).shape == query.shape


@pytest.mark.parametrize("version", ["0.5.23", "0.5.24"])
def test_the_plugin_makes_the_backend_known_once(monkeypatch, version):
    for name, module in stand_in_sglang.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plugin.register()
        plugin.register()
    assert stand_in_sglang.ATTENTION_BACKEND_CHOICES.count("diptych") == 1
    assert "diptych" in stand_in_sglang.ATTENTION_BACKENDS
    assert bool(said) == (version == "0.5.24")


@pytest.mark.parametrize("adapter", ["sglang"], indirect=True)
def test_sglangs_own_registry_takes_the_backend(adapter):
    plugin.register()
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    choices = importlib.import_module("sglang.srt.server_args").ATTENTION_BACKEND_CHOICES
    assert "diptych" in registry.ATTENTION_BACKENDS and choices.count("diptych") == 1


def test_an_sglang_with_other_methods_for_graphs_is_refused_by_its_version(monkeypatch):
    for name, module in stand_in_sglang.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    base = sys.modules["sglang.srt.layers.attention.base_attn_backend"]
    monkeypatch.setattr(base, "AttentionBackend", types.SimpleNamespace())
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.5")
    with pytest.raises(SpecError, match=r"0\.5\.5"):
        plugin.register()
