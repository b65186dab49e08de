"""The content of a log, and its forms: lines, tables, a trace, DeepSpeed's dicts, and a comparison of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl
import torch.distributed as td

from dsexplore.analysis.skew import Skew
from dsexplore.capture.groups import own_rank
from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.recorder_in_use import in_use
from dsexplore.comm import compared_logs
from dsexplore.comm.earlier_calls import Earlier
from dsexplore.comm.log_records import LogRecording, Record, recorded_of, records_of
from dsexplore.comm.log_summary import CommsSummary, operation_summaries, raw_data
from dsexplore.comm.ranks import is_initialized
from dsexplore.comm.verbose_lines import Printer
from dsexplore.comm.waiting import CallWait, call_waits, straggler_analysis, waiting_of_lines
from dsexplore.display import plain_text
from dsexplore.errors import UsageError
from dsexplore.signatures import with_options
from dsexplore.trace.trace import Trace

_NOTE = "From the log of dsexplore.comm."


class _Compared(NamedTuple):
    """A rank's log compared with those of the other ranks."""

    summary: CommsSummary
    skew: Skew
    """Of all ranks' logs."""
    waits: list[CallWait]
    """Of this rank."""
    differences: list[str]
    """Where the ranks' calls differ."""


class LogContent:
    """The calls of a log: the last ones individually, those before them as sums.

    Args:
        recording: keeps the calls.
    """

    def __init__(self, recording: LogRecording) -> None:
        self._recording = recording
        self._recording.forget = self._forget
        self._earlier = Earlier()
        self._printer = Printer()

    @property
    def records(self) -> list[Record]:
        """The lines of the log, in the order of issue."""
        return list(self._records())

    def _records(self) -> Iterator[Record]:
        in_use().stopwatch.settle()
        return records_of(list(self._recording.issued))

    @property
    def most(self) -> int:
        """Number of calls that are kept individually; of those before them only the summary has the sums."""
        return self._recording.most

    @most.setter
    def most(self, calls: int) -> None:
        if calls < 1:
            raise UsageError(f"most={calls} keeps no call: give 1 or more")
        self._recording.most = calls

    def _forget(self, over: Sequence[Issued], running: Sequence[Issued]) -> None:
        self._earlier.add(over, running)

    def reset_data(self) -> None:
        """Discard all records; an op that is running gets none when it ends."""
        self._recording.issued = []
        self._earlier = Earlier()

    def has_data(self) -> bool:
        """Return True if anything was recorded."""
        return bool(self._recording.issued or self._earlier.lines)

    def get_operation_names(self) -> list[str]:
        """Return the names that ops were logged under, in order of first appearance."""
        earlier = (line.name for line in self._earlier.lines.values())
        return list(dict.fromkeys([*earlier, *(record.name for record in self.records)]))

    def get_total_operations(self) -> int:
        """Return the number of recorded calls; a coalesced call counts as many as its members."""
        return self._earlier.count + len(self.records)

    def summary(self, show_straggler: bool = False) -> CommsSummary:
        """Return the log as a table: one row per op, layer, group and message size.

        Args:
            show_straggler: add how long this rank waited in each line's calls, and which ranks were late. Every rank of
                the world must then make this call.
        """
        return self._compared().summary if show_straggler else CommsSummary(self._records(), self._earlier.lines)

    def _compared(self) -> _Compared:
        in_place = self._in_place()
        skew, differences = compared_logs.compare(in_place, self._earlier)
        waits = list(call_waits(in_place, self._earlier.numbered, skew, own_rank()))
        summary = CommsSummary(self._records(), self._earlier.lines, waiting_of_lines(waits))
        return _Compared(summary, skew, waits, differences)

    def _in_place(self) -> list[Record]:
        """Return the lines that can be compared with those of other ranks by their numbers."""
        in_use().stopwatch.settle()
        elsewhere = self._earlier.out_of_place
        return list(records_of([one for one in self._recording.issued if one not in elsewhere]))

    def to_frame(self) -> pl.DataFrame:
        """Return the table of `summary` as a polars frame."""
        return self.summary().to_frame()

    @with_options(())
    def figure(self, kind: str = "time", **options: Any) -> Any:
        """Return a plotly figure of `summary`: ``"time"`` of each line, or ``"bandwidth"`` by message size.

        Raises:
            UsageError: no such kind, or an option is given.
        """
        return self.summary().figure(kind=kind, **options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.summary()._repr_mimebundle_(include, exclude)

    def trace(self) -> Trace:
        """Return the log as a `Trace`: what the recorder wrote of the calls, for the explorer, files and analyses."""
        recorded = list(recorded_of(list(self._recording.issued)))
        notes = [_NOTE]
        if self._earlier.count:
            notes.append(f"The {self._earlier.count:,} calls before these are in the log's summary alone.")
        recording = replace(self._recording, issued=recorded, notes=notes)
        tables = in_use().tables(recording)
        before = {name: count for (name, _), count in self._earlier.numbered.items()}
        number = pl.col("group_seq") + pl.col("group").replace_strict(before, default=0, return_dtype=pl.Int64)
        return Trace(replace(tables, events=tables.events.with_columns(number)))

    def get_raw_data(self) -> dict[str, dict[int, list[Any]]]:
        """Return ``{name: {S in bytes: [count, latencies in ms, algbw, busbw]}}``, bandwidths in Gbit/s.

        The count is that of all calls, the lists are those of the last `most`.
        """
        return raw_data(self.records, self._earlier.lines.values())

    @property
    def comms_dict(self) -> dict[str, dict[int, list[Any]]]:
        """`get_raw_data` as of now, under the name that it has in DeepSpeed's logger."""
        return self.get_raw_data()

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """Return the figures of one name by message size, see `log_all`; None for a name that was not logged."""
        return operation_summaries(self.records, self._earlier.lines.values()).get(operation_name)

    def log_all(
        self, print_log: bool = True, show_straggler: bool = False, return_dict: bool = False
    ) -> Mapping[str, Any] | None:
        """Print the log, return it as a dict, or both.

        Args:
            print_log: print the table.
            show_straggler: add how long ranks waited for each other: in each line, and as a table of its own. Every
                rank of the world must then make this call.
            return_dict: return ``{"summary": {name: {S: {...}}}, "straggler_analysis": ..., "metadata": ...}``, in
                DeepSpeed's form. Its ``tput_avg_gbps`` and ``busbw_avg_gbps`` are Gbit/s; ``algbw_avg_gb_per_s``
                and ``busbw_avg_gb_per_s`` are GB/s (1e9 bytes); ``groups`` has the figures of each process group.
        """
        rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
        compared = self._compared() if show_straggler else None
        self._printer.print_over()
        if print_log:
            print((self.summary() if compared is None else compared.summary).text())
            if compared is not None:
                print(plain_text(compared.skew))
        if not return_dict:
            return None
        return {
            "summary": operation_summaries(self.records, self._earlier.lines.values()),
            "straggler_analysis": None if compared is None else straggler_analysis(compared.waits),
            "differences": None if compared is None else compared.differences,
            "metadata": {"world_size": world_size, "rank": rank, "timestamp": datetime.now().astimezone().isoformat()},
        }

    def stragglers(self) -> Skew:
        """Return a `Skew` of all ranks' logs: who was late, and how long the others waited; see `Trace.skew`.

        The notes say where the ranks' calls differ. Every rank of the world must make this call.

        Raises:
            TimeoutError: some ranks have not made it; the error names them.
        """
        return compared_logs.compare(self._in_place(), self._earlier)[0]

    def check(self) -> None:
        """Compare the calls that all ranks have logged: what they must agree on, and the order on each group.

        Every rank of the world must make this call. On gloo, ranks whose dtypes, reductions or order differ may get
        wrong values and no error.

        Raises:
            MismatchError: the first call of each group that differs, with what each rank made of it and its line.
            TimeoutError: some ranks have not made this call; the error names them.
            UsageError: no rank has logged anything.
        """
        compared_logs.check(self._in_place(), self._earlier)
