"""The names of ``deepspeed.comm.torch``: `TorchBackend`, torch.distributed with DeepSpeed's backend interface.

The flags ``DS_COMM_ALL_GATHER_OFF``, ``DS_COMM_ALL_REDUCE_OFF``, … of this module are True while that collective is
switched off; setting a flag turns the switch.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed as td
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsexplore._internal.comm import calls, coalesced_calls, objects, p2p, ranks, switches, versions
from dsexplore._internal.comm.coalesce import get_coalescing_manager
from dsexplore._internal.comm.constants import MPI_BACKEND, NCCL_BACKEND
from dsexplore._internal.comm.faults import explain
from dsexplore._internal.comm.handles import WorkHandle
from dsexplore._internal.comm.logs.meeting import register
from dsexplore._internal.comm.reduce_op import Reduction, to_torch
from dsexplore._internal.comm.spellings import ALL_GATHER_INTO_TENSOR, REDUCE_SCATTER_TENSOR
from dsexplore._internal.comm.switches import (
    Noop,
    all_gather_comm_off,
    all_reduce_comm_off,
    backward_comm_off,
    broadcast_comm_off,
    reduce_comm_off,
    reduce_scatter_comm_off,
)
from dsexplore._internal.comm.versions import (
    has_all_reduce_coalesced,
    has_coalescing_manager,
    is_torch_ver_eq_2_0,
    is_torch_ver_ge_2_1,
    required_torch_version,
    torch_ver_ge_1_13,
)
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.torch_internals.process_groups import enable_symmetric_memory

__all__ = [
    "Noop",
    "TorchBackend",
    "all_gather_comm_off",
    "all_reduce_comm_off",
    "backward_comm_off",
    "broadcast_comm_off",
    "get_coalescing_manager",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "is_torch_ver_eq_2_0",
    "is_torch_ver_ge_2_1",
    "reduce_comm_off",
    "reduce_scatter_comm_off",
    "required_torch_version",
    "torch_ver_ge_1_13",
]

_log = logging.getLogger("dsexplore.comm")


class Backend:
    """A communication backend.

    Args:
        name: name of the backend.
        rank: rank of this process in the world.
        size: number of ranks in the world.
    """

    def __init__(self, name: str = "backend", rank: int = 0, size: int = 1) -> None:
        self.name = name
        self.world_size = size
        self.world_rank = rank
        self.process_groups: list[td.ProcessGroup] = []
        self.initialized = False

    @property
    def world_group(self) -> td.ProcessGroup | None:
        """Group of all ranks; None without a world."""
        return None

    def is_initialized(self) -> bool:
        """Return True if the backend can communicate."""
        return self.initialized

    def new_group(self, *args: Any, **named: Any) -> td.ProcessGroup:
        """Create a process group."""
        raise NotImplementedError(f"{type(self).__name__} makes no groups")

    def init_process_group(self, *args: Any, **named: Any) -> None:
        """Create the world's process group."""
        self.initialized = True


class TorchBackend(Backend):
    """torch.distributed; an existing process group is adopted, not initialized again.

    Args:
        backend: torch's name, such as ``"nccl"``, ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``; None for torch's choice.
        timeout: timeout of collectives; None for torch's default.
        init_method: URL of the rendezvous; None for the launcher's environment variables.
        rank: rank of this process; −1 to read it from the environment.
        world_size: number of processes; −1 to read it from the environment.
        name: name of this object.
    """

    @names_arguments
    def __init__(
        self,
        backend: str | None,
        timeout: timedelta | None,
        init_method: str | None,
        rank: int = -1,
        world_size: int = -1,
        name: str = "torch",
    ) -> None:
        super().__init__(name=name)
        self.has_all_reduce_coalesced = versions.has_all_reduce_coalesced()
        self.has_coalescing_manager = versions.has_coalescing_manager()
        self.all_gather_function = self.get_all_gather_function()
        self.reduce_scatter_function = self.get_reduce_scatter_function()
        self.init_process_group(backend, timeout=timeout, init_method=init_method, rank=rank, world_size=world_size)

    def init_process_group(
        self,
        backend: str | None,
        timeout: timedelta | None,
        init_method: str | None,
        rank: int = -1,
        world_size: int = -1,
    ) -> None:
        """Initialize torch.distributed, unless it is initialized.

        Raises:
            UsageError: `timeout` is not a positive ``timedelta``.
        """
        if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
            raise UsageError(f"timeout {timeout!r} is not a positive timedelta: give datetime.timedelta(minutes=30)")
        if td.is_initialized():
            _log.debug("torch.distributed is initialized: adopted")
        else:
            try:
                td.init_process_group(
                    backend,
                    timeout=timeout,
                    init_method=init_method,
                    rank=rank,
                    world_size=world_size,
                    device_id=_device_to_bind(backend),
                )
            except Exception as error:
                explain(error, "init_process_group", None)
                raise
        self.using_mpi = td.get_backend() == MPI_BACKEND
        self.world_rank, self.world_size = td.get_rank(), td.get_world_size()
        self.initialized = True
        register()

    @property
    def world_group(self) -> td.ProcessGroup | None:
        """Group of all ranks, never cached: a gloo group that outlives its end aborts the process when it exits."""
        return td.group.WORLD if td.is_initialized() else None

    def is_initialized(self) -> bool:
        """Return True if torch.distributed is initialized."""
        return td.is_initialized()

    @classmethod
    def get_all_gather_function(cls) -> Callable[..., object]:
        """Return torch's function that gathers into one tensor."""
        return ALL_GATHER_INTO_TENSOR.call

    @classmethod
    def get_reduce_scatter_function(cls) -> Callable[..., object]:
        """Return torch's function that reduces and scatters one tensor."""
        return REDUCE_SCATTER_TENSOR.call

    def has_all_gather_into_tensor(self) -> bool:
        """Return True, as any torch can gather into one tensor; DeepSpeed's programs ask."""
        return True

    def has_reduce_scatter_tensor(self) -> bool:
        """Return True, as any torch can reduce and scatter one tensor; DeepSpeed's programs ask."""
        return True

    get_coalescing_manager = staticmethod(get_coalescing_manager)

    def reduce_scatter_tensor(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        op: Reduction = td.ReduceOp.SUM,
        group: td.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> WorkHandle | None:
        """Call `comm.calls.reduce_scatter_tensor`; the parameters have DeepSpeed's names."""
        return calls.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    all_reduce = staticmethod(calls.all_reduce)
    inference_all_reduce = staticmethod(calls.inference_all_reduce)
    all_reduce_coalesced = staticmethod(coalesced_calls.all_reduce_coalesced)
    reduce = staticmethod(calls.reduce)
    reduce_scatter = staticmethod(calls.reduce_scatter)
    broadcast = staticmethod(calls.broadcast)
    broadcast_object_list = staticmethod(objects.broadcast_object_list)
    all_gather = staticmethod(calls.all_gather)
    all_gather_into_tensor = staticmethod(calls.all_gather_into_tensor)
    all_gather_base = staticmethod(calls.all_gather_base)
    all_gather_coalesced = staticmethod(coalesced_calls.all_gather_coalesced)
    all_gather_object = staticmethod(objects.all_gather_object)
    all_to_all_single = staticmethod(calls.all_to_all_single)
    all_to_all = staticmethod(calls.all_to_all)
    gather = staticmethod(calls.gather)
    scatter = staticmethod(calls.scatter)
    barrier = staticmethod(calls.barrier)
    monitored_barrier = staticmethod(calls.monitored_barrier)
    send = staticmethod(p2p.send)
    recv = staticmethod(p2p.recv)
    isend = staticmethod(p2p.isend)
    irecv = staticmethod(p2p.irecv)
    batch_isend_irecv = staticmethod(p2p.batch_isend_irecv)
    get_rank = staticmethod(ranks.get_rank)
    get_world_size = staticmethod(ranks.get_world_size)
    get_backend = staticmethod(ranks.get_backend)
    get_global_rank = staticmethod(ranks.get_global_rank)
    get_world_group = staticmethod(ranks.get_world_group)
    new_group = staticmethod(ranks.new_group)

    def destroy_process_group(self, group: td.ProcessGroup | None = None) -> None:
        """Destroy a process group; None for all."""
        td.destroy_process_group(group)
        self.initialized = td.is_initialized()

    def init_device_mesh(self, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...] | None) -> DeviceMesh:
        """Create a mesh of all ranks on the device type of this backend."""
        device_type = "cuda" if NCCL_BACKEND in td.get_backend() else "cpu"
        return init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)

    def enable_symm_mem_for_group(self, group_name: str) -> None:
        """Make symmetric memory available to the group."""
        enable_symmetric_memory(group_name)

    def _reduce_op(self, op: Any) -> Any:
        return to_torch(op)


def _device_to_bind(backend: str | None) -> torch.device | None:
    """Return this rank's GPU for NCCL to use from the start; without it NCCL guesses at the first collective.

    It is the GPU that the program has set, as NCCL's group refuses tensors of any other than the bound one. While
    GPU 0 is current the program may have set none: then it is the GPU of LOCAL_RANK.
    """
    local_rank = os.environ.get("LOCAL_RANK", "")
    if backend != NCCL_BACKEND or not local_rank.isdecimal() or not torch.cuda.is_available():
        return None
    if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", int(local_rank)) if int(local_rank) < torch.cuda.device_count() else None


class _WithFlags(ModuleType):
    """Class of this module, with a property per flag that reads and turns its switch.

    Programs set ``deepspeed.comm.torch.DS_COMM_ALL_REDUCE_OFF = True``: only the class of a module sees that.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # so that programs that refer to the module can be pickled


def _flag(switch: str) -> property:
    """Return a property of the module that is True while the ops of a switch are off."""
    ops = switches.SWITCHES[switch]

    def read(_module: ModuleType) -> bool:
        return all(op in switches.off for op in ops)

    def write(_module: ModuleType, flag: bool) -> None:
        switches.turn(switch, flag)

    return property(read, write)


for _switch in ("all_gather", "reduce_scatter", "broadcast", "all_reduce", "reduce"):
    setattr(_WithFlags, f"DS_COMM_{_switch.upper()}_OFF", _flag(_switch))
sys.modules[__name__].__class__ = _WithFlags
