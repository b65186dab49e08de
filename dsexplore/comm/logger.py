"""The comms logger: which calls are recorded, and what is known of each.

Requirements, hardest first:

1. Logging keeps overlap: an asynchronous op is timed from its issue to its completion, by events on its stream
   or by its own completion, and nothing here waits for it.
2. A record belongs to its call: turning profiling on or off, or resetting the log, between start and end of an
   op is safe.
3. Threads may call collectives at the same time: records are appended and numbered by operations that are
   atomic in the interpreter.
4. An op that nobody has heard of is logged under its own name.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as td

from dsexplore.comm.bandwidth import bandwidth, plain_op, rate_text
from dsexplore.comm.config import CommsLoggerConfig
from dsexplore.comm.constants import COMMS_LOGGER
from dsexplore.comm.device_clock import CudaClock
from dsexplore.comm.records import SWITCHED_OFF, GroupInfo, Record
from dsexplore.comm.spellings import NOTHING, Size, Spelling
from dsexplore.units import format_bytes

if TYPE_CHECKING:
    import polars as pl

    from dsexplore.comm.summary import CommsSummary
    from dsexplore.trace.trace import Trace


def _setting(name: str) -> Any:
    """One field of the configuration, as an attribute of the logger."""

    def read(self: CommsLogger) -> Any:
        value = getattr(self.config, name)
        return list(value) if isinstance(value, tuple) else value

    def write(self: CommsLogger, value: Any) -> None:
        checked = CommsLoggerConfig.parse({COMMS_LOGGER: {name: value}})
        self.configure(replace(self.config, **{name: getattr(checked, name)}))

    return property(read, write)


_autograd_task = torch._C._current_graph_task_id  # −1 outside a backward pass
_HERE = str(Path(__file__).parent) + os.sep


class Mode(IntEnum):
    """How much a call has to do for the log."""

    OFF = 0
    PLAIN = 1
    """Every call is recorded, nothing is printed or added to names: one tuple per call."""
    CHOOSY = 2


Note = tuple[Spelling, str, GroupInfo, Size, int, int, CodeType, int, int]
"""A synchronous call as it is noted: spelling, name, group, size, start, end, where (code, instruction), and
autograd's task. Making records of notes waits until the log is read."""


class CommsLogger:
    """Records collectives with their sizes, groups and times. `dsexplore.comm.comms_logger` is the one in use.

    Args:
        config: what to record, also as a ds_config or the path of its JSON file; off by default.
        clock: nanoseconds, never running backwards.
        epoch: what to add to the clock for nanoseconds since the Unix epoch.
    """

    def __init__(
        self,
        config: CommsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        epoch: int | None = None,
    ) -> None:
        self.mode = Mode.OFF
        self.clock = clock
        self.epoch = time.time_ns() - clock() if epoch is None else epoch
        self._config = CommsLoggerConfig()
        self._cuda = CudaClock(clock)
        self._entries: list[Record | Note] = []
        self._batches = itertools.count()
        self._groups: dict[int, tuple[weakref.ref[Any], GroupInfo]] = {}
        self.configure(config or CommsLoggerConfig())

    @property
    def config(self) -> CommsLoggerConfig:
        """What is recorded and shown; ``enabled``, ``prof_all``, … can also be set one by one."""
        return self._config

    def configure(self, config: CommsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Take over a configuration, or that of a ds_config or its JSON file; what has been recorded stays."""
        if not isinstance(config, CommsLoggerConfig):
            config = CommsLoggerConfig.parse(config)
        self._config = config
        plain = config.prof_all and not (config.verbose or config.debug)
        self.mode = (Mode.PLAIN if plain else Mode.CHOOSY) if config.enabled else Mode.OFF

    enabled = _setting("enabled")
    prof_all = _setting("prof_all")
    prof_ops = _setting("prof_ops")
    verbose = _setting("verbose")
    debug = _setting("debug")

    def start_profiling_comms(self) -> None:
        """Record every op."""
        self.prof_all = True

    def stop_profiling_comms(self) -> None:
        """Record only the ops that were asked for by name or with ``prof=True``."""
        self.prof_all = False

    def start_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """Record these ops too: plain names, spellings, or the calls' ``log_name``."""
        wanted = [op_name_list] if isinstance(op_name_list, str) else list(op_name_list)
        self.prof_ops = list(dict.fromkeys([*self.prof_ops, *wanted]))

    def stop_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """No longer record these ops by name."""
        unwanted = {op_name_list} if isinstance(op_name_list, str) else set(op_name_list)
        self.prof_ops = [op for op in self.prof_ops if op not in unwanted]

    def wants(self, spelling: Spelling, log_name: str, prof: bool) -> bool:
        """Whether a call is to be recorded."""
        config = self._config
        if not config.enabled or config.prof_all or prof:
            return config.enabled
        chosen = config.prof_ops
        return log_name in chosen or spelling.name in chosen or spelling.op in chosen

    def note(
        self, spelling: Spelling, log_name: str, info: GroupInfo, args: Sequence[Any], start: int, end: int
    ) -> None:
        """Record a synchronous call that is over."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
            frame = frame.f_back
        size = spelling.measure(args, info.size)
        where = frame.f_code, frame.f_lasti
        self._entries.append((spelling, log_name, info, size, start, end, *where, _autograd_task()))

    def begin(self, spelling: Spelling, size: Size, group: Any, log_name: str, caller: str | None) -> Record:
        """Record a call that is about to be issued."""
        record = Record(spelling.op, spelling.name, log_name, self.group_info(group), size)
        record.is_object = spelling.is_object
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        record.code, record.instruction = frame.f_code, frame.f_lasti
        if self._config.debug:
            record.name = f"{log_name} | [Caller Func: {caller or frame.f_code.co_name}]"
        if _autograd_task() != -1:
            record.phase = "backward"
        record.issued = self.clock()
        self._entries.append(record)
        return record

    def note_failed(
        self, spelling: Spelling, args: Sequence[Any], live: Any, log_name: str, caller: str | None, error: Exception
    ) -> None:
        """Record a synchronous call that raised."""
        record = self.begin(spelling, spelling.size(args, live.size()), live, log_name, caller)
        self.fail(record, error)

    def start_clock(self, record: Record, spelling: Spelling, args: Sequence[Any]) -> None:
        """The op is being issued now."""
        if record.group.timing == "cuda":
            tensor = spelling.first_tensor(args)
            if tensor is not None and tensor.is_cuda:
                record.device = self._cuda.begin(tensor.get_device())
        record.start = self.clock()

    def end(self, records: Iterable[Record]) -> None:
        """These ops are known to be over, now; the first to say so counts."""
        now: int | None = None
        for record in records:
            if record.end is None and record.device is None:
                now = now or self.clock()
                if record.end is None:  # no other thread said so while the clock was read
                    record.end = now
                    if self._config.verbose:
                        self._tell(record)

    def fail(self, record: Record, error: BaseException) -> None:
        """The op raised: it counts as a call, not as a measurement."""
        record.failed = True
        record.cause = f"failed: {type(error).__name__}"
        record.end = record.end or self.clock()

    def note_switched_off(self, spelling: Spelling, group: Any, log_name: str, switch: str) -> None:
        """Record a call that a switch kept from being made: no bytes, no time."""
        record = self.begin(spelling, NOTHING, group, log_name, None)
        record.op = SWITCHED_OFF + spelling.op
        record.name = SWITCHED_OFF + log_name
        record.cause = f"switched off by {switch}"
        record.start = record.end = record.issued

    def append(
        self, raw_name: str, record_name: str, latency: float, msg_size: int, group_size: int | None = None
    ) -> None:
        """Add a measurement made elsewhere: latency in milliseconds, size S in bytes, whole world by default.

        A name that is not known is logged under that name.
        """
        world = td.group.WORLD if td.is_available() and td.is_initialized() else None
        info = self.group_info(world) if world is not None else GroupInfo("", (0,), "", "host")
        if group_size is not None and group_size != info.size:
            info = GroupInfo(f"{group_size} ranks", tuple(range(group_size)), info.backend, "host")
        record = Record(plain_op(raw_name), raw_name, record_name, info, (msg_size, None, ()))
        record.issued = self.clock()
        record.end = record.issued
        record.start = record.end - max(1, round(latency * 1e6))
        self._entries.append(record)
        if self._config.verbose:
            self._tell(record)

    def start_batch(self, records: Sequence[Record], is_async: bool, share: bool = True) -> None:
        """These calls are being issued together, now.

        Args:
            records: of the calls.
            is_async: whether the caller gets handles.
            share: they are launched as one, and each has the part of the time that its bytes have of all.
        """
        number, now = next(self._batches), self.clock()
        total = sum(record.bytes for record in records)
        for record in records:
            record.batch = number
            record.is_async = is_async
            record.start = now
            if share:
                record.share = record.bytes / total if total else 1 / len(records)

    @property
    def records(self) -> list[Record]:
        """A copy of the log, in the order of issue."""
        entries = self._entries
        for index, entry in enumerate(entries):
            if isinstance(entry, tuple):
                entries[index] = _record_of(entry)
        records = [entry for entry in entries if isinstance(entry, Record)]
        return sorted(records, key=lambda record: record.issued)

    def reset_data(self) -> None:
        """Forget all records; ops that are under way end without one."""
        self._entries = []

    def has_data(self) -> bool:
        """Whether anything was recorded."""
        return bool(self._entries)

    def get_operation_names(self) -> list[str]:
        """The names that ops were logged under, in order of first appearance."""
        return list(dict.fromkeys(record.name for record in self.records))

    def get_total_operations(self) -> int:
        """How many calls were recorded; of a coalesced call its members."""
        return len(self._entries)

    def summary(self) -> CommsSummary:
        """The log as a table: one row per op, group and message size."""
        from dsexplore.comm.summary import CommsSummary

        return CommsSummary(self.records)

    def to_frame(self) -> pl.DataFrame:
        """The table of `summary` as a polars frame."""
        return self.summary().to_frame()

    def figure(self, **options: Any) -> Any:
        """A plotly figure of `summary`."""
        return self.summary().figure(**options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.summary()._repr_mimebundle_(include, exclude)

    def trace(self) -> Trace:
        """The log as a `Trace`: the same events, for the explorer, files and analyses."""
        from dsexplore.comm.to_trace import to_trace

        return to_trace(self.records, self.epoch)

    def get_raw_data(self) -> dict[str, dict[int, list[Any]]]:
        """``{name: {S in bytes: [count, latencies in ms, algbw, busbw]}}``; bandwidths in Gbit/s, as DeepSpeed's."""
        from dsexplore.comm.summary import raw_data

        return raw_data(self.records)

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """For one name: figures by message size, see `log_all`; None for a name that was not logged."""
        from dsexplore.comm.summary import operation_summaries

        return operation_summaries(self.records).get(operation_name)

    def log_all(
        self, print_log: bool = True, show_straggler: bool = False, return_dict: bool = False
    ) -> Mapping[str, Any] | None:
        """Print the log, return it as a dict, or both.

        Args:
            print_log: print the table.
            show_straggler: add what ranks waited for each other. Every rank of the world must then make this call.
            return_dict: return ``{"summary": {name: {S: {...}}}, "straggler_analysis": ..., "metadata": ...}``, in
                DeepSpeed's shape. Its ``tput_avg_gbps`` and ``busbw_avg_gbps`` are Gbit/s; ``algbw_avg_gb_per_s``
                and ``busbw_avg_gb_per_s`` are GB/s (1e9 bytes); ``groups`` has the figures of each process group.
        """
        from dsexplore.comm.report import report

        return report(self.records, print_log, show_straggler, return_dict)

    def group_info(self, group: Any) -> GroupInfo:
        """What the log keeps of a live group; the group itself is not kept."""
        known = self._groups.get(id(group))
        if known is None or known[0]() is not group:
            known = self._groups[id(group)] = (weakref.ref(group), GroupInfo.of(group))
        return known[1]

    def _tell(self, record: Record) -> None:
        if td.is_initialized() and td.get_rank() != 0:
            return
        seconds = record.seconds
        if seconds is None:
            return
        algbw, busbw = bandwidth(record.op, record.bytes, seconds, record.group.size)
        size = format_bytes(record.bytes)
        print(
            f"{record.name} | group {record.group.name} | {size} | {seconds * 1e3:.3f} ms"
            f" | algbw {rate_text(algbw)} | busbw {rate_text(busbw)}"
        )


def _record_of(note: Note) -> Record:
    spelling, name, info, size, start, end, code, instruction, task = note
    record = Record(spelling.op, spelling.name, name, info, size)
    record.issued, record.start, record.end = start, start, end
    record.code, record.instruction = code, instruction
    record.phase = "other" if task == -1 else "backward"
    return record


comms_logger = CommsLogger()
