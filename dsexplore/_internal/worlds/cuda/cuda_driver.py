"""`Driver`: the functions of ``torch._C`` that ``torch.cuda`` and ``torch.accelerator`` call, without a GPU.

A CPU build lacks these functions. torch's own Python code stays in place above them, so it checks the arguments and
formats the reports.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda.gpu import Gpu
from dsexplore._internal.worlds.cuda.gpu_memory import CudaMemory
from dsexplore._internal.worlds.cuda.streams import CUDA_DEVICE_TYPE, Stream

DTYPES = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
)
"""The dtypes that ``torch.accelerator`` says a GPU supports."""


class DeviceProperties(SimpleNamespace):
    """The result of ``torch.cuda.get_device_properties()``."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def device_properties(gpu: Gpu, index: int) -> DeviceProperties:
    """Return the properties of the device with this index; its uuid ends in the index."""
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


class Driver:
    """The GPUs of one node. torch calls the methods, with the arguments of the functions that they replace.

    Args:
        gpu: model of the GPUs.
        count: number of GPUs.
        current: index of the current GPU.

    Attributes:
        count: number of GPUs.
        current: index of the current GPU.
        properties: properties of each GPU, by index.
        runtime: replacement of the CUDA runtime.
        ranges: replacement of NVTX.
    """

    def __init__(self, gpu: Gpu, count: int, current: int) -> None:
        self.count, self.current = count, current
        self.properties = [device_properties(gpu, index) for index in range(count)]
        self.runtime = Runtime(self)
        self.ranges = Ranges()
        self._gpu = gpu
        self._memory = CudaMemory(gpu.total_memory)
        self._streams = [(0, index) for index in range(count)]
        self._sync_debug_mode, self._fraction, self._metadata, self._caching = 0, 1.0, "", True

    def device_count(self) -> int:
        """Return the number of GPUs."""
        return self.count

    def current_device(self) -> int:
        """Return the index of the current device."""
        return self.current

    def set_device(self, index: int) -> None:
        """Make a device the current one.

        Raises:
            UsageError: the node has no device of this index.
        """
        if not 0 <= index < self.count:
            raise UsageError(
                f"there is no cuda:{index}: a simulated node has {self.count} GPUs, cuda:0 to "
                f"cuda:{self.count - 1}; use LOCAL_RANK as the index, or ask for more GPUs a node"
            )
        self.current = index

    def exchange_device(self, index: int) -> int:
        """Make a device the current one unless the index is negative; return the index of the previous one."""
        previous = self.current
        if index >= 0:
            self.set_device(index)
        return previous

    def can_access_peer(self, device: int, peer: int) -> bool:
        """Return True for two different devices."""
        return device != peer

    def has_context(self, device: int) -> bool:
        """Return True: each device counts as initialized."""
        return True

    def arch_flags(self) -> str:
        """Return the architectures that torch's kernels are compiled for."""
        return self._gpu.gcn_arch_name.split(":")[0] or f"sm_{self._gpu.major}{self._gpu.minor}"

    def accelerator(self, check: bool | None = None) -> torch.device:
        """Return the device of ``torch.accelerator``."""
        return torch.device("cuda")

    def capability(self, device: int) -> dict[str, Any]:
        """Return the capabilities of the accelerator."""
        return {"supported_dtypes": set(DTYPES)}

    def default_generator(self, device: int) -> torch.Generator:
        """Return the default generator of a device."""
        return torch.cuda.default_generators[device]

    def nccl_version(self) -> int:
        """Return the version of NCCL as one number, as C++ does."""
        major, minor, patch = map(int, self._gpu.nccl.split("."))
        return major << 32 | minor << 16 | patch

    def nccl_version_suffix(self) -> bytes:
        """Return the suffix of NCCL's version."""
        return b""

    def current_stream(self, index: int) -> tuple[int, int, int]:
        """Return the id, device index and device type of a device's current stream."""
        return (*self._streams[index], CUDA_DEVICE_TYPE)

    def default_stream(self, index: int) -> tuple[int, int, int]:
        """Return the id, device index and device type of a device's default stream."""
        return 0, index, CUDA_DEVICE_TYPE

    def raw_stream(self, index: int) -> int:
        """Return the address of a device's current stream."""
        return self._streams[index][0]

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream the current one of its device, and its device the current one."""
        self.set_device(device_index)
        self._streams[device_index] = (stream_id, device_index)

    def stream_object(self, index: int) -> Stream:
        """Return a device's current stream as an object."""
        stream_id, device_index, device_type = self.current_stream(index)
        return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)

    def set_stream_object(self, stream: Stream) -> None:
        """Make a stream the current one, as `set_stream` does."""
        self.set_stream(stream.stream_id, stream.device_index, CUDA_DEVICE_TYPE)

    def sync_debug_mode(self) -> int:
        """Return the debug mode of synchronizing calls; it has no effect."""
        return self._sync_debug_mode

    def set_sync_debug_mode(self, mode: int) -> None:
        """Store the debug mode of synchronizing calls."""
        self._sync_debug_mode = mode

    def memory_stats(self, device: int) -> dict[str, Any]:
        """Return the allocator's statistics, which are estimates."""
        return self._memory.stats(device)

    def reset_peak_memory(self, device: int) -> None:
        """Restart the peak of a device's memory."""
        self._memory.reset_peak(device)

    def memory_info(self, device: int) -> tuple[int, int]:
        """Return the free and the total memory of a device, bytes."""
        return self._memory.free(device), self._gpu.total_memory

    def memory_snapshot(self, *args: Any) -> dict[str, Any]:
        """Return an empty snapshot of the allocator."""
        return {"segments": [], "device_traces": [], "allocator_settings": {}}

    def memory_fraction(self, device: int) -> float:
        """Return the fraction of memory that the program may use; it has no effect."""
        return self._fraction

    def set_memory_fraction(self, fraction: float, device: int) -> None:
        """Store the fraction of memory that the program may use."""
        self._fraction = fraction

    def memory_metadata(self) -> str:
        """Return the metadata that the allocator would write into its history."""
        return self._metadata

    def set_memory_metadata(self, metadata: str) -> None:
        """Store the metadata that the allocator would write into its history."""
        self._metadata = metadata

    def allocator_backend(self) -> str:
        """Return the name of torch's own allocator."""
        return "native"

    def is_caching(self) -> bool:
        """Return True unless the program has switched off the caching of memory; it has no effect."""
        return self._caching

    def set_caching(self, value: bool) -> None:
        """Store whether memory is cached."""
        self._caching = value

    def always(self) -> bool:
        """Return True."""
        return True

    def never(self, *args: Any) -> bool:
        """Return False."""
        return False

    def no_figures(self, *args: Any) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: work is done at once, and nothing is cached or recorded."""


class Runtime:
    """Replacement of the CUDA runtime that ``torch.cuda.cudart()`` returns."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, driver: Driver) -> None:
        self.cudaMemGetInfo = lambda device: driver.memory_info(device)

    def cudaGetErrorString(self, code: int) -> str:
        """Return the text of an error."""
        return f"error {code}"

    def cudaProfilerStart(self) -> int:
        """Do nothing, as there is nothing to profile."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    def cudaHostRegister(self, *args: Any) -> int:
        """Do nothing, as no memory needs to be page-locked."""
        return 0

    cudaHostUnregister = cudaHostRegister

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"torch.cuda.cudart().{name} needs the CUDA runtime, and a CPU stands in for the GPU: skip that call "
            "in this run"
        )


class Ranges:
    """Replacement of NVTX: ranges nest, and no profiler gets them."""

    def __init__(self) -> None:
        self._depth = 0

    def rangePushA(self, message: str) -> int:
        """Open a nested range, and return its depth."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        """Close the innermost range, and return its depth."""
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        """Return a range id, the same for all."""
        return 0

    def nothing(self, *args: Any) -> None:
        """Do nothing."""

    rangeEnd = markA = deviceRangeStart = deviceRangeEnd = nothing
