"""The optimizer state of FSDP1 in a simulated world, where the parts that other ranks hold never arrive.

With ``use_orig_params=True`` a rank's shard of a flat parameter covers some of its parameters, and the optimizer has
state for those alone. ``FSDP.optim_state_dict`` asks all ranks by ``all_gather_object`` for which parameters they have
state and what it is made of. In a simulated world each answers as this rank does, and torch ends with "is not in the
optimizer state". Here the other ranks answer that they have the state that this rank lacks, made as its own is. So the
collectives are those of a real checkpoint; values of other ranks' parts are unknown, as all that they would send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import _optim_utils as optim_utils

from dsexplore.torch_internals.patches import Patches


def patch_fsdp1_optimizers(patches: Patches) -> None:
    """Make ``FSDP.optim_state_dict`` find the state of all parameters, whichever rank is played."""
    others = _OtherRanks()
    patches.function(optim_utils._map_param_key_to_optim_keys, others.take_keys)
    patches.function(optim_utils._allgather_state_info, others.take_infos)
    patches.callback(others.forget)


class _OtherRanks:
    """The answers of the other ranks about the optimizer whose state is gathered."""

    def __init__(self) -> None:
        self._like: Mapping[str, Any] = {}  # the state of one parameter that this rank holds

    def forget(self) -> None:
        """Discard the state, once it is gathered."""
        self._like = {}

    def take_keys(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add the parameters that the optimizer steps on other ranks alone."""
        parameters = signature(original)

        def keys(*args: Any, **kwargs: Any) -> Any:
            found, own = original(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments
            states = given["optim_state_dict"]["state"]
            self._like = next((state for state in states.values() if _is_of_shard(state)), {})
            if not given.get("merge_keys") or not self._like:
                return found, own
            managed, names = given["fqn_to_fsdp_param_info"], given["param_to_fqns"]
            missing = [
                optim_utils._OptimStateKey(unflat_param_names=tuple(names[parameter]), is_fsdp_managed=True)
                for key, parameter in given["param_key_to_param"].items()
                if key not in states and parameter.requires_grad and names[parameter][0] in managed
            ]
            return sorted({*found, *missing}), own

        return keys

    def take_infos(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add what the state of those parameters is made of."""

        def infos(fsdp_state: Any, input_states: dict[str, Any]) -> Any:
            gathered = original(fsdp_state, input_states)
            lacking = [name for name, state in input_states.items() if not state]
            if not lacking or not self._like:
                return gathered
            described = _described(self._like)
            own = dist.get_rank(fsdp_state.process_group)
            return [
                info if rank == own else {**info, **{name: replace(described) for name in lacking}}
                for rank, info in enumerate(gathered)
            ]

        return infos


def _is_of_shard(state: Any) -> bool:
    return isinstance(state, Mapping) and any(torch.is_tensor(value) and value.dim() for value in state.values())


def _described(state: Mapping[str, Any]) -> Any:
    """The description of a parameter's state that a rank sends: shapes, and values without one."""
    tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    return optim_utils.StateInfo(
        {name: optim_utils._PosDimTensorInfo(t.shape, t.dtype) for name, t in tensors.items() if t.dim()},
        {name: t.cpu() for name, t in tensors.items() if not t.dim()},
        {name: value for name, value in state.items() if name not in tensors},
    )
