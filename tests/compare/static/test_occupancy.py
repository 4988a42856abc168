"""Programs per unit: the published limits, by hand."""

import pytest

from compare.static.occupancy import UnknownArch, occupancy


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "programs", "limit"),
    [
        ("gfx942", 128, 16384, 4, 4, "registers"),  # 512 // 128 waves a SIMD; LDS would hold four as well
        ("gfx942", 129, 0, 4, 3, "registers"),  # 136 with the granule of 8
        ("gfx942", 64, 40960, 4, 1, "shared memory"),
        ("gfx950", 64, 40960, 4, 4, "shared memory"),  # 160 KiB
        ("gfx942", 24, 0, 1, 32, "slots"),
        ("gfx942", 300, 0, 8, 0, "registers"),  # one wave a SIMD cannot hold eight
        ("gfx1100", 100, 0, 4, 12, "registers"),
        ("sm_90", 168, 0, 8, 1, "registers"),  # 12 warps
        ("sm_90", 64, 116224, 4, 1, "shared memory"),  # 113.5 KiB and 1 KiB reserved, of 228
        ("sm_90", 64, 115712, 4, 2, "shared memory"),
        ("sm_80", 32, 0, 1, 32, "slots"),
        ("sm_120", 255, 1024, 4, 2, "registers"),
    ],
)
def test_programs(arch, registers, shared, warps, programs, limit):
    held = occupancy(arch, registers, shared, warps)
    assert (held.programs, held.waves, held.limit) == (programs, programs * warps, limit)


def test_an_unknown_arch_is_named():
    with pytest.raises(UnknownArch, match="gfx906"):
        occupancy("gfx906", 64, 0, 4)
