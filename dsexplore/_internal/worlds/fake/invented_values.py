"""Values for fake tensors, which have none: what a program reads when it asks for one.

A training script reads values all the time: it logs ``loss.item()``, skips a step whose gradients are not finite, sends
as many tokens to an expert as the router chose. Fake tensors know shapes only, so torch ends such a script. Here a read
returns an invented value, and each read is reported with its line.

What is invented follows from what made the tensor, where `value_rules` knows; ``nonzero``, masks,
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

READ = "values of fake tensors were read, which have none: what they returned is invented"
FILLED = "tensors that were not filled yet were made arrays, whose values are zero where the program writes none"
SIZED = "sizes that depend on the values of fake tensors were guessed, evenly spread"


class Inventor:
    """Invents what is read from fake tensors.

    Args:
        remarks: where reads are reported.
        values: what reads on certain lines return, ``{"train.py:31": 0.5}``; a size that depends on values, too.
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
        is_other = self._is_other_answer(line, given is not None, not is_bool)
        if is_bool:
            return (mean >= 0.5) is not is_other
        if tensor.is_complex():
            return complex(mean)
        return float(mean) if tensor.is_floating_point() else round(mean)

    def _mean(self, tensor: torch.Tensor) -> float:
        """Return the value of a typical element; integers of one storage are chosen so that their sum is right."""
        mean = typical(tensor).mean
        is_part = not tensor.dim() and tensor.untyped_storage().nbytes() > tensor.element_size()
        if is_part and math.isfinite(mean) and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return whole_number(mean, int(tensor.storage_offset()))
        return mean

    def values(self, tensor: torch.Tensor) -> Any:
        """Return the (nested) list that ``tensor.tolist()`` returns; this counts as one read."""
        exact = values_of(tensor)
        if exact is not None:
            with on_real_tensors():
                return exact.tolist()
        value = self.value(tensor)
        if not tensor.dim():
            return value
        *rows, length = tensor.shape
        is_given = self._given(self._remarks.line()) is not None
        made: list[Any] = [value] * length
        if type(value) is int and not is_given:
            mean = typical(tensor).mean
            made = [whole_number(mean, place) for place in range(length)]
        for count in reversed(rows):
            made = [copy.deepcopy(made) for _ in range(count)]
        return made

    def size(self, expected: float) -> int:
        """Return a size that depends on values, given the expected number of elements."""
        self._remarks.say(SIZED)
        line = self._remarks.line()
        given = self._given(line)
        size = round(expected if given is None else given)
        return int(size == 0) if self._is_other_answer(line, given is not None, False) else size

    def array(self, tensor: torch.Tensor) -> Any:
        """Return the array that ``tensor.numpy()`` returns: one value, broadcast to all places and read-only.

        The array of an unwritten tensor is zeros that the program may fill, as ``file.readinto`` does; its content is
        the known value of the tensor from then on.
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
        """Return True if another answer should end the loop that reads on this line; False if the user gave one."""
        self._reads.count(line)
        self.reads += 1
        is_other = not is_given and self._reads.is_other_answer(line, user_frames(sys._getframe(1)), is_number)
        if is_other:
            self._remarks.say(ENDED)
        return is_other
