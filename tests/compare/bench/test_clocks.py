"""Clock readings: parsed from each tool's own words, thinned out, and absent where nobody answers."""

import sys
import types

import pytest
import torch

from compare.bench import amd, clocks, nvidia
from compare.bench.clocks import Clocks
from compare.bench.nvidia import reasons
from compare.bench.reading import Reading

SAID = {  # tool: what it prints
    "nvidia-smi": "1830, 0x0000000000000005",
    "amd-smi": '[{"gpu": 0, "clock": {"gfx_0": {"clk": {"value": 2100}}, "gfx_1": {"clk": "N/A"}, '
    '"mem_0": {"clk": {"value": 1}}}}]',
}
NVIDIA = Reading(1830.0, frozenset({"sw_power_cap"}))


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with exactly the tools asked for."""

    def install(*names, code=0):
        for name in names:
            tool = tmp_path / name
            tool.write_text(f"#!{sys.executable}\nprint('''{SAID[name]}''')\nraise SystemExit({code})\n")
            tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@pytest.mark.parametrize(
    ("tool", "make", "arguments", "expected"),
    [
        ("nvidia-smi", nvidia.by_nvidia_smi, ("GPU-1", "mask"), NVIDIA),
        ("amd-smi", amd.by_amd_smi, ("0000:1d:00.0",), Reading(2100.0)),
    ],
)
def test_each_tool_is_understood(tools, tool, make, arguments, expected):
    tools(tool)
    assert make(*arguments)() == expected


def test_nvml_is_asked_by_uuid(monkeypatch):
    asked = []
    fake = types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x41,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvidia.by_library("GPU-1")() == Reading(1980.0, frozenset({"hw_thermal_slowdown"}))
    assert asked == ["GPU-1"]


def test_idle_is_no_throttling():
    assert reasons(0x1) == frozenset()


def _of(monkeypatch, *candidates):
    monkeypatch.setattr(clocks, "readers", lambda device: list(candidates))
    return Clocks(torch.device("cuda", 0))


def test_a_source_that_fails_gives_way_to_the_next(monkeypatch, tools):
    tools("nvidia-smi", code=9)
    broken = ("nvidia-smi", 0.0, lambda: nvidia.by_nvidia_smi("GPU-1", "mask"))
    found = _of(monkeypatch, broken, ("other", 0.0, lambda: lambda: NVIDIA))
    found.begin()
    assert found.end()["source"] == "other"
    nobody = _of(monkeypatch, broken)
    nobody.begin()
    assert nobody.end() == {}


def test_readings_are_thinned_and_summed_up(monkeypatch):
    answers = iter([NVIDIA, Reading(1900.0, frozenset()), Reading(1700.0, frozenset({"hw_slowdown"}))])
    found = _of(monkeypatch, ("tool", 1e6, lambda: lambda: next(answers)))  # the first answer is the trial's
    found.begin()
    for _ in range(5):
        found.sample()
    assert found.end() == {
        "source": "tool",
        "sm_mhz": [1700.0, 1800.0, 1900.0],
        "throttle": ["hw_slowdown"],
        "readings": 2,
    }


def test_a_source_that_dies_is_not_asked_again(monkeypatch):
    answers = iter([NVIDIA, NVIDIA])
    found = _of(monkeypatch, ("tool", 0.0, lambda: lambda: next(answers)))
    found.begin()
    found.sample()
    assert found.end()["readings"] == 1


def test_a_cpu_has_no_clock_here():
    cpu = Clocks(torch.device("cpu"))
    cpu.begin()
    assert cpu.end() == {}
