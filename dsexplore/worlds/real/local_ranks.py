"""Run a program on N local ranks: real processes, real groups, with results and output back in the caller.

`run_ranks` starts every rank afresh and leaves none behind. When a rank fails, the others get a moment to find out and
are then ended; on a time-out or Ctrl-C all are ended, and the stack of each that hung is kept. (A wait inside gloo
cannot be interrupted, so ending the process is the only way out of one.) The ranks are forked from a small server
process that has imported torch already (`dsexplore.worlds.real.rank_server`): a run of four takes tenths of a second.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, though not in its stub

from dsexplore.errors import UsageError
from dsexplore.worlds.real.rank_server import Job, Reap, Report, Start, pack_program, server, unpack_report

__all__ = ["RankOutcome", "RanksFailedError", "RanksRun", "run_ranks"]

STACK_WAIT = 2.0
"""Seconds that hung ranks get to write their stacks, all together."""
EXIT_WAIT = 10.0
"""Seconds that a rank that has finished gets to end by itself."""
DEATH_SEEN_LATE = 0.25
"""Seconds by which the end of a process may be seen late: a killed process first closes its sockets, which makes its
peers fail."""

Status = Literal["ok", "error", "died", "stuck"]
"""``ok``: finished; ``error``: raised; ``died``: ended without a result (a signal, ``os._exit``); ``stuck``: had not
finished when the run was over, and was ended."""

Reason = Literal["done", "failed", "timeout"]
"""Why a run was over: all ranks had finished, one had failed, or the time had run out."""


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

    Returns:
        The outcome of each rank; ``.values`` is what they returned, and ``.check()`` raises if one failed.

    Raises:
        UsageError: fewer than one rank, or a program that cannot be sent to another process.
    """
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give 1 or more")
    packed = pack_program(program, args, namespace)
    server()  # the first time it takes seconds, which are not the run's
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


@contextmanager
def _rendezvous(world_size: int) -> Iterator[dict[str, str]]:
    """Hold the store at which the ranks meet; yields the environment variables by which torch finds it.

    The system chooses the port, which is already open when the ranks start, so no other program can take it.
    """
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


@dataclass(frozen=True)
class RankOutcome:
    """How the program ended on one rank."""

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
    """The outcomes of one run of a program on all ranks."""

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
        """Return this run, if every rank finished.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        if not self.ok:
            raise RanksFailedError(self)
        return self


class RanksFailedError(RuntimeError):
    """A rank raised, died or hung; the message has a line for each rank, and the traceback of the first that failed."""

    def __init__(self, run: RanksRun) -> None:
        self.run = run
        lines = [f"{len(run.outcomes)} local ranks: {_REASONS[run.reason]} after {run.seconds:.1f} s"]
        lines += [f"  rank {o.rank}: {o.status}{': ' if o.error else ''}{_first_line(o.error)}" for o in run.outcomes]
        first = run.outcomes[run.first_failure if run.first_failure is not None else _first_not_ok(run)]
        details = first.traceback or first.stack
        lines += [f"rank {first.rank}:", details.rstrip()] if details else []
        super().__init__("\n".join(lines))


_REASONS: dict[Reason, str] = {"done": "ended", "failed": "one failed", "timeout": "time ran out"}


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _first_not_ok(run: RanksRun) -> int:
    return next((outcome.rank for outcome in run.outcomes if outcome.status != "ok"), 0)


class _Run:
    """The started ranks of one run, until the last has ended."""

    def __init__(self) -> None:
        self._ranks: list[_Rank] = []
        self._began = time.monotonic()
        self._first_failure: int | None = None

    def add(self, rank: _Rank) -> None:
        """Take over a rank that has just started."""
        self._ranks.append(rank)

    def until_over(self, timeout: float, grace: float) -> RanksRun:
        """Wait until all ranks have finished, the time is up, or ``grace`` seconds after a failure; end the rest."""
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
            last_look = self._began
            while any(rank.status is None for rank in self._ranks):
                left = deadline - time.monotonic()
                ready = selector.select(max(left, 0))
                ready_at = time.monotonic()
                for key, _ in ready:
                    rank = key.data
                    if key.fd == rank.ended:
                        rank.has_ended(last_look)
                        selector.unregister(key.fd)
                    else:
                        pipe = rank.output if key.fd == rank.output.descriptor else rank.result
                        rank.read()
                        if pipe.at_end:
                            selector.unregister(key.fd)
                if left <= 0:
                    break
                last_look = ready_at
                if not failed and any(rank.status in ("error", "died") for rank in self._ranks):
                    failed = True
                    deadline = min(deadline, time.monotonic() + grace)
        failures = [rank for rank in self._ranks if rank.status in ("error", "died")]
        self._first_failure = min(failures, key=lambda rank: rank.failed_at).rank if failures else None

    def close(self) -> tuple[RankOutcome, ...]:
        """End all ranks, with the stacks of those that had not finished; safe to call again."""
        ranks, self._ranks = self._ranks, []
        hung = [rank for rank in ranks if rank.status is None]
        for rank in hung:
            rank.request_stack()
        until = time.monotonic() + STACK_WAIT
        for rank in hung:
            rank.read_stack(until)
        for rank in ranks:
            rank.release()
        return tuple(rank.end() for rank in ranks)


class _Rank:
    """A started rank, with its process and the pipes and files that it writes to."""

    def __init__(self, rank: int, job: Job, on_line: Callable[[int, str], None] | None) -> None:
        self.rank = rank
        self.status: Status | None = None
        """None while the rank runs."""
        self.failed_at = 0.0
        """When it raised or died, by the monotonic clock."""
        self._report: Report | None = None
        self._on_line = on_line
        self._given = 0  # bytes of the output that have gone to on_line
        self._stack = ""
        with ExitStack() as ours, ExitStack() as theirs:
            self._stack_file = ours.enter_context(tempfile.TemporaryFile())
            output, output_end = _pipe(ours, theirs)
            result, result_end = _pipe(ours, theirs)
            release_end, self._release = _pipe(theirs, ours)
            self.output, self.result = _Pipe(output), _Pipe(result)
            self._server = server()
            descriptors = (output_end, result_end, release_end, self._stack_file.fileno())
            self._pid: int = self._server.request(Start(job), descriptors)
            self.ended = os.pidfd_open(self._pid)
            """A descriptor that is readable once the process has ended."""
            ours.callback(os.close, self.ended)
            self._owned = ours.pop_all()

    def read(self) -> None:
        """Take what the rank has written; with a report of success its status is ``ok``."""
        self.output.read()
        self.result.read()
        self._give_lines()
        if self._report is None:
            self._report = unpack_report(self.result.data)
            if self._report is not None and self._report.ok:
                self.status = "ok"

    def _give_lines(self) -> None:
        text = self.output.data
        while self._on_line is not None and (end := text.find(b"\n", self._given)) >= 0:
            line = text[self._given : end].decode(errors="replace")
            self._given = end + 1
            self._on_line(self.rank, line)

    def has_ended(self, last_look: float) -> None:
        """Set the status, now that the process has ended.

        Args:
            last_look: when the process was last known to run. A rank that died has left no time of its death, and its
                peers may fail because of it long before a busy launcher looks: so it counts as dead since then.
        """
        self.read()
        unknown = min(last_look, time.monotonic() - DEATH_SEEN_LATE)
        self.failed_at = self._report.at if self._report is not None else unknown
        if self.status is None:
            self.status = "died" if self._report is None else "error"

    def request_stack(self) -> None:
        """Make a rank that hangs write its stack."""
        os.kill(self._pid, signal.SIGUSR1)

    def read_stack(self, until: float) -> None:
        """Wait for the whole requested stack, but not longer than ``until``, and keep the program's own frames."""
        stack = self._stack_text()
        while not is_whole_stack(stack) and time.monotonic() < until:
            time.sleep(0.01)
            stack = self._stack_text()
        lines = stack.splitlines(keepends=True)
        self._stack = "".join(line for line in lines if "rank_server.py" not in line and _OUTERMOST not in line)

    def _stack_text(self) -> str:
        self._stack_file.seek(0)
        return self._stack_file.read().decode(errors="replace")

    def release(self) -> None:
        """Let a rank that finished end by itself."""
        if self.status == "ok":
            os.write(self._release, b".")

    def end(self) -> RankOutcome:
        """End the process and all that it started, collect its exit code, and close the descriptors."""
        if self.status == "ok":
            _wait_readable(self.ended, EXIT_WAIT)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):  # a rank that has only just been forked leads no session yet
                kill(self._pid, signal.SIGKILL)
        exit_code: int = self._server.request(Reap(self._pid))
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
            stack=self._stack,
            exit_code=exit_code,
        )


class _Pipe:
    """The launcher's end of a pipe that a rank writes to; reading never blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.data = bytearray()
        """All that has been read so far."""
        self.at_end = False

    def read(self) -> None:
        """Append what the rank has written since the last call."""
        while not self.at_end:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            self.at_end = not chunk
            self.data += chunk


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Open a pipe; each end is closed with the stack given for it."""
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


_OUTERMOST = '"<string>"'
"""The file of a rank's outermost frame: the server was started by ``python -c``."""


def is_whole_stack(stack: str) -> bool:
    """Whether a stack that is being written has its last line: the outermost frame, or dots where it is deep."""
    *_, last = ["", *stack.splitlines(keepends=True)]
    return last.endswith("\n") and (_OUTERMOST in last or last.strip() == "...")


def _wait_readable(descriptor: int, seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        selector.select(seconds)


def _how_it_ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}, without a result"
