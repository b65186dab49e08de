"""Faster sharding propagation for ops on long lists of DTensors, such as an optimizer's foreach ops.

For each tensor of a list torch enumerates all sharding strategies, and for each strategy it inspects the placements of
all tensors: quadratic time. Repeated layers have parameters of equal shapes and placements, with equal results. So
torch propagates only the first tensor of each kind, and the result is used for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from dsexplore._internal.torch_internals.dtensor import PROPAGATE_SHARDING, DTensorSpec
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch

_ELEMENTWISE = ("aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd")
"""Prefixes of the names of ops that treat the elements of their lists independently."""


def _propagate_once_per_kind(original: Callable[[Any, Any], Any], _parts: Parts) -> Callable[[Any, Any], Any]:
    """Wrap torch's sharding propagation to handle one tensor of each kind in lists."""

    @wraps(original)
    def propagate(propagator: Any, op_schema: Any) -> Any:
        if not op_schema.op.name().startswith(_ELEMENTWISE):
            return original(propagator, op_schema)
        kinds = _TensorKinds.of(op_schema.args_schema)
        if kinds is None:
            return original(propagator, op_schema)
        sharding: Any = original(propagator, _select(op_schema, kinds.firsts))
        schema = sharding.redistribute_schema
        return replace(
            sharding,
            output_spec=kinds.for_all(sharding.output_spec),
            redistribute_schema=None if schema is None else _select(schema, kinds.kind_of),
        )

    return propagate


@dataclass(frozen=True)
class _TensorKinds:
    """Kinds of the tensors in an op's lists; tensors of one kind are sharded in the same way.

    Attributes:
        firsts: for each kind, the index of its first tensor.
        kind_of: for each index, the number of its kind.
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
        for index, elements in enumerate(zip(*lists, strict=True)):
            if not all(isinstance(element, (DTensorSpec, int, float)) for element in elements):
                return None
            kind = numbers.setdefault(tuple(map(_described, elements)), len(numbers))
            if kind == len(firsts):
                firsts.append(index)
            kind_of.append(kind)
        return cls(firsts, kind_of)

    def for_all(self, specs: Any) -> Any:
        """Return the specs of all results of an op, derived from those of the first tensor of each kind."""
        return type(specs)(specs[kind] for kind in self.kind_of) if _is_list(specs) else specs


def _select(op_schema: Any, indices: Sequence[int]) -> Any:
    """Return the op's schema with only these indices of its lists, in this order."""
    args = [type(arg)(arg[index] for index in indices) if _is_list(arg) else arg for arg in op_schema.args_schema]
    return type(op_schema)(op_schema.op, tuple(args), op_schema.kwargs_schema, op_schema.schema_info)


def _is_list(arg: Any) -> bool:
    """Return True for a non-empty list; optimizers pass empty lists for options that are off."""
    return isinstance(arg, (list, tuple)) and bool(arg)


def _described(element: Any) -> Any:
    """Return the properties of a list element that determine the op's sharding; for a number, its type."""
    if isinstance(element, DTensorSpec):
        return element, getattr(element, "use_strided_shard_as_shard_order", None)
    return type(element)


PATCHES: tuple[Entry, ...] = (
    Patch(PROPAGATE_SHARDING, "it takes seconds for the parameters of a large model", _propagate_once_per_kind),
)
