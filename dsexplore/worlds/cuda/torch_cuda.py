"""The functions of ``torch.cuda`` and ``torch.accelerator`` for a GPU that is not there.

torch's own Python stays in place: it asks functions of ``torch._C`` that a CPU build does not have, and those are given
here. So arguments are checked, and reports put together, by torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from types import BuiltinFunctionType, SimpleNamespace
from typing import Any

import torch
import torch.backends.cudnn
import torch.cuda
import torch.cuda.nvtx
import torch.cuda.streams

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.gpu import Gpu
from dsexplore.worlds.cuda.gpu_memory import Memory
from dsexplore.worlds.cuda.rng import patch_generators
from dsexplore.worlds.cuda.streams import CUDA_DEVICE_TYPE, Event, Stream

CUDA = torch.device("cuda")


class DeviceProperties(SimpleNamespace):
    """The result of ``torch.cuda.get_device_properties()``."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def device_properties(gpu: Gpu, index: int) -> DeviceProperties:
    """The properties of one device; its uuid says that it stands in for a GPU, and its index."""
    return DeviceProperties(
        name=gpu.name,
        major=gpu.major,
        minor=gpu.minor,
        total_memory=gpu.total_memory,
        multi_processor_count=gpu.multi_processor_count,
        L2_cache_size=gpu.l2_cache_mib << 20,
        warp_size=gpu.warp_size,
        max_threads_per_multi_processor=gpu.max_threads_per_multi_processor,
        max_threads_per_block=1024,
        regs_per_multiprocessor=gpu.regs_per_multiprocessor,
        shared_memory_per_block=gpu.shared_memory_per_block,
        shared_memory_per_block_optin=gpu.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=gpu.shared_memory_per_multiprocessor,
        gcnArchName=gpu.gcn_arch_name or gpu.name,
        uuid=f"00000000-0000-0000-0000-{index:012x}",
        is_integrated=0,
        is_multi_gpu_board=0,
        pci_bus_id=index,
        pci_device_id=0,
        pci_domain_id=0,
    )


class Devices:
    """The devices of one node, of which one is current.

    Attributes:
        gpu: the model of all of them.
        count: how many the node has.
        current: index of the current one.
        memory: what tensors take on each.
    """

    def __init__(self, gpu: Gpu, count: int, current: int) -> None:
        self.gpu, self.count, self.current = gpu, count, current
        self.memory = Memory(gpu.total_memory)
        self.properties = [device_properties(gpu, index) for index in range(count)]
        self._streams = [(0, index) for index in range(count)]

    def set_current(self, index: int) -> None:
        """Make a device the current one.

        Raises:
            UsageError: the node has fewer devices.
        """
        if not 0 <= index < self.count:
            raise UsageError(
                f"cuda:{index} is asked for, but a simulated node has {self.count} GPUs, cuda:0 to "
                f"cuda:{self.count - 1}: use LOCAL_RANK as its index, or ask for more GPUs a node"
            )
        self.current = index

    def exchange(self, index: int) -> int:
        """Make a device the current one unless the index is negative, and return the index of the one before."""
        before = self.current
        if index >= 0:
            self.set_current(index)
        return before

    def stream(self, index: int) -> tuple[int, int, int]:
        """Id, device and device type of a device's current stream."""
        return (*self._streams[index], CUDA_DEVICE_TYPE)

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream the current one of its device, and its device the current one."""
        self.set_current(device_index)
        self._streams[device_index] = (stream_id, device_index)


class Runtime:
    """Stands in for the CUDA runtime that ``torch.cuda.cudart()`` returns."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Free and total bytes of a device."""
        return self._devices.memory.free(device), self._devices.gpu.total_memory

    def cudaGetErrorString(self, code: int) -> str:
        """The text of an error."""
        return f"error {code}"

    def cudaProfilerStart(self) -> int:
        """Profile nothing."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    def cudaHostRegister(self, *args: Any) -> int:
        """Page-lock nothing."""
        return 0

    cudaHostUnregister = cudaHostRegister

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"torch.cuda.cudart().{name} needs the CUDA runtime, and a CPU stands in for it: leave that call "
            "out for this run"
        )


def patch_torch_cuda(patches: Patches, devices: Devices) -> None:
    """Make ``torch.cuda`` and ``torch.accelerator`` answer as ``devices``."""
    answered = {**_cuda_functions(devices), **_accelerator_functions(devices)}
    for name, function in answered.items():
        patches.attribute(torch._C, name, function)
    _hide_functions_of_a_cuda_build(patches, answered)
    patch_generators(patches, devices.count)
    patches.attribute(torch._C, "__getattr__", _missing)
    for name, value in {
        "_initialized": True,
        "_cudart": Runtime(devices),
        "_get_device_properties": devices.properties.__getitem__,
        "_exchange_device": devices.exchange,
        "_maybe_exchange_device": devices.exchange,
        "_cached_device_count": devices.count,
        "Stream": Stream,
        "Event": Event,
    }.items():
        patches.attribute(torch.cuda, name, value)
    patches.attribute(torch.cuda.streams, "Stream", Stream)
    patches.attribute(torch.cuda.streams, "Event", Event)
    patches.attribute(torch, "Stream", Stream)
    patches.attribute(torch, "Event", Event)
    patches.attribute(torch.cuda.nvtx, "_nvtx", Ranges())
    patches.attribute(torch.backends.cuda, "is_built", lambda: True)
    patches.attribute(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # no RNN is laid out for it
    runtime = "hip" if devices.gpu.vendor == "amd" else "cuda"
    patches.attribute(torch.version, runtime, devices.gpu.runtime)


_OF_A_DEVICE = ("_cuda_", "_nccl_", "_accelerator_")


def _hide_functions_of_a_cuda_build(patches: Patches, answered: Container[str]) -> None:
    """Make a CUDA build of torch lack what a CPU build lacks, and what would look for a driver that is not there."""
    for name, function in list(vars(torch._C).items()):
        if name.startswith(_OF_A_DEVICE) and name not in answered and isinstance(function, BuiltinFunctionType):
            delattr(torch._C, name)
            patches.callback(setattr, torch._C, name, function)


def _missing(name: str) -> Any:
    """The names that ``torch._C`` does not have, because no CUDA build of torch is needed here."""
    if name.startswith(_OF_A_DEVICE):
        raise AttributeError(
            f"torch._C.{name} needs a GPU, and a CPU stands in for it: leave out the call of torch.cuda that asks"
        )
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


class Ranges:
    """Stands in for NVTX: ranges nest, and go nowhere."""

    def __init__(self) -> None:
        self._depth = 0

    def rangePushA(self, message: str) -> int:
        """Open a range, and return its depth."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        """Close the innermost range, and return the depth that is left."""
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        """Open a range by number."""
        return 0

    def nothing(self, *args: Any) -> None:
        """Do nothing: no profiler takes the mark."""

    rangeEnd = markA = deviceRangeStart = deviceRangeEnd = nothing


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _cuda_functions(devices: Devices) -> dict[str, Callable[..., Any]]:
    gpu, memory = devices.gpu, devices.memory
    arch = gpu.gcn_arch_name.split(":")[0] or f"sm_{gpu.major}{gpu.minor}"
    major, minor, patch = map(int, gpu.nccl.split("."))
    settings: dict[str, Any] = {"fraction": 1.0, "sync": 0, "metadata": "", "caching": True}
    nothing = _constant(None)
    return {
        "_cuda_getDeviceCount": lambda: devices.count,
        "_cuda_getDevice": lambda: devices.current,
        "_cuda_setDevice": devices.set_current,
        "_cuda_exchangeDevice": devices.exchange,
        "_cuda_maybeExchangeDevice": devices.exchange,
        "_cuda_isInBadFork": _constant(False),
        "_cuda_init": nothing,
        "_cuda_synchronize": nothing,
        "_cuda_ipc_collect": nothing,
        "_cuda_sleep": nothing,
        "_cuda_getArchFlags": _constant(arch),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_nccl_version": lambda: major << 32 | minor << 16 | patch,
        "_nccl_version_suffix": lambda: b"",
        "_cuda_getCurrentStream": devices.stream,
        "_cuda_getDefaultStream": lambda index: (0, index, CUDA_DEVICE_TYPE),
        "_cuda_getCurrentRawStream": lambda index: devices.stream(index)[0],
        "_cuda_setStream": devices.set_stream,
        "_cuda_isCurrentStreamCapturing": _constant(False),
        "_cuda_set_sync_debug_mode": lambda mode: settings.update(sync=mode),
        "_cuda_get_sync_debug_mode": lambda: settings["sync"],
        "_cuda_emptyCache": nothing,
        "_cuda_memoryStats": memory.stats,
        "_cuda_resetPeakMemoryStats": memory.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": memory.reset_peak,
        "_cuda_hostMemoryStats": _constant({}),
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_memorySnapshot": _constant({"segments": [], "device_traces": [], "allocator_settings": {}}),
        "_cuda_record_memory_history": nothing,
        "_cuda_record_memory_history_legacy": nothing,
        "_cuda_isHistoryEnabled": _constant(False),
        "_cuda_setMemoryFraction": lambda fraction, device: settings.update(fraction=fraction),
        "_cuda_getMemoryFraction": lambda device: settings["fraction"],
        "_cuda_setMemoryMetadata": lambda metadata: settings.update(metadata=metadata),
        "_cuda_getMemoryMetadata": lambda: settings["metadata"],
        "_cuda_getAllocatorBackend": _constant("native"),
        "_cuda_cudaCachingAllocator_enable": lambda value: settings.update(caching=value),
        "_cuda_cudaCachingAllocator_is_enabled": lambda: settings["caching"],
        "_cuda_cudaCachingAllocator_set_allocator_settings": nothing,
    }


def _accelerator_functions(devices: Devices) -> dict[str, Callable[..., Any]]:
    nothing, memory = _constant(None), devices.memory
    dtypes = {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    }
    return {
        "_get_accelerator": lambda check=None: CUDA,
        "_accelerator_getAccelerator": lambda: CUDA,
        "_accelerator_getDeviceIndex": lambda: devices.current,
        "_accelerator_setDeviceIndex": devices.set_current,
        "_accelerator_exchangeDevice": devices.exchange,
        "_accelerator_maybeExchangeDevice": devices.exchange,
        "_accelerator_getDeviceCapability": _constant({"supported_dtypes": dtypes}),
        "_accelerator_getStream": lambda index: _stream(devices, index),
        "_accelerator_setStream": lambda stream: devices.set_stream(
            stream.stream_id, stream.device_index, CUDA_DEVICE_TYPE
        ),
        "_accelerator_synchronizeDevice": nothing,
        "_accelerator_isAllocatorInitialized": _constant(True),
        "_accelerator_emptyCache": nothing,
        "_accelerator_emptyHostCache": nothing,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_resetAccumulatedStats": memory.reset_peak,
        "_accelerator_getMemoryInfo": lambda index: (memory.free(index), devices.gpu.total_memory),
        "_accelerator_setAllocatorSettings": nothing,
    }


def _stream(devices: Devices, index: int) -> Stream:
    stream_id, device_index, device_type = devices.stream(index)
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
