"""Known and guessed values of fake tensors: what follows from the ops that made a tensor.

* Tensors whose values were given (``torch.tensor``, ``arange``, ``linspace``, ``randperm``) keep them, through views
  and, where they are few, arithmetic: ``(arange(8).view(2, 4) == rank).nonzero()`` says where a rank stands;
* of others a `Guess` says what a typical element is: 1.0 where nothing is known, the fill value of ``zeros`` or
  ``full``; every value is finite; the choices of ``topk``, ``argmax`` or ``randint`` are spread evenly, so that
  comparing them with one of E experts holds for 1 element of E.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_KNOWN = "_dsexplore_known"
_GUESS = "_dsexplore_guess"
_UNWRITTEN = "_dsexplore_unwritten"
LARGEST_KNOWN = 1 << 24
"""Elements of a tensor whose values are kept: the order of a large data set."""
LARGEST_COMPUTED = 1 << 16
"""Elements of a tensor whose values are computed: a grid of ranks, or the lengths of a batch."""


@dataclass(frozen=True)
class Guess:
    """The values that an element of a fake tensor may have.

    Attributes:
        mean: the mean over all elements; of booleans, the share that is true.
        choices: how many values are equally likely, 0 to ``choices`` - 1; 0 where that is not so.
    """

    mean: float
    choices: int = 0


def known_of(tensor: Any) -> torch.Tensor | None:
    """The values of a fake tensor, where they were given; of a small real one, made in another thread, its own."""
    found: torch.Tensor | None = getattr(tensor, _KNOWN, None)
    if found is None and type(tensor) is torch.Tensor and not tensor.is_meta and tensor.numel() <= LARGEST_COMPUTED:
        return tensor
    return found


def set_known(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Say what the values of a fake tensor are."""
    setattr(tensor, _KNOWN, values)


def guess_of(tensor: Any) -> Guess:
    """The values that an element of a tensor, or a number, may have."""
    if not isinstance(tensor, torch.Tensor):
        return Guess(float(tensor) if isinstance(tensor, (int, float)) else 1.0)
    found: Guess | None = getattr(tensor, _GUESS, None)
    if found is not None:
        return found
    known = known_of(tensor)
    if known is not None and known.numel() and not known.is_complex():
        with unset_fake_temporarily():
            return Guess(float(known.double().mean()))
    return Guess(1.0)


def has_guess(tensor: torch.Tensor) -> bool:
    """Whether a rule said what a typical element of the tensor is."""
    return hasattr(tensor, _GUESS)


def set_guess(tensor: Any, mean: float, choices: int = 0) -> None:
    """Say what a typical element of a fake tensor is."""
    if isinstance(tensor, FakeTensor):
        setattr(tensor, _GUESS, Guess(mean, choices))


def set_unwritten(tensor: Any) -> None:
    """Say that no op has written to a fake tensor yet, as to what ``torch.empty`` returns."""
    if isinstance(tensor, FakeTensor):
        setattr(tensor, _UNWRITTEN, True)


def set_written(tensors: Iterable[Any]) -> None:
    """Say that an op has written to tensors, or may have; what else is known of them stays."""
    for tensor in tensors:
        if hasattr(tensor, _UNWRITTEN):
            delattr(tensor, _UNWRITTEN)


def is_unwritten(tensor: Any) -> bool:
    """Whether no op has written to a fake tensor, as far as there are rules."""
    return hasattr(tensor, _UNWRITTEN)


def is_noted(tensor: Any) -> bool:
    """Whether values were given, or a rule said what a typical element is."""
    return hasattr(tensor, _GUESS) or hasattr(tensor, _KNOWN)


def forget(tensor: Any) -> None:
    """Drop what was known of a tensor: its values are others now."""
    for name in (_KNOWN, _GUESS, _UNWRITTEN):
        if hasattr(tensor, name):
            delattr(tensor, name)


def noted(tensor: Any) -> tuple[torch.Tensor | None, Guess | None]:
    """What was given and what was said of a tensor."""
    return getattr(tensor, _KNOWN, None), getattr(tensor, _GUESS, None)


def set_noted(tensor: Any, known: torch.Tensor | None, guess: Guess | None) -> None:
    """Say both anew."""
    forget(tensor)
    if known is not None:
        setattr(tensor, _KNOWN, known)
    if guess is not None:
        setattr(tensor, _GUESS, guess)


def whole_number(mean: float, place: int) -> int:
    """The element at a place of a row of whole numbers that has this mean; the sum of any first ones is right."""
    return math.floor(mean * (place + 1) + 1e-9) - math.floor(mean * place + 1e-9)


def whole_numbers(tensor: torch.Tensor, count: int) -> list[int]:
    """The first whole numbers of a row, as many as ``count``, as elements of a tensor that nothing else is known of."""
    mean = guess_of(tensor).mean
    return [whole_number(mean, place) for place in range(count)]
