"""Counts the bytes that a program's tensors hold over time, by use: parameters, gradients, activations and others.

Each storage is counted once, from the op that created it until nothing refers to it. Fake tensors have the sizes of
real ones, so a step that fits no machine can be measured.

Storages are referenced by Python's `weakref`. A ``StorageWeakRef`` of torch 2.9 would prevent its callbacks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dsexplore._internal.capture.kernels.fused_tensors import USES, FusedTensors, Held, Use
from dsexplore._internal.capture.kernels.op_costs import dense_tensors
from dsexplore._internal.torch_internals.tensors import storage_number
from dsexplore._internal.trace.schema import Phase

_BEFORE = -1
"""Segment of storages that existed before the recording."""


class _Move(NamedTuple):
    """Bytes of a storage that turned out to have another use after segments had ended."""

    since: int
    """The segment in which the bytes were added."""
    until: int
    """The segment in which the use was assigned; its own peak is corrected at once."""
    size: int
    number: int
    """Number of the storage."""
    before: Use
    use: Use


class LiveMemory:
    """Counts bytes by use, and their peak in each segment."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        """{number that torch gives a storage: the storage}."""
        self._now = dict.fromkeys(USES, 0)
        """Bytes by use now, without those from before the recording."""
        self._total = 0
        """Their sum."""
        self._peak = 0
        """The segment's largest sum so far."""
        self._at_peak = dict(self._now)
        """Bytes by use at that peak."""
        self._storages = self._at_peak_storages = 0
        """Number of storages so far, and at the segment's peak."""
        self._before = dict.fromkeys(USES, 0)
        """Bytes by use from before the recording."""
        self._segment = 0
        self._moves: list[_Move] = []
        self._rows: list[tuple[int, dict[Use, int]]] = []
        """(number of storages, bytes by use) at the peak of each segment that has ended."""
        self._fused = FusedTensors(self._add)

    def release(self) -> None:
        """Drop all references to storages."""
        self._held.clear()

    def made(self, tensors: Iterable[torch.Tensor], use: Use) -> None:
        """Count the tensors that an op returned, unless their storages are counted already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage_number(storage) not in self._held:
                self._hold(storage, use)
                self._add(use, storage.nbytes())

    def made_fused(self, tensors: Iterable[torch.Tensor], sources: Iterable[torch.Tensor], region: int) -> None:
        """Add the result of an op of a compiled module that is fused with its readers, so that no kernel writes it.

        Args:
            tensors: the results of the op.
            sources: the tensors among its arguments.
            region: identity of the compiled module.
        """
        held_sources = list({id(held): held for held in map(self._held_of, sources)}.values())
        for held in held_sources:
            if held.region != region:
                self._fused.count(held)
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage_number(storage) not in self._held:
                self._fused.add(self._hold(storage, "activations"), region)
            self._fused.add_sources(self._held[storage_number(storage)], held_sources)

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that a kernel reads: another kernel must have written them."""
        if self._fused:
            for tensor in tensors:
                self._fused.count(self._held_of(tensor))

    def met(self, tensors: Iterable[torch.Tensor], use: Use) -> None:
        """Count tensors as made before the recording, unless their storages are counted already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage_number(storage) not in self._held:
                self._hold(storage, use).changes = [(_BEFORE, storage.nbytes())]
                self._before[use] += storage.nbytes()

    def assign(self, tensors: Iterable[torch.Tensor], use: Use) -> None:
        """Change the use of storages, from their creation on; parameters that a collective reads stay parameters."""
        for tensor in tensors:
            held = self._held.get(storage_number(tensor.untyped_storage()))
            if held is not None and held.use != use and (held.use, use) != ("parameters", "buffers"):
                self._fused.count(held)
                for since, change in held.changes:
                    if since == _BEFORE:
                        _move(self._before, held.use, use, change)
                    else:
                        self._moves.append(
                            _Move(since, self._segment, size=change, number=held.number, before=held.use, use=use)
                        )
                        _move(self._now, held.use, use, change)
                        if held.number <= self._at_peak_storages:
                            self._move_within(self._at_peak, held.use, use, change)
                held.use = use

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Update the bytes of a storage that was resized."""
        held = self._held.get(storage_number(storage))
        if held is None:
            held = self._hold(storage, "buffers")
            held.resize(self._segment, -held.size)
        change = storage.nbytes() - held.size
        held.resize(self._segment, change)
        if held.is_counted:
            self._add(held.use, change)

    def holds_all(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return True if the storages of all these tensors are counted."""
        return all(storage_number(tensor.untyped_storage()) in self._held for tensor in tensors)

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, which must be counted."""
        return self._held_of(tensor).number

    def holds(self, tensors: Iterable[torch.Tensor]) -> list[Held]:
        """Count tensors as activations, unless their storages are counted already, and return their storages."""
        listed = list(tensors)
        self.made(listed, "activations")
        return [self._held_of(tensor) for tensor in listed]

    def end_segment(self) -> None:
        """End a segment, and keep the bytes at its peak for `rows`."""
        self._rows.append((self._at_peak_storages, self._at_peak))
        self._segment += 1
        self._new_peak()

    def rows(self) -> list[dict[Use, int]]:
        """Return the bytes by use at the peak of each segment."""
        rows = [dict(levels) for _, levels in self._rows]
        for move in self._moves:
            for segment in range(move.since, move.until):
                storages, _ = self._rows[segment]
                if move.number <= storages:
                    self._move_within(rows[segment], move.before, move.use, move.size)
        for row in rows:
            for use in USES:
                row[use] += self._before[use]
        return rows

    def _held_of(self, tensor: torch.Tensor) -> Held:
        return self._held[storage_number(tensor.untyped_storage())]

    def _hold(self, storage: torch.UntypedStorage, use: Use) -> Held:
        """Add a storage, without counting its bytes."""
        key = storage_number(storage)
        reference = weakref.ref(storage, lambda _gone: self._free(key))
        self._storages += 1
        held = self._held[key] = Held(
            storage.nbytes(),
            use,
            changes=[(self._segment, storage.nbytes())],
            reference=reference,
            number=self._storages,
        )
        return held

    def _move_within(self, levels: dict[Use, int], before: Use, use: Use, size: int) -> None:
        """Move bytes from one use to another, unless the peak has fewer bytes: then it did not include these."""
        source = before if size > 0 else use
        if levels[source] + self._before[source] >= abs(size):
            _move(levels, before, use, size)

    def _free(self, key: int) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._fused.free(held)

    def _add(self, use: Use, size: int) -> None:
        """Add bytes to a use, and note a new peak."""
        self._now[use] += size
        self._total += size
        if self._total > self._peak:
            self._new_peak()

    def _new_peak(self) -> None:
        self._peak, self._at_peak, self._at_peak_storages = self._total, dict(self._now), self._storages


def _move(levels: dict[Use, int], before: Use, use: Use, size: int) -> None:
    levels[before] -= size
    levels[use] += size


def is_weight(tensor: torch.Tensor) -> bool:
    """Return True for a parameter, frozen or not, and for a leaf that requires a gradient."""
    return isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def use_before_recording(tensor: torch.Tensor, phase: Phase) -> Use:
    """Return the use of a tensor made before the recording, judged by the phase of the first op that uses it."""
    if phase == "optimizer":
        return "optimizer"
    if is_weight(tensor):
        return "parameters"
    return "gradients" if phase == "backward" else "inputs"  # in backward, these are DDP's buckets


def dense_tensors_of(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the dense tensors that hold the data of tensors, such as a DTensor's local one; omit other values."""
    held: list[torch.Tensor] = []
    for value in values:
        if hasattr(type(value), "__tensor_flatten__"):
            held += dense_tensors_of(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, torch.Tensor) and not is_lazy(value):
            held += dense_tensors([value])
    return held
