"""Patches of ``torch.distributed``, so that meshes and groups of ``cuda`` devices work with CPU tensors.

A mesh keeps its device type ``cuda``, so torch takes the same branches as on GPUs: DTensor's ``S(0) -> S(1)`` is an
all_to_all, and DTensor's random ops share one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.ddp import BUCKET_TENSORS
from dsexplore._internal.torch_internals.dtensor import RNG_TRACKER, TENSOR_OF_SPEC
from dsexplore._internal.torch_internals.fake_tensors import active_fake_mode, without_fake_mode
from dsexplore._internal.torch_internals.fsdp import LOCAL_OF_DTENSOR, SHARDED_PARAMETER
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
    """Add `ProcessGroupNCCL` to torch.distributed where torch was built without NCCL."""
    for module in (dist, distributed_c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.attribute(module, "ProcessGroupNCCL", ProcessGroupNCCL)


def _with_device(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Give the tensors of a DDP bucket the device mark of its parameters."""

    def placed(self: Any) -> Any:
        tensors = original(self)
        place(tensors, device_among(self.parameters()))
        return tensors

    return placed


def _rebuild_on_cpu(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Make the local tensor of a DTensor's spec on a cuda mesh in the memory of the CPU."""

    def rebuild(arg: Any) -> Any:
        meta = arg.tensor_meta
        if meta is None or arg.mesh.device_type != "cuda":
            return original(arg)
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=CPU)

    return rebuild


def _placed_local(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Give the local tensor of a flattened DTensor the device mark of the DTensor."""

    def flatten(tensor: torch.Tensor) -> Any:
        local, spec = original(tensor)
        place(local, device_of(tensor))
        return local, spec

    return flatten


def _offload_to_cpu(original: Callable[..., DTensor], parts: Parts) -> Callable[..., DTensor]:
    """Mark a sharded parameter as on the CPU if its FSDP group offloads parameters."""

    def to_sharded_dtensor(self: Any, tensor: torch.Tensor) -> DTensor:
        made = original(self, tensor)
        if self.offload_to_cpu and not tensor.is_meta:
            place(made, CPU)
        return made

    return to_sharded_dtensor


def _tracker(original: type, parts: Parts) -> type:
    """Return a subclass of DTensor's RNG tracker that works with CPU memory and with fake tensors."""

    class Tracker(original):  # type: ignore[misc] # torch's class, or a world's replacement of it
        """Reads the generator's state from CPU memory; with fake tensors, which have no values, it tracks none."""

        def __init__(self, device_mesh: Any, *run_state_sync: bool, **kwargs: bool) -> None:
            # For fake tensors torch passes False: ranks do not synchronize their states. On a cluster they would.
            sync = () if run_state_sync and active_fake_mode() else run_state_sync
            with without_fake_mode():
                super().__init__(device_mesh, *sync, **kwargs)

        def _get_device_state(self) -> torch.Tensor:
            return torch.cuda.get_rng_state()

        @contextmanager
        def _distribute_region(self, *args: Any, **kwargs: Any) -> Iterator[None]:
            with nullcontext() if active_fake_mode() else super()._distribute_region(*args, **kwargs):
                yield

    return Tracker


PATCHES: tuple[Entry, ...] = (
    Patch(
        BARRIER_OPTIONS,
        "C++ creates the barrier's tensor on their device",
        lambda original, parts: BarrierOptions,
        when="cuda device",
    ),
    Patch(NCCL_IS_AVAILABLE, "programs ask whether there is NCCL", lambda original, parts: True, when="cuda device"),
    Change("ProcessGroupNCCL", "a CPU build has none, and programs set its options", _add_nccl, "cuda device"),
    Patch(RNG_TRACKER, "it moves a generator's state to the device, and reads it", _tracker, when="cuda device"),
    *(
        Patch(target, "C++ creates the tensors of a communication hook", _with_device, when="cuda device")
        for target in BUCKET_TENSORS
    ),
    Patch(
        TENSOR_OF_SPEC,
        "some ops raise on fake tensors of that device",
        _rebuild_on_cpu,
        when="cuda device",
        by_code=True,
    ),
    Patch(
        LOCAL_OF_DTENSOR,
        "it reads the local tensor below the function mode",
        _placed_local,
        when="cuda device",
        by_code=True,
    ),
    Patch(
        SHARDED_PARAMETER,
        "CPUOffloadPolicy keeps parameters and gradients on the CPU",
        _offload_to_cpu,
        when="cuda device",
    ),
)
