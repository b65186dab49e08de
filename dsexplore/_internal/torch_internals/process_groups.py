"""Process groups: the groups of this process, their backends, stores and methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from inspect import unwrap
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dsexplore._internal.torch_internals.names import TorchName, internal, torch_at_least
from dsexplore._internal.torch_internals.patches import Patches


def registered_groups() -> Mapping[dist.ProcessGroup, Iterable[int]]:
    """Return {process group: its global ranks} for the groups of this process that were not destroyed.

    torch's table also has a number as key, which stands for the groups that this rank is not in.
    """
    groups = distributed_c10d._world.pg_group_ranks
    return {group: ranks for group, ranks in groups.items() if isinstance(group, dist.ProcessGroup)}


resolve_group: Callable[[Any], dist.ProcessGroup] = internal(
    "torch._C._distributed_c10d:_resolve_process_group",
    otherwise=lambda name: next(group for group in registered_groups() if group.group_name == name),
)
"""Return the process group with a name."""

default_store: Callable[[], Any] = internal("torch.distributed.distributed_c10d:_get_default_store")
"""Return the store through which the ranks of the default process group met."""

coalescing_manager: Callable[..., Any] = internal("torch.distributed.distributed_c10d:_coalescing_manager")
"""Return a context whose collectives are launched together: ``(group, device, async_ops)``."""

finished_work: Callable[[], Any] = internal("torch._C._distributed_c10d:FakeWork")
"""Return the work of a collective that is complete."""

AsyncCollectiveTensor: Any = internal("torch.distributed._functional_collectives:AsyncCollectiveTensor")
"""Class of the tensor that functional collectives return, which waits for the collective at its first use."""

timeout_of: Callable[[Any], Any] = attrgetter("options._timeout")
"""Return the timeout of a backend's collectives; not all backends have the attribute."""


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return the backend of a process group for a device.

    Raises:
        RuntimeError: the group has no backend for the device.
    """
    return group._get_backend(device)


def collected_calls() -> MutableMapping[dist.ProcessGroup, list[Any]]:
    """Return {process group: calls that coalescing managers have collected and not launched yet}."""
    calls: MutableMapping[dist.ProcessGroup, list[Any]] = distributed_c10d._world.pg_coalesce_state
    return calls


def register_ops() -> None:
    """Import the modules that register ops of collectives other than those of c10d."""
    for module in ("_functional_collectives", "_symmetric_memory", "tensor"):
        internal(f"torch.distributed.{module}")


def enable_symmetric_memory(group_name: str) -> Any:
    """Make symmetric memory available to the process group with a name."""
    return internal("torch.distributed._symmetric_memory:enable_symm_mem_for_group")(group_name)


def _called_by(function: Callable[..., Any], *methods: str) -> TorchName:
    """Return the first of some methods of a process group that a function of ``torch.distributed`` calls."""
    names_in_code = unwrap(function).__code__.co_names
    method = next((name for name in methods if name in names_in_code), methods[0])
    return TorchName(f"torch.distributed:ProcessGroup.{method}")


ALL_REDUCE = TorchName("torch.distributed:ProcessGroup.allreduce")
BROADCAST = TorchName("torch.distributed:ProcessGroup.broadcast")
ALL_GATHER = _called_by(dist.all_gather_into_tensor, "all_gather_single", "_allgather_base")
REDUCE_SCATTER = _called_by(dist.reduce_scatter_tensor, "reduce_scatter_single", "_reduce_scatter_base")
"""Methods of a process group that ``torch.distributed`` calls for a collective."""

ALL_REDUCE_OPTIONS, BROADCAST_OPTIONS, ALL_GATHER_OPTIONS, REDUCE_SCATTER_OPTIONS = (
    internal(f"torch.distributed.distributed_c10d:{name}")
    for name in ("AllreduceOptions", "BroadcastOptions", "AllgatherOptions", "ReduceScatterOptions")
)
"""Classes of the last argument of these methods."""

START_COALESCING = TorchName("torch.distributed:ProcessGroup._start_coalescing")
END_COALESCING = TorchName("torch.distributed:ProcessGroup._end_coalescing")
"""Methods between which a process group launches collectives together; the second returns their work."""

LOCAL_TENSOR_COLLECTIVES = TorchName("torch.distributed._local_tensor:_c10d", since="2.10")
"""Module with the functions by which ``LocalTensorMode`` runs collectives for all ranks at once."""

WRAP_RESULT = TorchName("torch.distributed._functional_collectives:_maybe_wrap_tensor")
"""Function that makes an `AsyncCollectiveTensor` from the result of a functional collective's op."""

META_KERNELS_RANDOM = TorchName("torch.distributed._meta_registrations:random", since="2.10")
"""Module ``random`` from which collectives on meta tensors draw numbers; the program may use it too."""

SYMMETRIC_MEMORY = (
    TorchName("torch.distributed._symmetric_memory:empty"),
    TorchName("torch.distributed._symmetric_memory:rendezvous"),
)
"""Functions that map memory of other ranks into this process."""
BARRIER_OPTIONS = TorchName("torch.distributed.distributed_c10d:BarrierOptions")
NCCL_IS_AVAILABLE = TorchName("torch.distributed.distributed_c10d:_NCCL_AVAILABLE")

CHECK_TENSOR = TorchName("torch.distributed.distributed_c10d:_check_single_tensor")
CHECK_TENSOR_LIST = TorchName("torch.distributed.distributed_c10d:_check_tensor_list")
"""Functions by which collectives of ``torch.distributed`` check their tensors."""

INIT_RPC = TorchName("torch.distributed.rpc:init_rpc")
INIT_GROUPS = TorchName("torch.distributed.distributed_c10d:init_process_group")
DESTROY_GROUPS = TorchName("torch.distributed.distributed_c10d:destroy_process_group")
NEW_GROUP = TorchName("torch.distributed.distributed_c10d:new_group")
SPLIT_GROUP = TorchName("torch.distributed.distributed_c10d:split_group")
GET_BACKEND = TorchName("torch.distributed.distributed_c10d:get_backend")
IS_INITIALIZED = TorchName("torch.distributed.distributed_c10d:is_initialized")
GROUP_NAME = TorchName("torch.distributed.distributed_c10d:_process_group_name")
"""Function that makes the name of a new process group."""

CONNECTION_LINE = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]*\n", re.MULTILINE)
"""Matches the line that gloo prints to stdout for each group that it connects; only torch 2.9's does."""


def takes_any_cpu_backend() -> bool:
    """Return True if ``monitored_barrier`` takes a group with any backend for CPUs, as of ``"cpu:gloo,cuda:nccl"``."""
    return torch_at_least("2.15")


MONITORED_BARRIER = TorchName("torch.distributed.distributed_c10d:monitored_barrier")
MONITORED_BARRIER_OF_GROUP = TorchName("torch.distributed:ProcessGroup.monitored_barrier")
RECV = TorchName("torch.distributed.distributed_c10d:recv")
COUNT_JOINED = TorchName("torch.distributed.algorithms.join:Join._get_num_nonjoined_procs")
"""Method by which ``Join`` counts the ranks that still have inputs."""

BROADCAST_OBJECTS = TorchName("torch.distributed.distributed_c10d:broadcast_object_list")
SCATTER_OBJECTS = TorchName("torch.distributed.distributed_c10d:scatter_object_list")
SEND_OBJECTS = TorchName("torch.distributed.distributed_c10d:send_object_list")
RECV_OBJECTS = TorchName("torch.distributed.distributed_c10d:recv_object_list")
GATHER_OBJECTS = TorchName("torch.distributed.distributed_c10d:gather_object")
ALL_GATHER_OBJECTS = TorchName("torch.distributed.distributed_c10d:all_gather_object")


def is_outside(group: dist.ProcessGroup) -> bool:
    """Return True if this rank is not in a process group."""
    return dist.get_rank(group) < 0


group_of_join: Callable[[Any], dist.ProcessGroup] = attrgetter("_process_group")
"""Return the process group that ``Join`` uses."""

completed_future: Callable[[Callable[[], Any]], torch.futures.Future[Any]] = internal("torch:fork")
"""Call a function, and return a completed future with its result, of the type that C++ expects."""

FUTURE_METHODS = (TorchName("torch:Future.then"), TorchName("torch:Future.add_done_callback"))
"""Methods that add a callback to the future of a work; the methods of ``torch.futures.Future`` call them."""

work_of: Callable[[torch.futures.Future[Any]], dist.Work] = internal(
    "torch._C._distributed_c10d:_create_work_from_future"
)
"""Return a work that completes with a future, and returns the future."""

_new_plugin: Callable[..., Any] = internal("torch.distributed:Backend._BackendPlugin")


def pickled(value: object) -> bytes:
    """Return the pickle of an object, as collectives of objects in ``torch.distributed`` send it."""
    tensor: torch.Tensor = distributed_c10d._object_to_tensor(value, torch.device("cpu"), None)[0]
    return tensor.numpy().tobytes()


def skip_group_numbers(count: int) -> None:
    """Name the next process group as if `count` others had been made before it."""
    distributed_c10d._world.group_count += count


def replace_fake_backend(patches: Patches, create: Callable[[int, int], Any]) -> None:
    """Create groups of the backend "fake" by calling a function with rank and size."""
    internal("torch.testing._internal.distributed.fake_pg")  # registers torch's own, which is replaced
    has_options = True
    plugin = _new_plugin(lambda common, _options: create(common.group_rank, common.group_size), has_options)
    patches.item(dist.Backend._plugins, "FAKE", plugin)


def fake_backend(rank: int, size: int) -> tuple[Any, Callable[[], None]]:
    """Return a backend that sends nothing, and a function that makes its later collectives raise RuntimeError.

    The function has no effect on torch 2.9, whose fake groups cannot raise.
    """
    FakeProcessGroup = internal("torch._C._distributed_c10d:FakeProcessGroup")  # a class
    options = FakeProcessGroup.Options()  # an object of its own, because all groups share torch's default
    create = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)

    def refuse_collectives() -> None:
        if hasattr(options, "error_on_collective"):
            options.error_on_collective = True

    return create(rank, size, options), refuse_collectives


def reduce_op_name(reduce_op: Any) -> str:
    """Return the name of the reduction of a c10d op, ``"SUM"``; empty before torch 2.13, which does not tell it."""
    return dist.ReduceOp.RedOpType(reduce_op.op()).name if hasattr(reduce_op, "op") else ""


DEEPSPEEDS_RELEASE = TorchName("deepspeed.utils.groups:_release_process_group_references")
"""Function by which DeepSpeed drops its references to a destroyed process group."""

TCP_STORES, FILE_STORES = (
    tuple(TorchName(f"{module}:{store}") for module in ("torch.distributed", "torch.distributed.rendezvous"))
    for store in ("TCPStore", "FileStore")
)
"""Names under which torch and programs find the classes of stores."""

DIST_OF_NN = TorchName("torch.distributed.nn.functional:dist")
"""Name under which collectives with autograd find ``torch.distributed``."""
