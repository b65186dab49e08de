"""Optimizer states of other ranks, which a checkpoint of FSDP1 or of ``ZeroRedundancyOptimizer`` asks for.

**FSDP1.** With ``use_orig_params=True`` a rank's shard of a flat parameter covers only some of its parameters, and the
optimizer has state for only these. ``FSDP.optim_state_dict`` asks all ranks by ``all_gather_object`` which parameters
they have state for, and what it consists of. In a simulated world each rank answers as this rank does, and torch raises
"is not in the optimizer state". So the other ranks answer here that they have the state that this rank lacks, with the
structure of this rank's state. The collectives are those of a real checkpoint; the values of other ranks are unknown.

**ZeroRedundancyOptimizer.** In ``consolidate_state_dict`` each rank broadcasts the pickled state of its optimizer. A
simulated rank receives nothing, and torch would unpickle uninitialized memory. So each other rank's state is made up
here: for the parameters that it updates, tensors like those of this rank's state.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from dsexplore._internal.torch_internals import optimizers
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch


class _StatesOfOtherShards:
    """The answers of the other ranks about the FSDP1 optimizer whose state is gathered."""

    def __init__(self) -> None:
        self._template: Mapping[str, Any] = {}
        """State of one parameter of this rank; empty if it has none."""

    def add_keys(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that returns keys of states to add parameters that only other ranks have state for."""
        parameters = signature(original)

        def keys(*args: Any, **kwargs: Any) -> Any:
            all_keys, local_keys = original(*args, **kwargs)
            arguments = parameters.bind(*args, **kwargs).arguments
            states = arguments["optim_state_dict"]["state"]
            self._template = next((state for state in states.values() if _is_of_shard(state)), {})
            if not arguments.get("merge_keys") or not self._template:
                return all_keys, local_keys
            managed, names = arguments["fqn_to_fsdp_param_info"], arguments["param_to_fqns"]
            missing = [
                optimizers.fsdp1_state_key(tuple(names[parameter]))
                for key, parameter in arguments["param_key_to_param"].items()
                if key not in states and parameter.requires_grad and names[parameter][0] in managed
            ]
            return sorted({*all_keys, *missing}), local_keys

        return keys

    def add_infos(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that gathers structures of states to add those of the same parameters."""

        def infos(fsdp_state: Any, input_states: dict[str, Any]) -> Any:
            gathered = original(fsdp_state, input_states)
            missing = [name for name, state in input_states.items() if not state]
            if not missing or not self._template:
                return gathered
            structure = optimizers.fsdp1_state_info(self._template)
            group_rank = dist.get_rank(fsdp_state.process_group)
            return [
                info if rank == group_rank else info | {name: replace(structure) for name in missing}
                for rank, info in enumerate(gathered)
            ]

        return infos


def _is_of_shard(state: Any) -> bool:
    return isinstance(state, Mapping) and any(torch.is_tensor(value) and value.dim() for value in state.values())


class _Consolidations:
    """The optimizers whose states are being consolidated, the innermost last."""

    def __init__(self) -> None:
        self.optimizers: list[Any] = []


def _keep_optimizer(consolidate: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``consolidate_state_dict`` to keep its optimizer for `_receive_local_state`."""
    consolidating = parts[_Consolidations].optimizers

    @wraps(consolidate)
    def consolidated(self: Any, *args: Any, **kwargs: Any) -> Any:
        consolidating.append(self)
        try:
            return consolidate(self, *args, **kwargs)
        finally:
            consolidating.pop()

    return consolidated


def _receive_local_state(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap torch's broadcast of an object to return a made-up state in place of another rank's."""
    consolidating = parts[_Consolidations].optimizers

    def broadcast(obj: Any, src_rank: int, group: Any = dist.group.WORLD, device: Any = "cpu") -> Any:
        if src_rank == dist.get_rank() or not consolidating:
            return original(obj, src_rank, group, device)
        state = state_of(consolidating[-1], dist.get_group_rank(group, src_rank))
        size = torch.tensor([_pickled_bytes(state)], device=device)
        dist.broadcast(size, src=src_rank, group=group)
        dist.broadcast(torch.empty(int(size), dtype=torch.uint8, device=device), src=src_rank, group=group)
        return state

    return broadcast


def state_of(optimizer: Any, rank: int) -> dict[str, Any]:
    """Return the state dict that a rank's optimizer would have, with the structure of this rank's.

    Without any state on this rank, it has no states.

    Args:
        optimizer: a ``ZeroRedundancyOptimizer``.
        rank: rank in the optimizer's group.
    """
    local_state = optimizer.optim.state_dict()
    local_parameters = [parameter for group in optimizer.optim.param_groups for parameter in group["params"]]
    template = next(iter(local_state["state"]), None)
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    next_number = 0
    for local_group, group in zip(local_state["param_groups"], optimizers.zero_partition(optimizer, rank), strict=True):
        numbers = [next_number + index for index in range(len(group["params"]))]
        next_number += len(numbers)
        groups.append({**local_group, "params": numbers})
        if template is None:
            continue
        for number, parameter in zip(numbers, group["params"], strict=True):
            values = local_state["state"][template].items()
            state[number] = {name: _like(value, local_parameters[template], parameter) for name, value in values}
    return {"state": state, "param_groups": groups}


def _like(value: Any, local: torch.Tensor, other: torch.Tensor) -> Any:
    """Return a value of a local parameter's state, in the form that it has for another parameter."""
    if torch.is_tensor(value) and value.dim() and value.shape == local.shape:
        return torch.zeros_like(other, dtype=value.dtype, requires_grad=False)
    return value


def _pickled_bytes(state: Any) -> int:
    """Return the number of bytes that torch broadcasts for a state."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes


PATCHES: tuple[Entry, ...] = (
    Patch(
        optimizers.FSDP1_STATE_KEYS,
        "each other rank answers as this one, so parameters of other ranks' shards have no state",
        lambda original, parts: parts[_StatesOfOtherShards].add_keys(original),
        by_code=True,
    ),
    Patch(
        optimizers.FSDP1_STATE_INFOS,
        "no rank answers what the state of these parameters consists of",
        lambda original, parts: parts[_StatesOfOtherShards].add_infos(original),
        by_code=True,
    ),
    Patch(optimizers.ZERO_CONSOLIDATE, "other ranks send their states in it", _keep_optimizer, on_import=True),
    Patch(
        optimizers.ZERO_BROADCAST,
        "nothing arrives from another rank, and torch would unpickle it",
        _receive_local_state,
        by_code=True,
        on_import=True,
    ),
)
