"""Tensors that have memory although a mode of fake tensors is active: integers that C++ reads or writes in memory.

`DistributedDataParallel` hands its parameters to a reducer in C++, which does to tensors what ops do, so that fake
tensors serve; but for three small tensors of integers, whose elements it writes and reads in memory:

* the shapes of all parameters, which rank 0 broadcasts when the module is made;
* the order of the parameters in buckets, which rank 0 broadcasts before the second step;
* which parameters were used, all-reduced in each step with ``find_unused_parameters`` or ``static_graph``.

So the factories that make them give real tensors, and ops on these run as they are. Packed sequences need the same:
recurrent layers read in memory how many sequences have each step, and ``pad_packed_sequence`` writes lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch

from dsexplore._internal.torch_internals import ddp
from dsexplore._internal.torch_internals.fake_tensors import active_fake_mode
from dsexplore._internal.torch_internals.modules import PAD_PACKED_SEQUENCE
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch

_FACTORIES = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default})
_INTEGERS = frozenset({torch.int32, torch.int64})


class RealIntegers:
    """The tensors of one fake mode that have memory."""

    def __init__(self) -> None:
        self._storages: WeakSet[torch.UntypedStorage] = WeakSet()
        self._makes = False

    @contextmanager
    def made(self) -> Iterator[None]:
        """Give memory to the integers that ``empty`` and ``zeros`` make in the block."""
        before, self._makes = self._makes, True
        try:
            yield
        finally:
            self._makes = before

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an op without fake tensors among its arguments, if it makes such integers or takes them.

        Returns:
            What the op returns; ``NotImplemented`` where it is for the mode of fake tensors.
        """
        if self._makes and func in _FACTORIES and kwargs.get("dtype") in _INTEGERS:
            return self.keep(func(*args, **kwargs))
        if not self._storages or not args:
            return NotImplemented
        first = args[0]
        while type(first) is list and first:  # collectives take lists, and lists of lists
            first = first[0]
        if not isinstance(first, torch.Tensor) or first.untyped_storage() not in self._storages:
            return NotImplemented
        return self.keep(func(*args, **kwargs))

    def keep(self, result: Any) -> Any:
        """Count a result, if it is a tensor, among these integers, and return it."""
        if isinstance(result, torch.Tensor):
            self._storages.add(result.untyped_storage())
        return result


def _give_memory(function: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        integers = getattr(active_fake_mode(), "integers", None)
        if integers is None:
            return function(*args, **kwargs)
        with integers.made():
            return function(*args, **kwargs)

    return called


PATCHES: tuple[Entry, ...] = tuple(
    Patch(target, f"{what} reads and writes integers in memory", _give_memory, when="fake")
    for target, what in (
        (PAD_PACKED_SEQUENCE, "it"),
        (ddp.INIT, "DDP's reducer"),
        (ddp.REBUILD_BUCKETS, "DDP's reducer"),
        (ddp.SET_STATIC_GRAPH, "DDP's reducer"),
    )
)
