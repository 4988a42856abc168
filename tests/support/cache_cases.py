"""Writes into a cache, each with a twist, and what is judged after one; shared by both DSLs and the GPU tests."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from common.cases.ask import ScaleForm
from common.cases.batch import CacheStyle, make_batch
from common.oracle.cache import mistakes
from common.oracle.integrity import Guards, fingerprint
from common.spec import AttentionShape
from common.spec.cache import CacheWrite
from common.spec.paged_batch import FP8


@dataclass(frozen=True)
class WriteCase:
    """`tokens` rows of K and V go to random slots of a pool of `pages`; every `drop`-th is dropped.

    padding: rows of key past slot_mapping. fused: K and V are parts of a fused projection's rows. beyond: how many
    slots lie outside the pool. kv_dtype: quantised pages; scales: the form of theirs, "tokens": computed.
    """

    name: str
    tokens: int
    heads: int = 2
    head_size: int = 32
    block_size: int = 16
    pages: int = 6
    style: CacheStyle = "nhd"
    drop: int = 4
    padding: int = 0
    fused: bool = False
    beyond: int = 0
    index: torch.dtype = torch.int64
    kv_dtype: torch.dtype | None = None
    scales: ScaleForm | None = None

    def slots(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.tokens)
        slots = torch.randperm(self.pages * self.block_size, generator=generator)[: self.tokens]
        slots[:: self.drop] = -1
        slots[1 : 1 + self.beyond] = self.pages * self.block_size + torch.arange(self.beyond)
        return slots.to(self.index)


WRITES = (
    WriteCase("a-prompt", 70),
    WriteCase("one-token", 1, drop=2, index=torch.int32, style="hnd"),
    WriteCase("page-24-head-80-interleaved", 33, head_size=80, block_size=24, style="interleaved"),
    WriteCase("stacked-fused-projection", 20, style="stacked", fused=True),
    WriteCase("padded-tokens-int32", 17, padding=5, index=torch.int32),
    WriteCase("all-dropped", 9, drop=1),
    WriteCase("slots-outside-the-pool", 12, beyond=3, heads=3),
    WriteCase("no-tokens", 0, padding=4),
    WriteCase("no-pages", 3, drop=1, pages=0),
)
QUANTISED_WRITES = (
    WriteCase("fp8", 20, kv_dtype=FP8[0]),
    WriteCase("fp8-one-scale", 33, kv_dtype=FP8[0], scales="one", head_size=80, block_size=24, style="interleaved"),
    WriteCase("fp8-scales-of-heads", 17, kv_dtype=FP8[0], scales="heads", heads=3, padding=5, index=torch.int32),
    WriteCase("fp8-scales-of-tokens", 70, kv_dtype=FP8[0], scales="tokens"),
    WriteCase("fnuz-one-scale", 20, kv_dtype=FP8[1], scales="one", style="hnd"),
    WriteCase("fnuz-scales-of-tokens", 20, kv_dtype=FP8[1], scales="tokens", fused=True),
    WriteCase("e5m2-scales-of-heads", 20, kv_dtype=FP8[2], scales="heads"),
    WriteCase("e5m2-scales-of-tokens", 20, kv_dtype=FP8[2], scales="tokens", beyond=3),
    WriteCase("int8", 70, kv_dtype=torch.int8, scales="tokens", heads=3, style="interleaved"),
    WriteCase("int8-all-dropped", 9, drop=1, kv_dtype=torch.int8, scales="tokens"),
    WriteCase("int8-no-tokens", 0, padding=4, kv_dtype=torch.int8, scales="tokens"),
)


def build(case: WriteCase, dtype: torch.dtype, device: torch.device | str, guards: Guards) -> CacheWrite:
    """The write of a case, every tensor between guards."""
    generator = torch.Generator().manual_seed(1)
    shape = AttentionShape(case.heads, case.heads, case.head_size, case.block_size, dtype, None, case.kv_dtype)
    pool = make_batch([], shape, style=case.style, spare_pages=case.pages, guards=guards, device=device)
    slots = case.slots()
    if case.drop > 1 and case.tokens == 1:
        slots[0] = 7
    rows, parts = case.tokens + case.padding, 3 if case.fused else 1
    new = []
    for name in ("key", "value"):
        values = torch.randn(rows, parts * case.heads, case.head_size, generator=generator)
        values[:1] = 0.0  # a scale of its largest number would be 0
        values[1:2] *= 1e4  # past the range of fp8 under a scale that was given
        values = values.to(dtype)
        values[case.tokens :] = float("nan")
        new.append(guards.copy(name, values)[:, (parts - 1) * case.heads :])
    return CacheWrite(
        *new, pool.key_cache, pool.value_cache, guards.copy("slot_mapping", slots), *_scales(case, guards)
    )


def _scales(case: WriteCase, guards: Guards) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if case.scales is None:
        return None, None
    sizes = {"one": (1,), "heads": (case.heads,), "tokens": (case.pages, case.block_size, case.heads)}[case.scales]
    generator = torch.Generator().manual_seed(2)
    scales = [torch.rand(sizes, generator=generator) + 0.5 for _ in range(2)]
    return tuple(guards.copy(name, scale) for name, scale in zip(("key_scale", "value_scale"), scales, strict=True))


def judge(kernel: Any, case: WriteCase, dtype: torch.dtype, device: torch.device | str = "cpu", **changes: Any) -> None:
    """The pool is what the reference makes of it, and nothing else changed."""
    guards = Guards(device)
    write = build(case, dtype, device, guards)
    write.check(values=not case.beyond, quantised=True)
    kept = {name: getattr(write, name) for name in ("key_cache", "value_cache", "key_scale", "value_scale")}
    earlier = replace(write, **{name: None if tensor is None else tensor.clone() for name, tensor in kept.items()})
    given = [s for s in (write.key_scale, write.value_scale) if s is not None and s.dim() < 3]
    inputs = [write.key, write.value, write.slot_mapping, *given]
    before = [int(fingerprint(tensor)) for tensor in inputs]
    kernel.launch(write, replace(kernel.DEFAULT, **changes))
    found = mistakes(earlier, write)
    assert not found, found
    assert [int(fingerprint(tensor)) for tensor in inputs] == before
    assert guards.violated() == []
