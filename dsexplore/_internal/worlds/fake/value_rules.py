"""Known values of the result of an op on fake tensors, derived from those of its arguments.

Where all values are known and few, the op is run on them. Else a pointwise op is run on a typical element of each
argument; ops that reduce, choose, join or communicate have a rule each; what any other op writes to is forgotten. See
`known_values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch

from dsexplore._internal.torch_internals import aten as private
from dsexplore._internal.torch_internals.dispatch import schema_of
from dsexplore._internal.worlds.fake import known_values
from dsexplore._internal.worlds.fake.known_values import (
    Element,
    element_of,
    forget,
    is_known,
    on_real_tensors,
    typical,
    values_of,
)

_aten = torch.ops.aten
_MOST_CASES = 1 << 12
"""Combinations of values on which a pointwise op is run."""


class OpCall(NamedTuple):
    """A call of an op on fake tensors."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    def argument(self, name: str) -> Any:
        """Return an argument or its default; None if the op has none of this name."""
        for place, argument in enumerate(schema_of(self.func).arguments):
            if argument.name == name:
                return self.args[place] if place < len(self.args) else self.kwargs.get(name, argument.default_value)
        return None

    @property
    def element(self) -> Element | None:
        """Typical element of the first argument."""
        return element_of(self.args[0])

    @property
    def ratio(self) -> float:
        """Number of elements of the first argument per element of the result."""
        ratio: float = self.args[0].numel() / max(self.result.numel(), 1)
        return ratio


Rule = Callable[[OpCall], Any]
"""Returns the known values of a result, a real tensor, an `Element` or None; for several results one each."""
Note = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]


def note(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Record the known values of the result of an op on fake tensors, and of the tensors that it wrote to."""
    if func not in _notes:
        _notes[func] = _note_of(func)
    noted = _notes[func]
    if noted is not None:
        noted(func, args, kwargs, result)


def _note_of(func: Any) -> Note | None:
    """Return a function that records the results of an op; None for an op that changes no known values."""
    if func.is_view:
        return _note_view
    rule = _RULES.get(func)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if rule is None and not is_random and (torch.Tag.pointwise in func.tags or func in _POINTWISE):
        rule = _pointwise
    arguments = list(enumerate(schema_of(func).arguments))
    written = [(place, arg.name) for place, arg in arguments if arg.alias_info is not None and arg.alias_info.is_write]
    takes_tensors = any("Tensor" in str(argument.type) for _, argument in arguments)
    needs_values = takes_tensors and rule in (None, _pointwise)
    can_run = func in _LARGE or ((takes_tensors or rule is None) and func.namespace == "aten" and not is_random)
    return partial(_note, rule, written, can_run, needs_values) if rule is not None or written or can_run else None


def _note_view(func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """Record a view of a real tensor, a fake tensor with its own storage; views of fake tensors share theirs."""
    if type(args[0]) is torch.Tensor and func is not _aten.lift_fresh.default:
        known_values.share_values(result, args[0])
    elif type(args[0]) is torch.Tensor and is_known(args[0]):  # torch writes to what it has lifted
        known_values.set_values(result, args[0])


def _note(
    rule: Rule | None,
    written: Sequence[tuple[int, str]],
    can_run: bool,
    needs_values: bool,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
) -> None:
    """Record the results of an op, or drop what was known of the arguments that it wrote to.

    Args:
        rule: computes what is known of the results if the op cannot run; None for nothing.
        written: positions and names of the arguments that the op writes to.
        can_run: whether the op can run on known values.
        needs_values: whether results are known only if something is known of an argument.
        func: the op.
        args: of the call.
        kwargs: of the call.
        result: of the call.
    """
    values: Any = None
    if not needs_values or _any_has_values(args) or getattr(result, "dtype", None) is torch.bool:
        values = run_on_values(func, args, kwargs, _listed(result)) if can_run else NotImplemented
        if values is not NotImplemented and written:
            return  # the op has written to the values themselves
        if values is NotImplemented:
            values = rule(OpCall(func, args, kwargs, result)) if rule is not None else None
    if values is None:
        for place, name in written:
            for tensor in _listed(args[place] if place < len(args) else kwargs.get(name)):
                forget(tensor)
        return
    for tensor, value in zip(_listed(result), _listed(values), strict=True):
        if isinstance(value, torch.Tensor):
            known_values.set_values(tensor, value)
        elif isinstance(value, Element):
            known_values.set_element(tensor, value)


def _any_has_values(args: Sequence[Any]) -> bool:
    for arg in args:  # as a loop, since most calls of ops come here
        if isinstance(arg, torch.Tensor):
            if is_known(arg):
                return True
        elif isinstance(arg, (list, tuple)) and _any_has_values(arg):
            return True
    return False


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) and not isinstance(value, Element) else (value,)


def run_on_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any] = ()) -> Any:
    """Run an op on the known values of its arguments; NotImplemented if these are unknown or too many.

    Args:
        func: the op.
        args: of the call.
        kwargs: of the call.
        results: fake tensors that the call returned.
    """
    most = known_values.LARGEST_KNOWN if func in _LARGE else None
    positional = _values(args, most)
    named = None if positional is None else _values(kwargs.values(), most)
    if positional is None or named is None or not all(_are_few(made, most) for made in results):
        return NotImplemented
    options = dict(zip(kwargs, named, strict=True))
    if "device" in options:
        options["device"] = torch.device("cpu")
    try:
        with on_real_tensors(), torch.no_grad():
            return func(*positional, **options)
    except RuntimeError:  # not on a CPU
        return NotImplemented


def _values(arguments: Iterable[Any], most: int | None) -> list[Any] | None:
    """Replace tensors by their known values; None if some are unknown or too many."""
    replaced = []
    for argument in arguments:
        value = argument
        if isinstance(argument, torch.Tensor):
            value = values_of(argument)
            value = value if value is not None and _are_few(argument, most) else None
        elif isinstance(argument, (list, tuple)):
            value = _values(argument, most)
        if value is None and argument is not None:
            return None
        replaced.append(value)
    return replaced


def _are_few(tensor: Any, most: int | None) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return True
    few = known_values.MOST_FLOATS if tensor.is_floating_point() else known_values.LARGEST_COMPUTED
    return tensor.numel() <= (most or few)


class _Slot(NamedTuple):
    """The tensor at this place among the different tensors of a call."""

    place: int


def _pointwise(call: OpCall) -> Element | None:
    """Run the op on typical elements."""
    if not isinstance(call.result, torch.Tensor) or any(isinstance(arg, torch.Tensor) for arg in call.kwargs.values()):
        return None
    slots: dict[int, _Slot] = {}
    args, elements = [], []
    for arg in call.args:
        if isinstance(arg, torch.Tensor):
            if id(arg) not in slots:
                slots[id(arg)] = _Slot(len(slots))
                elements.append((known_values.elements_of(arg) or (1.0,), arg.dtype is torch.bool))
            args.append(slots[id(arg)])
        else:
            args.append(arg)
    return _run_on_elements(call.func, tuple(args), tuple(call.kwargs.items()), tuple(elements))


@lru_cache(1 << 12)
def _run_on_elements(
    func: Any,
    args: tuple[Any, ...],
    kwargs: tuple[Any, ...],
    elements: tuple[tuple[tuple[float, ...] | Element, bool], ...],
) -> Element | None:
    """Return the mean result of a pointwise op over all values of its arguments, which are taken as independent.

    Args:
        func: the op.
        args: its arguments, a `_Slot` for each tensor.
        kwargs: its other arguments, with their names.
        elements: for each slot its values or a typical element, and True for booleans.
    """
    cases: list[tuple[tuple[float, float], ...]] = [()]
    for element, is_bool in elements:
        if not isinstance(element, Element):
            row = [(value, 1.0) for value in element]
        elif is_bool:
            row = [(value, weight) for value, weight in ((1.0, element.mean), (0.0, 1 - element.mean)) if weight]
        else:
            row = [(value, 1.0) for value in range(element.choices) or (element.mean,)]
        if len(cases) * len(row) > _MOST_CASES:
            row = [row[len(row) // 2]]
        cases = [(*case, pair) for case, pair in product(cases, row)]
    with on_real_tensors(), torch.no_grad():
        table = torch.tensor(cases, dtype=torch.float64)  # cases × slots × (value, weight)
        weights = table[..., 1].prod(1)
        for dtype in (torch.float64, torch.int64):
            tensors = [table[:, i, 0].to(torch.bool if is_bool else dtype) for i, (_, is_bool) in enumerate(elements)]
            try:
                made = func(*(tensors[arg.place] if isinstance(arg, _Slot) else arg for arg in args), **dict(kwargs))
            except RuntimeError:  # not of this type
                continue
            mean = math.nan if made.is_complex() else float((made.double() * weights).sum() / weights.sum())
            return None if math.isnan(mean) else Element(mean)
    return None


def _compare(call: OpCall) -> Element | None:
    """Return a typical element of 0.5 where nothing is known: half of the elements are taken to be above a number."""
    first, second = call.args[:2]
    other = typical(second)
    is_unknown = first is not second and first.numel() > 1 and call.element is None and not other.choices
    return Element(0.5) if is_unknown and math.isfinite(other.mean) else _pointwise(call)


def _copy(call: OpCall) -> torch.Tensor | Element | None:
    values = values_of(call.args[1])
    return element_of(call.args[1]) if values is None else values


def _scatter(call: OpCall) -> Element:
    share = min(call.argument("index").numel() / max(call.args[0].numel(), 1), 1.0)
    return Element(known_values.mixed(share, typical(call.argument("value")).mean, typical(call.args[0]).mean))


def _choose(call: OpCall) -> Sequence[Element | None]:
    """Return the elements of ``topk``, ``argmax``, ``sort`` and ``multinomial``: values, then indices along a dim."""
    dim = call.argument("dim")
    count = call.args[0].size(-1 if dim is None else dim) if call.args[0].dim() else 1
    return (call.element, Element((count - 1) / 2, count))[-len(_listed(call.result)) :]


def _random_integers(call: OpCall) -> Element:
    low, high = call.argument("low") or 0, call.argument("high")
    return Element((low + high - 1) / 2, 0 if low else high)


def _reduced(mean_of: Callable[[float, OpCall], float]) -> Rule:
    """Return the rule of a reduction, from a function that maps the argument's mean to the result's mean."""
    return lambda call: None if call.element is None else Element(mean_of(call.element.mean, call))


def _count_nonzero(mean: float, call: OpCall) -> float:
    return call.ratio * (mean if call.args[0].dtype == torch.bool else float(mean != 0))


def _join(call: OpCall) -> Element | None:
    parts = call.args[0]
    total = sum(typical(part).mean * part.numel() for part in parts)
    return Element(total / max(call.result.numel(), 1)) if _any_has_values(parts) else None


def _gather(call: OpCall) -> None:
    """Set the results of ``all_gather`` as if other ranks sent what this one does, such as the shapes to pad to."""
    for gathered, sent in zip(_listed(call.args[0]), _listed(call.args[1]), strict=True):
        values = values_of(sent)
        for output in _listed(gathered):
            if values is None:
                known_values.set_element(output, typical(sent))
            elif values.numel() and output.numel() <= known_values.LARGEST_KNOWN:
                with on_real_tensors():
                    repeated = values.flatten().repeat(output.numel() // values.numel())
                known_values.set_values(output, repeated.view(output.shape))


def _exchange(call: OpCall) -> None:
    """Set the result of ``all_to_all_single`` as if other ranks sent what this one does, such as counts of tokens."""
    element = element_of(call.args[1])
    if element is None:
        forget(call.args[0])
    else:
        known_values.set_element(call.args[0], element)


def _overloads(*packets: Any) -> list[Any]:
    """Return all overloads of ATen ops, given by name or packet, except ``out`` variants."""
    listed = [getattr(_aten, packet) if isinstance(packet, str) else packet for packet in packets]
    return [getattr(packet, name) for packet in listed for name in packet.overloads() if "out" not in name]


def _all(rule: Any, *packets: Any) -> dict[Any, Any]:
    return dict.fromkeys(_overloads(*packets), rule)


_COMPARISONS = (_aten.eq, _aten.ne, _aten.gt, _aten.ge, _aten.lt, _aten.le)
_RULES: dict[Any, Rule] = {
    **_all(lambda _call: Element(0.0), "zeros", "zeros_like", "new_zeros", "zero_"),
    # A norm is what nothing is known of is taken for, but by a rule: none of several norms is below 0.
    **_all(lambda _call: Element(1.0), "ones", "ones_like", "new_ones", "linalg_vector_norm"),
    **_all(lambda call: call.element, "scalar_tensor", "clone", private.copy_to, "repeat"),
    **_all(lambda call: call.element, "index", "index_select", "gather"),
    **_all(lambda call: element_of(call.args[1]), "full", "full_like", "fill", "fill_"),
    **_all(lambda call: element_of(call.args[2]), "new_full"),
    **_all(_copy, "copy_"),
    **_all(_random_integers, "randint", "randint_like"),
    **dict.fromkeys((_aten.scatter.value, _aten.scatter_.value), _scatter),
    **_all(_choose, "topk", "argmax", "argmin", "sort", "argsort", "multinomial"),
    **dict.fromkeys((_aten.max.dim, _aten.min.dim), _choose),
    **dict.fromkeys((op for packet in _COMPARISONS for op in (packet.Scalar, packet.Tensor)), _compare),
    **_all(_reduced(lambda mean, _call: mean), "mean", "amax", "amin"),
    **dict.fromkeys((_aten.max.default, _aten.min.default), _reduced(lambda mean, _call: mean)),
    **_all(_reduced(lambda mean, _call: float(mean > 0)), "any"),
    **_all(_reduced(lambda mean, _call: float(mean >= 1)), "all"),
    **_all(_reduced(lambda mean, call: mean * call.ratio), "sum"),
    **_all(_reduced(_count_nonzero), "count_nonzero"),
    **_all(lambda call: Element(call.ratio), "histc"),  # evenly spread
    **_all(_join, "cat", "stack"),
    **_all(_gather, private.all_gather_flat, torch.ops.c10d.allgather_),
    **_all(_exchange, torch.ops.c10d.alltoall_base_),
}
_POINTWISE = frozenset(_overloads("masked_fill", "masked_fill_"))
"""Pointwise ops that torch does not tag so."""
_LARGE = frozenset(
    _overloads("arange", "linspace", "logspace", "randperm", "clone", private.copy_to, "repeat", "lift_fresh_copy")
)
"""Ops whose values are kept although they are many."""
_notes: dict[Any, Note | None] = {
    **_all(None, private.read_element, private.unsafe_view),
    **_all(None, private.unscale_gradients, private.update_scale),  # all gradients are finite, so the scale stays
    **_all(
        lambda *call: known_values.set_unwritten(call[-1]),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    ),
}
"""{op: function that records its results}; None for ops that do not change what is known."""
