"""`record`: record every collective of the process in a block, and save the trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
"""Number of latest collectives that may still run; programs that issue more without waiting are rare."""


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
        save: a directory, where every rank writes a file when its block ends, also by an exception; or, where only
            one process records, a file such as ``step.parquet``.
        stack_depth: frames of the user's code to keep per event.
        simulated: whether the process group simulates its ranks.
        mesh_spec: the mesh as the user wrote it, ``"dp=2,tp=4"``.
        further_notes: called with the number of collectives whenever the tables are made; returns what the trace's
            notes say besides.
        target: the traffic that the simulation shows; see `TraceInfo.target`.
        timeout: seconds; where no collective begins or ends for so long, what was recorded until then is written to
            ``save`` while the block goes on, with the stack of each thread beside it.
        costs: also record what is computed between the collectives, and the memory that it takes, of which
            `Trace.predict` makes times: all ops are seen then, and compiled code runs eagerly.
        numerics: also record summaries of what modules return, of its gradients, and of those of parameters.
        saves_end: False writes to ``save`` only where the process is ended by SIGTERM, or the time-out has passed.
        counts_steps: whether the steps of optimizers end the trace's steps; `Trace.step` ends them alone once called.

    Yields:
        a `Trace`, readable at any time, final when the block ends. Ctrl-C inside the block leaves it with what was
        recorded until then, saved if it was to be, and the KeyboardInterrupt says so. An error of the block is raised
        as it is, with a note where the trace could not be saved.

    Raises:
        UsageError: a ``stack_depth`` below 1, a ``save`` that several processes would overwrite, or a ``timeout`` that
            is no time or has no ``save``.
    """
    _check(stack_depth, save, timeout)
    recorder = in_use()
    journal: JournaledCalls | None = None
    recording = Recording(stack_depth, simulated, mesh_spec, further_notes=further_notes, target=target)
    if save is not None and not simulated:
        recording.began, recording.attempt = time.time_ns(), begin_saving(save)
        recording.journal = journal = open_journal(save, recording.attempt, recording.began, stack_depth)
    trace = Trace(lambda: recorder.tables(recording), recording)
    inner = any(type(recording) is Recording for recording in recorder.recordings)  # the comms log's is another kind
    recorder.open(recording)
    try:
        with ExitStack() as while_open:
            work = while_open.enter_context(track("tracing", unit="collectives"))
            recording.work = work if work.is_seen and not inner else None
            if save is not None and not simulated:
                while_open.enter_context(saved_early(_early_save(recorder, recording, save, timeout, journal)))
            if costs:
                _record_costs(recorder, recording)
            if numerics:
                while_open.callback(_record_numerics(recorder, recording))
            if counts_steps:
                while_open.enter_context(counted_steps(None, recording.of_optimizers))
            yield trace
    except BaseException as error:
        recording.notes.append(f"{ENDED_EARLY}{type(error).__name__}")
        recording.end = end_of(error) if recording.attempt else ""
        save = save if saves_end else None
        _end_early(error, recorder, recording, trace, save, journal, is_inner=inner)
        raise
    recording.is_complete = True
    recording.end = end_of(None) if recording.attempt else ""
    _end(recorder, recording, trace, save if saves_end else None, journal)


def _check(stack_depth: int, save: str | os.PathLike[str] | None, timeout: float | None) -> None:
    """Raise UsageError for options of `record` that cannot be."""
    if stack_depth < 1:
        raise UsageError(f"stack_depth={stack_depth} keeps no source line: give 1 or more")
    if timeout is not None and (not timeout > 0 or save is None):
        raise UsageError(f"timeout={timeout} with save={save!r}: give seconds above 0, and a directory to save into")
    if save is not None:
        check_destination(save)


def _record_costs(recorder: Recorder, recording: Recording) -> None:
    """Record what is computed between the collectives too, until the recording ends."""
    from dsexplore._internal.capture.kernels.kernel_recording import KernelRecording  # loads torch's FLOP formulas

    recording.kernels = KernelRecording(recorder.modules, recording.issued, recording.steps)
    recording.kernels.start()


def _record_numerics(recorder: Recorder, recording: Recording) -> Callable[[], None]:
    """Record summaries of tensors too.

    Returns:
        a function that ends this.
    """
    from dsexplore._internal.capture.values.numeric_recording import NumericRecording

    recording.numerics = NumericRecording(recorder.modules, recording.steps, recorder.warn_once)
    recording.numerics.start()
    return recorder.observe_outputs(recording.numerics.returned)


def _end(
    recorder: Recorder,
    recording: Recording,
    trace: Trace,
    save: str | os.PathLike[str] | None,
    journal: JournaledCalls | None,
) -> None:
    """Close a recording and save its trace, whole even where Ctrl-C comes twice, as launchers pass it on to ranks."""
    with uninterrupted():
        recording.work = recording.journal = None
        if recording.kernels is not None:
            recording.kernels.stop()
        if recording.numerics is not None:
            recording.numerics.stop()
        finish(trace, recorder.close(recording))
        if save is not None:
            save_recording(trace.tables, save)
        if journal is not None:
            journal.remove()


def _end_early(
    error: BaseException,
    recorder: Recorder,
    recording: Recording,
    trace: Trace,
    save: str | os.PathLike[str] | None,
    journal: JournaledCalls | None,
    *,
    is_inner: bool,
) -> None:
    """Close the recording of a block that an error ended; after Ctrl-C, the error says where the trace is."""
    says_so = isinstance(error, KeyboardInterrupt) and not is_inner
    where = f", saved in {os.fspath(save)}" if save is not None else ""
    try:
        _end(recorder, recording, trace, save, journal)
        if save is not None and recording.attempt:
            note_ends(Path(save), recording.attempt)  # of peers whose end was this one's error
    except OSError as failure:  # the error of the block is the one to raise
        says_so, where = True, f", but could not be saved: {failure}"
    if says_so:
        error.add_note(f"The {len(trace):,} collectives recorded until then are kept in the trace{where}.")


def _early_save(
    recorder: Recorder,
    recording: Recording,
    save: str | os.PathLike[str],
    timeout: float | None,
    journal: JournaledCalls | None,
) -> EarlySave:
    def write(why: str) -> None:
        tables = recorder.tables(recording, waits=False)
        info = tables.info
        info = replace(info, notes=(*info.notes, why), ends=(RUNNING,) * len(info.ranks))
        tables = replace(tables, info=info)
        save_recording(tables, save)
        if names_directory(save):
            for rank in tables.info.ranks or (0,):
                write_stacks(Path(save) / stack_file(rank))
            note_ends(Path(save), recording.attempt)

    settle = journal.settle if journal is not None else None
    return EarlySave(write, _Progress(recording.issued, recorder.inside), timeout, settle)


class _Progress:
    """Returns another value whenever one of the collectives has begun or ended.

    Devices are asked how far they got while nothing begins, and not before: a graph that is being captured on a GPU
    must not be asked, and what it captures begins.

    Args:
        issued: all collectives so far; it grows.
        inside: collectives that have not returned.
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
