"""The GPU memory that a program takes, for programs that read it: an estimate, and one warning that says so.

Counted are the tensors that Python holds and that the program sees on the device, each memory once. Not counted is
what autograd alone holds (activations), and what CUDA's own allocator adds; the peak is the largest of the moments
at which the program asked. Counting looks at all of Python's objects, so it happens only when asked for.
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
    "torch.cuda's memory figures are estimates here, as no GPU is there: counted are tensors that Python holds "
    "(parameters, gradients, optimizer state), not activations that autograd alone holds, nor what the allocator "
    "adds; a peak is the largest figure at a moment of asking"
)


class CudaMemory:
    """The bytes that tensors take on the devices of a node.

    Args:
        total: memory of one device, bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._peaks: dict[int, int] = {}
        self._warned = False

    def stats(self, device: int) -> dict[str, Any]:
        """Return the figures of CUDA's allocator, with every figure that is not estimated at 0."""
        now = self._allocated(device)
        self._peaks[device] = peak = max(now, self._peaks.get(device, 0))
        return {
            **{name: _figures(0, 0) for name in ("allocation", "segment", "active", "inactive_split")},
            **{name: _figures(now, peak) for name in ("allocated_bytes", "reserved_bytes", "active_bytes")},
            "requested_bytes": _figures(now, peak),
            "inactive_split_bytes": _figures(0, 0),
            **{name: {"current": 0, "peak": 0, "allocated": 0, "freed": 0} for name in _OVERSIZE},
            **dict.fromkeys(_COUNTERS, 0),
        }

    def free(self, device: int) -> int:
        """Return the bytes of a device's memory that are free."""
        return max(0, self._total - self._allocated(device))

    def reset_peak(self, device: int) -> None:
        """Begin the peak anew, at what is allocated now."""
        self._peaks.pop(device, None)

    def _allocated(self, index: int) -> int:
        if not self._warned:
            self._warned = True
            warn(ESTIMATE, UserWarning)
        sizes: dict[int, int] = {}
        with no_torch_function():
            for tensor in tensors_alive():
                if isinstance(tensor, DTensor) and isinstance(tensor.device_mesh, ClosedMesh):
                    continue  # of a world that is gone
                device = device_of(tensor)
                if device is not None and device.index == index:
                    sizes.update(_memory(tensor))
        return sum(sizes.values())


def _memory(tensor: Tensor) -> dict[int, int]:
    """Return the bytes of a tensor's memory, by what identifies it."""
    if hasattr(type(tensor), "__tensor_flatten__"):  # as a DTensor, which has no memory but that of its parts
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = [part for part in (getattr(tensor, name) for name in names) if isinstance(part, Tensor)]
        return {number: size for part in parts for number, size in _memory(part).items()}
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # a sparse tensor
        return {}
    return {storage_number(storage) if isinstance(tensor, FakeTensor) else storage.data_ptr(): storage.nbytes()}


def _figures(current: int, peak: int) -> dict[str, dict[str, int]]:
    large = {"current": current, "peak": peak, "allocated": 0, "freed": 0}
    return {"all": large, "large_pool": large, "small_pool": dict.fromkeys(large, 0)}


_OVERSIZE = ("oversize_allocations", "oversize_segments")
_COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
