"""Process groups: the registry of those of this process, their backends, stores and methods."""

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
    """Return the process groups of this process that were not destroyed, with their global ranks.

    torch also keeps a number there, which stands for the groups that this rank is not in.
    """
    groups = distributed_c10d._world.pg_group_ranks
    return {group: ranks for group, ranks in groups.items() if isinstance(group, dist.ProcessGroup)}


resolve_group: Callable[[Any], dist.ProcessGroup] = internal(
    "torch._C._distributed_c10d:_resolve_process_group",
    otherwise=lambda name: next(group for group in registered_groups() if group.group_name == name),
)
"""Return the process group of a name."""

default_store: Callable[[], Any] = internal("torch.distributed.distributed_c10d:_get_default_store")
"""Return the store at which the ranks of the default process group met."""

coalescing_manager: Callable[..., Any] = internal("torch.distributed.distributed_c10d:_coalescing_manager")
"""Return a context whose collectives are launched as one: ``(group, device, async_ops)``."""

finished_work: Callable[[], Any] = internal("torch._C._distributed_c10d:FakeWork")
"""Return the work of a collective that is done."""

AsyncCollectiveTensor: Any = internal("torch.distributed._functional_collectives:AsyncCollectiveTensor")
"""The class of what functional collectives return: a tensor that waits for the collective at its first use."""

timeout_of: Callable[[Any], Any] = attrgetter("options._timeout")
"""Return the time that a collective of a backend may take; not all backends say it."""


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return the backend of a process group for a device.

    Raises:
        RuntimeError: it has none.
    """
    return group._get_backend(device)


def collected_calls() -> MutableMapping[dist.ProcessGroup, list[Any]]:
    """Return, by process group, the calls that coalescing managers have collected and not launched yet."""
    calls: MutableMapping[dist.ProcessGroup, list[Any]] = distributed_c10d._world.pg_coalesce_state
    return calls


def register_ops() -> None:
    """Import what registers the ops of collectives, other than those of c10d."""
    for module in ("_functional_collectives", "_symmetric_memory", "tensor"):
        internal(f"torch.distributed.{module}")


def enable_symmetric_memory(group_name: str) -> Any:
    """Make symmetric memory available to the process group of that name."""
    return internal("torch.distributed._symmetric_memory:enable_symm_mem_for_group")(group_name)


def _called_by(function: Callable[..., Any], *methods: str) -> TorchName:
    """Return the method of a process group that a function of ``torch.distributed`` calls: of these names, the first
    in its code."""
    used = unwrap(function).__code__.co_names
    return TorchName(f"torch.distributed:ProcessGroup.{next((m for m in methods if m in used), methods[0])}")


ALL_REDUCE = TorchName("torch.distributed:ProcessGroup.allreduce")
BROADCAST = TorchName("torch.distributed:ProcessGroup.broadcast")
ALL_GATHER = _called_by(dist.all_gather_into_tensor, "all_gather_single", "_allgather_base")
REDUCE_SCATTER = _called_by(dist.reduce_scatter_tensor, "reduce_scatter_single", "_reduce_scatter_base")
"""The methods by which ``torch.distributed`` asks a process group for a collective."""

ALL_REDUCE_OPTIONS, BROADCAST_OPTIONS, ALL_GATHER_OPTIONS, REDUCE_SCATTER_OPTIONS = (
    internal(f"torch.distributed.distributed_c10d:{name}")
    for name in ("AllreduceOptions", "BroadcastOptions", "AllgatherOptions", "ReduceScatterOptions")
)
"""The classes of the last argument of these methods."""

START_COALESCING = TorchName("torch.distributed:ProcessGroup._start_coalescing")
END_COALESCING = TorchName("torch.distributed:ProcessGroup._end_coalescing")
"""The methods between which a process group launches collectives as one; the last returns their work."""

LOCAL_TENSOR_COLLECTIVES = TorchName("torch.distributed._local_tensor:_c10d", since="2.10")
"""The module of the functions by which ``LocalTensorMode`` carries out collectives for all ranks at once."""

WRAP_RESULT = TorchName("torch.distributed._functional_collectives:_maybe_wrap_tensor")
"""The function that makes an `AsyncCollectiveTensor` of what a functional collective returns."""

META_KERNELS_RANDOM = TorchName("torch.distributed._meta_registrations:random", since="2.10")
"""The random numbers that collectives on tensors without memory draw: Python's, as the program's."""

SYMMETRIC_MEMORY = (
    TorchName("torch.distributed._symmetric_memory:empty"),
    TorchName("torch.distributed._symmetric_memory:rendezvous"),
)
"""The functions that map memory of other ranks into this one."""
BARRIER_OPTIONS = TorchName("torch.distributed.distributed_c10d:BarrierOptions")
NCCL_IS_AVAILABLE = TorchName("torch.distributed.distributed_c10d:_NCCL_AVAILABLE")

CHECK_TENSOR = TorchName("torch.distributed.distributed_c10d:_check_single_tensor")
CHECK_TENSOR_LIST = TorchName("torch.distributed.distributed_c10d:_check_tensor_list")
"""The functions by which those of ``torch.distributed`` check the tensors that they are to send."""

INIT_RPC = TorchName("torch.distributed.rpc:init_rpc")
INIT_GROUPS = TorchName("torch.distributed.distributed_c10d:init_process_group")
DESTROY_GROUPS = TorchName("torch.distributed.distributed_c10d:destroy_process_group")
NEW_GROUP = TorchName("torch.distributed.distributed_c10d:new_group")
SPLIT_GROUP = TorchName("torch.distributed.distributed_c10d:split_group")
GET_BACKEND = TorchName("torch.distributed.distributed_c10d:get_backend")
IS_INITIALIZED = TorchName("torch.distributed.distributed_c10d:is_initialized")
GROUP_NAME = TorchName("torch.distributed.distributed_c10d:_process_group_name")
"""The function that makes the name of a new process group."""


CONNECTION_LINE = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]*\n", re.MULTILINE)
"""The line that gloo prints to stdout for each group it connects, on torch 2.9 alone: no program printed it."""


def takes_any_cpu_backend() -> bool:
    """Return True if ``monitored_barrier`` takes any group with a backend for CPUs: ``"cpu:gloo,cuda:nccl"``."""
    return torch_at_least("2.15")


MONITORED_BARRIER = TorchName("torch.distributed.distributed_c10d:monitored_barrier")
MONITORED_BARRIER_OF_GROUP = TorchName("torch.distributed:ProcessGroup.monitored_barrier")
RECV = TorchName("torch.distributed.distributed_c10d:recv")
COUNT_JOINED = TorchName("torch.distributed.algorithms.join:Join._get_num_nonjoined_procs")
"""The method by which ``Join`` asks how many ranks still have inputs."""

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
"""Return the process group over which ``Join`` asks its questions."""

completed_future: Callable[[Callable[[], Any]], torch.futures.Future[Any]] = internal("torch:fork")
"""Call a function, and return a future that holds its result with the type that C++ expects."""

FUTURE_METHODS = (TorchName("torch:Future.then"), TorchName("torch:Future.add_done_callback"))
"""By which a program gives a callback to the future of a work; those of ``torch.futures.Future`` call them."""

work_of: Callable[[torch.futures.Future[Any]], dist.Work] = internal(
    "torch._C._distributed_c10d:_create_work_from_future"
)
"""Return a work that ends when a future does, and returns it."""

_new_plugin: Callable[..., Any] = internal("torch.distributed:Backend._BackendPlugin")


def pickled(value: object) -> bytes:
    """Return an object as the functions of ``torch.distributed`` that send objects pickle it."""
    tensor: torch.Tensor = distributed_c10d._object_to_tensor(value, torch.device("cpu"), None)[0]
    return tensor.numpy().tobytes()


def skip_group_numbers(count: int) -> None:
    """Name the next process group as if so many others had been made before it."""
    distributed_c10d._world.group_count += count


def replace_fake_backend(patches: Patches, create: Callable[[int, int], Any]) -> None:
    """Create groups of the backend "fake" by calling a function with rank and size."""
    internal("torch.testing._internal.distributed.fake_pg")  # registers torch's own
    plugin = _new_plugin(lambda common, _options: create(common.group_rank, common.group_size), True)
    patches.item(dist.Backend._plugins, "FAKE", plugin)


def fake_backend(rank: int, size: int) -> tuple[Any, Callable[[], None]]:
    """Return a backend that sends nothing, and a function that makes all its later collectives raise RuntimeError.

    Groups of torch 2.9 cannot be made to raise.
    """
    FakeProcessGroup = internal("torch._C._distributed_c10d:FakeProcessGroup")  # a class
    options = FakeProcessGroup.Options()  # torch's default is one object for all groups
    create = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)

    def refuse_collectives() -> None:
        if hasattr(options, "error_on_collective"):
            options.error_on_collective = True

    return create(rank, size, options), refuse_collectives


def reduce_op_name(reduce_op: Any) -> str:
    """Return the name of the reduction that an op of c10d gets, ``"SUM"``; empty where torch does not say it.

    Torch says it from 2.13 on.
    """
    return dist.ReduceOp.RedOpType(reduce_op.op()).name if hasattr(reduce_op, "op") else ""


DEEPSPEEDS_RELEASE = TorchName("deepspeed.utils.groups:_release_process_group_references")
"""The function by which DeepSpeed drops its references to a process group that is destroyed."""

TCP_STORES, FILE_STORES = (
    tuple(TorchName(f"{module}:{store}") for module in ("torch.distributed", "torch.distributed.rendezvous"))
    for store in ("TCPStore", "FileStore")
)
"""The names under which torch and programs find the classes of stores."""


DIST_OF_NN = TorchName("torch.distributed.nn.functional:dist")
"""The name under which collectives with autograd find ``torch.distributed``."""
