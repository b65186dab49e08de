"""What is known of the result of an op on fake tensors, as far as it follows from what is known of its arguments.

A rule for each op notes it at the tensors that the op returned, or wrote to; see `known_values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree

from dsexplore.worlds.fake.known_values import (
    LARGEST_COMPUTED,
    LARGEST_KNOWN,
    forget,
    guess_of,
    has_guess,
    is_noted,
    known_of,
    noted,
    set_guess,
    set_known,
    set_noted,
    set_unwritten,
    whole_number,
)

_aten = torch.ops.aten

Rule = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]


def note(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Keep what is known of the result of an op on fake tensors; most ops need one look-up."""
    rule = _RULES.get(func)
    is_written = bool(args) and result is args[0]
    if rule is not None:
        rule(func, args, kwargs, result)
    elif is_written:  # in a way that no rule knows
        forget(result)
    if is_written and isinstance(result, FakeTensor) and isinstance(result._base, FakeTensor):
        _written_in_part(result._base, result)


def _written_in_part(whole: FakeTensor, part: torch.Tensor) -> None:
    """A part of a tensor was written to: what is known of a typical element changes by as much."""
    if known_of(whole) is not None or has_guess(whole):
        before, share = guess_of(whole).mean, part.numel() / max(whole.numel(), 1)
        forget(whole)
        set_guess(whole, before + (guess_of(part).mean - before) * min(share, 1.0))
    else:
        forget(whole)  # that nothing was written to it


def _same(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """The result has elements of the first argument."""
    source = args[0]
    known = known_of(source)
    if known is not None:
        with unset_fake_temporarily():
            made = func(known, *args[1:], **kwargs)
        for each, values in zip(_listed(result), _listed(made), strict=True):
            set_known(each, values)
        return
    _, found = noted(source)
    if found is None:
        return
    parts = _listed(result)
    one_by_one = source.dim() == 1 and not source.is_floating_point() and source.dtype != torch.bool
    for index, each in enumerate(parts):
        if one_by_one and each.dim() == 0:  # whole numbers whose sum is right
            place = index if len(parts) > 1 else int(args[2]) if len(args) > 2 else 0
            set_guess(each, whole_number(found.mean, place))
        else:
            set_noted(each, None, found)


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _given_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    if result.numel() <= LARGEST_KNOWN:
        with unset_fake_temporarily():
            set_known(result, func(*args, **{**kwargs, "device": "cpu"}))


def _or_computed(rule: Rule | None) -> Rule:
    """The rule, if any, for results whose values are not computed."""

    def either(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        values = _computed_values(func, args, kwargs) if result.numel() <= LARGEST_COMPUTED else None
        if values is not None:
            set_known(result, values)
        elif rule is not None:
            rule(func, args, kwargs, result)

    return either


def _computed_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """What an op returns, where the values of all its tensors are known, and they are few."""
    if known_of(args[0]) is None:
        return None
    leaves, structure = pytree.tree_flatten([*args])
    known = [known_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    for leaf, values in zip(leaves, known, strict=True):
        if isinstance(leaf, torch.Tensor) and (values is None or values.numel() > LARGEST_COMPUTED):
            return None
    with unset_fake_temporarily():
        made: torch.Tensor = func(*pytree.tree_unflatten(known, structure), **kwargs)
    return made


def _in_place(functional: Any, rule: Rule) -> Rule:
    """The rule for an op that writes into its first argument, given that of the op that returns a new tensor."""

    def written(_func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        known, guess = noted(result)
        rule(functional, args, kwargs, result)
        if known is not None or guess is not None:
            new_known, new_guess = noted(result)
            set_noted(result, None if new_known is known else new_known, None if new_guess is guess else new_guess)

    return written


def _filled(place: int) -> Rule:
    def rule(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
        forget(result)
        set_guess(result, guess_of(args[place]).mean)

    return rule


def _constant(value: float) -> Rule:
    def rule(_func: Any, _args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
        forget(result)
        set_guess(result, value)

    return rule


def _unwritten(_func: Any, _args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    set_unwritten(result)


def _lifted(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """``torch.tensor`` of numbers: a real tensor becomes a fake one."""
    if not isinstance(args[0], FakeTensor) and args[0].numel() <= LARGEST_KNOWN:
        with unset_fake_temporarily():
            set_known(result, args[0].clone())


def _taken(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """Elements of the first argument at places that are not known."""
    found = guess_of(args[0])
    if is_noted(args[0]):
        set_guess(result, found.mean, found.choices)


def _scattered(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    tensor, _, index, value = args[:4]
    share = index.numel() / max(tensor.numel(), 1)
    before = guess_of(tensor).mean
    set_guess(result, before + (guess_of(value).mean - before) * min(share, 1.0))


def _chosen(_func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Places along a dim, as ``topk``, ``argmax``, ``sort`` and ``multinomial`` return them."""
    indices = _listed(result)[-1]
    dims = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, int) and not isinstance(arg, bool)]
    dim = -1
    if _func in (_aten.topk.default,):
        dim = dims[1] if len(dims) > 1 else -1
    elif _func is not _aten.multinomial.default and dims:
        dim = dims[0]
    count = args[0].size(dim) if args[0].dim() else 1
    set_guess(indices, (count - 1) / 2, count)


def _sorted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Values in order, and their places, as of lengths that are to be packed."""
    known = known_of(args[0])
    if known is None:
        _chosen(func, args, kwargs, result)
        return
    with unset_fake_temporarily():
        made = func(known, *args[1:], **kwargs)
    for each, values in zip(result, made, strict=True):
        set_known(each, values)


def _random_integers(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    numbers = [arg for arg in args if isinstance(arg, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2] if numbers else (0, 2)
    set_guess(result, (low + high - 1) / 2, high if low == 0 else 0)


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _compared(name: str) -> Rule:
    holds = _COMPARE[name]

    def rule(func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
        one, other = args[0], args[1]
        known = known_of(one), known_of(other) if isinstance(other, torch.Tensor) else other
        if known[0] is not None and known[1] is not None and result.numel() <= LARGEST_KNOWN:
            with unset_fake_temporarily():
                set_known(result, func(*known))
            return
        first, second = guess_of(one), guess_of(other)
        choices = max(first.choices, second.choices)
        if one is other or math.isinf(second.mean):
            share = float(holds(first.mean, second.mean))
        elif choices > 1 and name in ("eq", "ne"):
            share = 1 / choices if name == "eq" else 1 - 1 / choices
        elif one.numel() > 1 and not has_guess(one) and known_of(one) is None:
            share = 0.5
        else:
            share = float(holds(first.mean, second.mean))
        set_guess(result, share)

    return rule


def _computed(compute: Callable[..., float], arguments: int) -> Rule:
    def rule(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
        if any(is_noted(arg) for arg in args[:arguments]):
            try:
                mean = compute(*(guess_of(arg).mean for arg in args[:arguments]))
            except (ArithmeticError, ValueError):
                return
            if not math.isnan(mean):
                set_guess(result, mean)

    return rule


def _mixed(share: float, one: float, other: float) -> float:
    """The mean of elements of which a share has the mean ``one``, and the others ``other``; either may be infinite."""
    if share in (0.0, 1.0):
        return one if share else other
    return share * one + (1 - share) * other


def _summed(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    if is_noted(args[0]):
        set_guess(result, guess_of(args[0]).mean * args[0].numel() / max(result.numel(), 1))


def _gathered(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], _result: Any) -> None:
    """``all_gather``: each other rank is taken to send what this one does, as shapes that are to be padded to."""
    outputs, inputs = args[:2]
    if isinstance(inputs, (list, tuple)):
        pairs = [(output, each) for listed, each in zip(outputs, inputs, strict=True) for output in listed]
    else:
        pairs = [(outputs, inputs)]
    for output, sent in pairs:
        forget(output)
        known = known_of(sent)
        if known is None:
            set_guess(output, guess_of(sent).mean, guess_of(sent).choices)
        elif known.numel() > 0 and output.numel() <= LARGEST_KNOWN:
            with unset_fake_temporarily():
                gathered = known.reshape(-1).repeat(output.numel() // known.numel())
            whole = output._base  # gathers are issued on flat views
            for each in (output, *([whole] if whole is not None and whole.numel() == output.numel() else [])):
                set_known(each, gathered.reshape(each.shape))


def _exchanged(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], _result: Any) -> None:
    """``all_to_all_single``: the other ranks are taken to send what this one does, as counts of tokens."""
    output, sent = args[:2]
    forget(output)
    if has_guess(sent) or known_of(sent) is not None:
        set_guess(output, guess_of(sent).mean, guess_of(sent).choices)


def _joined(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """``cat`` or ``stack`` of tensors of which something is known."""
    parts = [known_of(part) for part in args[0]] if known_of(args[0][0]) is not None else [None]
    if all(part is not None for part in parts) and result.numel() <= LARGEST_KNOWN:
        with unset_fake_temporarily():
            set_known(result, func(parts, *args[1:], **kwargs))
    elif any(has_guess(part) for part in args[0]):
        set_guess(result, sum(guess_of(part).mean * part.numel() for part in args[0]) / max(result.numel(), 1))


def _clamped(_func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    if is_noted(args[0]):
        least, most = (*args[1:], None, None)[:2]
        least, most = kwargs.get("min", least), kwargs.get("max", most)
        mean = guess_of(args[0]).mean
        mean = mean if least is None else max(mean, guess_of(least).mean)
        set_guess(result, mean if most is None else min(mean, guess_of(most).mean))


def _nonzeros(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """``count_nonzero``: of booleans as many as are true; of numbers all, unless they are zeros."""
    if is_noted(args[0]):
        mean = guess_of(args[0]).mean
        share = mean if args[0].dtype == torch.bool else float(mean != 0)
        set_guess(result, share * args[0].numel() / max(result.numel(), 1))


def _counted(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> None:
    """``histc``: all elements, evenly spread; torch refuses one without bins."""
    set_guess(result, args[0].numel() / result.numel())


def _overloads(*names: str) -> list[Any]:
    """All overloads of ops that have that name, without those that write to ``out``."""
    packets = (getattr(_aten, name) for name in names)
    return [getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name]


_RULES: dict[Any, Rule] = {
    **dict.fromkeys(
        _overloads(
            *("view", "_unsafe_view", "permute", "transpose", "t", "select", "slice", "unsqueeze", "squeeze", "expand"),
            *("clone", "detach", "alias", "_to_copy", "unbind", "split", "split_with_sizes", "repeat"),
        ),
        _same,
    ),
    **dict.fromkeys(_overloads("lift_fresh", "lift_fresh_copy", "lift"), _lifted),
    **dict.fromkeys([_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default], _unwritten),
    **dict.fromkeys([_aten.index.Tensor, _aten.index_select.default, _aten.gather.default], _taken),
    **dict.fromkeys(_overloads("arange", "linspace", "logspace", "randperm"), _given_values),
    **dict.fromkeys(_overloads("zeros", "zeros_like", "new_zeros", "zero_", "isnan", "isinf"), _constant(0.0)),
    # A norm is what nothing is known of is taken for, but by a rule: none of several norms is below 0.
    **dict.fromkeys(_overloads("ones", "ones_like", "new_ones", "linalg_vector_norm"), _constant(1.0)),
    **dict.fromkeys(_overloads("full", "full_like", "fill_", "fill"), _filled(1)),
    **dict.fromkeys(_overloads("new_full"), _filled(2)),
    **dict.fromkeys(_overloads("scalar_tensor"), _filled(0)),
    **dict.fromkeys(_overloads("copy_"), _filled(1)),
    **dict.fromkeys([_aten.scatter_.value, _aten.scatter.value], _scattered),
    **dict.fromkeys(
        (
            *(_aten.topk.default, _aten.argmax.default, _aten.argmin.default, _aten.max.dim, _aten.min.dim),
            *(_aten.argsort.default, _aten.multinomial.default),
        ),
        _chosen,
    ),
    **dict.fromkeys([_aten.sort.default, _aten.sort.stable], _sorted),
    **dict.fromkeys(_overloads("randint"), _random_integers),
    **{op: _compared(name) for name in _COMPARE for op in (getattr(_aten, name).Scalar, getattr(_aten, name).Tensor)},
    **dict.fromkeys(_overloads("logical_not", "bitwise_not"), _computed(lambda a: 1 - a, 1)),
    **dict.fromkeys(_overloads("mul", "logical_and", "bitwise_and"), _computed(lambda a, b: a * b, 2)),
    **dict.fromkeys(_overloads("logical_or", "bitwise_or"), _computed(lambda a, b: a + b - a * b, 2)),
    **dict.fromkeys(_overloads("add"), _computed(lambda a, b: a + b, 2)),
    **dict.fromkeys(_overloads("sub"), _computed(lambda a, b: a - b, 2)),
    **dict.fromkeys(_overloads("div"), _computed(lambda a, b: a / b, 2)),
    **dict.fromkeys(_overloads("abs"), _computed(abs, 1)),
    **dict.fromkeys(_overloads("neg"), _computed(lambda a: -a, 1)),
    **dict.fromkeys(_overloads("maximum", "clamp_min"), _computed(max, 2)),
    **dict.fromkeys(_overloads("minimum", "clamp_max"), _computed(min, 2)),
    **dict.fromkeys(
        [_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.where.Scalar],
        _computed(_mixed, 3),
    ),
    **dict.fromkeys(_overloads("masked_fill"), _computed(lambda a, share, b: _mixed(share, b, a), 3)),
    **dict.fromkeys([_aten.pow.Tensor_Scalar, _aten.pow.Tensor_Tensor], _computed(math.pow, 2)),
    **dict.fromkeys(_overloads("sqrt"), _computed(math.sqrt, 1)),
    **dict.fromkeys(_overloads("mean"), _computed(lambda a: a, 1)),
    **dict.fromkeys(
        [_aten.max.default, _aten.min.default, _aten.amax.default, _aten.amin.default], _computed(lambda a: a, 1)
    ),
    **dict.fromkeys(_overloads("any"), _computed(lambda a: float(a > 0), 1)),
    **dict.fromkeys(_overloads("all"), _computed(lambda a: float(a >= 1), 1)),
    **dict.fromkeys(_overloads("sum"), _summed),
    **dict.fromkeys(_overloads("count_nonzero"), _nonzeros),
    **dict.fromkeys(_overloads("clamp"), _clamped),
    **dict.fromkeys(_overloads("_amp_update_scale_"), lambda *_: None),  # the scale stays: all gradients are finite
    **dict.fromkeys(_overloads("histc"), _counted),
    **dict.fromkeys([torch.ops.c10d._allgather_base_.default, torch.ops.c10d.allgather_.default], _gathered),
    torch.ops.c10d.alltoall_base_.default: _exchanged,
    **dict.fromkeys([_aten.cat.default, _aten.stack.default], _joined),
}
_COMPUTED = (
    *_overloads("logical_not", "bitwise_not", "logical_and", "bitwise_and", "logical_or", "bitwise_or", "where"),
    *_overloads("mul", "add", "sub", "div", "floor_divide", "remainder", "abs", "neg", "maximum", "minimum", "clamp"),
    *_overloads("mean", "any", "all", "sum", "prod", "cumsum", "flip", "roll", "constant_pad_nd"),
    *(_aten.max.default, _aten.min.default, _aten.amax.default, _aten.amin.default),
    *(_aten.argmax.default, _aten.argmin.default),
    *(_aten.index.Tensor, _aten.index_select.default, _aten.gather.default),
)
_RULES |= {op: _or_computed(_RULES.get(op)) for op in _COMPUTED}
_RULES |= {
    getattr(getattr(_aten, f"{name}_"), op._overloadname): _in_place(op, _RULES[op])
    for name in (
        *("add", "sub", "mul", "div", "neg", "logical_not", "logical_and", "logical_or"),
        *("bitwise_not", "bitwise_and", "bitwise_or", "masked_fill", "pow", "sqrt"),
    )
    for op in _overloads(name)
    if op in _RULES and op._overloadname in getattr(_aten, f"{name}_").overloads()
}
