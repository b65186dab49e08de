"""Ops on fake tensors whose results depend on values: what is read, and sizes, balanced where nobody knows them.

Elements that are chosen, masks and counts are evenly spread, and a program's trace says that sizes were guessed.
Lengths that the program gave itself are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dsexplore.worlds.fake.invented_values import Inventor
from dsexplore.worlds.fake.known_values import guess_of, has_guess, known_of, set_guess, set_known
from dsexplore.worlds.fake.real_integers import RealIntegers

_aten = torch.ops.aten

Read = Callable[[Inventor, Sequence[Any], Mapping[str, Any]], Any]


def _are_equal(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> bool:
    return bool(inventor.value(args[0].new_ones((), dtype=torch.bool)))


def _nonzero(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    known = known_of(tensor)
    if known is not None:
        with unset_fake_temporarily():
            places = known.nonzero()
        result = tensor.new_empty(places.shape, dtype=torch.int64)
        set_known(result, places)
        return result
    share = guess_of(tensor).mean if tensor.dtype == torch.bool or has_guess(tensor) else 0.5
    count = inventor.size(min(max(share, 0.0), 1.0) * tensor.numel())
    return tensor.new_empty((count, tensor.dim()), dtype=torch.int64)


def _masked_select(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    tensor, mask = args
    total = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
    return tensor.new_empty((inventor.size(guess_of(mask).mean * total),))


def _unique(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    count = inventor.size(min(guess_of(tensor).choices or tensor.numel(), tensor.numel()))
    places = tensor.new_empty(tensor.shape, dtype=torch.int64)
    counts = tensor.new_empty((count,), dtype=torch.int64)
    set_guess(counts, tensor.numel() / max(count, 1))
    return tensor.new_empty((count,)), places, counts


def _repeated(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    repeats = args[0]
    size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    if size is None:
        size = inventor.size(guess_of(repeats).mean * repeats.numel())
    return repeats.new_empty((size,), dtype=torch.int64)


def _bincount(inventor: Inventor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor = args[0]
    weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
    least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    size = least or inventor.size(guess_of(tensor).choices or 1)
    counts = tensor.new_empty((size,), dtype=torch.int64 if weights is None else torch.float64)
    set_guess(counts, tensor.numel() / max(size, 1))
    return counts


def _ctc_loss(inventor: Inventor, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """The losses, and the table of T × (2 × the longest target + 1) for each sequence that backward uses."""
    log_probs, targets, input_lengths, target_lengths = args[:4]
    batch = log_probs.size(1) if log_probs.dim() == 3 else 1
    longest = _largest(target_lengths)
    if longest is None:
        padded = targets.size(-1) if targets.dim() == 2 else None
        longest = padded if padded is not None else inventor.size(targets.numel() / batch)
    time = _largest(input_lengths)
    table = (batch, log_probs.size(0) if time is None else time, 2 * longest + 1)
    return log_probs.new_empty((batch,) if log_probs.dim() == 3 else ()), log_probs.new_empty(table)


def _largest(lengths: Any) -> int | None:
    """The largest of some lengths; None where their values are not known."""
    if not isinstance(lengths, torch.Tensor):
        return max(lengths, default=0)
    known = known_of(lengths)
    if known is None:
        return None
    with unset_fake_temporarily():
        return max(known.reshape(-1).tolist(), default=0)


def packed(
    inventor: Inventor, integers: RealIntegers, sequences: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``pack_padded_sequence``: the steps of all sequences, and how many sequences have each step.

    How many these are is kept in memory, where torch's recurrent layers read it. Lengths that are not known are evenly
    spread, and the first sequence has all steps.
    """
    batch, steps = sequences.shape[:2] if batch_first else (sequences.size(1), sequences.size(0))
    known = known_of(lengths)
    if known is None:
        total = min(max(inventor.size(batch * (steps + 1) / 2), steps + batch - 1), batch * steps)
        each, more = divmod(total - steps, max(batch - 1, 1))
        values = [steps, *(each + 1 if index < more else each for index in range(batch - 1))]
    else:
        with unset_fake_temporarily():
            values = known.tolist()
    with unset_fake_temporarily():
        sizes = torch.tensor([sum(length > step for length in values) for step in range(max(values))])
    rest = sequences.shape[2:]
    return sequences.new_empty((sum(values), *rest)), integers.keep(sizes)


READS: dict[Any, Read] = {
    _aten._local_scalar_dense.default: lambda inventor, args, _kwargs: inventor.value(args[0]),
    _aten.equal.default: _are_equal,
    _aten.allclose.default: _are_equal,
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten._unique2.default: _unique,
    _aten.repeat_interleave.Tensor: _repeated,
    _aten.bincount.default: _bincount,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
}
"""Ops whose results depend on values, and what they return."""
