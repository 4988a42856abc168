"""Writes into a cache, each with a twist, and what is judged after one; shared by both DSLs and the GPU tests."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from common.batch import CacheStyle, make_batch
from common.cache import CacheWrite
from common.cache_reference import written
from common.guards import Guards
from common.integrity import fingerprint, same_bits
from common.spec import AttentionShape


@dataclass(frozen=True)
class WriteCase:
    """`tokens` rows of K and V go to random slots of a pool of `pages`; every `drop`-th is dropped.

    padding: rows of key past slot_mapping. fused: K and V are parts of a fused projection's rows. beyond: how many
    slots lie outside the pool.
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


def build(case: WriteCase, dtype: torch.dtype, device: torch.device | str, guards: Guards) -> CacheWrite:
    """The write of a case, every tensor between guards."""
    generator = torch.Generator().manual_seed(1)
    shape = AttentionShape(case.heads, case.heads, case.head_size, case.block_size, dtype)
    pool = make_batch([], shape, style=case.style, spare_pages=case.pages, guards=guards, device=device)
    slots = case.slots()
    if case.drop > 1 and case.tokens == 1:
        slots[0] = 7
    rows, parts = case.tokens + case.padding, 3 if case.fused else 1
    new = []
    for name in ("key", "value"):
        values = torch.randn(rows, parts * case.heads, case.head_size, generator=generator).to(dtype)
        values[case.tokens :] = float("nan")
        new.append(guards.copy(name, values)[:, (parts - 1) * case.heads :])
    return CacheWrite(*new, pool.key_cache, pool.value_cache, guards.copy("slot_mapping", slots))


def judge(kernel: Any, case: WriteCase, dtype: torch.dtype, device: torch.device | str = "cpu", **changes: Any) -> None:
    """The pool is bit for bit what the reference makes of it, and nothing else changed."""
    guards = Guards(device)
    write = build(case, dtype, device, guards)
    write.check(values=not case.beyond)
    expected = written(write)
    inputs = [write.key, write.value, write.slot_mapping]
    before = [int(fingerprint(tensor)) for tensor in inputs]
    kernel.launch(write, replace(kernel.DEFAULT, **changes))
    for name, found, wanted in zip(("key", "value"), (write.key_cache, write.value_cache), expected, strict=True):
        assert same_bits(found, wanted), f"{name}_cache differs"
    assert [int(fingerprint(tensor)) for tensor in inputs] == before
    assert guards.violated() == []
