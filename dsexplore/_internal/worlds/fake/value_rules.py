"""Rules that derive the known values of an op's result from those of its arguments, for fake tensors.

If all values are known and few, the op runs on them. Else a pointwise op runs on a typical element of each argument;
ops that reduce, choose, join or communicate have a rule each; tensors that any other op writes to become unknown. See
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
"""Maximal number of combinations of values on which a pointwise op runs."""


class OpCall(NamedTuple):
    """A call of an op on fake tensors."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    def argument(self, name: str) -> Any:
        """Return an argument or its default; None if the op has no argument of this name."""
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
"""Returns the known values of a result: a real tensor, an `Element` or None; for several results, a sequence."""
Note = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]
"""Records the result of an op, given the op, its arguments, its keyword arguments and its result."""


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
    if rule is None and not written and not can_run:
        return None
    return partial(_note, rule=rule, written=written, can_run=can_run, needs_values=needs_values)


def _note_view(func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """Record a view of a real tensor, which is a fake tensor with its own storage; other views need no record."""
    if type(args[0]) is torch.Tensor and func is not _aten.lift_fresh.default:
        known_values.share_values(result, args[0])
    elif type(args[0]) is torch.Tensor and is_known(args[0]):  # torch writes to a lifted tensor
        known_values.set_values(result, args[0])


def _note(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    *,
    rule: Rule | None,
    written: Sequence[tuple[int, str]],
    can_run: bool,
    needs_values: bool,
) -> None:
    """Record the results of an op; if they are unknown, forget the values of the arguments that it wrote to.

    Args:
        func: the op.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        result: result of the call.
        rule: returns the known values of the results if the op cannot run; None if they are unknown.
        written: positions and names of the arguments that the op writes to.
        can_run: whether the op can run on known values.
        needs_values: whether the results are unknown if nothing is known of an argument.
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
    for arg in args:  # a plain loop, which is faster: most ops call this function
        if isinstance(arg, torch.Tensor):
            if is_known(arg):
                return True
        elif isinstance(arg, (list, tuple)) and _any_has_values(arg):
            return True
    return False


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) and not isinstance(value, Element) else (value,)


def run_on_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any] = ()) -> Any:
    """Run an op on the known values of its arguments; return NotImplemented if these are unknown or too many.

    Args:
        func: the op.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        results: fake tensors that the call returned, whose sizes are checked too.
    """
    most = known_values.LARGEST_KNOWN if func in _LARGE else None
    positional = _values(args, most)
    named = None if positional is None else _values(kwargs.values(), most)
    if positional is None or named is None or not all(_are_few(result, most) for result in results):
        return NotImplemented
    options = dict(zip(kwargs, named, strict=True))
    if "device" in options:
        options["device"] = torch.device("cpu")
    try:
        with on_real_tensors(), torch.no_grad():
            return func(*positional, **options)
    except RuntimeError:  # the CPU has no such op
        return NotImplemented


def _values(arguments: Iterable[Any], most: int | None) -> list[Any] | None:
    """Return arguments with the known values of tensors in their place; None if some are unknown or too many."""
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
    """Stands for a tensor among a call's arguments: its number among the different tensors of the call."""

    number: int


def _pointwise(call: OpCall) -> Element | None:
    """Return the mean result of a pointwise op on the known values or typical elements of its arguments."""
    if not isinstance(call.result, torch.Tensor) or any(isinstance(arg, torch.Tensor) for arg in call.kwargs.values()):
        return None
    slots: dict[int, _Slot] = {}
    args, elements = [], []
    for arg in call.args:
        if isinstance(arg, torch.Tensor):
            if id(arg) not in slots:
                slots[id(arg)] = _Slot(len(slots))
                elements.append((_elements_of(arg), arg.dtype is torch.bool))
            args.append(slots[id(arg)])
        else:
            args.append(arg)
    return _run_on_elements(call.func, tuple(args), tuple(call.kwargs.items()), tuple(elements))


def _elements_of(tensor: torch.Tensor) -> tuple[float, ...] | Element:
    """Return the values of a tensor if they are known and few, else its typical element."""
    values = values_of(tensor)
    if values is None or not 0 < values.numel() <= known_values.MOST_FLOATS or values.is_complex():
        return typical(tensor)
    with on_real_tensors():
        return tuple(values.flatten().tolist())


@lru_cache(1 << 12)
def _run_on_elements(
    func: Any,
    args: tuple[Any, ...],
    kwargs: tuple[Any, ...],
    elements: tuple[tuple[tuple[float, ...] | Element, bool], ...],
) -> Element | None:
    """Return the mean result of a pointwise op over all combinations of its arguments' values.

    Args:
        func: the op.
        args: its arguments, a `_Slot` for each tensor.
        kwargs: its keyword arguments, as pairs of name and value.
        elements: for each slot, its values or a typical element, and True if it is boolean.

    Returns:
        The mean; None if the op fails, or the mean is no real number.
    """
    cases: list[tuple[tuple[float, float], ...]] = [()]
    for element, is_bool in elements:
        row = element.weighted_values(is_bool) if isinstance(element, Element) else [(value, 1.0) for value in element]
        if len(cases) * len(row) > _MOST_CASES:
            row = [row[len(row) // 2]]
        cases = [(*case, pair) for case, pair in product(cases, row)]
    with on_real_tensors(), torch.no_grad():
        table = torch.tensor(cases, dtype=torch.float64)  # cases × slots × (value, weight)
        weights = table[..., 1].prod(1)
        for dtype in (torch.float64, torch.int64):
            tensors = [table[:, i, 0].to(torch.bool if is_bool else dtype) for i, (_, is_bool) in enumerate(elements)]
            try:
                result = func(*(tensors[arg.number] if isinstance(arg, _Slot) else arg for arg in args), **dict(kwargs))
            except RuntimeError:  # the op does not support the dtype
                continue
            mean = math.nan if result.is_complex() else float((result.double() * weights).sum() / weights.sum())
            return None if math.isnan(mean) else Element(mean)
    return None


def _compare(call: OpCall) -> Element | None:
    """Return the element of a comparison; if the first tensor is unknown, half of its elements are assumed above."""
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
    """Return the elements of ``topk``, ``argmax``, ``sort`` and ``multinomial``: values if any, and indices."""
    dim = call.argument("dim")
    count = call.args[0].size(-1 if dim is None else dim) if call.args[0].dim() else 1
    indices = Element((count - 1) / 2, count)
    return (indices,) if len(_listed(call.result)) == 1 else (call.element, indices)


def _random_integers(call: OpCall) -> Element:
    low, high = call.argument("low") or 0, call.argument("high")
    return Element((low + high - 1) / 2, 0 if low else high)


def _reduced(mean_of: Callable[[float, OpCall], float]) -> Rule:
    """Return the rule of a reduction, given a function from the argument's mean to the result's mean."""
    return lambda call: None if call.element is None else Element(mean_of(call.element.mean, call))


def _count_nonzero(mean: float, call: OpCall) -> float:
    return call.ratio * (mean if call.args[0].dtype == torch.bool else float(mean != 0))


def _join(call: OpCall) -> Element | None:
    parts = call.args[0]
    total = sum(typical(part).mean * part.numel() for part in parts)
    return Element(total / max(call.result.numel(), 1)) if _any_has_values(parts) else None


def _gather(call: OpCall) -> None:
    """Set the results of ``all_gather`` as if the other ranks sent the same, such as shapes to pad to."""
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
    """Set the result of ``all_to_all_single`` as if the other ranks sent the same, such as counts of tokens."""
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
    # Without a rule for norms, _compare would assume that half of several norms are below 0.
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
"""Pointwise ops that torch does not tag as pointwise."""
_LARGE = frozenset(
    _overloads("arange", "linspace", "logspace", "randperm", "clone", private.copy_to, "repeat", "lift_fresh_copy")
)
"""Ops whose values are stored up to `LARGEST_KNOWN` elements."""
_notes: dict[Any, Note | None] = {
    **_all(None, private.read_element, private.unsafe_view),
    **_all(None, private.unscale_gradients, private.update_scale),  # all gradients are finite, so the scale stays
    **_all(
        lambda *call: known_values.set_unwritten(call[-1]),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    ),
}
"""{op: function that records its results}; None for ops that change no known values. Filled as ops are called."""
