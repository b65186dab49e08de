"""How the results of an op on DTensors are sharded, kept for later worlds and for other ranks.

DTensor works this out once for each mesh, shape and set of placements, which takes a millisecond or more. A training
step has hundreds of such ops, most of them in an optimizer that is not fused. Where no argument needs another placement
first, what comes out depends on the shape of the mesh and not on which ranks are in it. So it is remembered without the
mesh, and made anew for the mesh of the world that asks.

Rules that a program registers itself are asked each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OutputSharding
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.argument_keys import append_arguments

_FUNCTION = "propagate_op_sharding_non_cached"
_RULES = ("op_single_dim_strategy_funcs", "op_strategy_funcs", "op_to_rules")
"""The attributes of a propagator that hold rules, by op."""
_TORCHS = "torch.distributed.tensor._ops."

Key = tuple[object, ...]
"""An op and its arguments, without their mesh, of which it has the shape."""

_found: dict[Key, Any] = {}
"""The specs of what ops return, without mesh: one, a tuple of them, or None for ops that return no tensor."""


def patch_shardings(patches: Patches) -> None:
    """Make DTensor look into what is known here first; versions of torch without that function are left as they are."""
    original = getattr(ShardingPropagator, _FUNCTION, None)
    if original is not None:
        patches.attribute(ShardingPropagator, _FUNCTION, _remembering(original))


def known() -> list[tuple[str, Key, Any]]:
    """All that is known so far, for `learn` in another process: the name of each op, its arguments, and the specs."""
    return [(str(op), tuple(rest), specs) for (op, *rest), specs in _found.items()]


def learn(known: Iterable[tuple[str, Key, Any]]) -> None:
    """Remember what another process knows."""
    for name, rest, specs in known:
        _found.setdefault((attrgetter(name)(torch.ops), *rest), specs)


def _remembering(original: Callable[[Any, Any], OutputSharding]) -> Callable[[Any, Any], OutputSharding]:
    @wraps(original)
    def propagate(propagator: Any, op_schema: Any) -> OutputSharding:
        asked = _Asked()
        key = asked.key(propagator, op_schema)
        if key is None:
            return original(propagator, op_schema)
        if key in _found:
            return OutputSharding(_with_mesh(_found[key], asked.mesh))
        result = original(propagator, op_schema)
        if result.redistribute_schema is None and not result.needs_redistribute and asked.are_of_mesh(result):
            _found[key] = _with_mesh(result.output_spec, None)
        return result

    return propagate


class _Asked:
    """The arguments of an op, as its key is made of them; `mesh` is the one that all DTensors among them are on."""

    def __init__(self) -> None:
        self.mesh: Any = None

    def key(self, propagator: Any, op_schema: Any) -> Key | None:
        """All by which this call differs from others but the ranks of the mesh; None where that is not known."""
        if not _has_rule_of_torch(propagator, op_schema.op):
            return None
        key: list[object] = [op_schema.op]
        arguments = op_schema.args_schema, op_schema.kwargs_schema
        if not append_arguments(key, *arguments, DTensorSpec, self._append_spec) or self.mesh is None:
            return None
        key += (self.mesh.shape, self.mesh.mesh_dim_names, self.mesh.device_type)
        return tuple(key)

    def _append_spec(self, key: list[object], spec: DTensorSpec) -> bool:
        """Append to a key all by which a DTensor differs from others but the ranks of its mesh."""
        if self.mesh is None:
            self.mesh = spec.mesh
        elif spec.mesh is not self.mesh:
            return False
        if spec.tensor_meta is None or not all(type(size) is int for size in spec.tensor_meta.shape):
            return False
        key += (spec.placements, spec.tensor_meta, spec.shard_order, spec.use_strided_shard_as_shard_order)
        return True

    def are_of_mesh(self, result: OutputSharding) -> bool:
        """Whether all that is returned is on the mesh of the arguments."""
        returned: Any = result.output_spec
        specs = returned if isinstance(returned, (tuple, list)) else (returned,)
        return all(spec is None or (type(spec) is DTensorSpec and spec.mesh is self.mesh) for spec in specs)


def _has_rule_of_torch(propagator: Any, op: Any) -> bool:
    """Whether torch itself says how an op is sharded, and no rule that a program has registered."""
    rules = [getattr(propagator, name, {}).get(op) for name in _RULES]
    modules = [getattr(getattr(rule, "func", rule), "__module__", "") for rule in rules if rule is not None]
    return bool(modules) and all(module.startswith(_TORCHS) for module in modules)


def _with_mesh(specs: Any, mesh: Any) -> Any:
    """The same specs on another mesh."""
    if specs is None:
        return None
    if isinstance(specs, (tuple, list)):
        return type(specs)([_with_mesh(spec, mesh) for spec in specs])
    made: Any = DTensorSpec.__new__(DTensorSpec)
    vars(made).update(vars(specs), mesh=mesh, _hash=None)
    return made
