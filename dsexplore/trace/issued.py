"""One collective as it was issued: as cheap as it can be, texts are made when a table is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsexplore.trace.context import Cause
from dsexplore.trace.groups import Group
from dsexplore.trace.modules import Module
from dsexplore.trace.registry import Communication, Member
from dsexplore.trace.schema import Phase
from dsexplore.trace.sources import Source
from dsexplore.trace.timing import CudaSpan

Message = tuple[str, int, torch.dtype | None, Sequence[int]]
"""What one event counts: op, bytes, dtype and shape."""


@dataclass(slots=True, eq=False)
class Issued:
    """A collective: one event per message."""

    raw_op: str
    messages: list[Message]
    """Several where calls were coalesced."""
    group: Group | None
    rank: int
    phase: Phase
    trigger: Module | None
    owner: Module | None
    cause: Cause
    implicit: bool
    sources: list[Source]
    is_async: bool
    is_object: bool
    batch: int | None
    start: int | None = None
    end: int | None = None
    span: CudaSpan | None = None

    def read_clock(self) -> None:
        """Fill in start and end from the device, where they were measured there; waits for it."""
        if self.span is not None:
            self.start, self.end = self.span.read()
            self.span = None


def messages(members: Iterable[Member]) -> list[Message]:
    """What an op sends, without the tensors."""
    return [
        (op, int(size), tensor.dtype, tensor.shape) if tensor is not None else (op, int(size), None, ())
        for size, tensor, op in members
    ]


def is_async(entry: Communication, args: tuple[Any, ...]) -> bool:
    """Whether the op returns before it is done."""
    if entry.always_sync:
        return False
    if entry.async_op is None or entry.async_op >= len(args):
        return True
    return bool(args[entry.async_op])
