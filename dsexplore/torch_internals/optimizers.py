"""Optimizers: the choice between loops and lists, and states that ranks exchange (FSDP1, ZeroRedundancyOptimizer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsexplore.torch_internals.names import TorchName, internal

DEVICES_OF_LISTS = TorchName("torch.utils._foreach_utils:_get_foreach_kernels_supported_devices")
"""The function that lists the devices whose parameters ``torch.optim`` updates as whole lists."""
TYPES_OF_LISTS = TorchName("torch.optim.optimizer:_foreach_supported_types")
"""The list of classes of tensors that it updates so."""
CHOOSE_LISTS = TorchName("torch.optim.optimizer:_default_to_fused_or_foreach")
"""The function that chooses between single parameters and whole lists: ``(params, …) -> (fused, foreach)``."""

FSDP1_STATE_KEYS = TorchName("torch.distributed.fsdp._optim_utils:_map_param_key_to_optim_keys")
"""The function that lists the parameters of FSDP1 of which any rank has an optimizer's state."""
FSDP1_STATE_INFOS = TorchName("torch.distributed.fsdp._optim_utils:_allgather_state_info")
"""The function that gathers what the states on all ranks are made of: ``(fsdp_state, input_states)``."""

ZERO_CONSOLIDATE = TorchName(
    "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer.consolidate_state_dict"
)
ZERO_BROADCAST = TorchName("torch.distributed.optim.zero_redundancy_optimizer:_broadcast_object")
"""The function by which a rank's state is broadcast: ``(obj, src_rank, group, device)``."""


def zero_partition(optimizer: Any, rank: int) -> list[dict[str, Any]]:
    """Return the parameter groups that a rank of a ``ZeroRedundancyOptimizer`` updates."""
    partition: list[list[dict[str, Any]]] = optimizer._partition_parameters()
    return partition[rank]


def fsdp1_state_key(names: tuple[str, ...]) -> Any:
    """Return the key of the optimizer's state of a parameter that FSDP1 manages."""
    key: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:_OptimStateKey")
    return key(unflat_param_names=names, is_fsdp_managed=True)


def fsdp1_state_info(state: Mapping[str, Any]) -> Any:
    """Return what a rank of FSDP1 sends of a parameter's state: shapes and dtypes, and the values without a dim."""
    info: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:StateInfo")
    shape_of: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:_PosDimTensorInfo")
    tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    return info(
        {name: shape_of(t.shape, t.dtype) for name, t in tensors.items() if t.dim()},
        {name: t.cpu() for name, t in tensors.items() if not t.dim()},
        {name: value for name, value in state.items() if name not in tensors},
    )
