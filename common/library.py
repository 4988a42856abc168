"""The public call as operators of torch: `diptych_<dsl>::paged_attention` and `..._out`, whole under `torch.compile`.

Eager calls go past them: a dispatch of the one that writes took 0.2 ms of a loaded CPU, is_compiling() 0.1 us.
"""

from typing import Any

import torch

from common.spec import Features, SpecError

# one description of the arguments for both: `paged_attention` returns a new tensor, `paged_attention_out` writes
_INPUTS = (
    "Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor query_start_loc, Tensor seq_lens, "
    "Tensor? key, Tensor? value, Tensor? sinks, SymInt? max_query_len, SymInt? max_seq_len, SymInt? num_decodes, "
    "float? softmax_scale, bool causal, SymInt? sliding_window, float? softcap, str validate"
)
_WRITTEN = "Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? workspace"


def register(family: str, call: Any) -> None:
    """Define both operators of `diptych_<family>` around `call`, a public `paged_attention`."""

    def paged_attention_out(*args: Any) -> None:
        inputs, (out, lse, workspace) = args[:-3], args[-3:]
        *tensors, key, value, sinks, max_query_len, max_seq_len, num_decodes, scale, causal, window, cap, level = inputs
        features = Features(causal, window, cap, sinks)
        call(
            *tensors, max_query_len=max_query_len, max_seq_len=max_seq_len, num_decodes=num_decodes, key=key,
            value=value, out=out, lse=lse, softmax_scale=scale, features=features, workspace=workspace, validate=level,
        )  # fmt: skip

    def paged_attention(query: torch.Tensor, *args: Any) -> torch.Tensor:
        out = torch.empty_like(query)
        paged_attention_out(query, *args, out, None, None)
        return out

    def fake(query: torch.Tensor, *args: Any) -> torch.Tensor:
        return torch.empty_like(query)

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
    hints: tuple[int | None, int | None, int | None],
    softmax_scale: float | None,
    features: Features,
    validate: str,
    written: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
) -> torch.Tensor:
    """The call while it is being compiled. written: out, lse, workspace, each the caller's or None.

    tensors: query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value.
    """
    for name, value in zip(("max_query_len", "max_seq_len", "num_decodes"), hints, strict=True):
        if isinstance(value, torch.Tensor):
            raise SpecError(name, "a tensor", "None or an integer")
    operators = getattr(torch.ops, f"diptych_{family}")
    cap = None if features.softcap is None else float(features.softcap)
    inputs = (
        *tensors, features.sinks, *hints, softmax_scale, features.causal, features.sliding_window, cap, validate,
    )  # fmt: skip
    out, lse, workspace = written
    if out is None and lse is None and workspace is None:
        return operators.paged_attention(*inputs)
    out = torch.empty_like(tensors[0]) if out is None else out
    operators.paged_attention_out(*inputs, out, lse, workspace)
    return out
