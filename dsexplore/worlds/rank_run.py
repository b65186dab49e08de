"""Ranks that run, as the process that started them sees them: their output, their results, their end."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from dsexplore.worlds.rank_client import server
from dsexplore.worlds.rank_outcomes import RankOutcome, RanksRun, Reason, Status
from dsexplore.worlds.rank_server import LENGTH, Job, Reap, Report, Start

_STACK_WAIT = 2.0  # seconds that hung ranks get to write their stacks, all together
_EXIT_WAIT = 10.0  # seconds that a rank that has finished gets to end by itself
_NOTICED_LATE = 0.25  # a killed process closes its sockets, which its peers see, before it counts as ended


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


class Rank:
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
            self._server = server()
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

    def settle(self, looked_at: float) -> None:
        """Its process has ended, which decides the status.

        Args:
            looked_at: when it was last known to run. One that died cannot tell when, and its peers may fail because of
                it long before a busy launcher gets to look: so it counts as the first that failed since.
        """
        self.read()
        unknown = min(looked_at, time.monotonic() - _NOTICED_LATE)
        self.failed_at = self._report.at if self._report is not None else unknown
        if self.status is None:
            self.status = "died" if self._report is None else "error"

    def ask_where(self) -> None:
        """It hangs: have it write its stack."""
        os.kill(self._pid, signal.SIGUSR1)

    def locate(self, until: float) -> None:
        """Take the stack that it was asked for, waiting no longer than that for the whole of it."""
        stack = self._stack_text()
        while not _is_whole(stack) and time.monotonic() < until:
            time.sleep(0.01)
            stack = self._stack_text()
        lines = stack.splitlines(keepends=True)
        self._hung_at = "".join(line for line in lines if "rank_server.py" not in line and _OUTERMOST not in line)

    def _stack_text(self) -> str:
        self._stack.seek(0)
        return self._stack.read().decode(errors="replace")

    def let_go(self) -> None:
        """Let a rank that finished end by itself."""
        if self.status == "ok":
            os.write(self._release, b".")

    def end(self) -> RankOutcome:
        """End the process and all that it started, collect it, give the descriptors back."""
        if self.status == "ok":
            _wait_readable(self.ended, _EXIT_WAIT)
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


_OUTERMOST = '"<string>"'
"""The file of a rank's outermost frame: the server was started by ``python -c``."""


def _is_whole(stack: str) -> bool:
    """Whether a stack that is written bit by bit has its last line: the outermost frame, or dots where it is deep."""
    *_, last = ["", *stack.splitlines(keepends=True)]
    return last.endswith("\n") and (_OUTERMOST in last or last.strip() == "...")


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


class Run:
    """The ranks of one run, from start to the last outcome."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._began = time.monotonic()
        self._first_failure: int | None = None

    def add(self, rank: Rank) -> None:
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
            looked_at = self._began
            while any(rank.status is None for rank in self._ranks):
                left = deadline - time.monotonic()
                ready = selector.select(max(left, 0))
                ready_at = time.monotonic()
                for key, _ in ready:
                    rank = key.data
                    if key.fd == rank.ended:
                        rank.settle(looked_at)
                        selector.unregister(key.fd)
                    else:
                        reader = rank.output if key.fd == rank.output.descriptor else rank.result
                        rank.read()
                        if reader.at_end:
                            selector.unregister(key.fd)
                if left <= 0:
                    break
                looked_at = ready_at
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
            rank.ask_where()
        until = time.monotonic() + _STACK_WAIT
        for rank in hung:
            rank.locate(until)
        for rank in ranks:
            rank.let_go()
        return tuple(rank.end() for rank in ranks)
