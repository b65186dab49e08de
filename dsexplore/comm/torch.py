"""`TorchBackend`: torch.distributed behind DeepSpeed's backend interface."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as td
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsexplore.comm import calls, objects, p2p, ranks, versions
from dsexplore.comm.backend import Backend
from dsexplore.comm.coalesce import coalescing_manager
from dsexplore.comm.constants import MPI_BACKEND, NCCL_BACKEND
from dsexplore.comm.faults import explain
from dsexplore.comm.reduce_op import to_torch
from dsexplore.comm.spellings import ALL_GATHER_INTO_TENSOR, REDUCE_SCATTER_TENSOR
from dsexplore.errors import UsageError

_log = logging.getLogger("dsexplore.comm")
_SUM = td.ReduceOp.SUM


class TorchBackend(Backend):
    """torch.distributed; a world that is there already is adopted, not initialised twice.

    Args:
        backend: torch's name, such as ``"nccl"``, ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``; None for torch's choice.
        timeout: after which a collective gives up.
        init_method: URL to meet at; None for the launcher's environment variables.
        rank: of this process; −1 to take it from the environment.
        world_size: number of processes; −1 to take it from the environment.
        name: of this object.
    """

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
        self.init_process_group(backend, timeout, init_method, rank, world_size)

    def init_process_group(
        self,
        backend: str | None,
        timeout: timedelta | None,
        init_method: str | None,
        rank: int = -1,
        world_size: int = -1,
    ) -> None:
        """Initialise torch.distributed, unless it is.

        Raises:
            UsageError: the timeout is no positive ``timedelta``.
        """
        if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
            raise UsageError(f"timeout {timeout!r} is no positive timedelta: give datetime.timedelta(minutes=30) or so")
        if td.is_initialized():
            _log.debug("torch.distributed is initialised: adopted")
        else:
            device = _device_to_bind(backend)
            try:
                td.init_process_group(
                    backend,
                    timeout=timeout,
                    init_method=init_method,
                    rank=rank,
                    world_size=world_size,
                    device_id=device,
                )
            except Exception as error:
                explain(error, "init_process_group", None)
                raise
        self.using_mpi = td.get_backend() == MPI_BACKEND
        self.world_rank, self.world_size = td.get_rank(), td.get_world_size()
        self.initialized = True

    @property
    def world_group(self) -> Any:
        """The group of all ranks, never kept: a gloo group that outlives its end aborts the process when it exits."""
        return td.group.WORLD if td.is_initialized() else None

    def is_initialized(self) -> bool:
        """Whether torch.distributed is."""
        return td.is_initialized()

    @classmethod
    def get_all_gather_function(cls) -> Any:
        """torch's function that gathers into one tensor."""
        return ALL_GATHER_INTO_TENSOR.call

    @classmethod
    def get_reduce_scatter_function(cls) -> Any:
        """torch's function that reduces and scatters one tensor."""
        return REDUCE_SCATTER_TENSOR.call

    def has_all_gather_into_tensor(self) -> bool:
        """Whether torch gathers into one tensor."""
        return self.all_gather_function is not None

    def has_reduce_scatter_tensor(self) -> bool:
        """Whether torch reduces and scatters one tensor."""
        return self.reduce_scatter_function is not None

    def get_coalescing_manager(self, group: Any, device: Any, reqs: Any, async_op: bool) -> Any:
        """A ``with`` block whose calls are launched as one; see `dsexplore.comm.coalesce.coalescing_manager`.

        ``device`` and ``reqs`` are what older versions of torch needed, and are not used.
        """
        return coalescing_manager(group, async_ops=async_op)

    def all_reduce(self, tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.all_reduce`."""
        return calls.all_reduce(tensor, op, group, async_op)

    def inference_all_reduce(self, tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.inference_all_reduce`."""
        return calls.inference_all_reduce(tensor, op, group, async_op)

    def all_reduce_coalesced(self, tensors: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.all_reduce_coalesced`."""
        return calls.all_reduce_coalesced(tensors, op, group, async_op)

    def reduce(self, tensor: Any, dst: int, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.reduce`."""
        return calls.reduce(tensor, dst, op, group, async_op)

    def reduce_scatter(
        self, output: Any, input_list: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.reduce_scatter`."""
        return calls.reduce_scatter(output, input_list, op, group, async_op)

    def reduce_scatter_tensor(
        self, output_tensor: Any, input_tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.reduce_scatter_tensor`."""
        return calls.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)

    def broadcast(self, tensor: Any, src: int, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.broadcast`."""
        return calls.broadcast(tensor, src, group, async_op)

    def broadcast_object_list(self, object_list: Any, src: int, group: Any = None, device: Any = None) -> Any:
        """See `dsexplore.comm.objects.broadcast_object_list`."""
        return objects.broadcast_object_list(object_list, src, group, device)

    def all_gather(self, tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.all_gather`."""
        return calls.all_gather(tensor_list, tensor, group, async_op)

    def all_gather_into_tensor(
        self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.all_gather_into_tensor`."""
        return calls.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

    def all_gather_base(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        """See `dsexplore.comm.calls.all_gather_base`."""
        return calls.all_gather_base(output_tensor, input_tensor, group, async_op)

    def all_gather_coalesced(
        self, output_tensors: Any, input_tensors: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.all_gather_coalesced`."""
        return calls.all_gather_coalesced(output_tensors, input_tensors, group, async_op)

    def all_gather_object(self, object_list: Any, obj: Any, group: Any = None) -> Any:
        """See `dsexplore.comm.objects.all_gather_object`."""
        return objects.all_gather_object(object_list, obj, group)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002 - DeepSpeed's name
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        """See `dsexplore.comm.calls.all_to_all_single`."""
        return calls.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)

    def all_to_all(
        self, output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.all_to_all`."""
        return calls.all_to_all(output_tensor_list, input_tensor_list, group, async_op)

    def send(self, tensor: Any, dst: int, group: Any = None, tag: int = 0) -> None:
        """See `dsexplore.comm.p2p.send`."""
        p2p.send(tensor, dst, group, tag)

    def recv(self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Any:
        """See `dsexplore.comm.p2p.recv`."""
        return p2p.recv(tensor, src, group, tag)

    def isend(self, tensor: Any, dst: int, group: Any = None, tag: int = 0) -> Any:
        """See `dsexplore.comm.p2p.isend`."""
        return p2p.isend(tensor, dst, group, tag)

    def irecv(self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Any:
        """See `dsexplore.comm.p2p.irecv`."""
        return p2p.irecv(tensor, src, group, tag)

    def batch_isend_irecv(self, p2p_op_list: list[Any]) -> list[Any]:
        """See `dsexplore.comm.p2p.batch_isend_irecv`."""
        return p2p.batch_isend_irecv(p2p_op_list)

    def gather(
        self, tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.gather`."""
        return calls.gather(tensor, gather_list, dst, group, async_op)

    def scatter(
        self, tensor: Any, scatter_list: Any = None, src: int = 0, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.scatter`."""
        return calls.scatter(tensor, scatter_list, src, group, async_op)

    def barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        """See `dsexplore.comm.calls.barrier`."""
        return calls.barrier(group, async_op, device_ids)

    def monitored_barrier(
        self, group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> Any:
        """See `dsexplore.comm.calls.monitored_barrier`."""
        return calls.monitored_barrier(group, timeout, wait_all_ranks)

    def get_rank(self, group: Any = None) -> int:
        """This rank's number in the group; −1 outside it."""
        return ranks.get_rank(group)

    def get_world_size(self, group: Any = None) -> int:
        """The group's size; −1 outside it."""
        return ranks.get_world_size(group)

    def get_backend(self, group: Any = None) -> str:
        """Name of the group's backend."""
        return ranks.get_backend(group)

    def new_group(self, ranks: Any = None, *args: Any, **named: Any) -> Any:
        """See `dsexplore.comm.ranks.new_group`."""
        return ranks.new_group(ranks, *args, **named)

    def get_global_rank(self, group: Any, group_rank: int) -> int:
        """The rank in the world of a rank of the group."""
        return ranks.get_global_rank(group, group_rank)

    def get_world_group(self) -> Any:
        """The group of all ranks."""
        return ranks.get_world_group()

    def destroy_process_group(self, group: Any = None) -> None:
        """End a group, or all."""
        td.destroy_process_group(group)
        self.initialized = td.is_initialized()

    def init_device_mesh(self, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...] | None) -> DeviceMesh:
        """A mesh of all ranks, on the device type of this backend."""
        device_type = "cuda" if NCCL_BACKEND in td.get_backend() else "cpu"
        return init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)

    def enable_symm_mem_for_group(self, group_name: str) -> Any:
        """Let the group use symmetric memory."""
        from torch.distributed import GroupName
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        return enable_symm_mem_for_group(GroupName(group_name))

    def _reduce_op(self, op: Any) -> Any:
        return to_torch(op)


def _device_to_bind(backend: str | None) -> torch.device | None:
    """The GPU that NCCL is told to use from the start, which spares it a guess at the first collective."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    if backend != NCCL_BACKEND or not local_rank.isdecimal() or not torch.cuda.is_available():
        return None
    return torch.device("cuda", int(local_rank)) if int(local_rank) < torch.cuda.device_count() else None
