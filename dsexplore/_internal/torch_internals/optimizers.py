"""Optimizers: the choice between loops and lists, and states that ranks exchange (FSDP1, ZeroRedundancyOptimizer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal

DEVICES_OF_LISTS = TorchName("torch.utils._foreach_utils:_get_foreach_kernels_supported_devices")
"""Function that returns the devices on which ``torch.optim`` may use its foreach implementation."""
TYPES_OF_LISTS = TorchName("torch.optim.optimizer:_foreach_supported_types")
"""Tensor classes for which ``torch.optim`` may use its foreach implementation."""
CHOOSE_LISTS = TorchName("torch.optim.optimizer:_default_to_fused_or_foreach")
"""Function that chooses the default implementation: ``(params, …) -> (fused, foreach)``."""

FSDP1_STATE_KEYS = TorchName("torch.distributed.fsdp._optim_utils:_map_param_key_to_optim_keys")
"""Function that returns the FSDP1 parameters for which any rank holds optimizer state."""
FSDP1_STATE_INFOS = TorchName("torch.distributed.fsdp._optim_utils:_allgather_state_info")
"""Function that gathers the structure of the optimizer states of all ranks: ``(fsdp_state, input_states)``."""

ZERO_CONSOLIDATE = TorchName(
    "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer.consolidate_state_dict"
)
ZERO_BROADCAST = TorchName("torch.distributed.optim.zero_redundancy_optimizer:_broadcast_object")
"""Function that broadcasts the state of one rank: ``(obj, src_rank, group, device)``."""


def zero_partition(optimizer: Any, rank: int) -> list[dict[str, Any]]:
    """Return the parameter groups that a rank of a ``ZeroRedundancyOptimizer`` updates."""
    partition: list[list[dict[str, Any]]] = optimizer._partition_parameters()
    return partition[rank]


def fsdp1_state_key(names: tuple[str, ...]) -> Any:
    """Return the optimizer state key of a parameter that FSDP1 manages."""
    key: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:_OptimStateKey")
    return key(unflat_param_names=names, is_fsdp_managed=True)


def fsdp1_state_info(state: Mapping[str, Any]) -> Any:
    """Return the description of a parameter's state that an FSDP1 rank sends: shapes, dtypes and 0-dim values."""
    info: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:StateInfo")
    shape_of: Callable[..., Any] = internal("torch.distributed.fsdp._optim_utils:_PosDimTensorInfo")
    tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    return info(
        {name: shape_of(t.shape, t.dtype) for name, t in tensors.items() if t.dim()},
        {name: t.cpu() for name, t in tensors.items() if not t.dim()},
        {name: value for name, value in state.items() if name not in tensors},
    )
