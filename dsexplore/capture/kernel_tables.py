"""The tables of kernels and of memory of a `Trace`, made of what a recording of costs holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import polars as pl
from torch import nn

from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.kernel_recording import KernelRecording
from dsexplore.capture.module_entry import ModuleEntry
from dsexplore.trace import schema


def kernels_table(recording: KernelRecording, issued: Sequence[Issued], rank: int) -> pl.DataFrame:
    """One row per kind of op and place; columns: `schema.KERNELS`.

    Args:
        recording: of the costs.
        issued: the collectives, in program order.
        rank: the rank that this process is.
    """
    seq = _first_seq(issued)
    compiled = _Compiled()
    columns: dict[str, list[Any]] = {name: [] for name in schema.KERNELS}
    for number, phase, cost, sums in recording.rows:
        segment = recording.segments[number]
        values = (
            *(rank, segment.step, seq[segment.collectives], number, phase, _name(sums.module)),
            *(cost.kind, cost.op, cost.dtype, cost.shape, sums.count, sums.flops, sums.read, sums.written),
            *(sums.fused_bytes, sums.fused_count, compiled.holds(sums.module)),
            seq[sums.waits_for] if sums.waits_for is not None else None,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return pl.DataFrame(columns, schema=schema.KERNELS)


def memory_table(recording: KernelRecording, issued: Sequence[Issued], rank: int) -> pl.DataFrame:
    """One row per segment; columns: `schema.MEMORY`. Arguments as for `kernels_table`."""
    seq = _first_seq(issued)
    rows = [
        (rank, one.step, seq[one.collectives], number, one.phase, _name(one.module), *levels.values())
        for number, (one, levels) in enumerate(zip(recording.segments, recording.memory.rows(), strict=True))
    ]
    return pl.DataFrame(rows, schema=schema.MEMORY, orient="row")


def _first_seq(issued: Sequence[Issued]) -> list[int]:
    """By the number of a collective: the seq of its first event; one more than the last for what comes after all."""
    return list(accumulate((len(one.messages) for one in issued), initial=0))


def _name(module: ModuleEntry | None) -> str:
    return module.name if module is not None else ""


class _Compiled:
    """The modules that torch.compile was asked to compile, themselves or around them."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        self._roots: dict[int, set[int]] = {}

    def holds(self, entry: ModuleEntry | None) -> bool:
        """Whether a module is compiled."""
        if entry is None:
            return False
        if id(entry) not in self._known:
            module = entry.reference()
            self._known[id(entry)] = module is not None and id(module) in self._inside(entry.root or entry)
        return self._known[id(entry)]

    def _inside(self, root: ModuleEntry) -> set[int]:
        """Identities of the modules of a model that are compiled, or inside of one that is."""
        if id(root) not in self._roots:
            model = root.reference()
            parts = list(model.modules()) if model is not None else []
            self._roots[id(root)] = {id(inner) for part in parts if _is_compiled(part) for inner in part.modules()}
        return self._roots[id(root)]


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
