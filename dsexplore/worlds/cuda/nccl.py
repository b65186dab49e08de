"""Changes to ``torch.distributed`` by which meshes and groups of ``cuda`` devices work on CPU tensors.

A mesh keeps the device type that it was asked for, so torch goes the ways that it goes on GPUs: DTensor's
``S(0) -> S(1)`` is an all_to_all, and DTensor's random ops share one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.tensor._random as tensor_random
from torch._C._distributed_c10d import GradBucket
from torch._guards import active_fake_mode
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, _op_schema
from torch.distributed.tensor.parallel import _data_parallel_utils

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import CPU, mark, marked
from dsexplore.worlds.cuda.function_mode import StandInMode
from dsexplore.worlds.fake.fake_tensors import outside_fake_mode


class BarrierOptions(c10d.BarrierOptions):
    """Options of a barrier, whose tensor C++ makes: on the CPU, whatever device is named."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, CPU if name == "device" else value)


class NcclOptions(SimpleNamespace):
    """Stands in for ``ProcessGroupNCCL.Options``: keeps what it is given."""

    def __init__(self, is_high_priority_stream: bool = False, **kwargs: Any) -> None:
        super().__init__(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace(), **kwargs)


class ProcessGroupNCCL:
    """Stands in for the class of that name, whose options scripts set."""

    Options = NcclOptions


def patch_groups(patches: Patches, mode: StandInMode) -> None:
    """Make groups, meshes and DTensors of ``cuda`` work on CPU tensors."""
    patches.attribute(c10d, "BarrierOptions", BarrierOptions)
    patches.attribute(c10d, "_NCCL_AVAILABLE", True)
    for module in (dist, c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.attribute(module, "ProcessGroupNCCL", ProcessGroupNCCL)
    _patch_random_ops(patches)
    for name in ("buffer", "gradients"):
        patches.attribute(GradBucket, name, _as_its_parameters(getattr(GradBucket, name)))
    patches.function(_op_schema._rebuild_tensor_from_dtensor_meta, _on_the_cpu)
    patches.function(_data_parallel_utils._flatten_tensor, partial(_flattened_where_it_is, mode))
    patches.attribute(FSDPParam, "to_sharded_dtensor", _offloaded_where_it_is(FSDPParam.to_sharded_dtensor))
    to_local = DTensor.to_local

    def believed_local(tensor: DTensor, **kwargs: Any) -> Any:
        local = to_local(tensor, **kwargs)
        if isinstance(local, torch.Tensor):
            mark(local, mode.believed(tensor))
        return local

    patches.attribute(DTensor, "to_local", believed_local)


def _offloaded_where_it_is(original: Callable[..., DTensor]) -> Callable[..., DTensor]:
    """Make FSDP2's shards of parameters and gradients be on the CPU where `CPUOffloadPolicy` keeps them there."""

    def to_sharded_dtensor(parameter: FSDPParam, tensor: torch.Tensor) -> DTensor:
        made = original(parameter, tensor)
        if parameter.offload_to_cpu and not tensor.is_meta:
            mark(made, CPU)
        return made

    return to_sharded_dtensor


def _as_its_parameters(method: Callable[[GradBucket], Any]) -> Callable[[GradBucket], Any]:
    """Make what DDP's bucket hands to a communication hook be where its parameters are."""

    def believed(bucket: GradBucket) -> Any:
        made = method(bucket)
        mark(made, marked(bucket.parameters()))
        return made

    return believed


def _flattened_where_it_is(mode: StandInMode, original: Any) -> Any:
    """Make FSDP1 find the shards of tensor parallel parameters, which it flattens, where the DTensors are."""

    def flattened(tensor: torch.Tensor) -> Any:
        local, spec = original(tensor)
        mark(local, mode.believed(tensor))
        return local, spec

    return flattened


def _on_the_cpu(original: Any) -> Any:
    """Make DTensor find the shapes of an op's results by fake CPU tensors: fake ``cuda`` ones raise in some ops."""

    def rebuilt(spec: Any) -> Any:
        meta = spec.tensor_meta
        if meta is None or spec.mesh.device_type != "cuda":
            return original(spec)
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=CPU)

    return rebuilt


def _patch_random_ops(patches: Patches) -> None:
    """Make DTensor's random ops read a state that is in CPU memory, and on fake tensors keep none."""
    tracker = tensor_random.OffsetBasedRNGTracker
    region = tracker._distribute_region
    make = outside_fake_mode(tracker.__init__)

    def init(self: Any, mesh: Any, *synchronise: bool, **keywords: bool) -> None:
        # On fake tensors torch leaves out that the ranks agree on a state, and says so with a second positional False.
        make(self, mesh, *(() if synchronise and active_fake_mode() else synchronise), **keywords)

    @contextmanager
    def unless_fake(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with nullcontext() if active_fake_mode() else region(self, *args, **kwargs):
            yield

    patches.attribute(tracker, "__init__", init)
    patches.attribute(tracker, "_distribute_region", unless_fake)
    patches.attribute(tracker, "_get_device_state", lambda self: self._device_handle.get_rng_state())
