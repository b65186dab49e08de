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

from dsexplore._internal.torch_internals import optimizers
from dsexplore._internal.torch_internals.patches import Patch


class _OtherRanks:
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


PATCHES = (
    Patch(
        optimizers.FSDP1_STATE_KEYS,
        "each other rank answers as this one does, so parameters of other ranks' shards have no state",
        lambda original, parts: parts[_OtherRanks].add_keys(original),
        by_code=True,
    ),
    Patch(
        optimizers.FSDP1_STATE_INFOS,
        "no rank says what the state of these parameters is made of",
        lambda original, parts: parts[_OtherRanks].add_infos(original),
        by_code=True,
    ),
)
