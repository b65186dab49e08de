"""States of optimizers that other ranks would send when a checkpoint is made: those of FSDP1, and of torch's ZeRO.

**FSDP1.** With ``use_orig_params=True`` a rank's shard of a flat parameter covers some of its parameters, and the
optimizer has state for those alone. ``FSDP.optim_state_dict`` asks all ranks by ``all_gather_object`` for which
parameters they have state and what it is made of. In a simulated world each answers as this rank does, and torch ends
with "is not in the optimizer state". Here the other ranks answer that they have the state that this rank lacks, made as
its own is. So the collectives are those of a real checkpoint; values of other ranks' parts are unknown, as all that
they would send.

**ZeroRedundancyOptimizer.** ``consolidate_state_dict`` has each rank broadcast its optimizer's state, pickled, by a
function of its own. A simulated rank receives nothing, so torch would unpickle what was in that memory. Here each other
rank's state is made of this one's: of the parameters which that rank updates, with tensors like those that this rank
holds for its own.
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
    """The answers of the other ranks about the optimizer whose state is gathered."""

    def __init__(self) -> None:
        self._template: Mapping[str, Any] = {}
        """The state of one parameter that this rank holds."""

    def add_keys(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to add the parameters that the optimizer steps only on other ranks."""
        parameters = signature(original)

        def keys(*args: Any, **kwargs: Any) -> Any:
            all_keys, local_keys = original(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments
            states = given["optim_state_dict"]["state"]
            self._template = next((state for state in states.values() if _is_of_shard(state)), {})
            if not given.get("merge_keys") or not self._template:
                return all_keys, local_keys
            managed, names = given["fqn_to_fsdp_param_info"], given["param_to_fqns"]
            missing = [
                optimizers.fsdp1_state_key(tuple(names[parameter]))
                for key, parameter in given["param_key_to_param"].items()
                if key not in states and parameter.requires_grad and names[parameter][0] in managed
            ]
            return sorted({*all_keys, *missing}), local_keys

        return keys

    def add_infos(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to add the structure of the state of those parameters."""

        def infos(fsdp_state: Any, input_states: dict[str, Any]) -> Any:
            gathered = original(fsdp_state, input_states)
            lacking = [name for name, state in input_states.items() if not state]
            if not lacking or not self._template:
                return gathered
            described = optimizers.fsdp1_state_info(self._template)
            group_rank = dist.get_rank(fsdp_state.process_group)
            return [
                info if rank == group_rank else {**info, **{name: replace(described) for name in lacking}}
                for rank, info in enumerate(gathered)
            ]

        return infos


def _is_of_shard(state: Any) -> bool:
    return isinstance(state, Mapping) and any(torch.is_tensor(value) and value.dim() for value in state.values())


class _States:
    """The optimizers whose states are being consolidated, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Any] = []


def _keep_optimizer(consolidate: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    states = parts[_States].open

    @wraps(consolidate)
    def consolidated(self: Any, *args: Any, **kwargs: Any) -> Any:
        states.append(self)
        try:
            return consolidate(self, *args, **kwargs)
        finally:
            states.pop()

    return consolidated


def _receive_local_state(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap torch's broadcast of an object to return a state like another rank's where that would arrive."""
    states = parts[_States].open

    def broadcast(obj: Any, src_rank: int, group: Any = dist.group.WORLD, device: Any = "cpu") -> Any:
        if src_rank == dist.get_rank() or not states:
            return original(obj, src_rank, group, device)
        state = state_of(states[-1], dist.get_group_rank(group, src_rank))
        size = torch.tensor([_pickled_bytes(state)], device=device)
        dist.broadcast(size, src=src_rank, group=group)
        dist.broadcast(torch.empty(int(size), dtype=torch.uint8, device=device), src=src_rank, group=group)
        return state

    return broadcast


def state_of(optimizer: Any, rank: int) -> dict[str, Any]:
    """Return the state that a rank's optimizer has, as this rank's is; empty where this rank has none.

    Args:
        optimizer: a ``ZeroRedundancyOptimizer``.
        rank: in its group.
    """
    local_state = optimizer.optim.state_dict()
    updated = [parameter for group in optimizer.optim.param_groups for parameter in group["params"]]
    like = next(iter(local_state["state"]), None)
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for local_group, group in zip(local_state["param_groups"], optimizers.zero_partition(optimizer, rank), strict=True):
        first = sum(len(earlier["params"]) for earlier in groups)
        numbers = list(range(first, first + len(group["params"])))
        groups.append({**local_group, "params": numbers})
        if like is not None:
            held = local_state["state"][like]
            state.update(
                (number, {name: _like(value, updated[like], parameter) for name, value in held.items()})
                for number, parameter in zip(numbers, group["params"], strict=True)
            )
    return {"state": state, "param_groups": groups}


def _like(value: Any, local: torch.Tensor, other: torch.Tensor) -> Any:
    """Return a value of the state of one's own parameter, as that of another parameter is."""
    if torch.is_tensor(value) and value.dim() and value.shape == local.shape:
        return torch.zeros_like(other, dtype=value.dtype, requires_grad=False)
    return value


def _pickled_bytes(state: Any) -> int:
    """Return the number of bytes of a pickled state, as torch broadcasts it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes


PATCHES: tuple[Entry, ...] = (
    Patch(
        optimizers.FSDP1_STATE_KEYS,
        "each other rank answers as this one does, so parameters of other ranks' shards have no state",
        lambda original, parts: parts[_StatesOfOtherShards].add_keys(original),
        by_code=True,
    ),
    Patch(
        optimizers.FSDP1_STATE_INFOS,
        "no rank says what the state of these parameters is made of",
        lambda original, parts: parts[_StatesOfOtherShards].add_infos(original),
        by_code=True,
    ),
    Patch(optimizers.ZERO_CONSOLIDATE, "other ranks send their states meanwhile", _keep_optimizer, on_import=True),
    Patch(
        optimizers.ZERO_BROADCAST,
        "nothing arrives from another rank, and torch would unpickle it",
        _receive_local_state,
        by_code=True,
        on_import=True,
    ),
)
