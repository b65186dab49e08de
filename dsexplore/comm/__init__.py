"""torch.distributed with DeepSpeed's names and a log: ``import dsexplore.comm as dist``.

Use it in place of ``import deepspeed.comm as dist`` and of ``import torch.distributed as dist``. The calls below are
torch's; they can be logged and switched off, and their errors name the op, the group and the rank. Every other name of
torch.distributed is torch's.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch.distributed as _td

from dsexplore._internal.comm import launch as _launch
from dsexplore._internal.comm.calls import all_gather as all_gather
from dsexplore._internal.comm.calls import all_gather_base as all_gather_base
from dsexplore._internal.comm.calls import all_gather_into_tensor as all_gather_into_tensor
from dsexplore._internal.comm.calls import all_gather_single as all_gather_single
from dsexplore._internal.comm.calls import all_reduce as all_reduce
from dsexplore._internal.comm.calls import all_to_all as all_to_all
from dsexplore._internal.comm.calls import all_to_all_single as all_to_all_single
from dsexplore._internal.comm.calls import barrier as barrier
from dsexplore._internal.comm.calls import broadcast as broadcast
from dsexplore._internal.comm.calls import gather as gather
from dsexplore._internal.comm.calls import inference_all_reduce as inference_all_reduce
from dsexplore._internal.comm.calls import monitored_barrier as monitored_barrier
from dsexplore._internal.comm.calls import reduce as reduce
from dsexplore._internal.comm.calls import reduce_scatter as reduce_scatter
from dsexplore._internal.comm.calls import reduce_scatter_single as reduce_scatter_single
from dsexplore._internal.comm.calls import reduce_scatter_tensor as reduce_scatter_tensor
from dsexplore._internal.comm.calls import scatter as scatter
from dsexplore._internal.comm.coalesce import coalescing_manager as coalescing_manager
from dsexplore._internal.comm.coalesce import get_coalescing_manager as get_coalescing_manager
from dsexplore._internal.comm.coalesced_calls import all_gather_coalesced as all_gather_coalesced
from dsexplore._internal.comm.coalesced_calls import all_reduce_coalesced as all_reduce_coalesced
from dsexplore._internal.comm.constants import *  # noqa: F403 - DeepSpeed has its constants here too
from dsexplore._internal.comm.custom import timed_op as timed_op
from dsexplore._internal.comm.deepspeed_names import allgather_fn as allgather_fn
from dsexplore._internal.comm.deepspeed_names import check as check
from dsexplore._internal.comm.deepspeed_names import enable_symm_mem_for_group as enable_symm_mem_for_group
from dsexplore._internal.comm.deepspeed_names import get_comm_operation_count as get_comm_operation_count
from dsexplore._internal.comm.deepspeed_names import get_logged_comm_ops as get_logged_comm_ops
from dsexplore._internal.comm.deepspeed_names import has_all_gather_into_tensor as has_all_gather_into_tensor
from dsexplore._internal.comm.deepspeed_names import has_comm_data as has_comm_data
from dsexplore._internal.comm.deepspeed_names import has_reduce_scatter_tensor as has_reduce_scatter_tensor
from dsexplore._internal.comm.deepspeed_names import log_summary as log_summary
from dsexplore._internal.comm.deepspeed_names import reduce_scatter_fn as reduce_scatter_fn
from dsexplore._internal.comm.deepspeed_names import reset_log as reset_log
from dsexplore._internal.comm.deepspeed_names import set_backend as set_backend
from dsexplore._internal.comm.discovery import in_aml as in_aml
from dsexplore._internal.comm.discovery import in_aws_sm as in_aws_sm
from dsexplore._internal.comm.discovery import in_dlts as in_dlts
from dsexplore._internal.comm.discovery import mpi_discovery as mpi_discovery
from dsexplore._internal.comm.discovery import (
    patch_aml_env_for_torch_nccl_backend as patch_aml_env_for_torch_nccl_backend,
)
from dsexplore._internal.comm.discovery import (
    patch_aws_sm_env_for_torch_nccl_backend as patch_aws_sm_env_for_torch_nccl_backend,
)
from dsexplore._internal.comm.install import install as install
from dsexplore._internal.comm.install import uninstall as uninstall
from dsexplore._internal.comm.launch import configure as configure
from dsexplore._internal.comm.launch import destroy_process_group as destroy_process_group
from dsexplore._internal.comm.launch import init_distributed as init_distributed
from dsexplore._internal.comm.launch import initialize_mesh_device as initialize_mesh_device
from dsexplore._internal.comm.logs.logger import CommsLogger as CommsLogger
from dsexplore._internal.comm.logs.logger import comms_logger as comms_logger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig as CommsLoggerConfig
from dsexplore._internal.comm.objects import all_gather_object as all_gather_object
from dsexplore._internal.comm.objects import broadcast_object_list as broadcast_object_list
from dsexplore._internal.comm.objects import gather_object as gather_object
from dsexplore._internal.comm.objects import recv_object_list as recv_object_list
from dsexplore._internal.comm.objects import scatter_object_list as scatter_object_list
from dsexplore._internal.comm.objects import send_object_list as send_object_list
from dsexplore._internal.comm.p2p import P2POp as P2POp
from dsexplore._internal.comm.p2p import batch_isend_irecv as batch_isend_irecv
from dsexplore._internal.comm.p2p import irecv as irecv
from dsexplore._internal.comm.p2p import isend as isend
from dsexplore._internal.comm.p2p import recv as recv
from dsexplore._internal.comm.p2p import send as send
from dsexplore._internal.comm.ranks import get_all_ranks_from_group as get_all_ranks_from_group
from dsexplore._internal.comm.ranks import get_backend as get_backend
from dsexplore._internal.comm.ranks import get_global_rank as get_global_rank
from dsexplore._internal.comm.ranks import get_local_rank as get_local_rank
from dsexplore._internal.comm.ranks import get_local_rank_from_launcher as get_local_rank_from_launcher
from dsexplore._internal.comm.ranks import get_rank as get_rank
from dsexplore._internal.comm.ranks import get_world_group as get_world_group
from dsexplore._internal.comm.ranks import get_world_rank_from_launcher as get_world_rank_from_launcher
from dsexplore._internal.comm.ranks import get_world_size as get_world_size
from dsexplore._internal.comm.ranks import get_world_size_from_launcher as get_world_size_from_launcher
from dsexplore._internal.comm.ranks import is_available as is_available
from dsexplore._internal.comm.ranks import is_initialized as is_initialized
from dsexplore._internal.comm.ranks import new_group as new_group
from dsexplore._internal.comm.sweeps.bandwidth import bandwidth as bandwidth
from dsexplore._internal.comm.sweeps.sweep_run import sweep as sweep
from dsexplore._internal.comm.switches import Noop as Noop
from dsexplore._internal.comm.switches import all_gather_comm_off as all_gather_comm_off
from dsexplore._internal.comm.switches import all_reduce_comm_off as all_reduce_comm_off
from dsexplore._internal.comm.switches import backward_comm_off as backward_comm_off
from dsexplore._internal.comm.switches import broadcast_comm_off as broadcast_comm_off
from dsexplore._internal.comm.switches import comm_off as comm_off
from dsexplore._internal.comm.switches import reduce_comm_off as reduce_comm_off
from dsexplore._internal.comm.switches import reduce_scatter_comm_off as reduce_scatter_comm_off
from dsexplore._internal.comm.torch_backend import TorchBackend as TorchBackend
from dsexplore._internal.comm.versions import has_all_reduce_coalesced as has_all_reduce_coalesced
from dsexplore._internal.comm.versions import has_coalescing_manager as has_coalescing_manager
from dsexplore._internal.comm.versions import required_torch_version as required_torch_version
from dsexplore._internal.launch_constants import TORCH_DISTRIBUTED_DEFAULT_PORT as TORCH_DISTRIBUTED_DEFAULT_PORT
from dsexplore.comm import constants, reduce_op, torch  # noqa: F401 - DeepSpeed's modules, before torch's of the name

__all__ = [
    name
    for name, value in globals().items()
    if name.isupper()
    or (getattr(value, "__module__", "").startswith("dsexplore._internal.comm.") and not isinstance(value, ModuleType))
]


def __getattr__(name: str) -> Any:
    """Return the current backend for ``cdb``, the current ``default_pg_timeout``, or torch.distributed's attribute."""
    if name == "cdb":
        return _launch.current_backend()
    if name == "default_pg_timeout":
        from dsexplore._internal import launch_constants

        return launch_constants.default_pg_timeout
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(_td, name)
    except AttributeError:
        raise AttributeError(f"neither dsexplore.comm nor torch.distributed has {name!r}") from None


def __dir__() -> list[str]:
    public = {name: value for name, value in vars(_td).items() if not name.startswith("_") and name not in globals()}
    torch_names = {name for name, value in public.items() if _is_of_torch(value)}
    return sorted({*__all__, *torch_names, "cdb", "default_pg_timeout"})


def _is_of_torch(value: object) -> bool:
    """Return True for a name that torch.distributed defines, False for one that it only imports."""
    kind = type(value)  # not value.__class__: attributes of torch's deprecated `reduce_op` warn
    owner = value if issubclass(kind, (type, FunctionType, BuiltinFunctionType)) else kind
    return str(owner.__module__).partition(".")[0] == "torch" and not issubclass(kind, ModuleType)
