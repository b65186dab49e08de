"""`CudaMemory`: an estimate of the GPU memory in use, for programs that read it; one warning says so.

It sums the storages of the tensors that Python holds and the program sees on the device. It misses tensors that only
autograd holds (activations) and the overhead of CUDA's allocator. The peak is the largest sum so far, computed only
when the program asks, because it inspects all of Python's objects.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.tensors import no_torch_function, storage_number
from dsexplore._internal.user_warnings import warn
from dsexplore._internal.worlds.cuda.device_marks import device_of, tensors_alive
from dsexplore._internal.worlds.simulated.closed import ClosedMesh

ESTIMATE = (
    "torch.cuda's memory statistics are estimates, as this machine has no GPU: they count tensors that Python holds "
    "(parameters, gradients, optimizer state), not activations that only autograd holds, nor the allocator's "
    "overhead; a peak is the largest value at the times when the program asked"
)


class CudaMemory:
    """Estimates the memory that tensors use on each device of a node.

    Args:
        total: memory of one device, bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._peaks: dict[int, int] = {}
        self._warned = False

    def stats(self, device: int) -> dict[str, Any]:
        """Return the statistics of CUDA's allocator: estimated bytes, and 0 for all others."""
        now = self._allocated(device)
        self._peaks[device] = peak = max(now, self._peaks.get(device, 0))
        return {
            **{name: _by_pool(now, peak) for name in _ESTIMATED},
            **{name: _by_pool(0, 0) for name in _NOT_ESTIMATED},
            **{name: _statistic(0, 0) for name in _OVERSIZE},
            **dict.fromkeys(_COUNTERS, 0),
        }

    def free(self, device: int) -> int:
        """Return the bytes of a device's memory that are free."""
        return max(0, self._total - self._allocated(device))

    def reset_peak(self, device: int) -> None:
        """Restart the peak at the memory allocated now."""
        self._peaks.pop(device, None)

    def _allocated(self, index: int) -> int:
        """Return the bytes allocated on a device, and warn the first time that they are an estimate."""
        if not self._warned:
            self._warned = True
            warn(ESTIMATE, UserWarning)
        sizes: dict[int, int] = {}
        with no_torch_function():
            for tensor in tensors_alive():
                if isinstance(tensor, DTensor) and isinstance(tensor.device_mesh, ClosedMesh):
                    continue  # its world is closed
                device = device_of(tensor)
                if device is not None and device.index == index:
                    sizes.update(_storage_sizes(tensor))
        return sum(sizes.values())


def _storage_sizes(tensor: Tensor) -> dict[int, int]:
    """Return the bytes of each storage of a tensor; keys identify storages, so that shared ones count once."""
    if hasattr(type(tensor), "__tensor_flatten__"):  # a DTensor, for example: only its inner tensors have memory
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        sizes = {}
        for name in names:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):
                sizes.update(_storage_sizes(inner))
        return sizes
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # a sparse tensor
        return {}
    return {storage_number(storage) if isinstance(tensor, FakeTensor) else storage.data_ptr(): storage.nbytes()}


def _statistic(current: int, peak: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": 0, "freed": 0}


def _by_pool(current: int, peak: int) -> dict[str, dict[str, int]]:
    large = _statistic(current, peak)
    return {"all": large, "large_pool": large, "small_pool": _statistic(0, 0)}


_ESTIMATED = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_NOT_ESTIMATED = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
