"""The role of two warps for K, and of two for V, of sm90_prefill.py over a cache of 8 bits: operands of 16 bits.

In: tiles of fp8 in a ring of shared memory, as load_tiles of sm90_load.py leaves them. Out: the same numbers in the
query's dtype, in the ring that sm90_compute.py reads over any cache. bf16 and fp16 hold every number of fp8, so nothing
is rounded; scales wait for the scores and for the output.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsl_triton.native.gluon_names import barrier
from dsl_triton.native.sm90_load import field

KEYS = gl.constexpr(16)  # that a turn takes: of heads of 128 lanes 32 numbers a thread, which has 40 registers
WARPS = gl.constexpr(2)


@gluon.jit
def widen_tiles(
    loaded, widened, items, PART: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr
):
    """Every tile of K, or of V, of every item. It comes in parts of PART keys, the last first, in a ring of PARTS."""
    narrow, narrow_full, narrow_empty = loaded
    wide, wide_full, wide_empty = widened
    ring, s_full, s_empty = items
    TILE: gl.constexpr = wide.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [WARPS, 1], [1, 0])
    done = 0
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, WARPS)
        start = field(ring, slot, 5, WARPS)
        stop = field(ring, slot, 6, WARPS)
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            for _ in range(start, stop):
                stage = done % STAGES
                mbarrier.wait(wide_empty.index(stage), (done // STAGES & 1) ^ 1)
                for k in gl.static_range(TILE // PART):
                    part = done * (TILE // PART) + k
                    source = part % PARTS
                    mbarrier.wait(narrow_full.index(source), part // PARTS & 1)
                    x = narrow.index(source).slice(0, KEYS, 0).load(LAYOUT)  # always a turn ahead of what is stored
                    for key in gl.static_range(0, PART, KEYS):
                        ahead = x
                        if key + KEYS < PART:
                            ahead = narrow.index(source).slice(key + KEYS, KEYS, 0).load(LAYOUT)
                        # by float32, which packs two: from fp16 to bf16 there is F2F alone, a number at a time
                        y = x.to(gl.float16).to(gl.float32).to(wide.dtype)
                        wide.index(stage).slice(TILE - (k + 1) * PART + key, KEYS, 0).store(y)
                        x = ahead
                    if k + 1 == TILE // PART:
                        hopper.fence_async_shared()
                    barrier()
                    mbarrier.arrive(narrow_empty.index(source), count=1)
                mbarrier.arrive(wide_full.index(stage), count=1)
                done += 1
        n += 1
