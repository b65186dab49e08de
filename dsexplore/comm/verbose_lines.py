"""The lines of a verbose log: one for each message, on rank 0, once its call has completed.

A call through this package has completed when it returns, or when its handle says so. A collective that reached torch
another way calls nothing when it ends, so its line is printed with the next call that the log sees, or at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch.distributed as td

from dsexplore.capture.issued_collective import Issued
from dsexplore.comm.bandwidth import bandwidth, rate_text
from dsexplore.comm.issuing_layer import OWN
from dsexplore.comm.log_records import Call, Record, records_of
from dsexplore.comm.ranks import is_initialized
from dsexplore.units import format_bytes


class Printer:
    """Prints each message of the log once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Issued] = []
        """Collectives of other layers that have not been printed, in the order of issue."""

    def follow(self, issued: Issued) -> None:
        """Print a labelled collective of another layer once it has completed: see `print_over`."""
        with self._lock:
            self._running.append(issued)

    def print_over(self) -> None:
        """Print the followed collectives that have completed."""
        with self._lock:
            over = [one for one in self._running if one.is_over]
            self._running = [one for one in self._running if one not in over]
        _print(over)

    def print_rest(self) -> None:
        """Print all followed collectives; those that have not ended have no time."""
        with self._lock:
            rest, self._running = self._running, []
        _print(rest)

    def print_call(self, call: Call) -> None:
        """Print a completed call of this package, once."""
        with self._lock:
            if call.is_printed or not call.is_wanted:
                return
            call.is_printed = True
        _print(call.issued)


def _print(issued: Iterable[Issued]) -> None:
    if is_initialized() and td.get_rank() != 0:
        return
    for record in records_of(issued):
        print(line_of(record))


def line_of(record: Record) -> str:
    """Return the printed line of a record, with the layer of a call that did not come through `dsexplore.comm`.

    Worked example: ``"all_reduce | group 0 | 16 B | 0.001 ms | algbw 16 MB/s | busbw 16 MB/s"``.
    """
    name = record.name if record.layer == OWN else f"{record.name} ({record.layer})"
    return " | ".join([name, f"group {record.group.name}", format_bytes(record.bytes), *_times(record)])


def _times(record: Record) -> list[str]:
    if record.failed:
        return [record.cause]
    if record.seconds is None:
        return ["–"]
    algbw, busbw = bandwidth(record.op, record.bytes, record.seconds, record.group.size)
    return [f"{record.seconds * 1e3:.3f} ms", f"algbw {rate_text(algbw)}", f"busbw {rate_text(busbw)}"]
