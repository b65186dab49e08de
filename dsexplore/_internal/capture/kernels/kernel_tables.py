"""Makes the tables ``kernels``, ``memory`` and ``differing`` of a `Trace` from a `KernelRecording`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import polars as pl

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.kernels.kernel_recording import KernelRecording
from dsexplore._internal.capture.modules.compiled_modules import CompiledModules
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.trace import schema


def kernels_table(recording: KernelRecording, issued: Sequence[Issued], rank: int) -> pl.DataFrame:
    """Return one row per segment and kind of op; columns: `schema.KERNELS`.

    Args:
        recording: the recording of kernels and memory.
        issued: the collectives, in program order.
        rank: the rank of this process.
    """
    seq = _first_seq(issued)
    compiled = CompiledModules()
    columns: dict[str, list[Any]] = {name: [] for name in schema.KERNELS}
    for number, phase, cost, sums in recording.rows:
        segment = recording.segments[number]
        values = (
            *(rank, segment.step, seq[segment.collectives], number, phase, _name(sums.module)),
            *(cost.kind, cost.op, cost.dtype, cost.shape, sums.count, sums.flops, sums.read, sums.written),
            *(sums.fused_bytes, sums.fused_count, compiled.around(sums.module) is not None),
            seq[sums.waits_for] if sums.waits_for is not None else None,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return pl.DataFrame(columns, schema=schema.KERNELS)


def memory_table(recording: KernelRecording, issued: Sequence[Issued], rank: int) -> pl.DataFrame:
    """Return one row per segment; columns: `schema.MEMORY`. The arguments are those of `kernels_table`."""
    seq = _first_seq(issued)
    rows = [
        (rank, segment.step, seq[segment.collectives], number, segment.phase, _name(segment.module), *levels.values())
        for number, (segment, levels) in enumerate(zip(recording.segments, recording.memory.rows(), strict=True))
    ]
    return pl.DataFrame(rows, schema=schema.MEMORY, orient="row")


def _first_seq(issued: Sequence[Issued]) -> list[int]:
    """Return the ``seq`` of each collective's first event, and at the end the number of events."""
    return list(accumulate((len(collective.messages) for collective in issued), initial=0))


def differing_table(recording: KernelRecording, rank: int) -> pl.DataFrame:
    """Return one row per tensor that differs between ranks that should hold the same; columns: `schema.DIFFERING`."""
    rows = [
        (rank, tensor.step, tensor.kind, tensor.phase, _name(tensor.module), tensor.name, tensor.axis)
        for tensor in recording.differing.found
    ]
    return pl.DataFrame(rows, schema=schema.DIFFERING, orient="row")


def _name(module: ModuleEntry | None) -> str:
    return module.name if module is not None else ""
