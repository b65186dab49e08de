"""The recorder: from the moment a collective is issued to the tables of a `Trace`.

What must hold:

1. nothing is charged to what does not communicate, and a few microseconds to what does;
2. a fault of the recorder's own never ends or changes the program: it is warned of, once;
3. recordings nest, and see all threads of the process; each has its own steps and numbering;
4. no parameter, tensor, model or process group is kept alive after the recording;
5. whatever ends the block, hooks and kernels are removed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture import frame_kinds, pipelines
from dsexplore.capture.groups import Group, Groups, own_rank
from dsexplore.capture.issued import Batches, Issued, is_async
from dsexplore.capture.labels import Label, current
from dsexplore.capture.make_tables import events_frame, groups_frame, modules_frame, parameters_frame
from dsexplore.capture.modules import Module, Modules
from dsexplore.capture.ops import Communication, Message, forget_messages
from dsexplore.capture.recording import Recording
from dsexplore.capture.stack import Context, look
from dsexplore.capture.stack_sharded import read_sharded
from dsexplore.capture.substrate import Substrate, best_available
from dsexplore.capture.timing import Clock, Stopwatch
from dsexplore.errors import UsageError
from dsexplore.interrupts import uninterrupted
from dsexplore.progress import track
from dsexplore.trace.files import check_destination, save_recording
from dsexplore.trace.trace import Tables, Trace, TraceInfo


class Recorder:
    """One per process: watches while at least one recording is open.

    Args:
        substrate: makes the source of events.
        clock: nanoseconds since the epoch, for start and end.
    """

    def __init__(self, substrate: Callable[[], Substrate] = best_available, clock: Clock = time.time_ns) -> None:
        self._make_substrate = substrate
        self._stopwatch = Stopwatch(clock)
        self._substrate: Substrate | None = None
        self._recordings: list[Recording] = []
        self._groups = Groups()
        self._modules = Modules(self._warn)
        self._stack_depth = 1
        self._batches = Batches(count(1))
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    @property
    def active(self) -> bool:
        """Whether anything is being recorded."""
        return bool(self._recordings)

    def open(self, recording: Recording) -> None:
        """Begin to record into it; the first one installs hooks and kernels."""
        with self._lock:
            if not self._recordings:
                self._groups, self._modules, self._warned = Groups(), Modules(self._warn), set()
                self._batches = Batches(count(1))
                substrate = self._make_substrate()
                try:
                    self._modules.install()
                    substrate.install(self)
                except BaseException:
                    self._modules.uninstall()
                    raise
                self._substrate = substrate
            recording.modules = self._modules
            recording.earlier_calls = self._modules.calls()
            self._recordings = [*self._recordings, recording]  # a new list: other threads go through the old one
            self._stack_depth = max(each.stack_depth for each in self._recordings)

    def close(self, recording: Recording) -> Tables:
        """End it and return its content; the last one removes everything that was installed."""
        with self._lock:
            self._remove(recording)
            try:
                return self.tables(recording)
            finally:
                self._uninstall_if_unused()

    def stop(self, recording: Recording) -> None:
        """End it as `close` does, without making its tables: `tables` makes them, and `open` may continue it."""
        with self._lock:
            self._remove(recording)
            try:
                self._resolve()
            finally:
                self._uninstall_if_unused()

    def _remove(self, recording: Recording) -> None:
        self._recordings = [each for each in self._recordings if each is not recording]
        self._stack_depth = max((each.stack_depth for each in self._recordings), default=1)

    def _uninstall_if_unused(self) -> None:
        if self._recordings:
            return
        self._modules.uninstall()
        if self._substrate is not None:
            self._substrate.uninstall()
            self._substrate = None
        self._stopwatch.release()
        self._groups.release()
        forget_messages()

    def begins(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Issued | None:
        """A collective is about to be issued; see `substrate.Observer`."""
        try:
            frame, issued = frame_kinds.innermost(raw_op, 2), None
            if self._stack_depth == 1:
                issued = read_sharded(raw_op, entry, args, frame, self._modules, self._groups)
            if issued is None:
                issued = self._describe(raw_op, entry, args, frame)
        except Exception as fault:
            self._warn(f"{raw_op}", f"dsexplore could not describe {raw_op} and left it out of the trace: {fault!r}")
            return None
        issued.recordings = self._recordings
        issued.label = current.label
        if issued.needs_work and issued.group is not None:
            self._stopwatch.begin(issued, issued.group.timing, args)
        return issued

    def _describe(self, raw_op: str, entry: Communication, args: tuple[Any, ...], frame: FrameType) -> Issued:
        """A collective that is about to be issued, from anywhere."""
        context = look(self._stack_depth, frame, self._modules)
        if context.redistribute is not None:
            frame_kinds.remember_redistribute(raw_op, frame)
        group = self._groups.find(args[entry.group]) if entry.group >= 0 else self._guess_group(raw_op, entry, args)
        messages = entry.messages(args, group.size if group is not None else 1, entry.op)
        if context.schedule:
            context.stage, context.phase = pipelines.place(context.schedule, messages[0][0], args)
        issued = self._attributed(raw_op, messages, group, context)
        issued.is_async = not context.is_blocking and is_async(entry, args)
        if context.batch or "coalesced" in raw_op:
            issued.batch = self._batches.of(context.batch)
        return issued

    def returned(self, pending: Issued, result: Any) -> None:
        """It has returned that, and is part of every recording that was open as it began, with its times if any."""
        for recording in pending.recordings:
            recording.add(pending)
        pending.recordings = ()
        label = pending.label
        if label is not None:
            label.issued.append(pending)
        if pending.needs_work:
            if label is not None and label.ends_with_call:
                self._stopwatch.hold(pending, result)
            else:
                self._stopwatch.follow(pending, result)

    def end_label(self, label: Label) -> None:
        """The labelled call has returned, and what it issued is over."""
        now = self._stopwatch.now()
        for issued in label.issued:
            if issued.end is None and issued.start is not None:
                issued.end = now

    def switched_off(self, op: str, process_group: Any, switch: str) -> None:
        """A collective that the comm layer suppressed: shown, never counted as traffic."""
        issued = self.unissued("", (f"switched_off:{op}", 0, None, ()), process_group)
        issued.cause = f"switched off by {switch}"
        for recording in self._recordings:
            recording.add(issued)

    def unissued(self, raw_op: str, message: Message, process_group: Any) -> Issued:
        """Describe what reached no kernel as a collective issued now would be; part of no recording yet."""
        context = look(1, sys._getframe(1), self._modules)
        group = self._groups.find(process_group) if process_group is not None else None
        issued = self._attributed(raw_op, [message], group, context)
        issued.label = current.label
        return issued

    def _guess_group(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Group | None:
        """The group of an op that nobody described."""
        self._warn(raw_op, f"dsexplore does not know the communication op {raw_op}: recorded as {entry.op}")
        handle = next((arg for arg in args if _may_be_group(arg)), None)
        return self._groups.find(handle) if handle is not None else None

    def _attributed(self, raw_op: str, messages: Sequence[Message], group: Group | None, context: Context) -> Issued:
        """The collective of that context, with its trigger, unless that is asked for later, and its owner."""
        modules = self._modules
        if context.mesh is not None:
            self._groups.add_mesh(context.mesh)
        owner = modules.find(context.owner) if context.owner is not None else None
        trigger = context.trigger
        if trigger is None and context.boundaries is None:
            trigger = modules.find(context.stage) if context.stage is not None else self._called_unseen(context)
        elif context.backward is not None and context.backward.makes_graph:
            modules.note_node(*context.called())
        told = context.cause or context.asked_by
        if owner is None and context.cause == "DDP gradient bucket":
            owner = modules.wrapper(DistributedDataParallel)
        elif not told and trigger is not None and isinstance(trigger.reference(), DistributedDataParallel):
            context.cause = "DDP buffers and bucket order"
        issued = Issued(
            raw_op,
            messages,
            group,
            context.phase,
            trigger,
            owner or trigger,
            context.sources,
            context.cause,
            context.asked_by,
            context.before,
            context.after,
        )
        issued.implicit, issued.is_object = context.implicit, context.is_object
        if context.boundaries is not None:
            context.boundaries.ask(issued, context.node_number)
        return issued

    def _called_unseen(self, context: Context) -> Module | None:
        """The module being called, where no hook told of the call: compiled, or called while the recording began."""
        module = context.module
        if module is None:
            return None
        trigger = self._modules.find(module)
        if trigger.calls == 0:
            self._modules.note_node(trigger, context.sources[:1])
        return trigger

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            for recording in self._recordings:
                recording.notes.append(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    @property
    def modules(self) -> Modules:
        """The modules that were met since the first open recording began."""
        return self._modules

    def _resolve(self) -> list[Group]:
        """Look up what was left for later: ends, modules of autograd nodes, mesh axes; all groups met so far."""
        self._stopwatch.settle()
        self._modules.answer()
        for mesh in self._modules.meshes():
            self._groups.add_mesh(mesh)
        return self._groups.described()

    def tables(self, recording: Recording) -> Tables:
        """The recording's content as of now."""
        # In this order, as other threads go on: no step without its events, no event without its group.
        steps, issued = list(recording.steps), list(recording.issued)
        groups = self._resolve()
        modules = recording.modules or self._modules
        ranks = _ranks(issued)
        used = {id(one.group): one.group for one in issued if one.group is not None}
        # A recording that was opened again has groups of the time before, too.
        known = {group.name for group in groups}
        groups += {group.name: group for group in used.values() if group.name not in known}.values()
        return Tables(
            events=events_frame(issued, steps, recording.stack_depth),
            parameters=parameters_frame(modules, ranks[0] if ranks else 0),
            modules=modules_frame(modules, recording.earlier_calls),
            groups=groups_frame(group for group in groups if id(group) in used),
            info=TraceInfo(
                world_size=_world_size(groups),
                ranks=tuple(ranks),
                mesh=recording.mesh or next((group.mesh for group in groups if group.mesh), ""),
                simulated=recording.simulated or any(group.backend == "fake" for group in groups),
                torch_version=torch.__version__,
                notes=(*recording.notes, *recording.further_notes(len(issued))),
            ),
        )


def _ranks(issued: list[Issued]) -> list[int]:
    """Whose events these are; where there are none, this process's rank."""
    ranks = sorted({one.rank for one in issued})
    if ranks:
        return ranks
    if dist.is_initialized():
        return [own_rank()]
    # Started by a launcher, and has no process group yet or no more.
    return [int(os.environ["RANK"])] if "RANK" in os.environ else []


def _world_size(groups: list[Group]) -> int:
    """Ranks of the process group; where there is none, those that the launcher or the groups seen tell."""
    if dist.is_initialized():
        return dist.get_world_size()
    return max([int(os.environ.get("WORLD_SIZE", "1")), *(group.size for group in groups)])


def _may_be_group(arg: Any) -> bool:
    return isinstance(arg, (dist.ProcessGroup, torch.ScriptObject)) and "ProcessGroup" in str(
        arg._type() if isinstance(arg, torch.ScriptObject) else type(arg)
    )


_recorder = Recorder()


@contextmanager
def record(
    *,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    simulated: bool = False,
    mesh_spec: str = "",
    further_notes: Callable[[int], Iterable[str]] = lambda _events: (),
) -> Iterator[Trace]:
    """Record every collective of this process inside the block.

    Args:
        save: a directory, where every rank writes a file when its block ends, also by an exception; or, where only
            one process records, a file such as ``step.parquet``.
        stack_depth: frames of the user's code to keep per event.
        simulated: whether the process group simulates its ranks.
        mesh_spec: the mesh as the user wrote it, ``"dp=2,tp=4"``.
        further_notes: called with the number of collectives whenever the tables are made; returns what the trace's
            notes say besides.

    Yields:
        a `Trace`, readable at any time, final when the block ends. Ctrl-C inside the block leaves it with what was
        recorded until then, saved if it was to be, and the KeyboardInterrupt says so.

    Raises:
        UsageError: a ``stack_depth`` below 1, or a ``save`` that several processes would overwrite.
    """
    if stack_depth < 1:
        raise UsageError(f"stack_depth={stack_depth} keeps no source line: give 1 or more")
    if save is not None:
        check_destination(save)
    recording = Recording(stack_depth, simulated, mesh_spec, {}, further_notes)
    trace = Trace(lambda: _recorder.tables(recording), recording.step)
    inner = _recorder.active
    _recorder.open(recording)
    try:
        with track("tracing", unit="collectives") as work:
            recording.work = work if work.is_seen and not inner else None
            yield trace
    except BaseException as error:
        recording.notes.append(f"the recording ended early, with {type(error).__name__}")
        _end(recording, trace, save)
        if isinstance(error, KeyboardInterrupt) and not inner:
            error.add_note(
                f"The {len(trace):,} collectives recorded until then are kept in the trace"
                + (f", saved in {os.fspath(save)}." if save is not None else ".")
            )
        raise
    _end(recording, trace, save)


def _end(recording: Recording, trace: Trace, save: str | os.PathLike[str] | None) -> None:
    """Wholly, even where Ctrl-C comes twice, as it does to the processes of a launcher that passes it on."""
    with uninterrupted():
        recording.work = None
        trace.finish(_recorder.close(recording))
        if save is not None:
            save_recording(trace, save)


def is_recording() -> bool:
    """Whether a recording is open in this process."""
    return _recorder.active


def followed() -> list[Module]:
    """The modules that were met while anything is recorded, parents before children."""
    return list(_recorder.modules.in_order())


def running_module() -> Module | None:
    """The module that runs in this thread; in backward, the one whose forward made the running autograd node."""
    return _recorder.modules.running()


def is_in_forward() -> bool:
    """Whether a module's forward runs in this thread, of its own or as recomputation."""
    return _recorder.modules.in_forward()


def note_switched_off(op: str, process_group: Any, comm_switch: str) -> None:
    """Note a collective that the comm layer's switches suppressed, in every open recording."""
    if _recorder.active:
        _recorder.switched_off(op, process_group, comm_switch)


def use(recorder: Recorder) -> None:
    """Have that recorder record from now on, such as one with another clock; none must be recording."""
    global _recorder
    if _recorder.active:
        raise UsageError("a recording is open: end it before another recorder takes its place")
    _recorder = recorder


def in_use() -> Recorder:
    """The recorder of this process."""
    return _recorder
