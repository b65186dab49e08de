"""Ops on lists of many DTensors, as a fused optimizer has one of all parameters.

For each tensor of the list torch looks through the placements of all tensors of all lists, to find the one flag that
those with ``_StridedShard`` share: of a model with 700 parameters, for half of the time of a simulated step. Here all
are looked through once, and torch's function then sees one tensor of each value of the flag, with the same result.

Torch also works out, for each tensor of the list, all ways to shard it. For a fused optimizer the ways are
worked out here once for parameters of the same shape and placements, of which alike layers have as many as there are
layers. What such an op returns, torch finds out by a call of it on fake tensors of all lists; it returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from torch.distributed.tensor import _sharding_prop
from torch.distributed.tensor._ops import utils as sharding_utils
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.placement_types import _StridedShard

from dsexplore.worlds.patches import Patches

_FUNCTION, _WAYS = "_propagate_use_strided_shard_flag", "expand_to_full_mesh_op_strategy"
_RESULT = "_propagate_tensor_meta_non_cached"
_FUSED = ("aten::_fused_ada", "aten::_fused_sgd")
"""How the names of fused optimizers' ops begin, whose results are written into their arguments."""


def patch_long_lists(patches: Patches) -> None:
    """Make torch look through the tensors of an op once, work out ways to shard once for those that are alike, and call
    no fused optimizer to learn what it returns; versions of torch without these functions are left as they are."""
    replaced: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
        (_sharding_prop, _FUNCTION, _once_per_op),
        (sharding_utils, _WAYS, _once_per_kind),
        (ShardingPropagator, _RESULT, _not_of_fused),
    )
    for owner, name, build in replaced:
        original = getattr(owner, name, None)
        if original is not None:
            patches.attribute(owner, name, build(original))


def _once_per_op(original: Callable[..., None]) -> Callable[..., None]:
    latest: tuple[Any, Any] = (None, None)

    @wraps(original)
    def propagate(op_strategy: Any, op_schema: Any) -> None:
        nonlocal latest
        if latest[0] is not op_schema:
            latest = op_schema, SimpleNamespace(args_spec=_with_flag(op_schema.args_spec))
        original(op_strategy, latest[1])

    return propagate


def _with_flag(specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first of the specs for each value of the flag, in order; none where no tensor has it."""
    found = {
        spec.use_strided_shard_as_shard_order: spec
        for spec in reversed(specs)
        if any(isinstance(placement, _StridedShard) for placement in spec.placements)
    }
    return tuple(reversed(found.values()))


def _once_per_kind(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    @wraps(original)
    def expand(mesh: Any, op_schema: Any, *args: Any, **kwargs: Any) -> Any:
        if not op_schema.op.name().startswith(_FUSED):
            return original(mesh, op_schema, *args, **kwargs)
        tensors = (*op_schema.args_strategy, *op_schema.kwargs_strategy)
        given = tuple(tuple(strategy.output_spec for strategy in one.strategies) for one in tensors)
        rest = repr((args, sorted(kwargs.items())))
        key = mesh, op_schema.op, given, rest
        if key not in known:
            known[key] = original(mesh, op_schema, *args, **kwargs)
        return known[key]

    return expand


def _not_of_fused(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @wraps(original)
    def propagate(propagator: Any, op_schema: Any) -> Any:
        return None if op_schema.op.name().startswith(_FUSED) else original(propagator, op_schema)

    return propagate
