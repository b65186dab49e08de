"""Functions of ``deepspeed.comm`` that torch does not have: features, older names and the log; and `check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.comm import calls, launch
from dsexplore._internal.comm.handles import WorkHandle
from dsexplore._internal.comm.logs.logger import comms_logger
from dsexplore._internal.comm.ranks import is_initialized, require_initialized
from dsexplore._internal.comm.reduce_op import Reduction
from dsexplore._internal.signatures import names_arguments


def has_all_gather_into_tensor() -> bool:
    """Return True if torch can gather into one tensor.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.has_all_gather_into_tensor()
        True
    """
    return bool(_backend("has_all_gather_into_tensor").has_all_gather_into_tensor())


def has_reduce_scatter_tensor() -> bool:
    """Return True if torch can reduce and scatter one tensor.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.has_reduce_scatter_tensor()
        True
    """
    return bool(_backend("has_reduce_scatter_tensor").has_reduce_scatter_tensor())


def allgather_fn(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    debug: str | None = None,
) -> WorkHandle | None:
    """Run `all_gather_into_tensor` under the name of DeepSpeed's function with a fallback for old versions of torch.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.allgather_fn(torch.empty(32), torch.ones(8))
    """
    return calls.all_gather_into_tensor(output_tensor, input_tensor, group, async_op, debug=debug)


def reduce_scatter_fn(
    output_tensor: torch.Tensor,
    tensor: torch.Tensor,
    op: Reduction = td.ReduceOp.SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    debug: str | None = None,
) -> WorkHandle | None:
    """Run `reduce_scatter_tensor` under the name of DeepSpeed's function with a fallback for old versions of torch.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.reduce_scatter_fn(torch.empty(8), torch.ones(32))
    """
    return calls.reduce_scatter_tensor(output_tensor, tensor, op, group, async_op, prof, debug=debug)


@names_arguments
def enable_symm_mem_for_group(group_name: str) -> None:
    """Make symmetric memory available to the group."""
    _backend("enable_symm_mem_for_group").enable_symm_mem_for_group(group_name)


def set_backend() -> None:
    """Adopt a world that was initialized elsewhere; every call does so automatically.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.set_backend()
    """
    launch.current_backend()


@names_arguments
def log_summary(show_straggler: bool = False, return_dict: bool = False) -> Mapping[str, object] | None:
    """Print the log on rank 0, return it as a dict, or both.

    Args:
        show_straggler: also print how long ranks waited for each other; every rank of the world must then make this
            call.
        return_dict: return the dict that `CommsLogger.log_all` describes, on every rank.

    Examples:
        >>> dist.configure(enabled=True)
        >>> with dsexplore.simulate(4):
        ...     dist.all_reduce(torch.ones(8))
        >>> _ = dist.log_summary(return_dict=True)  # doctest: +ELLIPSIS
        op          layer ...
        all_reduce  dsexplore.comm ...
        >>> dist.configure(enabled=False)
        >>> dist.reset_log()
    """
    is_first_rank = not is_initialized() or td.get_rank() == 0
    return comms_logger.log_all(print_log=is_first_rank, show_straggler=show_straggler, return_dict=return_dict)


def check() -> None:
    """Compare the calls that all ranks have logged; see `CommsLogger.check`. Every rank must make this call."""
    comms_logger.check()


def reset_log() -> None:
    """Discard the log, for example to log one epoch or interval.

    Examples:
        >>> dist.reset_log()
        >>> dist.get_comm_operation_count()
        0
    """
    comms_logger.reset_data()


def has_comm_data() -> bool:
    """Return True if anything was logged.

    Examples:
        >>> dist.reset_log()
        >>> dist.has_comm_data()
        False
    """
    return comms_logger.has_data()


def get_comm_operation_count() -> int:
    """Return the number of logged calls.

    Examples:
        >>> dist.configure(enabled=True)
        >>> with dsexplore.simulate(4):
        ...     dist.all_reduce(torch.ones(8))
        >>> dist.get_comm_operation_count()
        1
        >>> dist.configure(enabled=False)
        >>> dist.reset_log()
    """
    return comms_logger.get_total_operations()


def get_logged_comm_ops() -> list[str]:
    """Return the names that calls were logged under.

    Examples:
        >>> dist.configure(enabled=True)
        >>> with dsexplore.simulate(4):
        ...     dist.all_reduce(torch.ones(8))
        >>> list(dist.get_logged_comm_ops())
        ['all_reduce']
        >>> dist.configure(enabled=False)
        >>> dist.reset_log()
    """
    return comms_logger.get_operation_names()


def _backend(call: str) -> Any:
    """Return the backend in use; `call` names the caller in the error that is raised without a world."""
    require_initialized(call)
    return launch.current_backend()
