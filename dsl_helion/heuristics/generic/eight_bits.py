"""Decodes over a cache of 8 bits on NVIDIA's larger GPUs: the bytes take as long to convert as to load."""

from common.serving.rules import Situation
from common.serving.untuned import of_eight_bits
from dsl_helion.binding import page_form_applies
from dsl_helion.parallel_softmax import Config


def decode(s: Situation) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    32 decodes of up to 4096 keys in fp8: 16 programs a unit, 75 us in 8 segments by whole pages, 83 in 6, 87 by a page
    id a key, in 16 bits 112. Few sequences: 8 decodes of 8k keys 38.9 us in 16 segments, 50 by four warps, one 14.6 for
    17.2.
    """
    if not page_form_applies(s.shape, 32) or not (segments := of_eight_bits(s, 15)):
        return None
    return Config(16, 32, segments, "page", num_warps=1, num_stages=5)
