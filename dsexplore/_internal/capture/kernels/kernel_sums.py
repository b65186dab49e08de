"""Rows of equal ops and their sums, the segments that they are in, and the kernels that a compiler would fuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from dsexplore._internal.capture.kernels import op_costs
from dsexplore._internal.capture.kernels.op_costs import OpCost
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.trace.schema import Phase


class KernelSums:
    """The number, FLOPs and bytes of equal ops.

    Args:
        module: the module that ran them; None if none did.
        waits_for: index of the collective that the compute stream waits for; None if the ops are no wait.
    """

    __slots__ = ("count", "flops", "fused_bytes", "fused_count", "module", "read", "waits_for", "written")

    def __init__(self, module: ModuleEntry | None, waits_for: int | None = None) -> None:
        self.module = module
        self.waits_for = waits_for
        self.count = self.flops = self.read = self.written = self.fused_bytes = self.fused_count = 0


class Segment(NamedTuple):
    """The work between two collectives, waits, changes of the phase or ends of steps."""

    step: int
    collectives: int
    """Number of collectives issued before it."""
    phase: Phase
    """Phase of its last op."""
    module: ModuleEntry | None
    """Module of its last op."""


class KernelRow(NamedTuple):
    """Equal ops of one segment."""

    segment: int
    phase: Phase
    cost: OpCost
    """The ops' kind, name, dtype and shape; its FLOPs and bytes are 0."""
    sums: KernelSums
    """Their module, number, FLOPs and bytes."""


class FusedKernel:
    """The kernel that a compiler would make of the ops between two matrix products.

    It reads each tensor from outside once, and writes the tensors that the next product reads.

    Args:
        number: returns the number of a tensor's storage.
    """

    def __init__(self, number: Callable[[torch.Tensor], int]) -> None:
        self._number = number
        self._outside: dict[int, int] = {}
        """{number of a storage that the kernel reads: bytes}."""
        self._inside: dict[int, int] = {}
        """{number of a storage that its ops return: bytes}."""
        self._latest: dict[int, int] = {}
        """The same for its last op."""
        self._sums: KernelSums | None = None
        """The sums of its last op, which the kernel is added to."""

    def add(
        self, sums: KernelSums, cost: OpCost, tensors: Sequence[torch.Tensor], returned: Sequence[torch.Tensor]
    ) -> None:
        """Make an op part of the kernel.

        Args:
            sums: the sums that the op belongs to.
            cost: the op's cost; it reads no more bytes than this has.
            tensors: the tensors among its arguments.
            returned: the tensors in its result.
        """
        for tensor in tensors:
            key = self._number(tensor)
            if key not in self._inside:
                size = min(op_costs.moved_bytes(tensor), cost.read)
                self._outside[key] = max(self._outside.get(key, 0), size)
        self._latest = {self._number(tensor): op_costs.moved_bytes(tensor) for tensor in returned}
        self._inside.update(self._latest)
        self._sums = sums

    def end(self, needed: set[int]) -> None:
        """End the kernel.

        Args:
            needed: numbers of the storages that the next kernel reads.
        """
        if self._sums is not None:
            written = {key: size for key, size in self._inside.items() if key in needed} or self._latest
            self._sums.fused_bytes += sum(self._outside.values()) + sum(written.values())
            self._sums.fused_count += 1
            self._outside, self._inside, self._latest, self._sums = {}, {}, {}, None
