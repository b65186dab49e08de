"""`EarlySends` finds collectives before the first module call that send the model's parameters: they are start-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.distributed.tensor import DTensor

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.modules.module_entry import ModuleEntry

_MOST = 10_000
"""Number of collectives that are looked at; a program that issues more before a module runs has no model."""


class EarlySends:
    """Collectives that the program issued itself, with the storages that they sent. No tensor is kept alive."""

    def __init__(self) -> None:
        self._sent: list[tuple[Issued, set[ReferenceType[torch.UntypedStorage]]]] = []

    def add(self, issued: Issued, args: Sequence[Any]) -> None:
        """Note a collective and the storages of its op's arguments."""
        if len(self._sent) < _MOST:
            self._sent.append((issued, _storages(tensors_in(args))))

    def find_parameters(self, entry: ModuleEntry) -> None:
        """Mark collectives that sent parameters or buffers of a module as start-up."""
        model = entry.reference()
        if model is None or not self._sent:
            return
        # By nn.Module, as a model may override these methods (Megatron's DistributedDataParallel does).
        storages = _storages(chain(torch.nn.Module.parameters(model), torch.nn.Module.buffers(model)))
        for issued, sent in self._sent:
            if not storages.isdisjoint(sent):
                issued.origin = issued.origin._replace(phase="start-up")


def _storages(tensors: Iterable[torch.Tensor]) -> set[ReferenceType[torch.UntypedStorage]]:
    """Return weak references to the storages of tensors; for a DTensor, of its local tensor."""
    storages = set()
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        with suppress(NotImplementedError, RuntimeError):  # a tensor without storage
            storages.add(ref(local.untyped_storage()))
    return storages
