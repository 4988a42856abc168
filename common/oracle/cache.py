"""What a pool must hold after new K and V were written into it. Both DSLs' cache writers are checked against it."""

import torch
from torch import Tensor

from common.oracle.integrity import bits
from common.spec import is_per_token
from common.spec.cache import CacheWrite
from common.spec.paged_batch import QUANTISED
from common.spec.quantise import LEAST_SCALE, largest, quantise, scale_limit

# Compilers round a float32 division differently in the last place. It matters for a scale and for x / scale near a tie.
SLACK = 2.0**-21


def written(write: CacheWrite) -> tuple[Tensor, Tensor]:
    """Copies of key_cache and value_cache with the tokens in their slots, in order. `write`'s own caches do not
    change."""
    caches = write.key_cache.clone(), write.value_cache.clone()
    pairs = zip(caches, (write.key, write.value), (write.key_scale, write.value_scale), strict=True)
    for cache, new, scale in pairs:
        for token, page, slot in _slots(write):
            row = new[token]
            if cache.dtype in QUANTISED:
                row = quantise(row.float() / _scale_of(row, scale, cache.dtype)[:, None], cache.dtype)
            cache[page, slot] = row
    return caches


def written_scales(write: CacheWrite) -> tuple[Tensor | None, Tensor | None]:
    """key_scale and value_scale: a copy with the tokens' scales where each token has one, else the tensor as given."""
    found = []
    for new, scale in ((write.key, write.key_scale), (write.value, write.value_scale)):
        if is_per_token(scale):
            scale = scale.clone()
            for token, page, slot in _slots(write):
                scale[page, slot] = _scale_of(new[token], scale, write.key_cache.dtype)
        found.append(scale)
    return found[0], found[1]


def _slots(write: CacheWrite) -> list[tuple[int, int, int]]:
    """(token, page, slot in the page) of each token that is written."""
    size, slots = write.key_cache.shape[1], write.slot_mapping.tolist()
    return [(token, slot // size, slot % size) for token, slot in enumerate(slots) if 0 <= slot < write.num_slots]


def _scale_of(row: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """float32 [heads or 1]: the divisor of one token's row [heads, size]."""
    if not is_per_token(scale):
        return torch.ones(1, device=row.device) if scale is None else scale
    return (row.float().abs().amax(-1) / scale_limit(dtype)).clamp(min=LEAST_SCALE)


def mistakes(before: CacheWrite, after: CacheWrite) -> list[str]:
    """What a kernel wrote wrong, compared bit for bit except in the last place of a float32 division.

    before: the write, with copies of caches and scales from before the launch. after: the same write after the launch.
    """
    found = []
    wanted = dict(zip(("key_scale", "value_scale"), written_scales(before), strict=True))
    slots = _slots(before)
    for name, expected in wanted.items():
        scale = getattr(after, name)
        if expected is not None and bool((~(scale == expected) & ~_near(scale, expected)).any()):
            found.append(f"{name} differs")
    for name, expected in zip(("key", "value"), written(before), strict=True):
        cache = getattr(after, f"{name}_cache")
        same = bits(cache) == bits(expected)
        if cache.dtype in QUANTISED:
            for token, page, slot in slots:
                scale, row = getattr(after, f"{name}_scale"), getattr(before, name)[token]
                divisor = scale[page, slot] if is_per_token(scale) else _scale_of(row, scale, None)
                same[page, slot] |= _nearest(cache[page, slot], row.double() / divisor.double()[:, None])
        if not bool(same.all()):
            found.append(f"{name}_cache differs in {int((~same).sum())} of {same.numel()} elements")
    return found


def _near(found: Tensor, wanted: Tensor) -> Tensor:
    return ((found - wanted).abs() <= SLACK * wanted.abs()) | (found.isnan() & wanted.isnan())


def _nearest(stored: Tensor, exact: Tensor) -> Tensor:
    """bool: whether `stored` is as near to the exact quotient as its dtype allows, within SLACK."""
    most = largest(stored.dtype)
    cut = exact.clamp(-most, most)
    error = (quantise(exact, stored.dtype).double() - cut).abs()
    return (stored.double() - cut).abs() <= error + SLACK * cut.abs()
