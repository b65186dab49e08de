"""CUDA: the functions of ``torch._C`` that call a GPU's driver, and the names of ``torch.cuda`` that depend on them."""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any, NoReturn

import torch
import torch.cuda.nvtx

from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Patches

_ANSWERS: dict[str, tuple[str, ...]] = {
    "device_count": ("_cuda_getDeviceCount",),
    "current_device": ("_cuda_getDevice", "_accelerator_getDeviceIndex"),
    "set_device": ("_cuda_setDevice", "_accelerator_setDeviceIndex"),
    "exchange_device": (
        "_cuda_exchangeDevice",
        "_cuda_maybeExchangeDevice",
        "_accelerator_exchangeDevice",
        "_accelerator_maybeExchangeDevice",
    ),
    "can_access_peer": ("_cuda_canDeviceAccessPeer",),
    "arch_flags": ("_cuda_getArchFlags",),
    "has_context": ("_cuda_hasPrimaryContext",),
    "default_generator": ("_accelerator_getDefaultGenerator",),
    "accelerator": ("_get_accelerator", "_accelerator_getAccelerator"),
    "capability": ("_accelerator_getDeviceCapability",),
    "nccl_version": ("_nccl_version",),
    "nccl_version_suffix": ("_nccl_version_suffix",),
    "current_stream": ("_cuda_getCurrentStream",),
    "default_stream": ("_cuda_getDefaultStream",),
    "raw_stream": ("_cuda_getCurrentRawStream",),
    "set_stream": ("_cuda_setStream",),
    "stream_object": ("_accelerator_getStream",),
    "set_stream_object": ("_accelerator_setStream",),
    "sync_debug_mode": ("_cuda_get_sync_debug_mode",),
    "set_sync_debug_mode": ("_cuda_set_sync_debug_mode",),
    "memory_stats": ("_cuda_memoryStats", "_accelerator_getDeviceStats"),
    "reset_peak_memory": (
        "_cuda_resetPeakMemoryStats",
        "_cuda_resetAccumulatedMemoryStats",
        "_accelerator_resetPeakStats",
        "_accelerator_resetAccumulatedStats",
    ),
    "memory_info": ("_accelerator_getMemoryInfo",),
    "memory_snapshot": ("_cuda_memorySnapshot",),
    "memory_fraction": ("_cuda_getMemoryFraction",),
    "set_memory_fraction": ("_cuda_setMemoryFraction",),
    "memory_metadata": ("_cuda_getMemoryMetadata",),
    "set_memory_metadata": ("_cuda_setMemoryMetadata",),
    "allocator_backend": ("_cuda_getAllocatorBackend",),
    "is_caching": ("_cuda_cudaCachingAllocator_is_enabled",),
    "set_caching": ("_cuda_cudaCachingAllocator_enable",),
    "always": ("_accelerator_isAllocatorInitialized",),
    "never": (
        "_cuda_isInBadFork",
        "_cuda_isCurrentStreamCapturing",
        "_cuda_isHistoryEnabled",
        "_cuda_memoryMetadataSupported",
    ),
    "no_figures": ("_cuda_hostMemoryStats",),
    "do_nothing": (
        "_cuda_init",
        "_cuda_synchronize",
        "_cuda_ipc_collect",
        "_cuda_sleep",
        "_cuda_emptyCache",
        "_cuda_resetPeakHostMemoryStats",
        "_cuda_resetAccumulatedHostMemoryStats",
        "_cuda_record_memory_history",
        "_cuda_record_memory_history_legacy",
        "_cuda_cudaCachingAllocator_set_allocator_settings",
        "_accelerator_synchronizeDevice",
        "_accelerator_emptyCache",
        "_accelerator_emptyHostCache",
        "_accelerator_setAllocatorSettings",
    ),
}
"""{method of a driver: functions of ``torch._C`` that it replaces}; it takes their arguments."""

_OF_A_DEVICE = ("_cuda_", "_nccl_", "_accelerator_")
"""Start of the names of functions of ``torch._C`` that call a driver."""
_SETTINGS = (
    "_cuda_get_cudnn_benchmark_limit",
    "_cuda_set_cudnn_benchmark_limit",
    "_cuda_get_conv_benchmark_empty_cache",
)
"""Functions of a CUDA build that need no driver; in a CPU build, which has no cuDNN, nothing calls them."""


def provide_driver(patches: Patches, driver: Any) -> None:
    """Make ``torch.cuda`` and ``torch.accelerator`` call an object instead of a GPU's driver.

    A CPU build of torch lacks the functions of ``torch._C`` that these modules call, so they are added. A CUDA build
    has more of them than the object replaces; the others are hidden, because they would look for a driver.

    Args:
        patches: set of changes, which restores everything.
        driver: object with the methods that `_ANSWERS` names, ``properties`` of each device, and the CUDA ``runtime``
            and ``ranges`` (NVTX) as objects.
    """
    answers = {name: getattr(driver, method) for method, names in _ANSWERS.items() for name in names}
    for name, function in list(vars(torch._C).items()):
        is_of_driver = name.startswith(_OF_A_DEVICE) and name not in _SETTINGS
        if is_of_driver and name not in answers and isinstance(function, BuiltinFunctionType):
            delattr(torch._C, name)
            patches.callback(setattr, torch._C, name, function)
    for name, answer in answers.items():
        patches.attribute(torch._C, name, answer)
    patches.attribute(torch._C, "__getattr__", _refuse_name)
    for name, value in {
        "_initialized": True,
        "_cached_device_count": driver.device_count(),
        "_get_device_properties": driver.properties.__getitem__,
        "_exchange_device": driver.exchange_device,
        "_maybe_exchange_device": driver.exchange_device,
        "_cudart": driver.runtime,
    }.items():
        patches.attribute(torch.cuda, name, value)
    patches.attribute(torch.cuda.nvtx, "_nvtx", driver.ranges)


def _refuse_name(name: str) -> NoReturn:
    """Raise AttributeError for a name that ``torch._C`` does not have; if it is one of CUDA, say why.

    Raises:
        AttributeError: always.
    """
    if name.startswith(_OF_A_DEVICE):
        raise AttributeError(
            f"torch._C.{name} needs a GPU, and a CPU stands in for it: leave out the call of torch.cuda that asks"
        )
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


STREAMS = tuple(TorchName(f"{module}:Stream") for module in ("torch", "torch.cuda", "torch.cuda.streams"))
EVENTS = tuple(TorchName(f"{module}:Event") for module in ("torch", "torch.cuda", "torch.cuda.streams"))
TENSOR_TYPES = {
    dtype: TorchName(f"torch.cuda:{name}Tensor")
    for dtype, name in {
        torch.float64: "Double",
        torch.float32: "Float",
        torch.float16: "Half",
        torch.bfloat16: "BFloat16",
        torch.int64: "Long",
        torch.int32: "Int",
        torch.int16: "Short",
        torch.int8: "Char",
        torch.uint8: "Byte",
        torch.bool: "Bool",
    }.items()
}
"""{dtype: legacy type of its tensors on GPUs}."""

LAZY_INIT = TorchName("torch.cuda:_lazy_init")
"""Function that C++ calls before the first op on a GPU."""
GENERATOR = TorchName("torch:Generator")
DEFAULT_GENERATORS = TorchName("torch.cuda:default_generators")
CUDA_VERSION = TorchName("torch.version:cuda")
HIP_VERSION = TorchName("torch.version:hip")
CUDA_IS_BUILT = TorchName("torch.backends.cuda:is_built")
CUDNN_IS_ACCEPTABLE = TorchName("torch.backends.cudnn:is_acceptable")

GRAPHS = (
    *(
        TorchName(f"{module}:{name}")
        for module in ("torch.cuda", "torch.cuda.graphs")
        for name in ("CUDAGraph", "graph", "make_graphed_callables")
    ),
    *(TorchName(f"{module}:Graph", since="2.12") for module in ("torch.accelerator", "torch.accelerator.graphs")),
)
"""The classes and functions of CUDA graphs."""

SENSORS = tuple(
    TorchName(f"torch.cuda:{name}")
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
)
"""Functions that read the sensors of a GPU."""
MEMORY_USED = TorchName("torch.cuda:device_memory_used")
PROFILE = TorchName("torch.autograd.profiler:profile.__init__")
EMIT_NVTX = tuple(TorchName(f"torch.autograd.profiler:emit_nvtx.{name}") for name in ("__enter__", "__exit__"))
IS_CAPTURING = TorchName("torch.cuda:is_current_stream_capturing")
DATA_PARALLEL = TorchName("torch.nn:DataParallel.__init__")
DATA_PARALLEL_FUNCTION = TorchName("torch.nn.parallel:data_parallel")
EXTENSIONS = tuple(TorchName(f"torch.utils.cpp_extension:{name}") for name in ("load", "load_inline", "CUDAExtension"))
TRITON_RUN = TorchName("triton.runtime.jit:JITFunction.run")
CHOOSE_ATTENTION = TorchName("torch.nn.attention:_sdpa_kernel")
CREATE_BLOCK_MASK = TorchName("torch.nn.attention.flex_attention:create_block_mask")
COMPILE = TorchName("torch:compile")
EXPORTS = (TorchName("torch.export:export"), TorchName("torch.export:export_for_training", until="2.10"))
TREES_OF_GRAPHS = "torch._inductor.cudagraph_trees"
"""Module in which the compiler manages CUDA graphs; a torch without CUDA cannot import it."""
