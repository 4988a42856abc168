"""The public call as operators of torch: what opcheck asks, whole graphs under torch.compile; kernels interpreted."""

import importlib

import pytest
import torch

from calls import TENSORS
from common.cases.batch import make_batch
from common.serving.library import register
from common.spec import AttentionShape, Features, SpecError
from dsls import HELION_SLOWLY

DSLS = ("triton", "helion")
OPERANDS = (
    "sinks", "alibi_slopes", "spans", "causal_per_sequence", "tree_bias", "key_scale", "value_scale", "query_scale",
    "out_scale",
)  # fmt: skip
SETTINGS = (
    "causal", "sliding_window", "softcap", "alibi_sqrt", "chunk", "chunk_lookback", "cross", "batch_invariant",
)  # fmt: skip
HINTS = {"max_query_len": 3, "max_seq_len": 20, "total_seq_len": 29}


@pytest.fixture(scope="module")
def tensors() -> tuple[torch.Tensor, ...]:
    batch = make_batch([(1, 20), (3, 9)], AttentionShape(4, 2, 16, 16, torch.float32))
    return tuple(getattr(batch, name) for name in TENSORS)


def call_of(dsl: str):
    return importlib.import_module(f"dsl_{dsl}").paged_attention


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_a_compiled_function_is_one_graph_and_bitwise_the_eager_one(dsl: str, tensors) -> None:
    call = call_of(dsl)

    def step(query, *others):
        out, lse = torch.empty_like(query), torch.empty(query.shape[:2])
        call(query, *others, **HINTS, out=out, lse=lse, features=Features(sliding_window=7))
        return out + call(query, *others, **HINTS), lse

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for traced, eager in zip(compiled(*tensors), step(*tensors), strict=True):
        assert torch.equal(traced, eager)


@pytest.mark.parametrize("suffix", ["", "_out"])
@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_opcheck_passes(dsl: str, suffix: str, tensors) -> None:
    call_of(dsl)
    operator = getattr(getattr(torch.ops, f"diptych_{dsl}"), f"paged_attention{suffix}")
    settings = (True, None, None, False, None, 0, False, False)
    inputs = (*tensors, *[None] * 11, 3, 20, None, 29, None, None, *settings, "host")
    written = (torch.empty_like(tensors[0]), torch.empty(tensors[0].shape[:2]), None, None) if suffix else ()
    found = torch.library.opcheck(operator, (*inputs, *written))
    assert len(found) == 4 and set(found.values()) == {"SUCCESS"}


def test_an_operator_passes_every_argument_on(tensors) -> None:
    """Each argument with a value that no other has; what arrives is what was given."""
    arrived = {}

    def call(*args, **options):
        arrived.update(dict(zip(TENSORS, args, strict=True)) | options)

    register("probe", call)
    key, value = torch.ones(4, 2, 16), torch.zeros(4, 2, 16)
    out, lse, workspace = torch.empty_like(tensors[0]), torch.empty(4, 4), torch.empty(8, dtype=torch.uint8)
    operands = {name: torch.full((1,), float(i)) for i, name in enumerate(OPERANDS)}
    settings = (False, 9, 2.0, True, 5, 2, True, False)
    torch.ops.diptych_probe.paged_attention_out(
        *tensors, key, value, *operands.values(), 3, 20, 1, 29, 11, 0.5, *settings, "off", out, lse, workspace, None
    )
    features = arrived.pop("features")
    assert tuple(getattr(features, name) for name in SETTINGS) == settings
    assert all(getattr(features, name).data_ptr() == operand.data_ptr() for name, operand in operands.items())
    assert {*OPERANDS, *SETTINGS} == set(Features.__dataclass_fields__)
    plain = HINTS | {"num_decodes": 1, "prompt_seq_len": 11, "softmax_scale": 0.5, "validate": "off"}
    assert {name: arrived.pop(name) for name in plain} == plain
    given = {**dict(zip(TENSORS, tensors, strict=True)), "key": key, "value": value, "out": out, "lse": lse}
    given["workspace"] = workspace
    assert arrived.keys() == given.keys() and all(arrived[name].data_ptr() == given[name].data_ptr() for name in given)


@pytest.mark.parametrize("dsl", DSLS)
def test_the_schema_names_every_operand_in_the_order_of_the_features(dsl: str) -> None:
    call_of(dsl)
    arguments = getattr(torch.ops, f"diptych_{dsl}").paged_attention.default._schema.arguments
    named = [argument.name for argument in arguments if argument.name in Features.__dataclass_fields__]
    assert named == [*OPERANDS, *SETTINGS]
    assert all(str(argument.type) == "Optional[Tensor]" for argument in arguments if argument.name in OPERANDS)


def test_a_compiled_call_of_a_plan_is_the_plans(monkeypatch, tensors) -> None:
    """Its kernel serves and its limits hold, of which an operator of the family alone would know nothing."""
    from dsl_triton import naive, plan_paged_attention

    def compiled(max_tokens: int):
        plan = plan_paged_attention(
            AttentionShape(4, 2, 16, 16, torch.float32), max_tokens, 2, 64, "cpu", kernel="naive"
        )

        def step(query, *others):
            return plan(query, *others, **HINTS, out=torch.empty_like(query))

        return torch.compile(step, fullgraph=True, backend="aot_eager")

    met, launch = [], naive.launch
    monkeypatch.setattr(naive, "launch", lambda *args, **options: met.append(launch(*args, **options)))
    torch.testing.assert_close(compiled(4)(*tensors), call_of("triton")(*tensors, **HINTS))
    assert len(met) == 1
    with pytest.raises(SpecError, match="at most the plan's 3"):
        compiled(3)(*tensors)


def test_a_malformed_call_is_refused_while_it_is_compiled(tensors) -> None:
    call = call_of("triton")

    def step(query, *others):
        return call(query, *others, **HINTS, causal=False, features=Features())

    with pytest.raises((SpecError, torch._dynamo.exc.Unsupported, torch._dynamo.exc.ObservedException)) as refusal:
        torch.compile(step, fullgraph=True, backend="eager")(*tensors)
    assert "features" in str(refusal.value)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_the_package_has_flash_attentions_calls(dsl: str, tensors) -> None:
    query, key_cache, value_cache, block_table, starts, lengths = tensors
    found = importlib.import_module(f"dsl_{dsl}").flash_attn_varlen_func(
        query, key_cache, value_cache, cu_seqlens_q=starts, max_seqlen_q=3, seqused_k=lengths, max_seqlen_k=20,
        block_table=block_table, causal=True,
    )  # fmt: skip
    assert torch.equal(found, call_of(dsl)(*tensors, **HINTS))
