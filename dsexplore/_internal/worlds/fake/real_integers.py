"""`RealIntegers`: integer tensors with memory in a fake tensor mode, for code in C++ that reads or writes memory.

The reducer of `DistributedDataParallel` calls ops on the parameters, for which fake tensors suffice. But it reads and
writes the memory of three small integer tensors:

* the shapes of all parameters, which rank 0 broadcasts when the module is created;
* the order of the parameters in buckets, which rank 0 broadcasts before the second step;
* which parameters were used, all-reduced in each step with ``find_unused_parameters`` or ``static_graph``.

So the factories that create them return real tensors, and ops on these run. Packed sequences need the same: recurrent
layers read from memory how many sequences have each step, and ``pad_packed_sequence`` writes lengths.
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
        self._is_creating = False

    @contextmanager
    def created(self) -> Iterator[None]:
        """Give memory to the integer tensors that ``empty`` and ``zeros`` create in the block."""
        before, self._is_creating = self._is_creating, True
        try:
            yield
        finally:
            self._is_creating = before

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an op without fake tensors among its arguments if it creates such integers, or its first tensor is one.

        Returns:
            The op's result; ``NotImplemented`` for all other ops.
        """
        if self._is_creating and func in _FACTORIES and kwargs.get("dtype") in _INTEGERS:
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
        """Add a tensor, if the result is one, to the tensors with memory; return the result."""
        if isinstance(result, torch.Tensor):
            self._storages.add(result.untyped_storage())
        return result


def _give_memory(function: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap a function to give memory to the integer tensors that it creates."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        integers = getattr(active_fake_mode(), "integers", None)
        if integers is None:
            return function(*args, **kwargs)
        with integers.created():
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
