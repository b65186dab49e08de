"""Sums over equal ops, and over the ops that a compiler would fuse to one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsexplore._internal.capture.kernels import op_costs
from dsexplore._internal.capture.kernels.op_costs import OpCost
from dsexplore._internal.capture.modules.module_entry import ModuleEntry


class KernelSums:
    """The sums over equal ops."""

    __slots__ = ("count", "flops", "fused_bytes", "fused_count", "module", "read", "waits_for", "written")

    def __init__(self, module: ModuleEntry | None, waits_for: int | None = None) -> None:
        self.module = module
        self.waits_for = waits_for
        self.count = self.flops = self.read = self.written = self.fused_bytes = self.fused_count = 0


class FusedKernel:
    """The kernel that a compiler would make of the ops between two matrix products.

    It reads each tensor from outside once, and writes what the next product reads.

    Args:
        number: returns the number of a tensor's storage.
    """

    def __init__(self, number: Callable[[torch.Tensor], int]) -> None:
        self._number = number
        self._outside: dict[int, int] = {}
        self._inside: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        self._sums: KernelSums | None = None

    def add(self, sums: KernelSums, cost: OpCost, tensors: Any, returned: Sequence[torch.Tensor]) -> None:
        """Make an op part of the kernel."""
        budget = cost.read
        for tensor in tensors:
            key = self._number(tensor)
            if key not in self._inside:
                size = min(op_costs.moved_bytes(tensor), budget)
                self._outside[key] = max(self._outside.get(key, 0), size)
        self._latest = {self._number(tensor): op_costs.moved_bytes(tensor) for tensor in returned}
        self._inside.update(self._latest)
        self._sums = sums

    def end(self, needed: set[int]) -> None:
        """End the kernel.

        Args:
            needed: numbers of the storages that the next op, which is not part of it, reads.
        """
        if self._sums is not None:
            written = {key: size for key, size in self._inside.items() if key in needed} or self._latest
            self._sums.fused_bytes += sum(self._outside.values()) + sum(written.values())
            self._sums.fused_count += 1
            self._outside, self._inside, self._latest, self._sums = {}, {}, {}, None
