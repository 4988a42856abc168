"""Changes between two calls that may ask for another binary, or for other arguments; each is planted into `base()`.

A change is a context manager over the options of a call of `paged_attention` that gives the changed options.
"""

from contextlib import contextmanager
from unittest import mock

import torch

from calls import TENSORS, tensors
from common.cases.batch import make_batch
from common.serving import tape
from common.spec import AttentionShape, Features

SHAPE = AttentionShape(8, 2, 64, 16, torch.bfloat16)
LENS = [(1, 90), (1, 33), (1, 64)]


def options_of(lens=LENS, shape=SHAPE, max_seq_len=90, max_query_len=1, **features):
    batch = make_batch(lens, shape, fill=False, extra_columns=10)
    heads = shape.num_query_heads
    return tensors(batch) | {
        "out": torch.empty_like(batch.query),
        "lse": torch.empty(batch.query.shape[:2]),
        "max_query_len": max_query_len,
        "max_seq_len": max_seq_len,
        "total_seq_len": sum(keys for _, keys in lens),
        "features": Features(sliding_window=32, softcap=30.0, sinks=torch.zeros(heads), **features),
        "workspace": torch.empty(2**24, dtype=torch.uint8),
    }


def base():
    return options_of()


def prompts():
    """A call that unpaged serves: a copy, launches through descriptors of scratch, a decode beside."""
    return options_of([(300, 300), (1, 90), (20, 33)], max_seq_len=300, max_query_len=300)


def moved(tensor, elements=1):
    """The same values, `elements` past an address that 16 bytes divide."""
    whole = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size() + 16, dtype=tensor.dtype)
    begin = -whole.data_ptr() // tensor.element_size() % (16 // tensor.element_size())
    new = whole.as_strided(tensor.shape, tensor.stride(), begin + elements)
    return new.copy_(tensor)


def restrided(tensor, *strides):
    """Uninitialised, with these strides; None keeps one."""
    strides = [old if new is None else new for old, new in zip(tensor.stride(), strides, strict=True)]
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    return torch.empty(span + 64, dtype=tensor.dtype).as_strided(tensor.shape, strides)


def beyond_2gib(tensor):
    """A view of a storage above 2 GiB, never touched."""
    return torch.empty(2**31 // tensor.element_size() + 1, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _set(**changes):
    """Options replaced; a callable is called with the old value."""

    @contextmanager
    def change(options):
        yield options | {name: new(options[name]) if callable(new) else new for name, new in changes.items()}

    return change


def _features(**changes):
    @contextmanager
    def change(options):
        old = options["features"]
        fields = {name: getattr(old, name) for name in ("causal", "sliding_window", "softcap", "sinks")}
        yield options | {"features": Features(**fields | changes)}

    return change


def _other(*args, **kwargs):
    @contextmanager
    def change(options):
        yield options_of(*args, **kwargs)

    return change


def _patched(name, value):
    @contextmanager
    def change(options):
        with mock.patch.object(tape, name, value):
            yield options

    return change


def far_pages(cache):
    """One page whose distance to the next does not fit into 32 bits."""
    return cache.as_strided((1, *cache.shape[1:]), (2**33, *cache.stride()[1:]))


# Nothing that a launch reads differs but addresses, or the stream: the kept launches serve.
UNCHANGED = {
    "other-tensors": _other(),
    "one-key-more": _set(max_seq_len=91),
    "a-step-more": _set(max_seq_len=91, total_seq_len=190),
    "workspace-address": _set(workspace=lambda t: moved(t, 16)),
    "stream": _patched("current_stream", lambda device: 9),
}
CHANGES = {
    **{f"{name}-address": _set(**{name: moved}) for name in (*TENSORS, "out", "lse")},
    "sinks-address": _features(sinks=moved(torch.zeros(8))),
    "workspace-size": _set(workspace=lambda t: t[: 2**23]),
    "query-token-stride": _set(query=lambda t: restrided(t, 8 * 64 + 8, None, None)),
    "query-head-stride": _set(query=lambda t: restrided(t, 8 * 72, 72, None)),
    "key-page-stride": _set(key_cache=lambda t: restrided(t, 16 * 2 * 64 + 8, None, None, None)),
    "key-slot-stride": _set(key_cache=lambda t: restrided(t, 16 * 136, 136, None, None)),
    "key-head-stride": _set(key_cache=lambda t: restrided(t, 16 * 144, 144, 72, None)),
    "value-page-stride": _set(value_cache=lambda t: restrided(t, 16 * 2 * 64 + 8, None, None, None)),
    "value-slot-stride": _set(value_cache=lambda t: restrided(t, 16 * 136, 136, None, None)),
    "value-head-stride": _set(value_cache=lambda t: restrided(t, 16 * 144, 144, 72, None)),
    "table-row-stride": _set(block_table=lambda t: restrided(t, 33, None)),
    "table-row-stride-1": _set(block_table=lambda t: restrided(t[:, :1], 1, 1)),
    "table-width": _set(block_table=lambda t: t[:, :7]),
    "out-token-stride": _set(out=lambda t: restrided(t, 8 * 64 + 8, None, None)),
    "out-head-stride": _set(out=lambda t: restrided(t, 8 * 72, 72, None)),
    "lse-stride-1": _set(lse=lambda t: torch.empty(8, 3).t()),
    "lse-none": _set(lse=None),
    "table-int64": _set(block_table=lambda t: t.long()),
    "float16": _other(shape=AttentionShape(8, 2, 64, 16, torch.float16)),
    "float32": _other(shape=AttentionShape(8, 2, 64, 16, torch.float32)),
    "sinks-bfloat16": _features(sinks=torch.zeros(8, dtype=torch.bfloat16)),
    "sinks-none": _features(sinks=None),
    "softcap-none": _features(softcap=None),
    "softcap-value": _features(softcap=20.0),
    "window-none": _features(sliding_window=None),
    "window-indivisible": _features(sliding_window=33),
    "window-1": _features(sliding_window=1),
    "non-causal": _features(causal=False),
    "softmax-scale": _set(softmax_scale=0.25),
    "one-sequence": _other([(1, 90)]),
    "more-tokens": _other([(1, 90), (2, 33), (1, 64)]),
    "page-size": _other(shape=AttentionShape(8, 2, 64, 32, torch.bfloat16)),
    "head-size": _other(shape=AttentionShape(8, 2, 128, 16, torch.bfloat16)),
    "query-heads": _other(shape=AttentionShape(16, 2, 64, 16, torch.bfloat16)),
    "kv-heads": _other(shape=AttentionShape(8, 4, 64, 16, torch.bfloat16)),
    "another-choice": _other([(40, 90), (1, 33), (1, 64)], max_query_len=40),
    "more-keys": _set(max_seq_len=250),
    "more-even": _set(total_seq_len=260),
    "page-distance-int64": _set(key_cache=far_pages, value_cache=lambda t: t[:1]),
    "key-beyond-2gib": _set(key_cache=beyond_2gib),
    "value-beyond-2gib": _set(value_cache=beyond_2gib),
    "device": _patched("current_device", lambda: 0),
}
