"""Ops on long lists of DTensors, such as an optimizer's foreach ops on all parameters.

For each tensor of a list torch enumerates all sharding strategies, and for each of these it inspects the placements of
all tensors: quadratic time. Repeated layers have parameters of equal shapes and placements, with equal results. So
torch is asked only about the first tensor of each kind, and its answer is used for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from dsexplore._internal.torch_internals.dtensor import PROPAGATE_SHARDING, DTensorSpec
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch

_PLACE_BY_PLACE = ("aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd")
"""Prefixes of the names of ops that treat the elements of their lists independently."""


def _propagate_once_per_kind(original: Callable[[Any, Any], Any], _parts: Parts) -> Callable[[Any, Any], Any]:
    @wraps(original)
    def propagate(propagator: Any, op_schema: Any) -> Any:
        if not op_schema.op.name().startswith(_PLACE_BY_PLACE):
            return original(propagator, op_schema)
        kinds = _TensorKinds.of(op_schema.args_schema)
        if kinds is None:
            return original(propagator, op_schema)
        sharding: Any = original(propagator, _select_places(op_schema, kinds.firsts))
        wanted = sharding.redistribute_schema
        return replace(
            sharding,
            output_spec=kinds.for_all(sharding.output_spec),
            redistribute_schema=None if wanted is None else _select_places(wanted, kinds.kind_of),
        )

    return propagate


@dataclass(frozen=True)
class _TensorKinds:
    """The kinds of tensors in an op's lists: tensors of one kind are sharded in the same way.

    Attributes:
        firsts: the first index of each kind.
        kind_of: the kind of each index.
    """

    firsts: list[int]
    kind_of: list[int]

    @classmethod
    def of(cls, args: Iterable[Any]) -> _TensorKinds | None:
        """Return the kinds of an op's arguments; None if its lists differ in length or have unexpected elements."""
        lists = [arg for arg in args if _is_list(arg)]
        if len({len(elements) for elements in lists}) != 1:
            return None
        numbers: dict[Any, int] = {}
        firsts: list[int] = []
        kind_of: list[int] = []
        for place, elements in enumerate(zip(*lists, strict=True)):
            if not all(isinstance(element, (DTensorSpec, int, float)) for element in elements):
                return None
            kind = numbers.setdefault(tuple(map(_described, elements)), len(numbers))
            if kind == len(firsts):
                firsts.append(place)
            kind_of.append(kind)
        return cls(firsts, kind_of)

    def for_all(self, specs: Any) -> Any:
        """Return the specs of all results of an op, derived from those of the first tensor of each kind."""
        return type(specs)(specs[kind] for kind in self.kind_of) if _is_list(specs) else specs


def _select_places(op_schema: Any, places: Sequence[int]) -> Any:
    """Return the op's schema with only these positions of its lists."""
    args = [type(arg)(arg[place] for place in places) if _is_list(arg) else arg for arg in op_schema.args_schema]
    return type(op_schema)(op_schema.op, tuple(args), op_schema.kwargs_schema, op_schema.schema_info)


def _is_list(arg: Any) -> bool:
    """Return True for a non-empty list; optimizers pass empty ones for options that are off."""
    return isinstance(arg, (list, tuple)) and bool(arg)


def _described(element: Any) -> Any:
    """Return the properties of a list element that determine the op's sharding; for a number, its type."""
    if isinstance(element, DTensorSpec):
        return element, getattr(element, "use_strided_shard_as_shard_order", None)
    return type(element)


PATCHES: tuple[Entry, ...] = (
    Patch(PROPAGATE_SHARDING, "it takes seconds for the parameters of a large model", _propagate_once_per_kind),
)
