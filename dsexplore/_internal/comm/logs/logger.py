"""The comms logger: a recording that is open while the log is on.

The log has every collective of the process, each with the layer that was called: ``dsexplore.comm``,
``deepspeed.comm`` or ``torch.distributed`` (called by the program, DDP, FSDP, DTensor, …).

Requirements, hardest first:

1. Logging keeps overlap: an asynchronous op is timed from its issue to its completion, with events on its stream
   or by its own completion, and nothing here waits for it.
2. A record belongs to its call: it is safe to turn profiling on or off, or to reset the log, while an op runs.
3. Threads may call collectives at the same time.
4. An unknown op is logged under its own name.

`comm.issue` labels each call (`CommsLogger.begin`). The recorder of `capture` adds each collective to every open
recording, with module, axis, cause and source. The log's recording labels those without a label
(`CommsLogger.label_of`), and keeps those that are to be logged.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast, overload

import torch.distributed as td

from dsexplore._internal.capture.collectives.groups import Group, describe_group
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.capture.timing.work_timing import fail
from dsexplore._internal.comm.constants import COMMS_LOGGER
from dsexplore._internal.comm.logs.issuing_layer import caller_of
from dsexplore._internal.comm.logs.log_content import LogContent
from dsexplore._internal.comm.logs.log_records import MOST_CALLS, OWN_OP, LoggedCall, LogRecording
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.comm.logs.meeting import register
from dsexplore._internal.comm.spellings import Spelling
from dsexplore._internal.comm.sweeps.bandwidth import plain_op
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_count

Value = TypeVar("Value")


class _Setting(Generic[Value]):
    """An attribute of the logger that reads and sets one field of its configuration.

    Args:
        name: name of the field.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, log: None, owner: type) -> Self: ...

    @overload
    def __get__(self, log: CommsLogger, owner: type) -> Value: ...

    def __get__(self, log: CommsLogger | None, owner: type) -> Value | Self:
        if log is None:
            return self
        value = getattr(log.config, self._name)
        return cast("Value", list(value) if isinstance(value, tuple) else value)

    def __set__(self, log: CommsLogger, value: Value) -> None:
        checked = CommsLoggerConfig.parse({COMMS_LOGGER: {self._name: value}})
        log.configure(replace(log.config, **{self._name: getattr(checked, self._name)}))


_COMM_FOLDER = str(Path(__file__).parents[1]) + os.sep


class CommsLogger(LogContent):
    """Records collectives with their sizes, groups and times. `dsexplore.comm.comms_logger` is the one in use.

    Args:
        config: what to record: a configuration, a ds_config, or the path of its JSON file; None for a logger that is
            off.
        clock: returns monotonic nanoseconds, for calls that `append` adds.
        epoch: nanoseconds to add to the clock for the time since the Unix epoch; None to read the system's time.
        follows_calls: record the collectives of this process, as `comms_logger` does; otherwise only `append` adds
            calls.
        most: number of calls to keep individually. Earlier calls are in the summary, but not in the trace, the lists
            of `get_raw_data` and the comparison of ranks.
    """

    @names_arguments
    def __init__(
        self,
        config: CommsLoggerConfig | Mapping[str, object] | str | os.PathLike[str] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        epoch: int | None = None,
        follows_calls: bool = False,
        most: int = MOST_CALLS,
    ) -> None:
        self.is_on = False
        self.logs_all = False
        """True if each call is logged under its own name, and nothing is printed."""
        self.clock = clock
        self.epoch = time.time_ns() - clock() if epoch is None else epoch
        self._config = CommsLoggerConfig()
        super().__init__(LogRecording(stack_depth=1, simulated=False, mesh="", most=most, label_of=self.label_of))
        self._follows_calls = follows_calls
        self._recorder: Recorder | None = None
        self._calls: dict[tuple[str, ...], LoggedCall] = {}
        """Labels that equal calls share."""
        self.configure(config or CommsLoggerConfig())

    def __repr__(self) -> str:
        calls = format_count(self._dropped.count + len(self._recording.issued), "call")
        return f"<CommsLogger: {'on' if self.is_on else 'off'}, {calls} recorded>"

    @property
    def config(self) -> CommsLoggerConfig:
        """Settings of the log; ``enabled``, ``prof_all``, … can also be set one by one."""
        return self._config

    @names_arguments
    def configure(self, config: CommsLoggerConfig | Mapping[str, object] | str | os.PathLike[str]) -> None:
        """Apply a configuration, a ds_config, or its JSON file; records are kept."""
        if not isinstance(config, CommsLoggerConfig):
            config = CommsLoggerConfig.parse(config)
        if config.enabled and self._follows_calls and self._recorder is None:
            recorder = in_use()
            recorder.open(self._recording)
            self._recorder = recorder
            register()
        elif not config.enabled:
            self.close()
        if not config.verbose:
            self._printer.print_all()
        self._config = config
        self._calls = {}
        self.is_on = config.enabled
        self.logs_all = config.enabled and config.prof_all and not (config.verbose or config.debug)

    def close(self) -> None:
        """Stop recording and release the recorder; what has been recorded stays."""
        self.is_on = self.logs_all = False
        if self._recorder is not None:
            self._recorder.stop(self._recording)
            self._recorder = None
        self._printer.print_all()

    enabled = _Setting[bool]("enabled")
    prof_all = _Setting[bool]("prof_all")
    prof_ops = _Setting[list[str]]("prof_ops")
    verbose = _Setting[bool]("verbose")
    debug = _Setting[bool]("debug")

    def start_profiling_comms(self) -> None:
        """Record every op."""
        self.prof_all = True

    def stop_profiling_comms(self) -> None:
        """Record only the ops that were requested by name or with ``prof=True``."""
        self.prof_all = False

    @names_arguments
    def start_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """Record these ops too: plain ops, names of functions, or the calls' ``log_name``."""
        names = [op_name_list] if isinstance(op_name_list, str) else list(op_name_list)
        self.prof_ops = list(dict.fromkeys([*self.prof_ops, *names]))

    @names_arguments
    def stop_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """Stop recording these ops by name."""
        names = {op_name_list} if isinstance(op_name_list, str) else set(op_name_list)
        self.prof_ops = [op for op in self.prof_ops if op not in names]

    def wants(self, spelling: Spelling, log_name: str, prof: bool) -> bool:
        """Return True if a call is to be recorded."""
        config = self._config
        if not config.enabled or config.prof_all or prof:
            return config.enabled
        return any(name in config.prof_ops for name in (log_name, spelling.name, spelling.op))

    def begin(
        self,
        spelling: Spelling,
        log_name: str,
        *,
        prof: bool = False,
        caller: str | None = None,
        is_async: bool = False,
        reduction: str = "",
    ) -> LoggedCall:
        """Return a label for a call that is about to be made; the caller sets it as `current.label` during the call.

        Args:
            spelling: the function to be called.
            log_name: the name to log it under.
            prof: log it even if not all calls are logged.
            caller: the calling function's name, for a log in debug mode; None to read it from the stack.
            is_async: True if its collectives may still run when it has returned.
            reduction: ``SUM``, ``MAX``, …; empty for an op without one.
        """
        if self._config.debug:
            log_name = f"{log_name} | [Caller Func: {caller or _calling_function()}]"
        if self._config.verbose:
            self._printer.print_completed()
        return LoggedCall(
            spelling,
            log_name,
            is_wanted=self.wants(spelling, log_name, prof),
            ends_with_call=not (is_async or spelling.is_object),
            reduction=reduction,
        )

    def label_of(self, issued: Issued) -> LoggedCall:
        """Return the label of a running collective that another layer issued; see `issuing_layer`."""
        op = issued.messages[0].op if issued.messages else issued.raw_op
        caller = caller_of(op)
        name = caller.name
        if self._config.debug:
            name = f"{name} | [Caller Func: {caller.function}]"
        key = caller.layer, name, op, caller.reduction, "prof" if caller.prof else ""
        call = self._calls.get(key)
        if call is None:
            spelling = Spelling(caller.name, op, _call_of_another_layer)
            call = LoggedCall(
                spelling,
                name,
                is_wanted=self.wants(spelling, name, caller.prof),
                ends_with_call=False,
                layer=caller.layer,
                reduction=caller.reduction,
            )
            self._calls[key] = call
            register()  # the log may have been turned on before the world was initialized
        if self._config.verbose:
            issued.label = call
            self._printer.print_completed()
            if call.is_wanted:
                self._printer.follow(issued)
        return call

    def begin_custom(self, call: LoggedCall, args: Sequence[object], group: td.ProcessGroup) -> Issued:
        """Add the line of a user's function that is about to be called; the collectives that it issues get none."""
        issued = self._described(call, args, group)
        if issued.group is not None and issued.group.timing != "none":
            in_use().stopwatch.begin(issued, issued.group.timing, args)
        call.issued.append(issued)
        self._recording.add(issued)
        return issued

    def _described(self, call: LoggedCall, args: Sequence[object], group: td.ProcessGroup) -> Issued:
        """Return an event for a call that has issued no collective, with the message of its arguments."""
        spelling = call.spelling
        issued = in_use().unissued(OWN_OP + spelling.name, spelling.message(args, group.size()), group)
        issued.label = call
        issued.origin = issued.origin._replace(is_object=spelling.is_object)
        return issued

    def end(self, call: LoggedCall) -> None:
        """Record that a call has returned and its collectives have completed."""
        in_use().end_label(call)
        self._print(call)
        if self.logs_all and len(call.issued) == 1 and call.is_plain:  # equal calls share one label, to save memory
            key = call.layer, call.spelling.name, call.name, call.reduction
            call.issued[0].label = self._calls.setdefault(key, call)

    def _print(self, call: LoggedCall) -> None:
        """Print the lines of a completed call, and of what other layers issued meanwhile, if the log is verbose."""
        if self._config.verbose:
            self._printer.print_completed()
            self._printer.print_call(call)

    def fail(
        self, call: LoggedCall, error: BaseException, args: Sequence[object] = (), group: td.ProcessGroup | None = None
    ) -> None:
        """Record that a call or its handle raised: it is counted as a call, but not timed.

        Args:
            call: the call that failed.
            error: the exception that was raised.
            args: arguments of the call, from which the message is read if it issued no collective.
            group: process group of the call; None to add no line for a call that issued no collective.
        """
        if not call.issued and group is not None:
            issued = self._described(call, args, group)
            call.issued.append(issued)
            self._recording.add(issued)
        for issued in call.issued:
            fail(issued, error)
        self._print(call)

    def append(
        self, raw_name: str, record_name: str, latency: float, msg_size: int, group_size: int | None = None
    ) -> None:
        """Add a measurement of a collective that was made elsewhere.

        Args:
            raw_name: name of the function or op; an unknown name is logged as the op.
            record_name: the name to log it under.
            latency: duration in milliseconds.
            msg_size: message bytes.
            group_size: number of ranks of the process group; None for the world.
        """
        group = _group_of_size(group_size)
        message = Message(plain_op(raw_name), nbytes=msg_size, dtype=None, shape=())
        origin = Origin("other", trigger=None, owner=None, sources=())
        issued = Issued(OWN_OP + raw_name, [message], group, rank=group.own_rank, origin=origin)
        issued.end = self.clock() + self.epoch
        issued.start = issued.end - max(1, round(latency * 1e6))
        spelling = Spelling(raw_name, plain_op(raw_name), self.append, is_custom=True)
        call = LoggedCall(spelling, record_name, is_wanted=True, ends_with_call=True)
        call.issued.append(issued)
        issued.label = call
        self._recording.add(issued)
        self._print(call)


def _group_of_size(size: int | None) -> Group:
    """Return the world, or a description of a group with `size` ranks if the world has another size."""
    world = td.group.WORLD if td.is_available() and td.is_initialized() else None
    alone = Group(name="", size=1, ranks=(0,), backend="", description="", timing="host")
    group = alone if world is None else describe_group(world)
    if size is None or size == group.size:
        return group
    return Group(
        name=f"{size} ranks",
        size=size,
        ranks=tuple(range(size)),
        backend=group.backend,
        description="",
        axis="",
        mesh="",
        timing="host",
        own_rank=group.own_rank,
    )


def _call_of_another_layer(*_: Any) -> None:
    raise AssertionError("a call of another layer is never made here")


def _calling_function() -> str:
    """Return the name of the function that called this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_COMM_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_name


comms_logger = CommsLogger(follows_calls=True)
atexit.register(comms_logger.close)
