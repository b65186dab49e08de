"""Stand-in for ``pynvml``: NVIDIA's management library, which describes the simulated GPUs.

Names are those of the package nvidia-ml-py. Utilization, power and temperature are 0. Questions about properties that
the data on the GPU do not include raise "Not Supported", as NVML does for older GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from dsexplore._internal.worlds.cuda.gpu import Gpu, read_gpu
from dsexplore._internal.worlds.cuda.gpu_sensors import ZERO
from dsexplore._internal.worlds.cuda.smi_answers import uuid_of
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.simulate import World, current_world


class NVMLError(Exception):
    """An error of NVML."""


class NVMLErrorNotSupported(NVMLError):
    """NVML cannot answer a question for this GPU."""


def _world() -> World:
    """Return the open world.

    Raises:
        NVMLError: there is none.
    """
    world = current_world()
    if world is None:
        raise NVMLError("Driver Not Loaded: the simulated world is closed")
    return world


def _gpu() -> Gpu:
    return read_gpu(_world().gpu)


def _handle(index: int) -> int:
    """Return the handle of a GPU of the node, its index.

    Raises:
        NVMLError: the node has no such GPU.
    """
    if not 0 <= index < nvmlDeviceGetCount():
        raise NVMLError(f"Invalid Argument: no GPU {index}")
    return index


def nvmlInit(*flags: int) -> None:  # this name and the following are NVML's
    """Do nothing."""


def nvmlDeviceGetCount() -> int:
    """Return the number of GPUs of the node."""
    return _world().ranks_per_node


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Return the handle that the other functions take for a GPU."""
    return _handle(int(index))


def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> int:
    """Return the handle that the other functions take for a GPU."""
    return _handle(int((uuid.decode() if isinstance(uuid, bytes) else uuid).rpartition("-")[2]))


def nvmlDeviceGetName(handle: int) -> str:
    """Return the name of the GPU."""
    return _gpu().name


def nvmlDeviceGetUUID(handle: int) -> str:
    """Return the UUID of the GPU."""
    return uuid_of(handle)


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> SimpleNamespace:
    """Return the bytes of the GPU's memory, as ``torch.cuda.mem_get_info`` does."""
    total = _gpu().total_memory
    free, _ = torch.cuda.mem_get_info(handle) if torch.cuda.is_available() else (total, total)
    return SimpleNamespace(total=total, free=free, used=total - free)


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    """Return the compute capability."""
    return _gpu().major, _gpu().minor


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    """Return 0 % for GPU and memory."""
    _world().remarks.note(ZERO)
    return SimpleNamespace(gpu=0, memory=0)


def nvmlSystemGetCudaDriverVersion() -> int:
    """Return the version of CUDA, ``13000`` for 13.0."""
    major, minor, *_ = _gpu().runtime.split(".")
    return int(major) * 1000 + int(minor) * 10


def _zero(*args: int) -> int:
    """Return 0."""
    _world().remarks.note(ZERO)
    return 0


def _no_processes(handle: int) -> list[object]:
    """Return an empty list."""
    return []


def nvmlDeviceGetIndex(handle: int) -> int:
    """Return the index of the GPU on its node."""
    return handle


def nvmlDeviceGetPciInfo(handle: int) -> SimpleNamespace:
    """Return a PCI address, unique on the node; other fields of NVML are missing."""
    return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0", domain=0, bus=handle, device=0)


def _not_supported(*args: object) -> None:
    """Raise NVML's error for a property that a GPU does not have.

    Raises:
        NVMLErrorNotSupported: always.
    """
    raise NVMLErrorNotSupported("Not Supported: it is not known for the simulated hardware")


_FUNCTIONS: tuple[Callable[..., object], ...] = (
    nvmlInit,
    nvmlDeviceGetCount,
    nvmlDeviceGetHandleByIndex,
    nvmlDeviceGetHandleByUUID,
    nvmlDeviceGetName,
    nvmlDeviceGetUUID,
    nvmlDeviceGetMemoryInfo,
    nvmlDeviceGetCudaComputeCapability,
    nvmlDeviceGetUtilizationRates,
    nvmlSystemGetCudaDriverVersion,
    nvmlDeviceGetIndex,
    nvmlDeviceGetPciInfo,
)
_NOT_SUPPORTED = (
    *("Serial", "BoardId", "VbiosVersion", "PersistenceMode", "ComputeMode", "NumGpuCores", "CpuAffinity", "Brand"),
    *("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PcieThroughput"),
    *("PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints", "PowerState"),
    *("MaxClockInfo", "ApplicationsClock", "SupportedMemoryClocks", "SupportedGraphicsClocks", "BAR1MemoryInfo"),
    *("NvLinkState", "NvLinkVersion", "NvLinkCapability", "NvLinkRemotePciInfo", "NvLinkErrorCounter", "P2PStatus"),
    *("TopologyCommonAncestor", "TopologyNearestGpus", "Architecture", "MigMode", "EccMode", "TotalEccErrors"),
    *("EncoderUtilization", "DecoderUtilization", "PerformanceState", "FieldValues", "MemoryErrorCounter"),
    *("MemoryAffinity", "MemoryBusWidth", "CurrentClocksThrottleReasons", "TemperatureThreshold"),
)
_ZEROS = ("PowerUsage", "Temperature", "ClockInfo", "TotalEnergyConsumption", "EnforcedPowerLimit", "FanSpeed")

_ERRORS = ("LibraryNotFound", "DriverNotLoaded", "Uninitialized", "InvalidArgument", "NotFound", "Unknown")

EXTENSIONS: dict[str, Names] = {
    "pynvml": {
        **{function.__name__: function for function in _FUNCTIONS},
        **{f"nvmlDeviceGet{name}": _zero for name in _ZEROS},
        **{f"nvmlDeviceGet{name}": _not_supported for name in _NOT_SUPPORTED},
        "nvmlDeviceGetMinorNumber": nvmlDeviceGetIndex,
        "nvmlDeviceGetPciInfo_v3": nvmlDeviceGetPciInfo,
        "nvmlInitWithFlags": nvmlInit,
        "nvmlShutdown": nvmlInit,
        "nvmlSystemGetDriverVersion": lambda: "[N/A]",
        "nvmlDeviceGetComputeRunningProcesses": _no_processes,
        "nvmlDeviceGetGraphicsRunningProcesses": _no_processes,
        "NVMLError": NVMLError,
        "NVMLError_NotSupported": NVMLErrorNotSupported,
        **{f"NVMLError_{name}": type(f"NVMLError_{name}", (NVMLError,), {}) for name in _ERRORS},
        **{f"NVML_P2P_CAPS_INDEX_{name}": index for index, name in enumerate(("READ", "WRITE", "NVLINK"))},
        "NVML_NVLINK_MAX_LINKS": 18,
        "NVML_CLOCK_GRAPHICS": 0,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
    }
}
