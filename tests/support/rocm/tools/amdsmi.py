"""AMD's library as ROCm 6.4 has it, for one MI300X at 0000:1d:00.0: answers in its own words, N/A and all."""

from enum import Enum

AmdSmiClkType = Enum("AmdSmiClkType", ["SYS", "GFX", "DF", "MEM"])
AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", ["EDGE", "JUNCTION", "VRAM"])
AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", ["CURRENT", "MAX"])
spent = iter(range(0, 1 << 20, 7))


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    pass


def amdsmi_init():
    pass


def amdsmi_get_processor_handles():
    return ["another", "handle"]


def amdsmi_get_processor_handle_from_bdf(bdf):
    if bdf != "0000:1d:00.0":
        raise AmdSmiLibraryException(f"no GPU at {bdf}")
    return "handle"


def amdsmi_get_gpu_metrics_info(handle):
    assert handle == "handle"
    return {
        "current_gfxclk": 2099,
        "current_gfxclks": [2100, 2097, 132, 65535, "N/A", 2088, 2095, 2090],
        "throttle_status": "N/A",
        "accumulation_counter": 1000,
        "prochot_residency_acc": 0,
        "ppt_residency_acc": next(spent),
        "socket_thm_residency_acc": 0,
        "vr_thm_residency_acc": 0,
        "hbm_thm_residency_acc": "N/A",
    }


def amdsmi_get_clock_info(handle, kind):
    assert (handle, kind) == ("handle", AmdSmiClkType.GFX)
    return {"clk": 2100, "min_clk": 132, "max_clk": 2100, "clk_locked": 0, "clk_deep_sleep": "N/A"}


def amdsmi_get_gpu_driver_info(handle):
    return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}


def amdsmi_get_power_cap_info(handle):
    return {
        "power_cap": 750_000_000,
        "default_power_cap": 750_000_000,
        "min_power_cap": 0,
        "max_power_cap": 750_000_000,
    }


def amdsmi_get_temp_metric(handle, kind, metric):
    return 41


def amdsmi_get_gpu_compute_partition(handle):
    return "SPX"


def amdsmi_get_gpu_memory_partition(handle):
    raise AmdSmiLibraryException("not supported")


def amdsmi_get_gpu_process_list(handle):
    memory = {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 3 << 30}
    return [{"name": "N/A", "pid": 77, "mem": 3 << 30, "memory_usage": memory}]
