"""Writing a step's new K and V into pages: the interface. The kernels are `cache.py` of each DSL.

A quantised page holds x / scale in float32, cut to the range of its type and rounded to nearest: to even in fp8, half
away from zero in int8. A scale is given, one number or one per KV head, or computed for each token and KV head:
max(largest |x| of the row / `common.spec.quantise.scale_limit`, LEAST_SCALE).

Slot s is place s % block_size of page s // block_size; a negative one drops its token (padding, or a token whose page
another rank holds).
"""

from dataclasses import dataclass

import torch

from common.spec.paged_batch import DTYPES, QUANTISED, AttentionShape, SpecError, is_per_token
from common.spec.refusals import expect_fp8, expect_stored, expect_tensor, expect_writable

_RANKS = {"key": 3, "value": 3, "key_cache": 4, "value_cache": 4, "slot_mapping": 1}
_FLOATS = ", ".join(str(dtype) for dtype in DTYPES)


@dataclass(frozen=True)
class CacheWrite:
    """What one launch writes, and where. Slots that are not negative are distinct: with two equal ones either may stay.

    key, value              [>= num_tokens, num_kv_heads, head_size], any strides but a contiguous last dimension; rows
                            past num_tokens are padding
    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_size], any strides but a contiguous last
                            dimension; alone written to
    slot_mapping            int32 or int64 [num_tokens]; slots outside the pool are dropped, as negative ones are
    key_scale, value_scale  of quantised caches, float32: [1] or [num_kv_heads], read, None being 1; or [num_blocks,
                            block_size, num_kv_heads], any strides, written: the only form beside int8
    """

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slot_mapping: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.slot_mapping.shape[0]

    @property
    def num_slots(self) -> int:
        return self.key_cache.shape[0] * self.key_cache.shape[1]

    @property
    def shape(self) -> AttentionShape:
        """The cache's sizes as an AttentionShape with one query head per KV head."""
        _, block_size, heads, head_size = self.key_cache.shape
        return AttentionShape(heads, heads, head_size, block_size, self.key.dtype, None, self.key_cache.dtype)

    def check(self, *, values: bool = False, quantised: bool = False) -> None:
        """Refuse a malformed write before any launch.

        `values=True` also copies slot_mapping to the host. `quantised=True`: the kernel can write quantised pages.
        Raises SpecError naming the argument, what was found and what is allowed.
        """
        for name, rank in _RANKS.items():
            self._check_tensor(name, rank, quantised)
        self._check_sizes()
        for name in ("key_scale", "value_scale"):
            self._check_scale(name)
        for name in ("key_cache", "value_cache"):
            self._check_writable(name)
        if values:
            self._check_slots()

    def _check_tensor(self, name: str, rank: int, quantised: bool) -> None:
        tensor = getattr(self, name)
        expect_tensor(tensor, name, rank)
        if tensor.device != self.key.device:
            raise SpecError(name, f"on {tensor.device}", f"the device of key, {self.key.device}")
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise SpecError(name, f"stride {tensor.stride(-1)} in the last dimension", "1")
        if name == "slot_mapping":
            if tensor.dtype not in (torch.int32, torch.int64):
                raise SpecError(name, tensor.dtype, "torch.int32 or torch.int64")
        elif name.endswith("cache") and quantised and tensor.dtype in QUANTISED:
            if tensor.dtype != self.key_cache.dtype:
                raise SpecError(name, tensor.dtype, f"the dtype of key_cache, {self.key_cache.dtype}")
            expect_fp8(tensor, name)
        elif tensor.dtype not in DTYPES:
            raise SpecError(name, tensor.dtype, _FLOATS)
        elif tensor.dtype != self.key.dtype:
            raise SpecError(name, tensor.dtype, f"the dtype of key, {self.key.dtype}")

    def _check_scale(self, name: str) -> None:
        scale, cache = getattr(self, name), self.key_cache
        slots = tuple(cache.shape[:3])
        forms = (slots,) if cache.dtype == torch.int8 else ((1,), slots[2:], slots)
        if scale is None:
            if cache.dtype == torch.int8:
                raise SpecError(name, None, f"float32 {list(slots)} beside int8")
            return
        if cache.dtype not in QUANTISED:
            raise SpecError(name, f"{name} beside a cache of {cache.dtype}", "None")
        allowed = "float32 " + " or ".join(str(list(form)) for form in forms)
        expect_stored(scale, name, allowed)
        if scale.dtype != torch.float32 or tuple(scale.shape) not in forms:
            raise SpecError(name, f"{scale.dtype} {tuple(scale.shape)}", allowed)
        if scale.device != self.key.device:
            raise SpecError(name, f"on {scale.device}", f"the device of key, {self.key.device}")
        if is_per_token(scale):
            self._check_writable(name)
        elif not scale.is_contiguous():
            raise SpecError(name, f"stride {scale.stride()}", "contiguous")

    def _check_sizes(self) -> None:
        shape = self.shape  # raises where attention could not read the cache's sizes
        wanted = (shape.num_kv_heads, shape.head_size)
        if tuple(self.key.shape[1:]) != wanted:
            raise SpecError("key", tuple(self.key.shape), f"[num_tokens, {wanted[0]}, {wanted[1]}], as the cache has")
        for name, other in (("value", self.key), ("value_cache", self.key_cache)):
            if getattr(self, name).shape != other.shape:
                raise SpecError(name, tuple(getattr(self, name).shape), str(tuple(other.shape)))
        if self.num_tokens > self.key.shape[0]:
            raise SpecError("slot_mapping", f"{self.num_tokens} slots", f"at most the {self.key.shape[0]} rows of key")

    def _check_writable(self, name: str) -> None:
        """Refuse a cache or scale that shares memory with an input, or with one checked before it."""
        scales = [one for one in ("key_scale", "value_scale") if not is_per_token(getattr(self, one))]
        written = ("key_cache", "value_cache", "key_scale", "value_scale")
        others = ("key", "value", "slot_mapping", *written[: written.index(name)], *scales)
        expect_writable(getattr(self, name), name, {other: getattr(self, other) for other in others})

    def _check_slots(self) -> None:
        used: set[int] = set()
        for token, slot in enumerate(self.slot_mapping.tolist()):
            if slot >= self.num_slots:
                raise SpecError(f"slot_mapping[{token}]", slot, f"negative, or at most {self.num_slots - 1}")
            if slot in used:
                raise SpecError(f"slot_mapping[{token}]", f"{slot} again", "every slot at most once")
            used |= {slot} if slot >= 0 else set()
