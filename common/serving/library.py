"""The public call as torch operators, `diptych_<dsl>::paged_attention` and `..._out`, which `torch.compile` does not
open.

Eager calls bypass them: dispatching an operator takes 0.2 ms of a busy CPU.
"""

from dataclasses import fields
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from common.serving.arguments import HINTS, Hints, new_out
from common.spec import Features, SpecError
from common.spec.features import OPERANDS
from common.spec.plain import real
from common.spec.refusals import NO_GRADIENT

# The arguments of both: `paged_attention` returns a new tensor, `paged_attention_out` writes to one.
_KINDS = {bool: "bool", int: "SymInt", int | None: "SymInt?", float | None: "float?"}
_SETTINGS = {field.name: _KINDS[field.type] for field in fields(Features) if field.name not in OPERANDS}
_INPUTS = ", ".join(
    [
        "Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor query_start_loc",
        "Tensor seq_lens, Tensor? key, Tensor? value",
        *(f"Tensor? {name}" for name in OPERANDS),
        ", ".join(f"SymInt? {name}" for name in HINTS) + ", float? softmax_scale",
        *(f"{kind} {name}" for name, kind in _SETTINGS.items()),
        "str validate",
    ]
)
_WRITTEN = "Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? workspace, str? plan"
_NAMES = (
    "query",
    "key_cache",
    "value_cache",
    "block_table",
    "query_start_loc",
    "seq_lens",
    "key",
    "value",
)  # _INPUTS before the operands; hints and scale follow them
_TENSORS = len(_NAMES)
_plans: WeakValueDictionary[str, Any] = WeakValueDictionary()  # an operator takes no objects
_numbers = count()


def named(plan: Any) -> str:
    """The name by which operators call a plan while it lives."""
    name = str(next(_numbers))
    _plans[name] = plan
    return name


def register(family: str, call: Any) -> None:
    """Define both operators of `diptych_<family>` around `call`, a public `paged_attention`."""

    def paged_attention_out(*args: Any) -> None:
        inputs, (out, lse, workspace, plan) = args[:-4], args[-4:]
        (*tensors, key, value), rest = inputs[:_TENSORS], inputs[_TENSORS:-1]
        operands, rest = rest[: len(OPERANDS)], rest[len(OPERANDS) :]
        hints, scale, rest = dict(zip(HINTS, rest, strict=False)), rest[len(HINTS)], rest[len(HINTS) + 1 :]
        settings = zip(_SETTINGS, rest, strict=True)
        features, level = Features(**dict(zip(OPERANDS, operands, strict=True)), **dict(settings)), inputs[-1]
        (call if plan is None else _plans[plan])(
            *tensors, **hints, key=key, value=value, out=out, lse=lse, softmax_scale=scale, features=features,
            workspace=workspace, validate=level,
        )  # fmt: skip

    def paged_attention(query: torch.Tensor, *args: Any) -> torch.Tensor:
        out = new_out(query, *args[:2], None)
        paged_attention_out(query, *args, out, None, None, None)
        return out

    def fake(query: torch.Tensor, *args: Any) -> torch.Tensor:
        return new_out(query, *args[:2], None)

    name = f"diptych_{family}::paged_attention"
    for suffix, schema, run, shapes in (
        ("", f"({_INPUTS}) -> Tensor", paged_attention, fake),
        ("_out", f"({_INPUTS}, {_WRITTEN}) -> ()", paged_attention_out, lambda *args: None),
    ):
        mutates = ("out", "lse", "workspace") if suffix else ()
        operator = torch.library.custom_op(name + suffix, run, mutates_args=mutates, schema=schema)
        operator.register_fake(shapes)


def traced(
    family: str,
    tensors: tuple[torch.Tensor | None, ...],
    hints: Hints,
    softmax_scale: float | None,
    features: Features,
    validate: str,
    written: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    plan: str | None = None,
) -> torch.Tensor:
    """The call while torch.compile traces it. written: out, lse, workspace, each the caller's or None.

    tensors: query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value. plan: the plan that is
    called, by its name (`named`).
    """
    for name, value in zip(HINTS, hints, strict=True):
        if isinstance(value, torch.Tensor):
            raise SpecError(name, "a tensor", "None or an integer")
    operands = [getattr(features, name) for name in OPERANDS]
    if torch.is_grad_enabled():
        for name, tensor in zip((*_NAMES, *OPERANDS, "out", "lse"), (*tensors, *operands, *written[:2]), strict=True):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise SpecError(name, *NO_GRADIENT)
    operators = getattr(torch.ops, f"diptych_{family}")
    settings = {name: getattr(features, name) for name in _SETTINGS}
    inputs = (*tensors, *operands, *hints, real(softmax_scale), *settings.values(), validate)
    out, lse, workspace = written
    if out is None and lse is None and workspace is None and features.out_scale is None:
        return operators.paged_attention(*inputs)
    out = new_out(*tensors[:3], features) if out is None else out
    operators.paged_attention_out(*inputs, out, lse, workspace, plan)
    return out
