"""Results of ops on fake tensors that depend on values; unknown values are assumed to be evenly spread.

These are sizes of ``nonzero``, ``masked_select`` and similar ops, and values that C++ reads. The program's trace says
that sizes were guessed. Values that the program gave itself are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsexplore._internal.torch_internals.aten import ctc_loss, read_element, unique
from dsexplore._internal.worlds.fake.invented_values import Inventor
from dsexplore._internal.worlds.fake.known_values import (
    Element,
    element_of,
    on_real_tensors,
    set_element,
    set_values,
    typical,
    values_of,
)
from dsexplore._internal.worlds.fake.real_integers import RealIntegers
from dsexplore._internal.worlds.fake.value_rules import run_on_values

_aten = torch.ops.aten

Read = Callable[[Inventor, Sequence[Any], Mapping[str, Any]], Any]
"""Returns the result of an op, from its arguments."""


def _run_or(op: Any, read: Read) -> Read:
    """Return a function that runs the op on known values, and calls `read` otherwise."""

    def run_or_read(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = run_on_values(op, args, kwargs)
        return read(inventor, args, kwargs) if result is NotImplemented else _make_fake(args[0], result)

    return run_or_read


def _make_fake(source: torch.Tensor, result: Any) -> Any:
    """Return fake tensors in place of real ones, with their values, in the mode of ``source``; other results as is."""
    if isinstance(result, tuple):
        return tuple(_make_fake(source, part) for part in result)
    if not isinstance(result, torch.Tensor):
        return result
    fake = source.new_empty(result.shape, dtype=result.dtype)
    set_values(fake, result)
    return fake


def _are_equal(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> bool:
    return bool(inventor.value(args[0].new_ones((), dtype=torch.bool)))


def _nonzero(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    has_value = tensor.dtype == torch.bool or element_of(tensor) is not None
    share = min(max(typical(tensor).mean, 0.0), 1.0) if has_value else 0.5
    return tensor.new_empty((inventor.size(share * tensor.numel()), tensor.dim()), dtype=torch.int64)


def _masked_select(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    tensor, mask = args
    total = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
    return tensor.new_empty((inventor.size(typical(mask).mean * total),))


def _unique(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    count = inventor.size(min(typical(tensor).choices or tensor.numel(), tensor.numel()))
    inverse = tensor.new_empty(tensor.shape, dtype=torch.int64)
    counts = tensor.new_empty((count,), dtype=torch.int64)
    set_element(counts, Element(tensor.numel() / max(count, 1)))
    return tensor.new_empty((count,)), inverse, counts


def _repeat_interleave(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    repeats = args[0]
    size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    if size is None:
        size = inventor.size(typical(repeats).mean * repeats.numel())
    return repeats.new_empty((size,), dtype=torch.int64)


def _bincount(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
    minlength = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    size = minlength or inventor.size(typical(tensor).choices or 1)
    counts = tensor.new_empty((size,), dtype=torch.int64 if weights is None else torch.float64)
    set_element(counts, Element(tensor.numel() / max(size, 1)))
    return counts


def _ctc_loss(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """Return the losses, and the table for backward: T × (2 × longest target + 1) for each sequence."""
    log_probs, targets, input_lengths, target_lengths = args[:4]
    is_batched = log_probs.dim() == 3
    batch = log_probs.size(1) if is_batched else 1
    steps = _largest(input_lengths)
    if steps is None:
        steps = log_probs.size(0)
    longest = _largest(target_lengths)
    if longest is None:
        longest = targets.size(-1) if targets.dim() == 2 else inventor.size(targets.numel() / batch)
    losses = log_probs.new_empty((batch,) if is_batched else ())
    return losses, log_probs.new_empty((batch, steps, 2 * longest + 1))


def _largest(lengths: Any) -> int | None:
    """Return the largest length; None if their values are unknown."""
    if isinstance(lengths, torch.Tensor):
        values = values_of(lengths)
        if values is None:
            return None
        with on_real_tensors():
            lengths = values.reshape(-1).tolist()
    return max(lengths, default=0)


def packed(
    inventor: Inventor, integers: RealIntegers, sequences: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of ``pack_padded_sequence``: the steps of all sequences, and how many sequences have each step.

    The latter is a tensor with memory, which torch's recurrent layers read. Unknown lengths are evenly spread; the
    first sequence has all steps.

    Args:
        inventor: invents the total number of steps if the lengths are unknown.
        integers: tensors with memory, to which the second result is added.
        sequences: padded sequences, (steps, batch, …).
        lengths: number of steps of each sequence.
        batch_first: whether sequences are (batch, steps, …).
    """
    batch, steps = sequences.shape[:2] if batch_first else (sequences.size(1), sequences.size(0))
    exact_lengths = values_of(lengths)
    if exact_lengths is None:
        total = min(max(inventor.size(batch * (steps + 1) / 2), steps + batch - 1), batch * steps)
        shortest, remainder = divmod(total - steps, max(batch - 1, 1))
        values = [steps, *(shortest + (index < remainder) for index in range(batch - 1))]
    else:
        with on_real_tensors():
            values = exact_lengths.tolist()
    with on_real_tensors():
        batch_sizes = torch.tensor([sum(length > step for length in values) for step in range(max(values))])
    return sequences.new_empty((sum(values), *sequences.shape[2:])), integers.keep(batch_sizes)


READS: dict[Any, Read] = {
    op: _run_or(op, read)
    for op, read in (
        (read_element.default, lambda inventor, args, _kwargs: inventor.value(args[0])),
        (_aten.equal.default, _are_equal),
        (_aten.allclose.default, _are_equal),
        (_aten.nonzero.default, _nonzero),
        (_aten.masked_select.default, _masked_select),
        (unique.default, _unique),
        (_aten.repeat_interleave.Tensor, _repeat_interleave),
        (_aten.bincount.default, _bincount),
        (ctc_loss.default, _ctc_loss),
        (ctc_loss.Tensor, _ctc_loss),
    )
}
"""For each op whose result depends on values, the function that returns its result."""
