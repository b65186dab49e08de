"""The content of a log, as printed lines, tables, a trace, DeepSpeed's dicts, and a comparison of ranks."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import torch.distributed as td

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.capture.collectives.groups import own_rank
from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.comm.logs import compared_logs
from dsexplore._internal.comm.logs.dropped_calls import DroppedCalls
from dsexplore._internal.comm.logs.issuing_layer import OWN
from dsexplore._internal.comm.logs.log_records import LoggedCall, LogRecording, Record, records_of, trace_collectives
from dsexplore._internal.comm.logs.log_summary import (
    CommsSummary,
    LineKey,
    Waiting,
    line_key,
    operation_summaries,
    raw_data,
    trimmed_mean,
)
from dsexplore._internal.comm.logs.sent_calls import Series, numbered
from dsexplore._internal.comm.ranks import is_initialized
from dsexplore._internal.comm.sweeps.bandwidth import bandwidth, rate_text
from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments, with_options
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Printer:
    """Prints the lines of a verbose log: each message once, on rank 0, when its call has completed.

    A call of this package has completed when it returns, or when its handle reports it. The end of a collective of
    another layer is not reported; its line is printed with the next call that the log sees, or at the end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Issued] = []
        """Collectives of other layers that have not been printed, in the order of issue."""

    def follow(self, issued: Issued) -> None:
        """Add a labeled collective of another layer, which `print_completed` prints once it has completed."""
        with self._lock:
            self._running.append(issued)

    def print_completed(self) -> None:
        """Print the followed collectives that have completed."""
        with self._lock:
            completed = [issued for issued in self._running if issued.is_over]
            self._running = [issued for issued in self._running if issued not in completed]
        _print(completed)

    def print_all(self) -> None:
        """Print all followed collectives; a time is missing for those that have not completed."""
        with self._lock:
            running = self._running
            self._running = []
        _print(running)

    def print_call(self, call: LoggedCall) -> None:
        """Print a completed call of this package, once."""
        with self._lock:
            if call.is_printed or not call.is_wanted:
                return
            call.is_printed = True
        _print(call.issued)


def _print(issued: Iterable[Issued]) -> None:
    """Print the lines of collectives on rank 0."""
    if is_initialized() and td.get_rank() != 0:
        return
    for record in records_of(issued):
        print(line_of(record))


def line_of(record: Record) -> str:
    """Return the printed line of a record; for a call of another layer, with the name of the layer.

    Example: ``"all_reduce | group 0 | 16 B | 0.001 ms | algbw 16 MB/s | busbw 16 MB/s"``.
    """
    name = record.name if record.layer == OWN else f"{record.name} ({record.layer})"
    return " | ".join([name, f"group {record.group.name}", format_bytes(record.bytes), *_times(record)])


def _times(record: Record) -> list[str]:
    """Return time and bandwidths as texts; the cause of a call that failed, a dash for one that was not timed."""
    if record.failed:
        return [record.cause]
    if record.seconds is None:
        return ["–"]
    algbw, busbw = bandwidth(record.op, record.bytes, record.seconds, record.group.size)
    return [f"{record.seconds * 1e3:.3f} ms", f"algbw {rate_text(algbw)}", f"busbw {rate_text(busbw)}"]


class CallWait(NamedTuple):
    """How long this rank waited in a call that all ranks of its group timed."""

    record: Record
    transfer: float
    """Seconds of the call on the rank that waited least."""
    waited: float
    """Additional seconds of the call on this rank."""
    late_ranks: Sequence[int]
    """Ranks that the others waited for."""


def call_waits(records: Iterable[Record], dropped: Mapping[Series, int], skew: Skew, rank: int) -> Iterator[CallWait]:
    """Yield the calls of a rank's log that all ranks of their groups timed.

    Args:
        records: lines of the rank's log; see `numbered`.
        dropped: {series: number of earlier lines that the log has dropped}.
        skew: skew of the logs of all ranks.
        rank: the rank that made these calls.
    """
    timed = {
        (row["group"], tuple(row["members"]), row["group_seq"]): row
        for row in _arrivals_of(skew, rank).iter_rows(named=True)
    }
    for (name, ranks), number, record in numbered(records, dropped):
        row = timed.get((name, ranks, number))
        if row is not None:
            yield CallWait(
                record,
                transfer=row["duration"],
                waited=row["took"] - row["duration"],
                late_ranks=row["late_ranks"] or [],
            )


def _arrivals_of(skew: Skew, rank: int) -> pl.DataFrame:
    """Return the arrivals of a rank in collectives that all ranks timed, with a list ``late_ranks`` of each."""
    arrivals = skew.arrivals
    late = arrivals.filter("is_late").group_by("instance").agg(late_ranks="rank")
    on_all_ranks = pl.col("count") == pl.col("members").list.len()
    # merging adds a suffix to the name if ranks use one name for different groups
    name = pl.col("group").str.replace(r"@\d+$", "")
    of_rank = arrivals.filter((pl.col("rank") == rank) & on_all_ranks).with_columns(name)
    return of_rank.join(late, on="instance", how="left")


def waiting_of_lines(waits: Iterable[CallWait]) -> dict[LineKey, Waiting]:
    """Return the waits of each line of a rank's summary; lines without a call timed on all ranks are omitted."""
    waiting: dict[LineKey, Waiting] = {}
    for wait in waits:
        line = waiting.setdefault(line_key(wait.record), Waiting())
        line.count += 1
        line.seconds += wait.waited
        line.late.update(wait.late_ranks)
    return waiting


def straggler_analysis(waits: Iterable[CallWait]) -> dict[str, dict[int, dict[str, object]]]:
    """Return ``{name: {message bytes: figures}}`` of one rank's waits, in DeepSpeed's form."""
    calls: dict[str, dict[int, list[CallWait]]] = defaultdict(lambda: defaultdict(list))
    for wait in waits:
        calls[wait.record.name][wait.record.bytes].append(wait)
    return {
        name: {size: _deepspeed_figures(size, by_size[size]) for size in sorted(by_size)}
        for name, by_size in sorted(calls.items())
    }


def _deepspeed_figures(size: int, calls: Sequence[CallWait]) -> dict[str, object]:
    """Return the figures of the calls with one message size, under DeepSpeed's names; times in milliseconds."""
    transfers, waits = [call.transfer * 1e3 for call in calls], [call.waited * 1e3 for call in calls]
    return {
        "count": len(calls),
        "total_comm_lat_ms": sum(transfers),
        "total_straggler_ms": sum(waits),
        "avg_comm_lat_ms": trimmed_mean(transfers),
        "avg_straggler_ms": trimmed_mean(waits),
        "late_ranks": dict(Counter(rank for call in calls for rank in call.late_ranks).most_common()),
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }


_NOTE = "From the log of dsexplore.comm."


class _Compared(NamedTuple):
    """A rank's log compared with the other ranks' logs."""

    summary: CommsSummary
    skew: Skew
    """Skew of all ranks' logs."""
    waits: list[CallWait]
    """Waits of this rank."""
    differences: list[str]
    """Texts on where the ranks' calls differ."""


class LogContent:
    """The calls of a log: the last ones individually, earlier ones as sums.

    Args:
        recording: recording with the collectives of the last calls.
    """

    def __init__(self, recording: LogRecording) -> None:
        self._recording = recording
        self._recording.forget = self._forget
        self._dropped = DroppedCalls()
        self._printer = Printer()

    @property
    def records(self) -> list[Record]:
        """Lines of the log, in the order of issue."""
        return list(self._records())

    def _records(self) -> Iterator[Record]:
        in_use().stopwatch.settle()
        return records_of(list(self._recording.issued))

    @property
    def most(self) -> int:
        """Number of calls that are kept individually; of earlier calls, only sums are kept."""
        return self._recording.most

    @most.setter
    def most(self, calls: int) -> None:
        if calls < 1:
            raise UsageError(f"most={calls} keeps no call: give 1 or more")
        self._recording.most = calls

    def _forget(self, dropped: Sequence[Issued], unfinished: Sequence[Issued]) -> None:
        self._dropped.add(dropped, unfinished)

    def reset_data(self) -> None:
        """Discard all records; an op that is still running is not logged either."""
        self._recording.issued = []
        self._dropped = DroppedCalls()

    def has_data(self) -> bool:
        """Return True if anything was recorded."""
        return bool(self._recording.issued or self._dropped.lines)

    def get_operation_names(self) -> list[str]:
        """Return the names that ops were logged under, in order of first appearance."""
        earlier = (line.name for line in self._dropped.lines.values())
        return list(dict.fromkeys([*earlier, *(record.name for record in self.records)]))

    def get_total_operations(self) -> int:
        """Return the number of recorded calls; a coalesced call counts as many as its members."""
        return self._dropped.count + len(self.records)

    @names_arguments
    def summary(self, show_straggler: bool = False) -> CommsSummary:
        """Return the log as a table: one row per op, layer, group and message size.

        Args:
            show_straggler: add columns for how long this rank waited in each line's calls, and which ranks were late;
                every rank of the world must then make this call.
        """
        return self._compared().summary if show_straggler else CommsSummary(self._records(), self._dropped.lines)

    def _compared(self) -> _Compared:
        """Compare the logs of all ranks; every rank of the world must make this call."""
        records = self._comparable_records()
        skew, differences = compared_logs.compare(records, self._dropped)
        waits = list(call_waits(records, self._dropped.numbered, skew, own_rank()))
        summary = CommsSummary(self._records(), self._dropped.lines, waiting_of_lines(waits))
        return _Compared(summary, skew=skew, waits=waits, differences=differences)

    def _comparable_records(self) -> list[Record]:
        """Return the records that other ranks' logs have under the same numbers."""
        in_use().stopwatch.settle()
        counted_early = self._dropped.counted_early
        return list(records_of([issued for issued in self._recording.issued if issued not in counted_early]))

    def to_frame(self) -> pl.DataFrame:
        """Return the table of `summary` as a polars frame."""
        return self.summary().to_frame()

    @with_options(())
    def figure(self, kind: str = "time", **options: object) -> Figure:
        """Return a plotly figure of `summary`: ``"time"`` of each line, or ``"bandwidth"`` by message size.

        Raises:
            UsageError: no such kind, or an option is given.
        """
        return self.summary().figure(kind=kind, **options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.summary()._repr_mimebundle_(include, exclude)

    def trace(self) -> Trace:
        """Return the log as a `Trace`, for the explorer, files and analyses."""
        issued = list(trace_collectives(list(self._recording.issued)))
        notes = [_NOTE]
        if self._dropped.count:
            notes.append(f"The {self._dropped.count:,} calls before these are in the log's summary alone.")
        recording = replace(self._recording, issued=issued, notes=notes)
        tables = in_use().tables(recording)
        before = {name: count for (name, _), count in self._dropped.numbered.items()}
        number = pl.col("group_seq") + pl.col("group").replace_strict(before, default=0, return_dtype=pl.Int64)
        return Trace(replace(tables, events=tables.events.with_columns(number)))

    def get_raw_data(self) -> dict[str, dict[int, list[int | list[float]]]]:
        """Return ``{name: {message bytes: [count, latencies in ms, algbw, busbw]}}``, bandwidths in Gbit/s.

        The count includes all calls; the lists have the last `most` calls.
        """
        return raw_data(self.records, self._dropped.lines.values())

    @property
    def comms_dict(self) -> dict[str, dict[int, list[int | list[float]]]]:
        """Data of `get_raw_data`, under the name that it has in DeepSpeed's logger."""
        return self.get_raw_data()

    @names_arguments
    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, object]] | None:
        """Return {message bytes: figures} of one name, see `log_all`; None for a name that was not logged."""
        return operation_summaries(self.records, self._dropped.lines.values()).get(operation_name)

    @names_arguments
    def log_all(
        self, print_log: bool = True, show_straggler: bool = False, return_dict: bool = False
    ) -> Mapping[str, object] | None:
        """Print the log, return it as a dict, or both.

        Args:
            print_log: print the table.
            show_straggler: add how long ranks waited for each other, to each line and as a separate table; every rank
                of the world must then make this call.
            return_dict: return ``{"summary": {name: {message bytes: {...}}}, "straggler_analysis": ..., "metadata":
                ...}``, in DeepSpeed's form. ``tput_avg_gbps`` and ``busbw_avg_gbps`` are in Gbit/s,
                ``algbw_avg_gb_per_s`` and ``busbw_avg_gb_per_s`` in GB/s (1e9 bytes); ``groups`` has the figures of
                each process group.
        """
        rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
        compared = self._compared() if show_straggler else None
        self._printer.print_completed()
        if print_log:
            print((self.summary() if compared is None else compared.summary).table_text())
            if compared is not None:
                print(plain_text(compared.skew))
        if not return_dict:
            return None
        return {
            "summary": operation_summaries(self.records, self._dropped.lines.values()),
            "straggler_analysis": None if compared is None else straggler_analysis(compared.waits),
            "differences": None if compared is None else compared.differences,
            "metadata": {"world_size": world_size, "rank": rank, "timestamp": datetime.now().astimezone().isoformat()},
        }

    def stragglers(self) -> Skew:
        """Return a `Skew` of all ranks' logs: which ranks were late, and how long the others waited; see `Trace.skew`.

        Its notes list the calls in which the ranks differ. Every rank of the world must make this call.

        Raises:
            TimeoutError: some ranks have not made this call; the error names them.
        """
        return compared_logs.compare(self._comparable_records(), self._dropped)[0]

    def check(self) -> None:
        """Compare the calls that all ranks have logged: their order on each group, ops, sizes, dtypes and reductions.

        Every rank of the world must make this call. With gloo, ranks with different dtypes, reductions or order may get
        wrong values without an error.

        Raises:
            MismatchError: calls differ; the error has the first one of each group, with each rank's call and its line.
            TimeoutError: some ranks have not made this call; the error names them.
            UsageError: no rank has logged anything.
        """
        compared_logs.check(self._comparable_records(), self._dropped)
