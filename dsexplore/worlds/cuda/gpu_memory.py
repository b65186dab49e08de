"""The GPU memory that a script takes, for scripts that read it: an estimate, and one warning that says so.

Counted are the tensors that Python holds and that are believed to be on the device, each memory once. Not counted is
what autograd alone holds (activations), and what CUDA's own allocator adds; the peak is the largest of the moments
at which the script asked. Counting looks at all of Python's objects, so it happens only when asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dsexplore.user_warnings import warn
from dsexplore.worlds.cuda.device_marks import device_of, tensors_alive
from dsexplore.worlds.simulated.closed import ClosedMesh

SAID = (
    "torch.cuda's memory figures are estimates here, as no GPU is there: counted are tensors that Python holds "
    "(parameters, gradients, optimizer state), not activations that autograd alone holds, nor what the allocator "
    "adds; a peak is the largest figure at a moment of asking"
)


class Memory:
    """The bytes that tensors take on the devices of a node.

    Args:
        total: memory of one device, bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._peaks: dict[int, int] = {}
        self._warned = False

    def stats(self, device: int) -> dict[str, Any]:
        """The result of ``torch._C._cuda_memoryStats``, with every figure that is not estimated at 0."""
        now = self._allocated(device)
        self._peaks[device] = peak = max(now, self._peaks.get(device, 0))
        return {
            **{name: _spread(0, 0) for name in ("allocation", "segment", "active", "inactive_split")},
            **{name: _spread(now, peak) for name in ("allocated_bytes", "reserved_bytes", "active_bytes")},
            "requested_bytes": _spread(now, peak),
            "inactive_split_bytes": _spread(0, 0),
            **{name: {"current": 0, "peak": 0, "allocated": 0, "freed": 0} for name in _OVERSIZE},
            **dict.fromkeys(_COUNTERS, 0),
        }

    def free(self, device: int) -> int:
        """The bytes of a device's memory that are free."""
        return max(0, self._total - self._allocated(device))

    def reset_peak(self, device: int) -> None:
        """Begin the peak anew, at what is allocated now."""
        self._peaks.pop(device, None)

    def _allocated(self, device: int) -> int:
        if not self._warned:
            self._warned = True
            warn(SAID, UserWarning)
        sizes: dict[int, int] = {}
        current = torch.cuda.current_device()
        with torch._C.DisableTorchFunction():
            for tensor in tensors_alive():
                if isinstance(tensor, DTensor) and isinstance(tensor.device_mesh, ClosedMesh):
                    continue  # on a GPU of a world that is gone
                where = device_of(tensor, current)
                if where is not None and where.index == device:
                    sizes.update(_memory(tensor))
        return sum(sizes.values())


def _memory(tensor: Tensor) -> dict[int, int]:
    """Bytes of a tensor's memory, by what identifies it."""
    if is_traceable_wrapper_subclass(tensor):  # as a DTensor is, which has no memory but that of its parts
        names, _ = tensor.__tensor_flatten__()
        parts = [part for part in (getattr(tensor, name) for name in names) if isinstance(part, Tensor)]
        return {where: size for part in parts for where, size in _memory(part).items()}
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # a sparse tensor
        return {}
    return {storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr(): storage.nbytes()}


def _spread(now: int, peak: int) -> dict[str, dict[str, int]]:
    one = {"current": now, "peak": peak, "allocated": 0, "freed": 0}
    none = dict.fromkeys(one, 0)
    return {"all": one, "large_pool": one, "small_pool": none}


_OVERSIZE = ("oversize_allocations", "oversize_segments")
_COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
