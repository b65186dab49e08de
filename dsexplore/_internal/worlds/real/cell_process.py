"""`serve_cells` and `run_cell`: cells of a notebook on one rank, all in one namespace, each traced and reported."""

from __future__ import annotations

import linecache
import marshal
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any

from torch.distributed.device_mesh import init_device_mesh

from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.tracebacks import frames_where, is_not_hidden
from dsexplore._internal.worlds.commtrace import recorded
from dsexplore._internal.worlds.real.messages import LENGTH, Cell, CellReport, RankJob, receive
from dsexplore._internal.worlds.simulate import current_world
from dsexplore._internal.worlds.simulated.closed import translated
from dsexplore._internal.worlds.world_settings import resolve

MAX_VALUE_BYTES = 64 << 20
"""Largest pickled value that is sent back; of a larger one, the ``repr`` is."""


def serve_cells(launcher: socket.socket, job: RankJob, prepare: Callable[[RankJob], None]) -> None:
    """Run the cells that the socket brings, until its other end is closed.

    Args:
        launcher: socket that brings `Cell` messages, and takes a `CellReport` for each.
        job: the rank, and the state of its process.
        prepare: function that gives this process that state, and opens its process group.
    """
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    namespace, fault = _begin(job, prepare)
    handler = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            cell, _ = receive(launcher)
        except (EOFError, ConnectionError):
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # see `_reported_first`
            signal.signal(signal.SIGTERM, handler)
        handler = signal.getsignal(signal.SIGTERM)
        report = fault or run_cell(cell, namespace, interrupts.are_taken)
        sys.stdout.flush()
        sys.stderr.flush()
        data = pickle.dumps(report)
        launcher.sendall(LENGTH.pack(len(data)) + data)


class _Interrupts:
    """Handler of SIGINT, by which the launcher interrupts a cell; between cells it does nothing."""

    def __init__(self) -> None:
        self._is_running = False

    def __call__(self, number: int, frame: object) -> None:
        if self._is_running:
            self._is_running = False
            raise KeyboardInterrupt

    @contextmanager
    def are_taken(self) -> Iterator[None]:
        """Raise KeyboardInterrupt inside the block when the signal comes."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False


def _begin(job: RankJob, prepare: Callable[[RankJob], None]) -> tuple[dict[str, Any], CellReport | None]:
    """Set up this rank, and create the namespace of its cells.

    Returns:
        The namespace, and a report of the error if the set-up failed.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    namespace = vars(main)
    namespace.update(rank=job.rank, world_size=job.world_size, display=_display)
    try:
        prepare(job)
        if job.mesh:
            _, spec = resolve(world_size=job.world_size, mesh=job.mesh, rank=job.rank)
            device = "cuda" if job.backend and "nccl" in job.backend else "cpu"
            namespace["mesh"] = init_device_mesh(device, spec.shape, mesh_dim_names=spec.axes)
    except BaseException as error:
        return namespace, failure_of(error, "")
    return namespace, None


def _display(*shown: object) -> None:
    """Print the ``repr`` of objects; replaces IPython's ``display``, which ranks do not have."""
    for value in shown:
        print(repr(value))


def run_cell(
    cell: Cell, namespace: dict[str, Any], while_it_runs: Callable[[], AbstractContextManager[None]] = nullcontext
) -> CellReport:
    """Run and trace one cell, and return the report on its value or its error.

    Args:
        cell: the cell.
        namespace: namespace in which it runs.
        while_it_runs: returns a context in which the cell's code runs.
    """
    for file, text in cell.sources.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    began = time.monotonic()
    value, trace = None, None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if cell.names:
            namespace.update(pickle.loads(cell.names))
        body, last = marshal.loads(cell.code)
        recording = recorded(current_world(), made_world=False, save=cell.save or None, saves_end=False)
        with translated(), recording as trace, _reported_first(handler), while_it_runs():
            value = _execute(body, last, namespace)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the cell are its failures too
        return replace(failure_of(error, cell.file), trace=_packed(trace))
    seconds = time.monotonic() - began
    return CellReport(ok=True, value=pack_value(value), shown=_shown(value), seconds=seconds, trace=_packed(trace))


@contextmanager
def _reported_first(handler: Any) -> Iterator[None]:
    """Ignore SIGTERM after the block, until the next cell arrives.

    The launcher ends ranks by SIGTERM. After the block, the recording is being sent and is in no file. If the rank
    ended now, collectives of ranks that still wait would fail. A handler that a cell has set stays.

    Args:
        handler: handler of SIGTERM before the recording; if the recording did not replace it, nothing is ignored.
    """
    of_recording = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if of_recording is not handler and signal.getsignal(signal.SIGTERM) == of_recording:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _packed(trace: Trace | None) -> bytes:
    """Pickle a trace; the launcher creates its tables. Empty for None."""
    return b"" if trace is None else pickle.dumps(trace)


def _execute(body: CodeType, last: CodeType | None, namespace: dict[str, Any]) -> Any:
    exec(body, namespace)
    return eval(last, namespace) if last is not None else None


def failure_of(error: BaseException, file: str) -> CellReport:
    """Return the report on an error.

    Args:
        error: the exception.
        file: file name of the cell's code. The traceback starts at its first frame; the line is that of its last.
    """
    at = time.monotonic()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    first_of_cell = next((index for index, frame in enumerate(frames) if frame.filename == file), 0)
    trace = error.__traceback__
    for _ in range(first_of_cell):
        trace = trace.tb_next if trace is not None else None
    shown = frames_where(trace, is_not_hidden)
    text = "".join(traceback.format_exception(type(error), error, shown))
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    return CellReport(ok=False, error=message, traceback=text, at=at, line=lines[-1] if lines else None)


def pack_value(value: Any) -> bytes | None:
    """Pickle a value, with functions and classes that the cell defined; None if that fails or it is too large."""
    try:
        import cloudpickle  # the launcher has it, as it pickles the names of a cell
    except ImportError:
        return None
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception:
        return None
    return data if len(data) <= MAX_VALUE_BYTES else None


def _shown(value: Any) -> str:
    """Return the ``repr`` of a value; empty for None."""
    if value is None:
        return ""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}: {error}>"
