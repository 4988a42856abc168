"""The GPU table: names, what must hold between the figures, and recognising the GPU that is here."""

from types import SimpleNamespace

import pytest
import torch

from common import gpus


@pytest.mark.parametrize(
    "name", ["a100", "h100", "h200", "gh200", "h800", "h20", "b200", "mi250", "mi300", "mi325", "mi350", "mi355"]
)
def test_every_promised_name_resolves_to_itself(name):
    gpu = gpus.resolve(name)
    assert gpu.name == name
    assert gpu.source and "://" not in gpu.source


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("MI300X", "mi300"), ("mi355x", "mi355"), ("H200", "h200"), ("AMD Instinct MI325X", "mi325"),
     ("nvidia-h100", "h100")],
)  # fmt: skip
def test_aliases(spelling, name):
    assert gpus.resolve(spelling).name == name


@pytest.mark.parametrize(("wrong", "nearest"), [("mi30", "mi300"), ("h2000", "h200"), ("b20", "b200")])
def test_unknown_names_come_back_with_the_nearest(wrong, nearest):
    with pytest.raises(gpus.UnknownGpu, match=nearest) as caught:
        gpus.resolve(wrong)
    assert nearest in caught.value.nearest


def test_nothing_like_any_name_lists_them_all():
    with pytest.raises(gpus.UnknownGpu, match="a100, h100") as caught:
        gpus.resolve("voodoo5")
    assert caught.value.nearest == ()


@pytest.mark.parametrize("gpu", gpus.TABLE.values(), ids=lambda gpu: gpu.name)
def test_matrix_peak_is_units_times_a_whole_rate_at_a_credible_clock(gpu):
    """dense bf16 FLOPs per unit and clock: NVIDIA 2048, 4096, 8192; AMD 1024, 2048, 4096 (matrix cores, per ISA).

    Cards for graphics have less of them and clock higher. An H20's are held to a quarter.
    """
    rate = {"sm_80": 2048, "sm_90": 4096, "sm_100": 8192, "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096}
    graphics = {"sm_89": 1024, "sm_120": 512, "gfx1100": 1024, "gfx1200": 2048}
    held = 4 if gpu.name == "h20" else 1
    clock_ghz = gpu.bf16_tflops * 1e3 / (gpu.units * (rate | graphics)[gpu.arch] / held)
    assert (1.4, 2.4)[gpu.arch in graphics] <= clock_ghz <= (2.45, 3.2)[gpu.arch in graphics]


def test_two_gpus_of_one_arch_differ_in_something_torch_can_see():
    """Twins in their names alone."""
    twins = ("mi350", "mi355", "h100", "h800")
    seen = [(g.arch, g.units, g.memory_bytes, g.name if g.name in twins else "") for g in gpus.TABLE.values()]
    assert len(set(seen)) == len(seen)


def _device(name, arch, units, gib, **more):
    fields = {"name": name, "multi_processor_count": units, "total_memory": int(gib * gpus.GIB), "warp_size": 64}
    fields |= {
        "L2_cache_size": 4 * gpus.MIB,
        "shared_memory_per_block": 49152,
        "gcnArchName": arch + ":sramecc+:xnack-",
    }
    if arch.startswith("sm_"):
        fields |= {"major": int(arch[3:]) // 10, "minor": int(arch[3:]) % 10, "warp_size": 32}
    return SimpleNamespace(**(fields | more))


def _here(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (_device("NVIDIA H200", "sm_90", 132, 139.8), "h200"),
        (_device("NVIDIA H100 80GB HBM3", "sm_90", 132, 79.2), "h100"),
        (_device("NVIDIA GH200 480GB", "sm_90", 132, 94.5), "gh200"),
        (_device("NVIDIA GH200 144G HBM3e", "sm_90", 132, 140.1), "other"),
        (_device("NVIDIA H800", "sm_90", 132, 79.1), "h800"),
        (_device("NVIDIA H20", "sm_90", 78, 95.1), "h20"),
        (_device("NVIDIA B200", "sm_100", 148, 178.4), "b200"),
        (_device("AMD Instinct MI300X", "gfx942", 304, 192), "mi300"),
        (_device("", "gfx942", 304, 255.9), "mi325"),
        (_device("AMD Instinct MI355X", "gfx950", 256, 288), "mi355"),
        (_device("AMD Instinct MI250X", "gfx90a", 110, 64), "mi250x"),
        (_device("AMD Instinct MI300A", "gfx942", 228, 128), "other"),
        (_device("NVIDIA H100 NVL", "sm_90", 132, 93.1), "other"),
        (_device("a twin without a name", "gfx950", 256, 288), "other"),
    ],
    ids=lambda value: getattr(value, "name", value) or "nameless",
)
def test_detect(monkeypatch, device, name):
    _here(monkeypatch, device)
    monkeypatch.setattr(torch.version, "hip", None if hasattr(device, "major") else "7.0")
    assert gpus.detect().name == name


def test_an_unknown_gpu_is_described_by_its_properties(monkeypatch):
    memory = {"memory_clock_rate": 6251000, "memory_bus_width": 192, "shared_memory_per_block_optin": 101376}
    _here(monkeypatch, _device("NVIDIA L4", "sm_89", 58, 22, **memory))
    gpu = gpus.detect()
    assert (gpu.name, gpu.title, gpu.arch, gpu.units, gpu.shared_bytes) == ("other", "NVIDIA L4", "sm_89", 58, 101376)
    assert gpu.hbm_gbps == pytest.approx(300.0, rel=0.01)
    assert gpu.bf16_tflops is None


@pytest.mark.parametrize(
    ("device", "per_byte"),
    [
        (_device("NVIDIA H20-3e", "sm_90", 78, 139.8, memory_clock_rate=3201000, memory_bus_width=6016), 30.7),
        (_device("NVIDIA H100 NVL", "sm_90", 132, 93.1, memory_clock_rate=2619000, memory_bus_width=6016), 251.2),
        (_device("NVIDIA L4", "sm_89", 58, 22, memory_clock_rate=6251000, memory_bus_width=192), None),
    ],
    ids=["h20-3e", "h100-nvl", "l4"],
)
def test_the_peak_of_an_unknown_gpu_is_that_of_the_row_it_names(monkeypatch, device, per_byte):
    """By its units: an upper bound, as a floor needs."""
    _here(monkeypatch, device)
    gpu = gpus.detect()
    found = gpu.bf16_tflops and 1e3 * gpu.bf16_tflops / gpu.hbm_gbps
    assert gpu.name == "other" and found == (per_byte and pytest.approx(per_byte, abs=0.1))


def test_no_gpu_and_a_device_that_is_not_there_are_none(monkeypatch):
    _here(monkeypatch, None)
    assert gpus.detect(1) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpus.detect() is None


@pytest.mark.parametrize(("name", "others", "nearest"), [
    ("gh200", ("h100", "a100", "mi300"), "h100"), ("b200", ("h100", "h200", "mi300"), "h200"),
    ("mi325", ("h200", "mi300", "mi250"), "mi300"), ("a100", ("h100", "mi300"), "h100"),
])  # fmt: skip
def test_the_gpu_most_like_another(name, others, nearest):
    one = gpus.resolve(name)
    assert min(map(gpus.resolve, others), key=lambda other: gpus.unlike(one, other)).name == nearest
    assert gpus.unlike(one, one) == 0
