"""What can be asked of attention beyond plain causal rows: one dataclass, one meaning for both DSLs and the reference.

Order of the math: scales of K -> softmax scale -> softcap -> ALiBi and tree bias -> mask -> softmax with the sink as
one extra logit -> P.V -> scales of V and of the output.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, get_args, get_type_hints

import torch

from common.spec.metadata import EVERY_KEY
from common.spec.plain import flag, integer, real

# field: the member of SUPPORTS that it needs
_MEMBERS = {
    "sliding_window": "sliding_window", "softcap": "softcap", "sinks": "sinks", "chunk": "chunked_local",
    "spans": "prefix_lm", "causal_per_sequence": "causal_per_sequence", "tree_bias": "tree_bias",
    "out_scale": "fp8_out",
}  # fmt: skip
# field: its type, and how a number of another library becomes one
_PLAIN = dict.fromkeys(("causal", "alibi_sqrt", "cross", "batch_invariant"), (bool, flag))
PER_SEQUENCE = ("spans", "causal_per_sequence")  # tensors with an entry for each sequence
_PLAIN |= dict.fromkeys(("sliding_window", "chunk", "chunk_lookback"), (int, integer)) | {"softcap": (float, real)}


@dataclass(frozen=True)
class Features:
    """What is asked beyond plain causal attention; a feature that is off is None, or False.

    A query at position q of its sequence and the key at k, which counts from the sequence's first. The last query is at
    the last key, so q is negative for the first queries where they are more than the keys: under a causal mask those
    see no key, without it every key, and in a window to both sides the keys up to q + W - 1. A row that sees no key has
    output 0 and LSE -inf, or its sink's logit.

    causal: key k is visible when k <= q (False: every key of the sequence).
    sliding_window: W counts the query's own token: keys q - W + 1 .. q; when not causal also up to q + W - 1.
    softcap: x > 0: logits become x * tanh(logit / x), after the scale and before the mask.
    sinks: float [num_query_heads]: one extra logit per head, neither scaled nor soft-capped, whose value is zero; alone
        in a row it is the LSE; -inf is no sink.
    alibi_slopes: float32 [num_query_heads]: logit + slope * (k - q). vLLM's kernel adds slope * (k - context length),
        the same but for a constant of the row, which `out` does not show (sinks and LSE do).
    alibi_sqrt: with slopes: logit - slope * sqrt(q - k) instead; nothing is added for k > q.
    chunk: chunked-local attention: of the keys k <= q those with q // chunk - k // chunk <= chunk_lookback.
    spans: int32 [num_seqs, max_spans, 2]: first and last position, both inclusive, of stretches (an image's tokens)
        whose queries see all their keys, beside what the masks above let them see. One with first >= last is none;
        those of one sequence do not overlap.
    causal_per_sequence: int32 or bool [num_seqs]: 0: this sequence is not causal. `causal` is True beside it.
    cross: the keys are those of another sequence (an encoder's): not causal, and nothing that speaks of positions.
    tree_bias: float [N, N]: logit + bias[i, k - context length] for the i-th query token of a sequence and its keys
        from the context length on, both below N; -inf hides a key (a draft tree's other branches).
    key_scale, value_scale: float32, what a stored element of a quantised cache is multiplied by: [1], [num_kv_heads] or
        [num_blocks, block_size, num_kv_heads]; None: 1.
    query_scale: float32 [1]: the same of a quantised query.
    out_scale: float32 [1]: `out` is fp8: the result / out_scale, cut to the largest number of the type.
    batch_invariant: a row has the same bits whatever the other sequences of the batch are.
    """

    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    alibi_sqrt: bool = False
    chunk: int | None = None
    chunk_lookback: int = 0
    spans: torch.Tensor | None = None
    causal_per_sequence: torch.Tensor | None = None
    cross: bool = False
    tree_bias: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None
    query_scale: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name, (kind, made) in _PLAIN.items():
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                object.__setattr__(self, name, made(value))

    @cached_property
    def typed(self) -> bool:
        """Whether numbers have the types of their fields: True equals 1 and 4.0 equals 4, but one of each pair is
        refused."""
        return all(
            getattr(self, name) is None or type(getattr(self, name)) is kind for name, (kind, _) in _PLAIN.items()
        )

    @cached_property
    def plain(self) -> bool:
        """Whether only the first four fields are set: then most launches can skip the rest."""
        return all(getattr(self, name) is default for name, default in _OFF.items())

    def names(self) -> frozenset[str]:
        """The features that a kernel must list in SUPPORTS to serve this.

        `common.spec.kernel.asked_of` adds what follows from a batch's tensors (fp8_kv, int8_kv, fp8_query, value_size,
        head_size_512, x_packed).
        """
        return self._names

    @cached_property
    def sees(self) -> int:
        """The most keys that one query token sees, for any batch; EVERY_KEY where only the sequence bounds them.

        Spans, whose lengths are on the device, extend a row beyond its window or chunk; a row that is not causal has a
        window to both sides.
        """
        if self.spans is not None:
            return EVERY_KEY
        if self.chunk is not None:
            return (self.chunk_lookback + 1) * self.chunk
        if self.sliding_window is None:
            return EVERY_KEY
        both = not self.causal or self.causal_per_sequence is not None
        return 2 * self.sliding_window - 1 if both else self.sliding_window

    @cached_property
    def _names(self) -> frozenset[str]:
        asked = {"causal" if self.causal else "cross" if self.cross else "non_causal"}
        asked |= {member for name, member in _MEMBERS.items() if getattr(self, name) is not None}
        if self.alibi_slopes is not None:
            asked.add("alibi_sqrt" if self.alibi_sqrt else "alibi")
        if self.batch_invariant:
            asked.add("batch_invariant")
        return frozenset(asked)


def operands_of(kind: type[Features]) -> tuple[str, ...]:
    """The fields that hold tensors, in their order."""
    hints = get_type_hints(kind)
    return tuple(field.name for field in fields(kind) if torch.Tensor in get_args(hints[field.name]))


def is_per_token(scale: torch.Tensor | None) -> bool:
    """Whether a scale of K or V is [num_blocks, block_size, num_kv_heads], one for each token and KV head."""
    return scale is not None and scale.dim() == 3


OPERANDS = operands_of(Features)


def tensors_of(features: Features) -> dict[str, torch.Tensor]:
    """The tensors that features have, by name."""
    return {name: tensor for name in OPERANDS if (tensor := getattr(features, name)) is not None}


def without_tensors(features: Features) -> Features:
    return replace(features, **dict.fromkeys(OPERANDS))


_OFF = {field.name: field.default for field in fields(Features)[4:]}


def of_seqs(features: Features, seqs: int) -> Features:
    """`features` for the first `seqs` sequences: tensors with an entry for each sequence are cut."""
    given = {name: tensor for name in PER_SEQUENCE if (tensor := getattr(features, name)) is not None}
    return replace(features, **{name: tensor[:seqs] for name, tensor in given.items()})


WIDEST = 2**30  # no sequence exceeds such a window or chunk; position + window still fits int32
_AS_GIVEN = ("softcap", "sinks", "alibi_slopes", "spans", "tree_bias", "query_scale", "out_scale")


def kernel_operands(features: Features) -> dict[str, Any]:
    """What the kernels of both DSLs take of the features, by name; None for what is off, whose branch is not
    compiled."""
    window, flags, tree = features.sliding_window, features.causal_per_sequence, features.tree_bias
    chunk = None if features.chunk is None else min(features.chunk, WIDEST)
    found = {name: getattr(features, name) for name in _AS_GIVEN} | {
        "non_causal": None if features.causal else 1,
        "sliding_window": None if window is None else min(window, WIDEST),
        "alibi_sqrt": 1 if features.alibi_sqrt else None,
        "chunk": chunk,
        "chunk_lookback": None if chunk is None else min(features.chunk_lookback, WIDEST // chunk),  # to the first key
        "causal_per_sequence": flags.view(torch.int8) if flags is not None and flags.dtype == torch.bool else flags,
        "tree_size": None if tree is None else tree.shape[0],
    }
    for name in ("key", "value"):
        scale = getattr(features, f"{name}_scale")
        each = is_per_token(scale)
        found[f"{name}_token_scales"], found[f"{name}_scale"] = (scale, None) if each else (None, scale)
        found[f"{name}_scale_stride"] = None if scale is None or each else 0 if scale.numel() == 1 else scale.stride(-1)
    return found
