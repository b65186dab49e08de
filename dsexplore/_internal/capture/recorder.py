"""The recorder: from the moment a collective is issued to the tables of a `Trace`.

Requirements:

1. code that does not communicate is not slowed down, and each collective by a few microseconds at most;
2. an error inside the recorder never ends or changes the program, but is warned of once;
3. recordings nest and see all threads of the process; each has its own steps and numbering;
4. no parameter, tensor, model or process group is kept alive after the recording;
5. however the block ends, everything that was installed is removed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from dsexplore._internal import io_accesses
from dsexplore._internal.capture.collectives.early_sends import EarlySends
from dsexplore._internal.capture.collectives.given_up_groups import mark_given_up
from dsexplore._internal.capture.collectives.groups import Group, Groups, observe_meshes, own_rank, size_of
from dsexplore._internal.capture.collectives.issued_collective import Batches, Issued, Label, current, is_async
from dsexplore._internal.capture.collectives.ops import Communication, Message, forget_messages
from dsexplore._internal.capture.collectives.peers import PARTIES
from dsexplore._internal.capture.collectives.substrate import KernelSubstrate, Substrate
from dsexplore._internal.capture.content.io_recording import IoAccess, observe_input
from dsexplore._internal.capture.content.recorded_content import content_of
from dsexplore._internal.capture.content.recorded_steps import is_own
from dsexplore._internal.capture.content.recorded_tables import Recorded
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.modules.module_calls import ModuleCalls
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack import frame_kinds, pipelines
from dsexplore._internal.capture.stack.future_callbacks import observe_callbacks
from dsexplore._internal.capture.stack.origins import Origins
from dsexplore._internal.capture.stack.stack_reading import DDP_BUCKET, DDP_UNUSED, StackReading, read_stack
from dsexplore._internal.capture.timing.stopwatch import Stopwatch
from dsexplore._internal.capture.timing.tensor_waits import TensorWaits
from dsexplore._internal.capture.timing.work_timing import Clock, fail, is_failure
from dsexplore._internal.io_accesses import IoOp
from dsexplore._internal.torch_internals.frames import ENGINE
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.user_warnings import warn, warn_of_untested_torch


class Recorder:
    """Sees every collective of the process while at least one recording is open; one per process.

    Args:
        substrate: creates the source of communication events.
        clock: returns nanoseconds since the epoch, for the times at which collectives begin and end.
    """

    def __init__(self, substrate: Callable[[], Substrate] = KernelSubstrate, clock: Clock = time.time_ns) -> None:
        self._make_substrate = substrate
        self._stopwatch = Stopwatch(clock)
        self._tensor_waits = TensorWaits(time.perf_counter_ns)
        self._substrate: Substrate | None = None
        self._keeps_kernels = False
        self._recordings: list[Recording] = []
        self._stack_depth = 1
        self._inside: dict[int, Issued] = {}
        """{thread: collective that has not returned}. The first call of an NCCL group returns late, once all ranks have
        created the communicator."""
        self._ends: list[Callable[[], None]] = []
        """Functions that end the observation of input, meshes, callbacks, reads and writes."""
        self._lock = threading.RLock()
        self._start_anew()

    def _start_anew(self) -> None:
        """Drop the groups, modules and names of earlier recordings."""
        self._groups = Groups()
        self._modules = Modules(self.warn_once)
        self._origins = Origins(self._modules, self._groups)
        self._module_calls = ModuleCalls(self._modules, self._begin_outermost)
        self._early: EarlySends | None = EarlySends()
        """Collectives that the program issues before any module runs; None afterwards."""
        self._batches = Batches(count(1))
        self._warned: set[str] = set()

    @property
    def recordings(self) -> Sequence[Recording]:
        """Open recordings, in the order in which they were opened."""
        return self._recordings

    def open(self, recording: Recording) -> None:
        """Begin to record into ``recording``; the first one installs the observers of modules and ops."""
        warn_of_untested_torch()
        with self._lock:
            if not self._recordings:
                self._start_anew()
                try:
                    self._module_calls.install()
                    if self._substrate is None:
                        substrate = self._make_substrate()
                        substrate.install(self)
                        self._substrate = substrate
                    self._stopwatch.install()
                    self._ends = [observe_input(), observe_meshes(), io_accesses.listen(self.begins_io)]
                    self._ends.append(observe_callbacks(lambda frame: self._origins.here(self._stack_depth, frame)))
                except BaseException:
                    self._module_calls.uninstall()
                    raise
            recording.modules = self._modules
            recording.earlier_calls = self._modules.calls()
            recording.earlier_differentiable = self._modules.differentiable_calls()
            self._recordings = [*self._recordings, recording]  # a new list, as other threads iterate over the old one
            self._stack_depth = max(is_open.stack_depth for is_open in self._recordings)

    def keep_kernels(self, keep: bool) -> None:
        """Set whether kernels in front of ops stay installed between recordings; installing them takes milliseconds."""
        with self._lock:
            self._keeps_kernels = keep
            self._uninstall_if_unused()

    def close(self, recording: Recording) -> Recorded:
        """End ``recording`` and return its content; the last one removes everything that was installed."""
        with self._lock:
            self._remove(recording)
            try:
                return self._content(recording)
            finally:
                self._uninstall_if_unused()

    def stop(self, recording: Recording) -> None:
        """End ``recording`` as `close` does, but leave its tables to `tables`; `open` may continue it."""
        with self._lock:
            self._remove(recording)
            try:
                self._origins.share()
                self._describe_groups()
            finally:
                self._uninstall_if_unused()

    def _remove(self, recording: Recording) -> None:
        self._recordings = [is_open for is_open in self._recordings if is_open is not recording]
        self._stack_depth = max((is_open.stack_depth for is_open in self._recordings), default=1)

    def _uninstall_if_unused(self) -> None:
        """Remove everything that was installed, and drop references to the program, if no recording is open."""
        if self._recordings:
            return
        self._module_calls.uninstall()
        for end in self._ends:
            end()
        self._ends = []
        self._modules.release()
        if self._substrate is not None and not self._keeps_kernels:
            self._substrate.uninstall()
            self._substrate = None
        self._stopwatch.release()
        self._tensor_waits.release()
        self._early = None
        self._groups.release()
        self._origins.release()
        forget_messages()

    def begins(self, raw_op: str, entry: Communication, args: Sequence[Any], caller: FrameType) -> Issued | None:
        """Record a collective that is about to be issued; see `observed_op.Observer`."""
        if not self._recordings:
            return None
        try:
            group = self._groups.find(args[entry.group]) if entry.group >= 0 else self._guess_group(raw_op, entry, args)
            issued = self._describe(raw_op, entry, args, group, caller)
        except Exception as fault:
            self.warn_once(raw_op, f"dsexplore could not describe {raw_op} and left it out of the trace: {fault!r}")
            return None
        if group is not None and group.timing != "none":
            issued.needs_work = True
            is_message = entry.op in ("send", "recv")  # NCCL has a separate communicator for each pair of ranks
            self._stopwatch.begin(issued, group.timing, args, None if is_message else group.name)
            self._inside[get_ident()] = issued
            for recording in self._recordings:
                recording.begin(issued)
        issued.recordings = self._recordings
        return issued

    def begins_before_kernel(self, raw_op: str, entry: Communication, args: Sequence[Any]) -> Issued | None:
        """Record a collective that is about to be issued and bypasses its op's kernel; see `observed_op.Observer`."""
        if not self._recordings:
            return None
        try:
            group = self._groups.find(args[entry.group])
            if group.timing != "work":
                return None
            issued = self._describe(raw_op, entry, args, group, sys._getframe(1))
        except Exception:
            return None  # the kernel will report the op too, and a fault is warned of then
        issued.needs_work = True
        issued.recordings = self._recordings
        self._inside[get_ident()] = issued
        issued.start = self._stopwatch.now()
        for recording in issued.recordings:
            recording.begin(issued)
        return issued

    def returned(self, pending: Issued, result: Any, tensors: Any = None) -> None:
        """Add a collective that has returned `result` to its recordings; see `observed_op.Observer`."""
        label = pending.label  # a recording may replace it, by one that many calls share
        if pending.needs_work:
            self._inside.pop(get_ident(), None)
        for recording in pending.recordings:
            recording.add(pending)
        pending.recordings = ()
        if label is not None:
            label.issued.append(pending)
        ends_with_call = label is not None and label.ends_with_call and pending.span is None
        if pending.needs_work and not ends_with_call:
            self._stopwatch.follow(pending, result)
            if tensors is not None and pending.span is None:
                self._tensor_waits.expect(pending, tensors)

    def raised(self, pending: Issued, error: BaseException) -> None:
        """Add a collective to its recordings if its backend failed, else drop it; see `observed_op.Observer`."""
        self._inside.pop(get_ident(), None)
        if is_failure(error):
            fail(pending, error)
            for recording in pending.recordings:
                recording.add(pending)
            if pending.label is not None:
                pending.label.issued.append(pending)
        elif pending.needs_work:
            for recording in pending.recordings:
                recording.drop(pending)
        pending.recordings = ()

    def begins_io(self, op: IoOp, path: str, nbytes: int | None) -> IoAccess | None:
        """Record a read, write or wait that begins now, if real ranks are recorded; the caller ends the access."""
        recordings = [recording for recording in self._recordings if not recording.simulated]
        if not recordings:
            return None
        try:
            origin = self._origins.here(self._stack_depth, sys._getframe(1))
            access = IoAccess(op, path, nbytes, origin=origin, now=self._stopwatch.now, start=self._stopwatch.now())
        except Exception as fault:
            self.warn_once(f"io {op}", f"dsexplore could not describe a {op} and left it out of the trace: {fault!r}")
            return None
        for recording in recordings:
            recording.io.append((len(recording.steps), access))
        return access

    def end_label(self, label: Label) -> None:
        """Record that all collectives of a labeled call have ended, as the call has returned."""
        for issued in label.issued:
            self._stopwatch.end_on_host(issued)

    @property
    def stopwatch(self) -> Stopwatch:
        """Stopwatch that measures when each collective began and ended."""
        return self._stopwatch

    def observe_outputs(self, report: Callable[[ModuleEntry, Any], None]) -> Callable[[], None]:
        """Call a function with each module that has returned and its output; return a function that ends this."""
        observers = self._module_calls.observers
        observers.append(report)
        return lambda: observers.remove(report)

    def number_batch(self, members: Sequence[Issued]) -> None:
        """Set one batch number for collectives that were launched together."""
        number = self._batches.number_of(is_first=True)
        for issued in members:
            issued.batch = number

    def repeat(self, collectives: Iterable[Issued]) -> None:
        """Record collectives again, as if the program had issued them again; those of a batch get a new batch."""
        self._origins.share()
        batches: dict[int, int] = {}
        for collective in collectives:
            batch = collective.batch
            if batch is not None:
                if batch not in batches:
                    batches[batch] = self._batches.number_of(is_first=True)
                batch = batches[batch]
            again = replace(collective, batch=batch)
            for recording in self._recordings:
                recording.add(again)

    def _describe(
        self, raw_op: str, entry: Communication, args: Sequence[Any], group: Group | None, caller: FrameType
    ) -> Issued:
        """Describe a collective that is about to be issued inside the frame ``caller``."""
        reading = read_stack(self._stack_depth, caller, self._modules)
        messages = entry.messages(args, size_of(group), entry.op)
        first = messages[0]
        is_integer = first.dtype is torch.int32  # as no gradient is
        if reading.cause == DDP_BUCKET and is_integer and frame_kinds.kind_of_issuer(caller) == ENGINE:
            reading.cause = DDP_UNUSED
        stage = None
        if reading.schedule:
            self._note_schedule(reading)
            stage, reading.phase = pipelines.place(reading, first.op, args)
        read_parties = PARTIES.get(raw_op)
        issued = Issued(
            raw_op,
            messages,
            group,
            rank=group.own_rank if group is not None else own_rank(),
            origin=self._origins.of(reading, stage, first.shape),
            is_async=is_async(entry, args) and not reading.is_blocking,
            label=current.label,
            parties=read_parties(args) if read_parties is not None else None,
            input=reading.call.input,
        )
        if reading.batch_position or "coalesced" in raw_op:
            issued.batch = self._batches.number_of(is_first=reading.batch_position < 2)
        self._origins.share_soon(issued)
        if self._early is not None and is_own(issued):
            self._early.add(issued, args)
        return issued

    def _note_schedule(self, reading: StackReading) -> None:
        """Note the running pipeline schedule in recordings that record costs."""
        for recording in self._recordings:
            if recording.kernels is not None and not recording.kernels.schedule:
                recording.kernels.schedule = pipelines.describe(reading.schedule)

    def add_switched_off(self, op: str, process_group: Any, switch: str) -> None:
        """Add a collective that the comm layer suppressed to every open recording; it does not count as traffic."""
        issued = self.unissued("", Message(f"switched_off:{op}", nbytes=0, dtype=None, shape=()), process_group)
        issued.origin = issued.origin._replace(cause=f"switched off by {switch}")
        for recording in self._recordings:
            recording.add(issued)

    def unissued(self, raw_op: str, message: Message, process_group: Any) -> Issued:
        """Describe a message that reaches no kernel as a collective issued now, without adding it to recordings."""
        group = self._groups.find(process_group) if process_group is not None else None
        rank = group.own_rank if group is not None else own_rank()
        origin = self._origins.here(1, sys._getframe(1))
        issued = Issued(raw_op, [message], group, rank=rank, origin=origin, label=current.label)
        self._origins.share_soon(issued)
        return issued

    def _begin_outermost(self, module: ModuleEntry, with_gradients: bool) -> None:
        """Record the begin of a module call that is inside no other."""
        if self._early is not None:
            self._early.find_parameters(module)
            self._early = None
        for recording in self._recordings:
            recording.begin_call(id(module), with_gradients=with_gradients)

    def _guess_group(self, raw_op: str, entry: Communication, args: Sequence[Any]) -> Group | None:
        """Return the group of an unknown op, its first argument that is a group; warn of the op."""
        self.warn_once(raw_op, f"dsexplore does not know the communication op {raw_op}: recorded as {entry.op}")
        return self._groups.find_among(args)

    def warn_once(self, about: str, message: str) -> None:
        """Warn and add a note to every open recording, once per subject until the last recording has ended."""
        if about not in self._warned:
            self._warned.add(about)
            for recording in self._recordings:
                recording.notes.append(message)
            warn(message)

    @property
    def modules(self) -> Modules:
        """Modules called since the first open recording began."""
        return self._modules

    def inside(self) -> list[Issued]:
        """Return the collectives, of any thread, that have not returned."""
        return list(self._inside.values())

    def _describe_groups(self) -> list[Group]:
        """Record the ends of completed works, and return all groups met so far, with their mesh axes."""
        self._stopwatch.settle()
        for mesh in self._modules.meshes():
            self._groups.add_mesh(mesh)
        return self._groups.described()

    def tables(self, recording: Recording, *, waits: bool = True) -> Tables:
        """Return the recording's content so far.

        Args:
            recording: a recording of this recorder, open or stopped.
            waits: whether to wait for devices to complete their collectives. If not, collectives in flight are included
                as unfinished, and so are those whose call has not returned.
        """
        return self._content(recording, waits=waits)()

    def _content(self, recording: Recording, *, waits: bool = True) -> Recorded:
        self._origins.share()
        # Steps, events, groups: in this order, no step lacks its events and no event its group, as other threads go on.
        steps, issued = list(recording.steps), list(recording.issued)
        if not waits:
            issued += [issued_inside for issued_inside in self.inside() if recording in issued_inside.recordings]
        groups = self._describe_groups()
        recording.notes += mark_given_up(issued, groups)
        modules = recording.modules or self._modules
        recording.note_training(modules.differentiable_calls())
        return content_of(recording, steps, issued, groups, modules, waits=waits)
