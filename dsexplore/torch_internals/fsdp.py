"""FSDP: ``fully_shard``'s parameter groups, and the flat parameters of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch.distributed as dist
from torch import nn

from dsexplore.torch_internals.names import TorchName

module_of_flat_parameter: Callable[[Any], nn.Module] = attrgetter("_fully_sharded_module")
"""Return the module whose parameters a flat parameter's handle shards."""

CHUNK = TorchName("torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty")
"""The function by which ``fully_shard`` cuts a parameter into one chunk per rank."""

SAME_STORAGE = TorchName("torch.distributed.fsdp._flat_param:_same_storage")
"""The function that tells ``FullyShardedDataParallel`` whether two tensors have the same memory."""


def parameter_groups(module: Any) -> list[Any]:
    """Return the groups in which ``fully_shard`` gathers the parameters of a module that it was called for."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def mixed_precision(parameter_group: Any) -> str:
    """Return a parameter group's policies of mixed precision as text: one, or from torch 2.15 on each parameter's."""
    policy = getattr(parameter_group, "mp_policy", None)
    policies = [parameter.mp_policy for parameter in parameter_group.fsdp_params] if policy is None else [policy]
    return str(policies)


def has_own_prefetch(module: Any) -> bool:
    """Return True if the program said which modules ``fully_shard`` gathers ahead of a module."""
    state: Any = module._get_fsdp_state()
    return bool(state._states_to_forward_prefetch or state._states_to_backward_prefetch)


_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup"
POST_BACKWARD = TorchName(f"{_GROUP}.post_backward")
"""The method that reduces the gradients of a group of ``fully_shard``."""

RECORD_POST_FORWARD = TorchName(f"{_GROUP}._record_post_forward")
"""The method that notes the order of forwards, along which backward gathers ahead."""

SHARDED_PARAMETER = TorchName("torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_dtensor")
"""The method by which ``fully_shard`` makes a DTensor of a shard of a parameter or of its gradient."""

LOCAL_OF_DTENSOR = TorchName("torch.distributed.tensor.parallel._data_parallel_utils:_flatten_tensor")
"""The function that gives ``FullyShardedDataParallel`` the local part of a DTensor parameter."""

PARAMETER_GROUP_INIT = TorchName("torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.__init__")
"""The method that makes a parameter group of ``fully_shard``."""


def replace_groups(parameter_group: Any, replacement: object) -> None:
    """Put an object in place of each process group that a parameter group of ``fully_shard`` holds.

    An error may have left the parameter group without some of its attributes.
    """
    for name in ("mesh_info", "post_forward_mesh_info"):
        mesh_info = getattr(parameter_group, name, None)
        for attribute, value in vars(mesh_info).items() if mesh_info is not None else ():
            if isinstance(value, dist.ProcessGroup):
                setattr(mesh_info, attribute, replacement)


def modules_of(parameter_group: Any) -> Iterable[nn.Module]:
    """Return the modules whose forward gathers a parameter group of ``fully_shard``; none for one half made."""
    modules: Iterable[nn.Module] = getattr(parameter_group, "modules", ())
    return modules


GATHER_FLAT_PARAMETER = TorchName("torch.distributed.fsdp._flat_param:FlatParamHandle._all_gather_flat_param")
"""The method that gathers a flat parameter: ``(handle, padded_unsharded_flat_param)``."""

CHECK_MODULE_STATES = TorchName("torch.distributed.fsdp._init_utils:_check_module_states_for_sync_module_states")
"""The function that refuses to broadcast the tensors of a module that are on the CPU: ``(module_states)``."""


def group_of_gather(handle: Any) -> dist.ProcessGroup | None:
    """Return the group over which a flat parameter is gathered; None for one that lies on the CPU between steps."""
    if handle._offload_params:
        return None
    group: dist.ProcessGroup = handle._fake_process_group if handle._use_fake_all_gather else handle.process_group
    return group
