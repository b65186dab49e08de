"""Ops on lists of many DTensors, as optimizers have them of all parameters.

For each tensor of a list torch works out all ways to shard it, and for each of these it looks through the placements of
all tensors. Alike layers have parameters of the same shapes and placements, for which the same comes out. So torch is
asked about one tensor of each kind here, and what it says holds for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from dsexplore.torch_internals.patches import Patches

_FUNCTION = "propagate_op_sharding_non_cached"
_PLACE_BY_PLACE = ("aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd")
"""How the names of ops begin that treat each place of their lists apart from the others."""


def patch_long_lists(patches: Patches) -> None:
    """Make torch work out the shardings of an op on lists once for tensors that are alike; versions of torch without
    that function are left as they are."""
    original = getattr(ShardingPropagator, _FUNCTION, None)
    if original is not None:
        patches.attribute(ShardingPropagator, _FUNCTION, _once_per_kind(original))


def _once_per_kind(original: Callable[[Any, OpSchema], OutputSharding]) -> Callable[[Any, OpSchema], OutputSharding]:
    @wraps(original)
    def propagate(propagator: Any, op_schema: OpSchema) -> OutputSharding:
        if not op_schema.op.name().startswith(_PLACE_BY_PLACE):
            return original(propagator, op_schema)
        kinds = _Kinds.of(op_schema.args_schema)
        if kinds is None:
            return original(propagator, op_schema)
        found = original(propagator, kinds.of_each_one(op_schema))
        return OutputSharding(
            kinds.of_all(found.output_spec),
            None if found.redistribute_schema is None else kinds.for_all(found.redistribute_schema),
            needs_redistribute=found.needs_redistribute,
            use_val_from_redistribute_schema=found.use_val_from_redistribute_schema,
        )

    return propagate


@dataclass(frozen=True)
class _Kinds:
    """Which places of an op's lists hold tensors that are alike.

    Attributes:
        firsts: the first place of each kind.
        kind_of: the number of its kind, for each place.
    """

    firsts: list[int]
    kind_of: list[int]

    @classmethod
    def of(cls, args: Iterable[Any]) -> _Kinds | None:
        """The kinds of an op's arguments; None where its lists do not go together, or hold what is not known here."""
        lists = [arg for arg in args if _is_list(arg)]
        if len({len(one) for one in lists}) != 1:
            return None
        known: dict[Any, int] = {}
        firsts: list[int] = []
        kind_of: list[int] = []
        for place, elements in enumerate(zip(*lists, strict=True)):
            if not all(isinstance(one, (DTensorSpec, int, float)) for one in elements):
                return None
            kind = known.setdefault(tuple(map(_described, elements)), len(known))
            if kind == len(firsts):
                firsts.append(place)
            kind_of.append(kind)
        return cls(firsts, kind_of)

    def of_each_one(self, op_schema: OpSchema) -> OpSchema:
        """An op with the first tensors of each kind in its lists."""
        return _with_places(op_schema, self.firsts)

    def for_all(self, op_schema: OpSchema) -> OpSchema:
        """An op with one tensor of each kind in its lists, as the op with all of them."""
        return _with_places(op_schema, self.kind_of)

    def of_all(self, specs: Any) -> Any:
        """The specs of all tensors that an op returns, from those of one of each kind."""
        return type(specs)(specs[kind] for kind in self.kind_of) if _is_list(specs) else specs


def _with_places(op_schema: OpSchema, places: Sequence[int]) -> OpSchema:
    """An op with these places of its lists."""
    given: Iterable[Any] = op_schema.args_schema
    args = [type(arg)(arg[place] for place in places) if _is_list(arg) else arg for arg in given]
    return OpSchema(op_schema.op, tuple(args), op_schema.kwargs_schema, op_schema.schema_info)


def _is_list(arg: Any) -> bool:
    """Whether an argument is a list that holds something: optimizers pass empty ones for what they do without."""
    return isinstance(arg, (list, tuple)) and bool(arg)


def _described(element: DTensorSpec | float) -> Any:
    """All by which an element of a list decides how the op is sharded: of a number, its type."""
    if isinstance(element, DTensorSpec):
        return element, element.use_strided_shard_as_shard_order
    return type(element)
