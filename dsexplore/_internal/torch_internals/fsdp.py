"""FSDP2 (``fully_shard`` and its parameter groups), and FSDP1 (``FullyShardedDataParallel``, flat parameters)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch.distributed as dist
from torch import nn

from dsexplore._internal.torch_internals.names import TorchName

# FSDP2
_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param"
_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup"

CHUNK = TorchName(f"{_PARAMETER}:_chunk_with_empty")
"""Function that splits a parameter into one chunk per rank."""
SHARDED_PARAMETER = TorchName(f"{_PARAMETER}:FSDPParam.to_sharded_dtensor")
"""Method that makes a DTensor from a shard of a parameter or gradient."""
PARAMETER_GROUP_INIT = TorchName(f"{_GROUP}.__init__")
"""Constructor of a parameter group."""
POST_BACKWARD = TorchName(f"{_GROUP}.post_backward")
"""Method that reduces the gradients of a parameter group."""
RECORD_POST_FORWARD = TorchName(f"{_GROUP}._record_post_forward")
"""Method that records the forward order, which backward prefetching follows."""


def parameter_groups(module: Any) -> list[Any]:
    """Return the parameter groups of a module to which ``fully_shard`` was applied."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def mixed_precision(parameter_group: Any) -> str:
    """Return a parameter group's mixed-precision policies as text: one, or from torch 2.15 on one per parameter."""
    policy = getattr(parameter_group, "mp_policy", None)
    policies = [parameter.mp_policy for parameter in parameter_group.fsdp_params] if policy is None else [policy]
    return str(policies)


def has_own_prefetch(module: Any) -> bool:
    """Return True if the program has set which modules ``fully_shard`` prefetches for a module."""
    state: Any = module._get_fsdp_state()
    return bool(state._states_to_forward_prefetch or state._states_to_backward_prefetch)


def modules_of(parameter_group: Any) -> Iterable[nn.Module]:
    """Return the modules whose forward gathers a parameter group; none if it is half constructed."""
    modules: Iterable[nn.Module] = getattr(parameter_group, "modules", ())
    return modules


def replace_groups(parameter_group: Any, replacement: object) -> None:
    """Replace each process group that a parameter group holds with another object.

    The parameter group may lack attributes because of an earlier error.
    """
    for name in ("mesh_info", "post_forward_mesh_info"):
        mesh_info = getattr(parameter_group, name, None)
        if mesh_info is None:
            continue
        for attribute, value in vars(mesh_info).items():
            if isinstance(value, dist.ProcessGroup):
                setattr(mesh_info, attribute, replacement)


# FSDP1
SAME_STORAGE = TorchName("torch.distributed.fsdp._flat_param:_same_storage")
"""Function that checks whether two tensors share memory."""
HAS_MEMORY = TorchName("torch.distributed.utils:_data_ptr_allocated")
"""Function that checks whether a tensor has memory."""
LOCAL_OF_DTENSOR = TorchName("torch.distributed.tensor.parallel._data_parallel_utils:_flatten_tensor")
"""Function that returns the local tensor of a DTensor parameter."""
CHECK_MODULE_STATES = TorchName("torch.distributed.fsdp._init_utils:_check_module_states_for_sync_module_states")
"""Function that refuses to broadcast CPU tensors of a module: ``(module_states)``."""
GATHER_FLAT_PARAMETER = TorchName("torch.distributed.fsdp._flat_param:FlatParamHandle._all_gather_flat_param")
"""Method that gathers a flat parameter: ``(handle, padded_unsharded_flat_param)``."""

module_of_flat_parameter: Callable[[Any], nn.Module] = attrgetter("_fully_sharded_module")
"""Return the module whose parameters a flat parameter's handle shards."""


def group_of_gather(handle: Any) -> dist.ProcessGroup | None:
    """Return the group over which a flat parameter is gathered; None if it is offloaded to the CPU between steps."""
    if handle._offload_params:
        return None
    group: dist.ProcessGroup = handle._fake_process_group if handle._use_fake_all_gather else handle.process_group
    return group
