"""Patches of torch's distributed code that let meshes, DDP and FSDP of ``cuda`` devices work with CPU memory.

A mesh keeps its device type ``cuda``, so torch takes the same branches as on GPUs: DTensor's ``S(0) -> S(1)`` is an
all_to_all, and DTensor's random ops share one state. Where torch would then use the memory of a GPU, these patches give
it that of the CPU, with the mark of the device that the program asked for (`device_marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.ddp import BUCKET_TENSORS
from dsexplore._internal.torch_internals.dtensor import RNG_TRACKER, TENSOR_OF_SPEC
from dsexplore._internal.torch_internals.fake_tensors import active_fake_mode, without_fake_mode
from dsexplore._internal.torch_internals.fsdp import LOCAL_OF_DTENSOR, SHARDED_PARAMETER
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.process_groups import BARRIER_OPTIONS, NCCL_IS_AVAILABLE
from dsexplore._internal.worlds.cuda.device_marks import CPU, device_among, device_of, place


class BarrierOptions(distributed_c10d.BarrierOptions):
    """Options of a barrier that ignore the device: C++ creates the barrier's tensor there, and it has to be the CPU."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, CPU if name == "device" else value)


class NcclOptions(SimpleNamespace):
    """Stands in for ``ProcessGroupNCCL.Options``; it stores its arguments as attributes."""

    def __init__(self, is_high_priority_stream: bool = False, **kwargs: Any) -> None:
        super().__init__(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace(), **kwargs)


class ProcessGroupNCCL:
    """Stands in for torch's class of that name; programs set its options."""

    Options = NcclOptions


def _add_nccl(patches: Patches, parts: Parts) -> None:
    """Add `ProcessGroupNCCL` to ``torch.distributed`` where torch was built without NCCL."""
    for module in (dist, distributed_c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.attribute(module, "ProcessGroupNCCL", ProcessGroupNCCL)


def _bucket_tensors(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Mark the tensors of a DDP bucket as on the device of its parameters.

    Wraps ``GradBucket.buffer`` and ``GradBucket.gradients``, by which a communication hook gets tensors made in C++.
    """

    def bucket_tensors(bucket: Any) -> Any:
        tensors = original(bucket)
        place(tensors, device_among(bucket.parameters()))
        return tensors

    return bucket_tensors


def _tensor_of_spec(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Make the fake tensor of a DTensor's spec in the memory of the CPU where its mesh is of ``cuda`` devices.

    Wraps ``_rebuild_tensor_from_dtensor_meta`` in ``torch/distributed/tensor/_op_schema.py``.
    """

    def tensor_of_spec(spec: Any) -> Any:
        meta = spec.tensor_meta
        if meta is None or spec.mesh.device_type != "cuda":
            return original(spec)
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=CPU)

    return tensor_of_spec


def _local_of_dtensor(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Mark the local tensor of a flattened DTensor as on the device of the DTensor.

    Wraps ``_flatten_tensor`` in ``torch/distributed/tensor/parallel/_data_parallel_utils.py``.
    """

    def local_of_dtensor(tensor: torch.Tensor) -> Any:
        local, spec = original(tensor)
        place(local, device_of(tensor))
        return local, spec

    return local_of_dtensor


def _sharded_parameter(original: Callable[..., DTensor], parts: Parts) -> Callable[..., DTensor]:
    """Mark a sharded parameter as on the CPU if its FSDP group offloads parameters.

    Wraps ``FSDPParam.to_sharded_dtensor``.
    """

    def to_sharded_dtensor(parameter: Any, tensor: torch.Tensor) -> DTensor:
        sharded = original(parameter, tensor)
        if parameter.offload_to_cpu and not tensor.is_meta:
            place(sharded, CPU)
        return sharded

    return to_sharded_dtensor


def _rng_tracker(original: type, parts: Parts) -> type:
    """Return a subclass of ``OffsetBasedRNGTracker`` that works with CPU memory and with fake tensors."""

    class Tracker(original):  # type: ignore[misc] # torch's class, or a world's replacement of it
        """Reads the generator's state from CPU memory; with fake tensors, which have no values, it tracks none."""

        def __init__(self, device_mesh: DeviceMesh, run_state_sync: bool = True) -> None:
            with without_fake_mode():
                super().__init__(device_mesh, run_state_sync)

        def _get_device_state(self) -> torch.Tensor:
            return torch.cuda.get_rng_state()

        @contextmanager
        def _distribute_region(self, *args: Any, **kwargs: Any) -> Iterator[None]:
            with nullcontext() if active_fake_mode() else super()._distribute_region(*args, **kwargs):
                yield

    return Tracker


def _patch(target: TorchName, why: str, make: Callable[[Any, Parts], Any], *, by_code: bool = False) -> Patch:
    return Patch(target, why, make, when="cuda device", by_code=by_code)


PATCHES: tuple[Entry, ...] = (
    _patch(BARRIER_OPTIONS, "C++ creates the barrier's tensor on their device", lambda original, parts: BarrierOptions),
    _patch(NCCL_IS_AVAILABLE, "programs ask whether there is NCCL", lambda original, parts: True),
    Change("ProcessGroupNCCL", "a CPU build has none, and programs set its options", _add_nccl, when="cuda device"),
    _patch(RNG_TRACKER, "it moves a generator's state to the device, and reads it", _rng_tracker),
    *(_patch(target, "C++ creates the tensors of a communication hook", _bucket_tensors) for target in BUCKET_TENSORS),
    _patch(TENSOR_OF_SPEC, "some ops raise on fake tensors of that device", _tensor_of_spec, by_code=True),
    _patch(LOCAL_OF_DTENSOR, "it reads the local tensor below the function mode", _local_of_dtensor, by_code=True),
    _patch(SHARDED_PARAMETER, "CPUOffloadPolicy keeps parameters and gradients on the CPU", _sharded_parameter),
)
