"""The comms logger: a recording that is open while the log is on, and what is made of it.

The log has every collective of the process, each with the layer whose function was called: this package, DeepSpeed's
(``deepspeed.comm``), or torch itself, whoever called that: the program, DDP, FSDP, DTensor.

Requirements, hardest first:

1. Logging keeps overlap: an asynchronous op is timed from its issue to its completion, by events on its stream
   or by its own completion, and nothing here waits for it.
2. A record belongs to its call: turning profiling on or off, or resetting the log, between start and end of an
   op is safe.
3. Threads may call collectives at the same time.
4. An op that nobody has heard of is logged under its own name.

`issue` labels each call (`begin`), the recorder of `dsexplore.capture` writes what is issued into every open recording,
with module, axis, cause and source. The log's own recording labels what is not labelled yet (`CommsLogger.label_of`),
and keeps what is wanted.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as td

from dsexplore.capture.groups import Group, describe_group
from dsexplore.capture.issued import Issued, Origin
from dsexplore.capture.ops import Message
from dsexplore.capture.recorder import Recorder, in_use
from dsexplore.capture.timing import fail
from dsexplore.comm import compare
from dsexplore.comm.bandwidth import bandwidth, plain_op, rate_text
from dsexplore.comm.constants import COMMS_LOGGER
from dsexplore.comm.earlier import Earlier
from dsexplore.comm.layers import caller_of
from dsexplore.comm.logger_config import CommsLoggerConfig
from dsexplore.comm.meeting import exchange, meet, register
from dsexplore.comm.ranks import is_initialized
from dsexplore.comm.records import MOST_CALLS, OWN_OP, Call, LogRecording, Record, recorded_of, records_of
from dsexplore.comm.spellings import Spelling
from dsexplore.comm.straggler import StragglerReport, bounded, rank_log, straggler_report
from dsexplore.comm.summary import CommsSummary, operation_summaries, raw_data
from dsexplore.errors import MismatchError, UsageError
from dsexplore.trace.trace import Trace
from dsexplore.units import format_bytes

if TYPE_CHECKING:
    import polars as pl


def _setting(name: str) -> Any:
    """A property of the logger that reads and sets one field of its configuration."""

    def read(self: CommsLogger) -> Any:
        value = getattr(self.config, name)
        return list(value) if isinstance(value, tuple) else value

    def write(self: CommsLogger, value: Any) -> None:
        checked = CommsLoggerConfig.parse({COMMS_LOGGER: {name: value}})
        self.configure(replace(self.config, **{name: getattr(checked, name)}))

    return property(read, write)


_HERE = str(Path(__file__).parent) + os.sep
_NOTE = "From the log of dsexplore.comm."
_printing = threading.Lock()


class CommsLogger:
    """Records collectives with their sizes, groups and times. `dsexplore.comm.comms_logger` is the one in use.

    Args:
        config: what to record, also as a ds_config or the path of its JSON file; off by default.
        clock: nanoseconds, never running backwards, for what is added by `append`.
        epoch: what to add to the clock for nanoseconds since the Unix epoch.
        follows_calls: record the calls of this process, as the logger in use does; else only what is added.
        most: how many calls to keep one by one. The summary has those before them too; the trace, the lists of
            `get_raw_data` and the comparison of ranks have not.
    """

    def __init__(
        self,
        config: CommsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        epoch: int | None = None,
        follows_calls: bool = False,
        most: int = MOST_CALLS,
    ) -> None:
        self.is_on = False
        self.logs_all = False
        """Whether each call is logged under its own name, and nothing is printed."""
        self.clock = clock
        self.epoch = time.time_ns() - clock() if epoch is None else epoch
        self._config = CommsLoggerConfig()
        self._earlier = Earlier()
        self._recording = LogRecording(1, False, "", most=most, forget=self._forget, label_of=self.label_of)
        self._follows_calls = follows_calls
        self._recorder: Recorder | None = None
        self._calls: dict[tuple[str, ...], Call] = {}
        self.configure(config or CommsLoggerConfig())

    @property
    def config(self) -> CommsLoggerConfig:
        """What is recorded and shown; ``enabled``, ``prof_all``, … can also be set one by one."""
        return self._config

    def configure(self, config: CommsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Take over a configuration, or that of a ds_config or its JSON file; what has been recorded stays."""
        if not isinstance(config, CommsLoggerConfig):
            config = CommsLoggerConfig.parse(config)
        if config.enabled and self._follows_calls and self._recorder is None:
            recorder = in_use()
            recorder.open(self._recording)
            self._recorder = recorder
            register()
        elif not config.enabled:
            self.close()
        self._config = config
        self._calls = {}
        self.is_on = config.enabled
        self.logs_all = config.enabled and config.prof_all and not (config.verbose or config.debug)

    def close(self) -> None:
        """Record no more calls, and let go of what recording needs; what has been recorded stays."""
        self.is_on = self.logs_all = False
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop(self._recording)

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

    def begin(
        self,
        spelling: Spelling,
        log_name: str,
        prof: bool = False,
        caller: str | None = None,
        is_async: bool = False,
        reduction: str = "",
    ) -> Call:
        """Label a call that is about to be made; whoever makes it sets it as `labels.current` meanwhile.

        Args:
            spelling: what is called.
            log_name: what to log it under.
            prof: log it though not all calls are.
            caller: the calling function's name, for a log in debug mode.
            is_async: whether what it issues may go on after it has returned.
            reduction: ``SUM``, ``MAX``, …; empty for an op without one.
        """
        if self._config.debug:
            log_name = f"{log_name} | [Caller Func: {caller or _calling_function()}]"
        wanted = self.wants(spelling, log_name, prof)
        return Call(spelling, log_name, wanted, not (is_async or spelling.is_object), reduction=reduction)

    @property
    def recorder(self) -> Recorder:
        """The recorder that the log's recording is open in; otherwise the one of this process."""
        return self._recorder or in_use()

    def call_of(self, spelling: Spelling, log_name: str, reduction: str) -> Call:
        """The label that all calls have in common which issue one collective and wait for it."""
        call = self._calls.get((spelling.name, log_name, reduction))
        if call is None:
            call = Call(spelling, log_name, is_wanted=True, ends_with_call=True, reduction=reduction)
            self._calls[spelling.name, log_name, reduction] = call
        return call

    def label_of(self, issued: Issued) -> Call:
        """The label of a collective that did not come through this package, whose op runs now; see `layers`."""
        op = issued.messages[0][0] if issued.messages else issued.raw_op
        layer, name, prof, reduction, function = caller_of(op)
        if self._config.debug:
            name = f"{name} | [Caller Func: {function}]"
        key = layer, name, op, reduction, "prof" if prof else ""
        call = self._calls.get(key)
        if call is None:
            spelling = Spelling(name.partition(" | ")[0], op, _call_of_another_layer)
            call = Call(spelling, name, self.wants(spelling, name, prof), False, layer, reduction)
            self._calls[key] = call
            register()  # the world may have begun after the log
        return call

    def begin_custom(self, call: Call, args: Sequence[Any], group: Any) -> Issued:
        """Add the one line of a call of a user's function, whatever collectives the function issues."""
        issued = self._described(call, args, group)
        if issued.group is not None and issued.group.timing != "none":
            in_use().stopwatch.begin(issued, issued.group.timing, args)
        call.issued.append(issued)
        self._recording.add(issued)
        return issued

    def _described(self, call: Call, args: Sequence[Any], group: Any) -> Issued:
        spelling = call.spelling
        issued = in_use().unissued(OWN_OP + spelling.name, spelling.message(args, group.size()), group)
        issued.label = call
        issued.origin = issued.origin._replace(is_object=spelling.is_object)
        return issued

    def end(self, call: Call) -> None:
        """Record that a call has returned, and that what it issued is over."""
        in_use().end_label(call)
        if self._config.verbose:
            self.print_call(call)

    def fail(self, call: Call, error: BaseException, args: Sequence[Any] = (), group: Any = None) -> None:
        """Record that a call raised, or that its handle did: counted as a call, and not timed.

        Args:
            call: which.
            error: what was raised.
            args: of the call: what it would have moved is read from them, where it issued nothing.
            group: the process group.
        """
        if not call.issued and group is not None:
            issued = self._described(call, args, group)
            call.issued.append(issued)
            self._recording.add(issued)
        for issued in call.issued:
            fail(issued, error)

    def append(
        self, raw_name: str, record_name: str, latency: float, msg_size: int, group_size: int | None = None
    ) -> None:
        """Add a measurement made elsewhere: latency in milliseconds, size S in bytes, whole world by default.

        A name that is not known is logged under that name.
        """
        world = td.group.WORLD if td.is_available() and td.is_initialized() else None
        group = Group("", 1, (0,), "", "", timing="host") if world is None else describe_group(world)
        if group_size is not None and group_size != group.size:
            ranks = tuple(range(group_size))
            group = Group(f"{group_size} ranks", group_size, ranks, group.backend, "", "", "", "host", group.own_rank)
        message: Message = (plain_op(raw_name), msg_size, None, ())
        issued = Issued(OWN_OP + raw_name, [message], group, group.own_rank, Origin("other", None, None, ()))
        issued.end = self.clock() + self.epoch
        issued.start = issued.end - max(1, round(latency * 1e6))
        spelling = Spelling(raw_name, plain_op(raw_name), self.append, is_custom=True)
        call = Call(spelling, record_name, is_wanted=True, ends_with_call=True)
        call.issued.append(issued)
        issued.label = call
        self._recording.add(issued)
        if self._config.verbose:
            self.print_call(call)

    @property
    def records(self) -> list[Record]:
        """The lines of the log, in the order of issue."""
        in_use().stopwatch.settle()
        return list(records_of(list(self._recording.issued)))

    @property
    def most(self) -> int:
        """How many calls are kept one by one; of those before them the summary alone has the sums."""
        return self._recording.most

    @most.setter
    def most(self, calls: int) -> None:
        if calls < 1:
            raise UsageError(f"most={calls} keeps no call: give 1 or more")
        self._recording.most = calls

    def _forget(self, issued: Sequence[Issued]) -> None:
        self._earlier.add(issued)

    def reset_data(self) -> None:
        """Forget all records; ops that are under way end without one."""
        self._recording.issued = []
        self._earlier = Earlier()

    def has_data(self) -> bool:
        """Whether anything was recorded."""
        return bool(self._recording.issued or self._earlier.lines)

    def get_operation_names(self) -> list[str]:
        """The names that ops were logged under, in order of first appearance."""
        earlier = (line.name for line in self._earlier.lines.values())
        return list(dict.fromkeys([*earlier, *(record.name for record in self.records)]))

    def get_total_operations(self) -> int:
        """How many calls were recorded; of a coalesced call its members."""
        return self._earlier.count + len(self.records)

    def summary(self) -> CommsSummary:
        """The log as a table: one row per op, group and message size."""
        return CommsSummary(self.records, self._earlier.lines)

    def to_frame(self) -> pl.DataFrame:
        """The table of `summary` as a polars frame."""
        return self.summary().to_frame()

    def figure(self, **options: Any) -> Any:
        """A plotly figure of `summary`."""
        return self.summary().figure(**options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.summary()._repr_mimebundle_(include, exclude)

    def trace(self) -> Trace:
        """The log as a `Trace`: what the recorder wrote of the calls, for the explorer, files and analyses."""
        recorded = list(recorded_of(list(self._recording.issued)))
        notes = [_NOTE]
        if self._earlier.count:
            notes.append(f"The {self._earlier.count:,} calls before these are in the log's summary alone.")
        recording = replace(self._recording, issued=recorded, notes=notes)
        return Trace(in_use().tables(recording))

    def get_raw_data(self) -> dict[str, dict[int, list[Any]]]:
        """``{name: {S in bytes: [count, latencies in ms, algbw, busbw]}}``; bandwidths in Gbit/s, as DeepSpeed's.

        The count is that of all calls, the lists are those of the last `most`.
        """
        return raw_data(self.records, self._earlier.lines.values())

    @property
    def comms_dict(self) -> dict[str, dict[int, list[Any]]]:
        """`get_raw_data` as of now, by the name that it has in DeepSpeed's logger."""
        return self.get_raw_data()

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """For one name: figures by message size, see `log_all`; None for a name that was not logged."""
        return operation_summaries(self.records, self._earlier.lines.values()).get(operation_name)

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
        records = self.records
        rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
        stragglers = self.stragglers() if show_straggler else None
        if print_log:
            print(CommsSummary(records, self._earlier.lines).text())
            if stragglers is not None:
                print(stragglers.text())
        if not return_dict:
            return None
        return {
            "summary": operation_summaries(records, self._earlier.lines.values()),
            "straggler_analysis": None if stragglers is None else stragglers.by_name(rank),
            "differences": None if stragglers is None else list(stragglers.differences),
            "metadata": {"world_size": world_size, "rank": rank, "timestamp": datetime.now().astimezone().isoformat()},
        }

    def stragglers(self) -> StragglerReport:
        """What ranks waited for each other, and where their logs differ. Every rank of the world must make this call.

        Raises:
            TimeoutError: some ranks have not made it; the error names them.
        """
        records = self.records
        meet("log_summary(show_straggler=True)")
        logs = exchange(rank_log(records, td.get_rank() if is_initialized() else 0, self._earlier.matched))
        found = straggler_report(list(logs.values()))
        return replace(found, differences=(*self._differences(records), *found.differences))

    def check(self) -> None:
        """Compare the calls that all ranks have logged: what they must agree on, and the order on each group.

        Every rank of the world must make this call. On gloo, ranks whose dtypes, reductions or order differ may get
        wrong values and no error.

        Raises:
            MismatchError: the first call of each group that differs, with what each rank made of it and its line.
            TimeoutError: some ranks have not made this call; the error names them.
            UsageError: no rank has logged anything.
        """
        records = self.records
        meet("check()")
        if not any(exchange(bool(records)).values()):
            raise UsageError("check(): no rank has logged a call: turn the log on before, with configure(enabled=True)")
        found = self._differences(records)
        if found:
            raise MismatchError("the ranks did not make the same calls: " + "; ".join(bounded(found)))

    def _differences(self, records: Sequence[Record]) -> list[str]:
        """Texts on where the ranks' calls differ; every rank of the world must make this call. See `compare`."""
        made = compare.calls_made(records, self._earlier.compared)
        chunks = compare.chunks_to_compare(exchange(compare.digests(made)))
        if not chunks:
            return []
        return compare.differences(chunks, exchange(compare.calls_of_chunk(made, chunks)))

    def print_call(self, call: Call) -> None:
        """Print a line for each message of a call that is over, on rank 0; the first to say that it is over counts."""
        with _printing:
            if call.is_printed or not call.is_wanted:
                return
            call.is_printed = True
        if td.is_initialized() and td.get_rank() != 0:
            return
        for record in records_of(call.issued[:1] if call.spelling.is_object else call.issued):
            if record.seconds is not None:
                algbw, busbw = bandwidth(record.op, record.bytes, record.seconds, record.group.size)
                size, took = format_bytes(record.bytes), f"{record.seconds * 1e3:.3f} ms"
                rates = f"algbw {rate_text(algbw)} | busbw {rate_text(busbw)}"
                print(f"{record.name} | group {record.group.name} | {size} | {took} | {rates}")


def _call_of_another_layer(*_: Any) -> None:
    raise AssertionError("a call of another layer was made there")


def _calling_function() -> str:
    """The name of the function that called this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_name


comms_logger = CommsLogger(follows_calls=True)
atexit.register(comms_logger.close)
