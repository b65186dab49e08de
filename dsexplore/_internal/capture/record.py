"""`record` records every collective of the process in a block, and saves the trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dsexplore._internal.capture.block_end import begin_saving, end_of
from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.early_saves import EarlySave, saved_early, write_stacks
from dsexplore._internal.capture.journaled_calls import JournaledCalls, open_journal
from dsexplore._internal.capture.optimizer_steps import counted_steps
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.progress import track
from dsexplore._internal.trace.call_journal import note_ends
from dsexplore._internal.trace.ends import ENDED_EARLY, RUNNING
from dsexplore._internal.trace.files import check_destination, names_directory, save_recording, stack_file
from dsexplore._internal.trace.trace import Trace, finish

LATEST = 1000
"""Number of latest collectives that are asked whether they are over; programs rarely have more in flight."""


@contextmanager
def record(
    *,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    simulated: bool = False,
    mesh_spec: str = "",
    further_notes: Callable[[int], Iterable[str]] = lambda _events: (),
    target: str = "",
    timeout: float | None = None,
    costs: bool = False,
    numerics: bool = False,
    saves_end: bool = True,
    counts_steps: bool = True,
) -> Iterator[Trace]:
    """Record every collective of this process inside the block.

    Args:
        save: a directory, to which every rank writes a file when its block ends, even by an exception; or a file such
            as ``step.parquet`` if only one process records. None saves nothing.
        stack_depth: the number of frames of the user's code to keep per event.
        simulated: whether the process group simulates its ranks.
        mesh_spec: the mesh as the user wrote it, ``"dp=2,tp=4"``; empty if none was given.
        further_notes: called with the number of collectives whenever the tables are made; returns further notes of the
            trace.
        target: the traffic that the simulation shows; see `TraceInfo.target`.
        timeout: seconds without a collective that begins or ends, after which the trace so far is written to ``save``
            with the stack of each thread, while the block goes on. None for never.
        costs: whether to record kernels and memory too, from which `Trace.predict` predicts times. All ops are observed
            then, and compiled code runs eagerly.
        numerics: whether to record summaries of module outputs, of their gradients, and of parameter gradients too.
        saves_end: whether to save when the block ends; otherwise only SIGTERM and the time-out save.
        counts_steps: whether optimizer steps end the trace's steps, until `Trace.step` is called.

    Yields:
        A `Trace`, readable at any time, and final when the block ends. After Ctrl-C it holds what was recorded until
        then, is saved if ``save`` is given, and the KeyboardInterrupt says so. Other errors of the block are raised
        unchanged, with a note if the trace could not be saved.

    Raises:
        UsageError: ``stack_depth`` is below 1, several processes would overwrite ``save``, or ``timeout`` is not above
            0 or lacks ``save``.
    """
    _check(stack_depth, save, timeout)
    recording = Recording(stack_depth, simulated, mesh_spec, further_notes=further_notes, target=target)
    block = _Block(in_use(), recording, save, saves_end)
    saves_early = save is not None and not simulated
    if saves_early:
        block.begin_saving()
    block.recorder.open(recording)
    try:
        with ExitStack() as while_open:
            work = while_open.enter_context(track("tracing", unit="collectives"))
            recording.work = work if work.is_seen and not block.is_inner else None
            if saves_early:
                while_open.enter_context(saved_early(block.early_save(timeout)))
            if costs:
                block.record_costs()
            if numerics:
                while_open.callback(block.record_numerics())
            if counts_steps:
                while_open.enter_context(counted_steps(None, recording.of_optimizers))
            yield block.trace
    except BaseException as error:
        recording.notes.append(f"{ENDED_EARLY}{type(error).__name__}")
        block.end_by(error)
        raise
    recording.is_complete = True
    block.end()


def _check(stack_depth: int, save: str | os.PathLike[str] | None, timeout: float | None) -> None:
    """Raise UsageError for bad options of `record`."""
    if stack_depth < 1:
        raise UsageError(f"stack_depth={stack_depth} keeps no source line: give 1 or more")
    if timeout is not None and (not timeout > 0 or save is None):
        raise UsageError(f"timeout={timeout} with save={save!r}: give seconds above 0, and a directory to save into")
    if save is not None:
        check_destination(save)


@dataclass
class _Block:
    """One block that is recorded, and how it ends."""

    recorder: Recorder
    recording: Recording
    save: str | os.PathLike[str] | None
    saves_end: bool

    def __post_init__(self) -> None:
        recorder, recording = self.recorder, self.recording
        self.trace = Trace(lambda: recorder.tables(recording), recording)
        # By their exact type, as the log of dsexplore.comm has recordings of a class of its own.
        self.is_inner = any(type(outer) is Recording for outer in recorder.recordings)
        self._journal: JournaledCalls | None = None

    def begin_saving(self) -> None:
        """Remove what an earlier attempt saved, and open the journal."""
        assert self.save is not None
        recording = self.recording
        recording.began, recording.attempt = time.time_ns(), begin_saving(self.save)
        self._journal = open_journal(self.save, recording.attempt, recording.began, recording.stack_depth)
        recording.journal = self._journal

    def early_save(self, timeout: float | None) -> EarlySave:
        """Return how to save while the block runs; `saved_early` does it."""
        settle = self._journal.settle if self._journal is not None else None
        progress = _Progress(self.recording.issued, self.recorder.inside)
        return EarlySave(self._save_early, progress, timeout, settle)

    def _save_early(self, reason: str) -> None:
        """Save the trace so far, and the stack of each thread if ``save`` is a directory."""
        assert self.save is not None
        tables = self.recorder.tables(self.recording, waits=False)
        info = tables.info
        info = replace(info, notes=(*info.notes, reason), ends=(RUNNING,) * len(info.ranks))
        save_recording(replace(tables, info=info), self.save)
        if names_directory(self.save):
            note_ends(Path(self.save), self.recording.attempt)
            for rank in info.ranks or (0,):
                write_stacks(Path(self.save) / stack_file(rank))

    def record_costs(self) -> None:
        """Record kernels and memory too, until the block ends."""
        from dsexplore._internal.capture.kernels.kernel_recording import KernelRecording  # loads torch's FLOP formulas

        recording = self.recording
        recording.kernels = KernelRecording(self.recorder.modules, recording.issued, recording.steps)
        recording.kernels.start()

    def record_numerics(self) -> Callable[[], None]:
        """Record summaries of tensors too; return a function that ends this."""
        from dsexplore._internal.capture.values.numeric_recording import NumericRecording

        recording = self.recording
        recording.numerics = NumericRecording(self.recorder.modules, recording.steps, self.recorder.warn_once)
        recording.numerics.start()
        return self.recorder.observe_outputs(recording.numerics.returned)

    def end(self, error: BaseException | None = None) -> None:
        """Close the recording and save its trace.

        It is not interrupted by a second Ctrl-C: launchers pass Ctrl-C on to ranks that the terminal has sent it to.

        Args:
            error: the exception that ended the block; None if it completed.
        """
        recording = self.recording
        recording.end = end_of(error) if recording.attempt else ""
        with uninterrupted():
            recording.work = recording.journal = None
            if recording.kernels is not None:
                recording.kernels.stop()
            if recording.numerics is not None:
                recording.numerics.stop()
            finish(self.trace, self.recorder.close(recording))
            if self.save is not None and self.saves_end:
                save_recording(self.trace.tables, self.save)
            if self._journal is not None:
                self._journal.remove()

    def end_by(self, error: BaseException) -> None:
        """End a block that raised an error; add a note to a KeyboardInterrupt, and to any error if saving fails."""
        save = self.save if self.saves_end else None
        adds_note = isinstance(error, KeyboardInterrupt) and not self.is_inner
        where = f", saved in {os.fspath(save)}" if save is not None else ""
        try:
            self.end(error)
            if save is not None and self.recording.attempt:
                note_ends(Path(save), self.recording.attempt)  # this error may be that a peer has ended
        except OSError as failure:  # the error of the block is the one to raise
            adds_note, where = True, f", but could not be saved: {failure}"
        if adds_note:
            error.add_note(f"The {len(self.trace):,} collectives recorded until then are kept in the trace{where}.")


class _Progress:
    """Returns a different value once a collective has begun or ended.

    Devices are asked for the ends of collectives only while none begins: a GPU must not be asked while it captures a
    graph, and then collectives begin.

    Args:
        issued: all collectives so far, a list that grows.
        inside: returns the collectives that have not returned.
    """

    def __init__(self, issued: Sequence[Issued], inside: Callable[[], Iterable[Issued]] = tuple) -> None:
        self._issued, self._inside = issued, inside
        self._begun: tuple[int, ...] = ()
        self._over: int | None = None
        self._changes = 0

    def __call__(self) -> object:
        begun, over = (len(self._issued), *map(id, self._inside())), None
        if begun == self._begun:
            over = sum(collective.is_over for collective in self._issued[-LATEST:])
            self._changes += self._over is not None and over != self._over
        self._begun, self._over = begun, over
        return begun, self._changes
