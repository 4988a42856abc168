"""What AMD's library says of a GPU, by answers as ROCm gives them: numbers, N/A, and words of older releases."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from compare.bench import amd
from compare.bench.clocks import Clocks, readers, vendor
from compare.bench.reading import Reading

ROCM = Path(__file__).parents[2] / "support" / "rocm"
DEVICE = torch.device("cuda", 0)
AT = {"pci_domain_id": 0, "pci_bus_id": 0x1D, "pci_device_id": 0}


@pytest.fixture
def library(monkeypatch):
    """AMD's library, for the GPU that torch's ROCm build sees."""
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**AT))
    monkeypatch.syspath_prepend(ROCM / "tools")
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    yield __import__("amdsmi")
    del sys.modules["amdsmi"]


def test_a_gpu_is_asked_for_by_where_it_sits(library, monkeypatch):
    assert amd.address(DEVICE) == "0000:1d:00.0"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    assert amd.address(torch.device("cuda", 3)) == "3"
    assert amd.by_library("1")() == Reading(2100.0, frozenset())  # of all handles the second


def test_the_fastest_die_and_what_holds_it(library):
    read = amd.by_library("0000:1d:00.0")
    assert read() == Reading(2100.0, frozenset())  # nothing is known yet of what went before
    assert read() == Reading(2100.0, frozenset({"sw_power_cap"}))


@pytest.mark.parametrize("told", [{"clk": 1900}, {"cur_clk": 1900}])
def test_without_the_table_of_metrics_the_clock_is_asked_for(library, monkeypatch, told):
    monkeypatch.setattr(library, "amdsmi_get_gpu_metrics_info", lambda handle: {"current_gfxclks": "N/A"})
    monkeypatch.setattr(library, "amdsmi_get_clock_info", lambda handle, kind: told)
    assert amd.by_library("0000:1d:00.0")() == Reading(1900.0, None)


def test_the_doctor_hears_what_is_told_and_no_more(library):
    assert vendor().facts(DEVICE) == {
        "driver": "6.12.12",
        "highest SM clock, MHz": 2100,
        "power limit, W": 750,
        "temperature, C": 41,
        "compute partition": "SPX",
    }


@pytest.mark.parametrize("process_list", [None, lambda handle: [object()]])
def test_who_else_uses_the_gpu(library, monkeypatch, process_list):
    told = {"pid": 77, "memory_usage": {"vram_mem": 3 << 30}}
    if process_list:  # before ROCm 6.2 a list of handles
        monkeypatch.setattr(library, "amdsmi_get_gpu_process_list", process_list)
        monkeypatch.setattr(library, "amdsmi_get_gpu_process_info", lambda handle, one: told, raising=False)
    assert vendor().users(amd.address(DEVICE)) == [(77, 3072)]


@pytest.mark.parametrize(("kernarg", "balancing", "lines"), [("1", "0", 0), ("0", "1", 2), (None, None, 1)])
def test_settings_that_disturb_are_named(monkeypatch, tmp_path, kernarg, balancing, lines):
    monkeypatch.delenv("HIP_FORCE_DEV_KERNARG", raising=False)
    monkeypatch.setattr(amd, "NUMA_BALANCING", tmp_path / "numa_balancing")
    if kernarg is not None:
        monkeypatch.setenv("HIP_FORCE_DEV_KERNARG", kernarg)
        amd.NUMA_BALANCING.write_text(balancing + "\n")
    assert len(amd.disturbing()) == lines


def test_without_the_library_the_tools_are_asked(library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [name for name, _, _ in readers(DEVICE)] == ["amdsmi", "amd-smi"]
    assert amd.facts(DEVICE) == {} and Clocks(DEVICE).end() == {}
    with pytest.raises(ImportError):
        amd.users(amd.address(DEVICE))
    tool = tmp_path / "amd-smi"
    tool.write_text(f'#!{sys.executable}\nprint(\'[{{"gpu": 0, "clock": {{"gfx_0": {{"clk": 1300}}}}}}]\')\n')
    tool.chmod(0o755)
    found = Clocks(DEVICE)
    found.begin()
    assert found.end() == {"source": "amd-smi", "sm_mhz": [1300.0] * 3, "throttle": None, "readings": 2}
