"""torch.distributed with DeepSpeed's names and a log: ``import dsexplore.comm as dist``.

Takes the place of ``import deepspeed.comm as dist`` and of ``import torch.distributed as dist``. The calls below are
torch's; they can be logged and switched off, and their errors name the op, the group and the rank. Every other name of
torch.distributed is torch's.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as _td

from dsexplore.comm import constants as _constants
from dsexplore.comm import launch as _launch
from dsexplore.comm.bandwidth import bandwidth
from dsexplore.comm.calls import (
    all_gather,
    all_gather_base,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    inference_all_reduce,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from dsexplore.comm.coalesce import coalescing_manager, get_coalescing_manager
from dsexplore.comm.constants import *  # noqa: F403 - DeepSpeed has its constants here too
from dsexplore.comm.custom import timed_op
from dsexplore.comm.deepspeed_names import (
    allgather_fn,
    check,
    enable_symm_mem_for_group,
    get_comm_operation_count,
    get_logged_comm_ops,
    has_all_gather_into_tensor,
    has_comm_data,
    has_reduce_scatter_tensor,
    log_summary,
    reduce_scatter_fn,
    reset_log,
    set_backend,
)
from dsexplore.comm.discovery import (
    in_aml,
    in_aws_sm,
    in_dlts,
    mpi_discovery,
    patch_aml_env_for_torch_nccl_backend,
    patch_aws_sm_env_for_torch_nccl_backend,
)
from dsexplore.comm.install import install, uninstall
from dsexplore.comm.launch import configure, destroy_process_group, init_distributed, initialize_mesh_device
from dsexplore.comm.logger import CommsLogger, comms_logger
from dsexplore.comm.logger_config import CommsLoggerConfig
from dsexplore.comm.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from dsexplore.comm.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from dsexplore.comm.ranks import (
    get_all_ranks_from_group,
    get_backend,
    get_global_rank,
    get_local_rank,
    get_local_rank_from_launcher,
    get_rank,
    get_world_group,
    get_world_rank_from_launcher,
    get_world_size,
    get_world_size_from_launcher,
    is_available,
    is_initialized,
    new_group,
)
from dsexplore.comm.sweep_run import sweep
from dsexplore.comm.switches import (
    Noop,
    all_gather_comm_off,
    all_reduce_comm_off,
    backward_comm_off,
    broadcast_comm_off,
    comm_off,
    reduce_comm_off,
    reduce_scatter_comm_off,
)
from dsexplore.comm.torch import TorchBackend
from dsexplore.comm.versions import has_all_reduce_coalesced, has_coalescing_manager, required_torch_version
from dsexplore.constants import TORCH_DISTRIBUTED_DEFAULT_PORT

__all__ = [
    "TORCH_DISTRIBUTED_DEFAULT_PORT",
    "CommsLogger",
    "CommsLoggerConfig",
    "Noop",
    "P2POp",
    "TorchBackend",
    "all_gather",
    "all_gather_base",
    "all_gather_coalesced",
    "all_gather_comm_off",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_reduce_comm_off",
    "all_to_all",
    "all_to_all_single",
    "allgather_fn",
    "backward_comm_off",
    "bandwidth",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_comm_off",
    "broadcast_object_list",
    "check",
    "coalescing_manager",
    "comm_off",
    "comms_logger",
    "configure",
    "destroy_process_group",
    "enable_symm_mem_for_group",
    "gather",
    "gather_object",
    "get_all_ranks_from_group",
    "get_backend",
    "get_coalescing_manager",
    "get_comm_operation_count",
    "get_global_rank",
    "get_local_rank",
    "get_local_rank_from_launcher",
    "get_logged_comm_ops",
    "get_rank",
    "get_world_group",
    "get_world_rank_from_launcher",
    "get_world_size",
    "get_world_size_from_launcher",
    "has_all_gather_into_tensor",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "has_comm_data",
    "has_reduce_scatter_tensor",
    "in_aml",
    "in_aws_sm",
    "in_dlts",
    "inference_all_reduce",
    "init_distributed",
    "initialize_mesh_device",
    "install",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "log_summary",
    "monitored_barrier",
    "mpi_discovery",
    "new_group",
    "patch_aml_env_for_torch_nccl_backend",
    "patch_aws_sm_env_for_torch_nccl_backend",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_comm_off",
    "reduce_scatter",
    "reduce_scatter_comm_off",
    "reduce_scatter_fn",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "required_torch_version",
    "reset_log",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_backend",
    "sweep",
    "timed_op",
    "uninstall",
]
__all__ += [name for name in dir(_constants) if name.isupper()]


def __getattr__(name: str) -> Any:
    """``cdb`` is the backend in use; ``default_pg_timeout`` follows the environment; the rest is torch's."""
    if name == "cdb":
        return _launch.current_backend()
    if name == "default_pg_timeout":
        from dsexplore import constants

        return constants.default_pg_timeout
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(_td, name)
    except AttributeError:
        raise AttributeError(f"neither dsexplore.comm nor torch.distributed has {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_td), "cdb"})
