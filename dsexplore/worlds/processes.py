"""Programs on N local ranks: real processes, real groups, results and output back in the caller.

`run_ranks` starts every rank afresh and leaves none behind: when a rank fails, its peers get a moment to find
out and are then ended; on a time-out or Ctrl-C all are ended, and the stack of each that hung is kept. (A wait
inside gloo cannot be interrupted, so ending the process is the only way out of one.) The ranks are forked from
a small server that holds torch imported, which makes a run of four a matter of tenths of a second.
"""

from __future__ import annotations

import atexit
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from dsexplore.errors import UsageError
from dsexplore.worlds.rank_server import LENGTH, Job, Reap, Report, Start, main, receive, send

Status = Literal["ok", "error", "died", "stuck"]
"""``ok``: finished; ``error``: raised; ``died``: ended without a word (a signal, ``os._exit``); ``stuck``: had
not finished when the run was over, and was ended."""

Reason = Literal["done", "failed", "timeout"]
_STACK_WAIT = 0.3  # seconds that a hung rank gets to write its stack
_NOTICED_LATE = 0.25  # a killed process closes its sockets, which its peers see, before it counts as ended


@dataclass(frozen=True)
class RankOutcome:
    """What became of one rank."""

    rank: int
    status: Status
    value: Any = None
    """What the function returned; for source text the ``repr`` of the last expression, "" where there is none."""
    error: str = ""
    """``"RuntimeError: …"``, or how the process ended."""
    traceback: str = ""
    output: str = ""
    """All that the rank wrote to stdout and stderr, C++ libraries included."""
    stack: str = ""
    """Where a stuck rank was, innermost call first."""
    exit_code: int | None = None
    """Negative for a signal: −9 is SIGKILL."""


@dataclass(frozen=True)
class RanksRun:
    """One run of a program on all ranks."""

    outcomes: tuple[RankOutcome, ...]
    seconds: float
    reason: Reason
    first_failure: int | None = None
    """The rank that failed first; the others often fail because of it."""

    @property
    def ok(self) -> bool:
        """Whether every rank finished."""
        return all(outcome.status == "ok" for outcome in self.outcomes)

    @property
    def values(self) -> list[Any]:
        """What each rank returned, by rank.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        self.check()
        return [outcome.value for outcome in self.outcomes]

    def check(self) -> RanksRun:
        """This run, if every rank finished.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        if not self.ok:
            raise RanksFailedError(self)
        return self


class RanksFailedError(RuntimeError):
    """A rank raised, died or hung; the message has the traceback of the first, and one line for each."""

    def __init__(self, run: RanksRun) -> None:
        self.run = run
        lines = [f"{len(run.outcomes)} local ranks: {_REASONS[run.reason]} after {run.seconds:.1f} s"]
        lines += [f"  rank {o.rank}: {o.status}{': ' if o.error else ''}{_first_line(o.error)}" for o in run.outcomes]
        first = run.outcomes[run.first_failure if run.first_failure is not None else _first_stuck(run)]
        details = first.traceback or first.stack
        lines += [f"rank {first.rank}:", details.rstrip()] if details else []
        super().__init__("\n".join(lines))


_REASONS: dict[Reason, str] = {"done": "ended", "failed": "one failed", "timeout": "time ran out"}


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _first_stuck(run: RanksRun) -> int:
    return next((o.rank for o in run.outcomes if o.status != "ok"), 0)


def run_ranks(
    program: Callable[..., Any] | str,
    world_size: int,
    *,
    args: Sequence[Any] = (),
    namespace: Mapping[str, Any] | None = None,
    backend: str | None = "gloo",
    timeout: float = 60.0,
    group_timeout: float = 30.0,
    grace: float = 2.0,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[int, str], None] | None = None,
) -> RanksRun:
    """Run a program on local ranks and wait until all have ended.

    Args:
        program: a function, called as ``program(*args)`` on each rank (lambdas, closures and functions of a
            notebook included); or source text, executed as ``__main__`` with ``rank`` and ``world_size`` defined.
        world_size: how many ranks.
        args: arguments of the function, the same on each rank.
        namespace: further names for source text.
        backend: of the process group that is ready when the program starts; None for no group. The environment
            variables of a launcher (``RANK``, ``MASTER_ADDR``, …) are set in any case.
        timeout: seconds for the whole run.
        group_timeout: seconds after which a collective of that group gives up.
        grace: seconds that the others get to end by themselves once a rank has failed.
        environment: variables to set in the ranks beside the caller's own.
        on_line: called with the rank and each line it prints, as it prints it.

    Raises:
        UsageError: fewer than one rank, or a program that cannot be sent to another process.
    """
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give 1 or more")
    packed = _pack(program, args, namespace)
    _server()  # the first time it takes seconds, which are not the run's
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(_rendezvous(world_size))
        run = _Run()
        stack.callback(run.close)
        for rank in range(world_size):
            variables = {**_DEFAULTS, **os.environ, **launcher_variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            job = Job(
                rank=rank,
                world_size=world_size,
                program=packed,
                backend=backend,
                group_timeout=group_timeout,
                environment={**variables, **(environment or {})},
                directory=str(os.getcwd()),  # noqa: PTH109 - a string is what travels
                path=tuple(sys.path),
            )
            run.add(_Rank(rank, job, on_line))
        return run.until_over(timeout, grace)


_DEFAULTS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_ADDRESS = "127.0.0.1"


def _pack(program: Callable[..., Any] | str, args: Sequence[Any], namespace: Mapping[str, Any] | None) -> bytes:
    """The program as bytes; functions of test files and notebooks travel by value."""
    if isinstance(program, str) and not namespace:
        return pickle.dumps((program, {}))
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install cloudpickle, or give the program as source text without namespace"
        raise UsageError(f"functions and objects are sent to ranks with cloudpickle: {hint}") from error
    module = sys.modules.get(getattr(program, "__module__", "") or "")
    by_value = module is not None and module.__name__.partition(".")[0] != "dsexplore"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((program, dict(namespace or {}) if isinstance(program, str) else tuple(args)))
    except Exception as error:
        raise UsageError(f"the program cannot be sent to its ranks: {error}; pass plain data and functions") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return packed


@contextmanager
def _rendezvous(world_size: int) -> Iterator[dict[str, str]]:
    """Hold the store that the ranks meet at; yields the variables that lead torch to it.

    The port is the kernel's choice and already open when the ranks start, so no other program can take it.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, though not in its stub

    store = TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
    yield {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    del store


class _Reader:
    """The launcher's end of a pipe that a rank writes to; never blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.data = bytearray()
        self.at_end = False

    def take(self) -> None:
        """Append what has been written since."""
        while not self.at_end:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            self.at_end = not chunk
            self.data += chunk


class _Rank:
    """A started rank as the launcher sees it; owns its process and its descriptors."""

    def __init__(self, rank: int, job: Job, on_line: Callable[[int, str], None] | None) -> None:
        self.rank = rank
        self.status: Status | None = None
        self._report: Report | None = None
        self._on_line = on_line
        self._shown = 0  # bytes of the output that have gone to on_line
        self._hung_at = ""
        self.failed_at = 0.0
        with ExitStack() as ours, ExitStack() as theirs:
            self._stack = ours.enter_context(tempfile.TemporaryFile())
            output, output_end = _pipe(ours, theirs)
            result, result_end = _pipe(ours, theirs)
            release_end, self._release = _pipe(theirs, ours)
            self.output, self.result = _Reader(output), _Reader(result)
            self._server = _server()
            descriptors = (output_end, result_end, release_end, self._stack.fileno())
            self._pid: int = self._server.ask(Start(job), descriptors)
            self.ended = os.pidfd_open(self._pid)  # readable once the process has ended
            ours.callback(os.close, self.ended)
            self._owned = ours.pop_all()

    def read(self) -> None:
        """Take what the rank has written; a report of success settles its status."""
        self.output.take()
        self.result.take()
        self._show_lines()
        if self._report is None:
            self._report = _whole_report(self.result.data)
            if self._report is not None and self._report.ok:
                self.status = "ok"

    def _show_lines(self) -> None:
        text = self.output.data
        while self._on_line is not None and (end := text.find(b"\n", self._shown)) >= 0:
            line = text[self._shown : end].decode(errors="replace")
            self._shown = end + 1
            self._on_line(self.rank, line)

    def settle(self) -> None:
        """Its process has ended, which decides the status."""
        self.read()
        self.failed_at = self._report.at if self._report is not None else time.monotonic() - _NOTICED_LATE
        if self.status is None:
            self.status = "died" if self._report is None else "error"

    def locate(self) -> None:
        """It hangs: have it write its stack."""
        os.kill(self._pid, signal.SIGUSR1)
        until = time.monotonic() + _STACK_WAIT
        while time.monotonic() < until and not os.fstat(self._stack.fileno()).st_size:
            time.sleep(0.01)
        self._stack.seek(0)
        lines = self._stack.read().decode(errors="replace").splitlines(keepends=True)
        self._hung_at = "".join(line for line in lines if "rank_server.py" not in line and "<string>" not in line)

    def let_go(self) -> None:
        """Let a rank that finished end by itself."""
        if self.status == "ok":
            os.write(self._release, b".")

    def end(self) -> RankOutcome:
        """End the process and all that it started, collect it, give the descriptors back."""
        if self.status == "ok":
            _wait_readable(self.ended, seconds=2.0)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):  # a rank that has only just been forked leads no session yet
                kill(self._pid, signal.SIGKILL)
        exit_code: int = self._server.ask(Reap(self._pid))
        self.read()
        self._owned.close()
        report = self._report or Report(False, error=_how_it_ended(exit_code) if self.status == "died" else "")
        return RankOutcome(
            rank=self.rank,
            status=self.status or "stuck",
            value=report.value,
            error=report.error,
            traceback=report.traceback,
            output=self.output.data.decode(errors="replace"),
            stack=self._hung_at,
            exit_code=exit_code,
        )


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed by their owners."""
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


def _whole_report(answer: bytearray) -> Report | None:
    """The rank's report, once all of its bytes are here."""
    size = LENGTH.size
    if len(answer) < size or len(answer) - size < LENGTH.unpack(answer[:size])[0]:
        return None
    report: Report = pickle.loads(bytes(answer[size:]))
    return report


def _wait_readable(descriptor: int, seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        selector.select(seconds)


def _how_it_ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}, without a result"


class _Run:
    """The ranks of one run, from start to the last outcome."""

    def __init__(self) -> None:
        self._ranks: list[_Rank] = []
        self._began = time.monotonic()
        self._first_failure: int | None = None

    def add(self, rank: _Rank) -> None:
        """Own a rank that has just started."""
        self._ranks.append(rank)

    def until_over(self, timeout: float, grace: float) -> RanksRun:
        """Wait for all ranks, or until time or patience runs out; then end those that are left."""
        try:
            self._wait(timeout, grace)
        except KeyboardInterrupt as interrupt:
            for outcome in self.close():
                if outcome.status == "stuck":
                    interrupt.add_note(f"rank {outcome.rank} was at:\n{outcome.stack}")
            raise
        outcomes = self.close()
        reason: Reason = "timeout" if any(outcome.status == "stuck" for outcome in outcomes) else "done"
        if self._first_failure is not None:
            reason = "failed"
        return RanksRun(outcomes, time.monotonic() - self._began, reason, self._first_failure)

    def _wait(self, timeout: float, grace: float) -> None:
        deadline, failed = self._began + timeout, False
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                for descriptor in (rank.output.descriptor, rank.result.descriptor, rank.ended):
                    selector.register(descriptor, selectors.EVENT_READ, rank)
            while any(rank.status is None for rank in self._ranks):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left):
                    rank = key.data
                    if key.fd == rank.ended:
                        rank.settle()
                        selector.unregister(key.fd)
                    else:
                        reader = rank.output if key.fd == rank.output.descriptor else rank.result
                        rank.read()
                        if reader.at_end:
                            selector.unregister(key.fd)
                if not failed and any(rank.status in ("error", "died") for rank in self._ranks):
                    failed = True
                    deadline = min(deadline, time.monotonic() + grace)
        failures = [rank for rank in self._ranks if rank.status in ("error", "died")]
        self._first_failure = min(failures, key=lambda rank: rank.failed_at).rank if failures else None

    def close(self) -> tuple[RankOutcome, ...]:
        """End all ranks, with the stacks of those that had not finished; safe to call again."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            if rank.status is None:
                rank.locate()
            rank.let_go()
        return tuple(rank.end() for rank in ranks)


class _Server:
    """The launcher's side of the rank server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._socket, theirs = socket.socketpair()
        start = f"import sys; sys.path[:] = {sys.path!r}; from {main.__module__} import main; main({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is the launcher's to handle
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        try:
            receive(self._socket)
        except EOFError as error:
            self._process.wait()
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
            self.close()
            raise RuntimeError(f"the process that local ranks are forked from did not start:\n{text}") from error
        self.owner = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether it runs, and is this process's own (after a fork it is the parent's)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def ask(self, request: Start | Reap, descriptors: Sequence[int] = ()) -> int:
        """Send a request and wait for its answer."""
        with self._lock:
            send(self._socket, request, descriptors)
            answer: int = receive(self._socket)[0]
        return answer

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()
        self._errors.close()


_running: _Server | None = None
_starting = threading.Lock()


def _server() -> _Server:
    global _running
    with _starting:
        if _running is None or not _running.usable:
            _running = _Server()
        return _running


def close() -> None:
    """End the process that ranks are forked from; the next `run_ranks` starts another. Called at exit."""
    global _running
    with _starting:
        if _running is not None and _running.owner == os.getpid():
            _running.close()
        _running = None


atexit.register(close)
