"""`Inventor`: the values that a program reads from fake tensors, which have no values.

Training scripts often read values: they log ``loss.item()``, skip a step whose gradients are not finite, or send as
many tokens to an expert as the router chose. Fake tensors have only shapes, so torch raises an error. Here a read
returns an invented value, and a remark names its line.

The value follows from the ops that produced the tensor, as far as `value_rules` covers them; ``nonzero``, masks,
``bincount`` and ``histc`` give balanced sizes.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from dsexplore._internal.worlds.fake.endless_loops import ENDED, Reads
from dsexplore._internal.worlds.fake.known_values import (
    is_unwritten,
    on_real_tensors,
    set_values,
    typical,
    values_of,
    whole_number,
)
from dsexplore._internal.worlds.remarks import Remarks, user_frames

READ = "values of fake tensors were read, which have no values: the returned ones are invented"
FILLED = "empty tensors were converted to arrays, whose values are zero unless the program writes others"
SIZED = "sizes that depend on the values of fake tensors were guessed, evenly spread"


class Inventor:
    """Invents the values that a program reads from fake tensors.

    Args:
        remarks: remarks of the world, to which reads are added; None for remarks that nobody shows.
        values: values, and sizes that depend on values, that reads on given lines return: ``{"train.py:31": 0.5}``.
            None for no given values.
    """

    def __init__(self, remarks: Remarks | None = None, values: Mapping[str, float] | None = None) -> None:
        self._remarks = remarks if remarks is not None else Remarks()
        self._values = dict(values or {})
        self._reads = Reads()
        self.reads = 0
        """Number of values and sizes that were invented."""

    def value(self, tensor: torch.Tensor) -> Any:
        """Return the result of ``tensor.item()``."""
        exact = values_of(tensor)
        if exact is not None and exact.numel() == 1:
            with on_real_tensors():
                return exact.item()
        self._remarks.say(READ)
        line = self._remarks.line()
        given = self._given(line)
        mean = self._mean(tensor) if given is None else given
        is_bool = tensor.dtype == torch.bool
        is_other = self._is_other_answer(line, is_given=given is not None, is_number=not is_bool)
        if is_bool:
            return (mean >= 0.5) is not is_other
        if tensor.is_complex():
            return complex(mean)
        return float(mean) if tensor.is_floating_point() else round(mean)

    def _mean(self, tensor: torch.Tensor) -> float:
        """Return the value of a typical element; integers of one storage are chosen so that their sum is correct."""
        mean = typical(tensor).mean
        is_part = not tensor.dim() and tensor.untyped_storage().nbytes() > tensor.element_size()
        if is_part and math.isfinite(mean) and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return whole_number(mean, int(tensor.storage_offset()))
        return mean

    def values(self, tensor: torch.Tensor) -> Any:
        """Return the result of ``tensor.tolist()``; this counts as one read."""
        exact = values_of(tensor)
        if exact is not None:
            with on_real_tensors():
                return exact.tolist()
        value = self.value(tensor)
        if not tensor.dim():
            return value
        *rows, length = tensor.shape
        is_given = self._given(self._remarks.line()) is not None
        numbers: list[Any] = [value] * length
        if type(value) is int and not is_given:
            mean = typical(tensor).mean
            numbers = [whole_number(mean, place) for place in range(length)]
        for count in reversed(rows):
            numbers = [copy.deepcopy(numbers) for _ in range(count)]
        return numbers

    def size(self, expected: float) -> int:
        """Return a size that depends on values, given the expected number of elements."""
        self._remarks.say(SIZED)
        line = self._remarks.line()
        given = self._given(line)
        size = round(expected if given is None else given)
        is_other = self._is_other_answer(line, is_given=given is not None, is_number=False)
        return int(size == 0) if is_other else size

    def array(self, tensor: torch.Tensor) -> Any:
        """Return the result of ``tensor.numpy()``: one value for all elements, read-only.

        For an unwritten tensor it is an array of zeros that the program can fill, for example by ``file.readinto``; its
        elements are the known values of the tensor from then on.
        """
        if is_unwritten(tensor):
            self._remarks.say(FILLED)
            with on_real_tensors():
                set_values(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype))
        exact = values_of(tensor)
        if exact is not None:
            with on_real_tensors():
                return exact.numpy()
        value = self.value(tensor)
        with on_real_tensors():
            return torch.tensor(value, dtype=tensor.dtype).expand(tensor.shape).numpy()

    def _given(self, line: str) -> float | None:
        return next((value for ending, value in self._values.items() if line.endswith(ending)), None)

    def _is_other_answer(self, line: str, is_given: bool, is_number: bool) -> bool:
        """Count a read on a line, and return True if it gets the other answer, to end a loop.

        Args:
            line: line of the program that reads.
            is_given: whether the user gave a value for the line, which is always the answer.
            is_number: whether a number is read.
        """
        self._reads.count(line)
        self.reads += 1
        is_other = not is_given and self._reads.is_other_answer(line, user_frames(sys._getframe(1)), is_number)
        if is_other:
            self._remarks.say(ENDED)
        return is_other
