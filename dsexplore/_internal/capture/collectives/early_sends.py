"""`EarlySends`: what a program sends itself before any module runs; its model's parameters among that are start-up."""

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
"""Collectives that are looked at: a program that has sent more without a module has none."""


class EarlySends:
    """Collectives issued by the program itself, with the storages that they send; no tensor is kept alive."""

    def __init__(self) -> None:
        self._sent: list[tuple[Issued, set[ReferenceType[torch.UntypedStorage]]]] = []

    def add(self, issued: Issued, args: Sequence[Any]) -> None:
        """Note a collective.

        Args:
            issued: the collective.
            args: of its op.
        """
        if len(self._sent) < _MOST:
            self._sent.append((issued, _storages(tensors_in(args))))

    def find_parameters(self, entry: ModuleEntry) -> None:
        """Mark what was sent of a module's parameters and buffers as start-up."""
        model = entry.reference()
        if model is None or not self._sent:
            return
        # A model may hold something else under these names, as Megatron's DistributedDataParallel does.
        storages = _storages(chain(torch.nn.Module.parameters(model), torch.nn.Module.buffers(model)))
        for issued, sent in self._sent:
            if not storages.isdisjoint(sent):
                issued.origin = issued.origin._replace(phase="start-up")


def _storages(tensors: Iterable[torch.Tensor]) -> set[ReferenceType[torch.UntypedStorage]]:
    """Return the memory of tensors; of a DTensor, its local tensor's."""
    storages = set()
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        with suppress(NotImplementedError, RuntimeError):  # a tensor without memory of its own
            storages.add(ref(local.untyped_storage()))
    return storages
