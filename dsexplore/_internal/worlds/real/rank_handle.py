"""`RankHandle`: a local rank as seen by its launcher, from its start to the end of its process."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dsexplore._internal.analysis.hangs.rank_places import RankPlace
from dsexplore._internal.torch_internals.process_groups import CONNECTION_LINE
from dsexplore._internal.units import format_bytes
from dsexplore._internal.worlds.real.messages import CellReport, RankJob, Reap, Report, Start, send, unpack_report
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome, Status, how_it_ended, unpacked
from dsexplore._internal.worlds.real.server_handle import server

STACK_WAIT = 2.0
"""Seconds that all hung ranks together have to write their stacks."""
EXIT_WAIT = 10.0
"""Seconds that a finished rank has to exit by itself."""
DEATH_SEEN_LATE = 0.25
"""Maximal delay in noticing a process's end, seconds: it closes its sockets first, and peers fail."""
CHUNK = 1 << 16
CHUNKS_AT_ONCE = 16
"""Chunks that are read from one rank before the other ranks and the deadline are checked."""
LONGEST_DROPPED = 256
"""Longest line to drop, in bytes; it may arrive in two reads."""


class Pipe:
    """The launcher's end of a pipe or a socket that a rank writes to; reading never blocks.

    Args:
        descriptor: file descriptor of that end.
        keep: number of bytes to keep at the beginning, and at the end; None to keep all.
        dropped: pattern of whole lines to drop; None to drop none.
    """

    def __init__(self, descriptor: int, keep: int | None = None, dropped: re.Pattern[bytes] | None = None) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.data = bytearray()
        """Output that was read and kept."""
        self.at_end = False
        self._keep = keep
        self._dropped = dropped
        self._num_dropped = 0

    @property
    def text(self) -> str:
        """Output that was read; one line says how much of it was dropped."""
        if not self._num_dropped or self._keep is None:
            return self.data.decode(errors="replace")
        parts = self.data[: self._keep], self.data[self._keep :]
        gap = f"\n… {format_bytes(self._num_dropped)} of output left out …\n"
        return gap.join(part.decode(errors="replace") for part in parts)

    def clear(self) -> None:
        """Discard the output that was read."""
        self.data.clear()
        self._num_dropped = 0

    def read(self) -> None:
        """Append the rank's new output to `data`, at most `CHUNKS_AT_ONCE` chunks."""
        for _ in range(CHUNKS_AT_ONCE):
            if self.at_end:
                return
            try:
                chunk = os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                return
            except ConnectionResetError:
                chunk = b""
            self.at_end = not chunk
            begin = max(0, len(self.data) - LONGEST_DROPPED)
            self.data += chunk
            if self._dropped is not None:
                self.data[begin:] = self._dropped.sub(b"", self.data[begin:])
            if self._keep is not None and (excess := len(self.data) - 2 * self._keep) > 0:
                del self.data[self._keep : self._keep + excess]
                self._num_dropped += excess

    def drain(self) -> None:
        """Read the remaining output of a rank that has ended."""
        while not self.at_end and readable(self.descriptor, 0):
            self.read()


class RankHandle:
    """A started rank, with its process and the pipes and files that it writes to.

    Args:
        rank: number of the rank.
        job: program of the rank, and the state of its process.
        on_line: called with the rank and each line that it prints, if `keep` is None; None for no call.
        keep: number of bytes of output to keep at the beginning, and at the end; None to keep all.
    """

    def __init__(
        self, rank: int, job: RankJob, on_line: Callable[[int, str], None] | None = None, keep: int | None = None
    ) -> None:
        self.rank = rank
        self.status: Status | None = None
        """None while the rank runs."""
        self.failed_at = 0.0
        """Time at which it raised or died, by the monotonic clock."""
        self.report: Report | None = None
        self.was_stopped = False
        self._on_line = on_line
        self._num_passed = 0  # bytes of the output that were passed to on_line
        self._stack = ""
        self._stack_begin = 0
        with ExitStack() as ours, ExitStack() as theirs:
            self._stack_file = ours.enter_context(tempfile.TemporaryFile())
            reading, writing = os.pipe()
            ours.callback(os.close, reading)
            theirs.callback(os.close, writing)
            self._channel, their_end = socket.socketpair()
            ours.enter_context(self._channel)
            theirs.enter_context(their_end)
            self.output, self.result = Pipe(reading, keep, CONNECTION_LINE), Pipe(self._channel.fileno())
            self._server = server()
            descriptors = (writing, their_end.fileno(), self._stack_file.fileno())
            self.pid: int = self._server.request(Start(job), descriptors)
            self.ended = os.pidfd_open(self.pid)
            """Descriptor that is readable once the process has ended."""
            ours.callback(os.close, self.ended)
            self._owned = ours.pop_all()

    def begin(self, cell: object) -> None:
        """Send a cell to a rank that runs cells, and forget the last cell.

        Raises:
            OSError: the rank has ended.
        """
        self.forget()
        self._channel.setblocking(True)
        try:
            send(self._channel, cell)
        finally:
            self._channel.setblocking(False)

    def forget(self) -> None:
        """Forget the outcome and the output of the last cell."""
        self.status, self.report, self._stack = None, None, ""
        self.result.clear()
        self.output.clear()
        self._num_passed = 0

    def read(self) -> None:
        """Read the rank's new output and its report, and set the status from the report."""
        self.output.read()
        self.result.read()
        self._pass_lines()
        if self.report is None:
            self.report = unpack_report(self.result.data)
            if isinstance(self.report, CellReport) and self.status is None:
                self.output.drain()  # the rank printed it before it sent the report
                self.status = "ok" if self.report.ok else "error"
                self.failed_at = self.report.at
            elif self.report is not None and self.report.ok and self.status is None:
                self.status = "ok"

    def _pass_lines(self) -> None:
        text = self.output.data
        while self._on_line is not None and (end := text.find(b"\n", self._num_passed)) >= 0:
            line = text[self._num_passed : end].decode(errors="replace")
            self._num_passed = end + 1
            self._on_line(self.rank, line)

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Descriptors that become readable when the rank prints, reports, or has ended."""
        return self.output.descriptor, self.result.descriptor, self.ended

    def read_from(self, descriptor: int, last_seen: float) -> bool:
        """Read from a readable descriptor, and return True if it is at its end.

        Args:
            descriptor: one of `descriptors`.
            last_seen: time at which the process was last known to run, see `has_ended`.
        """
        if descriptor == self.ended:
            self.has_ended(last_seen)
            return True
        self.read()
        return (self.output if descriptor == self.output.descriptor else self.result).at_end

    def has_ended(self, last_seen: float) -> None:
        """Set the status, now that the process has ended.

        Args:
            last_seen: time at which the process was last known to run. A rank that dies reports no time, and its peers
                may fail long before a busy launcher notices, so it counts as dead since then.
        """
        self.read()
        unknown = min(last_seen, time.monotonic() - DEATH_SEEN_LATE)
        self.failed_at = self.report.at if self.report is not None else unknown
        if self.status is None:
            self.status = "died" if self.report is None else "error"

    @property
    def is_over(self) -> bool:
        """True if the process has ended."""
        return readable(self.ended, 0)

    def check_whether_stopped(self) -> bool:
        """Return True if the process is stopped, by SIGSTOP for example, and keep that for the outcome."""
        with suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            self.was_stopped = state in ("T", "t")
        return self.was_stopped

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def request_stack(self) -> None:
        """Ask a hung rank to write its stack."""
        self._stack_begin = os.fstat(self._stack_file.fileno()).st_size
        self.signal(signal.SIGUSR1)

    def read_stack(self, until: float) -> None:
        """Wait for the requested stack, and keep the frames of the program.

        Args:
            until: latest time to wait for, by the monotonic clock.
        """
        stack = self._stack_text()
        while not is_whole_stack(stack) and time.monotonic() < until and not self.is_over:
            time.sleep(0.005)
            stack = self._stack_text()
        lines = stack.splitlines(keepends=True)
        if _has_max_frames(stack) and _OUTERMOST not in lines[-1] and lines[-1].strip() != "...":
            lines.append("  ...\n")  # Python 3.13 does not write it
        self._stack = "".join(line for line in lines if not any(path in line for path in _DSEXPLORE_FRAMES))

    def _stack_text(self) -> str:
        return contents(self._stack_file.fileno())[self._stack_begin :].decode(errors="replace")

    @property
    def is_in_torch_distributed(self) -> bool:
        """True if the stack ends in a call of torch.distributed, which a signal may not interrupt."""
        return bool(RankPlace.of(self._stack).call)

    def release(self) -> None:
        """Allow a finished rank to exit by itself."""
        if self.status == "ok":
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def end(self, wait: float = EXIT_WAIT) -> RankOutcome[Any]:
        """End the process and its children, collect its exit code, and close the descriptors.

        Args:
            wait: seconds that a finished rank has to exit by itself.
        """
        if self.status == "ok" and wait:
            readable(self.ended, wait)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):  # a newly forked rank does not lead a session yet
                kill(self.pid, signal.SIGKILL)
        try:
            exit_code: int | None = self._server.request(Reap(self.pid))
        except (OSError, EOFError):  # the server was killed, and its ranks ended with it
            exit_code = None
        self.output.drain()
        self.read()
        self._owned.close()
        return self.outcome(exit_code)

    def outcome(self, exit_code: int | None = None) -> RankOutcome[Any]:
        """Return the outcome of the program, or of the last cell."""
        how = how_it_ended(exit_code) if self.status == "died" and exit_code is not None else ""
        report = self.report if self.report is not None and self.status != "stuck" else Report(ok=False, error=how)
        cell = report if isinstance(report, CellReport) else None
        return RankOutcome(
            rank=self.rank,
            status=self.status or "stuck",
            value=unpacked(cell) if cell is not None else report.value,
            error=report.error,
            traceback=report.traceback,
            output=self.output.text,
            stack=self._stack,
            exit_code=exit_code,
            line=cell.line if cell is not None else None,
            shown=cell.shown if cell is not None else "",
            was_stopped=self.was_stopped,
        )


def wait_for_all(
    ranks: Sequence[RankHandle],
    *,
    deadline: float,
    grace: float,
    on_output: Callable[[], float | None] = lambda: None,
) -> int | None:
    """Wait until all ranks have finished, until the deadline, or ``grace`` seconds after one has failed.

    Args:
        ranks: running ranks.
        deadline: latest time to wait for, by the monotonic clock.
        grace: seconds that the others have to finish after a failure.
        on_output: called whenever a rank has written; if it returns a number of seconds, it is called again after them.

    Returns:
        Rank that failed first; None if none has failed.
    """
    failed = False
    last_seen = time.monotonic()
    again: float | None = None
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            for descriptor in rank.descriptors:
                selector.register(descriptor, selectors.EVENT_READ, rank)
        while any(rank.status is None for rank in ranks):
            remaining = deadline - time.monotonic()
            ready = selector.select(max(remaining if again is None else min(remaining, again), 0))
            ready_at = time.monotonic()
            for key, _ in ready:
                if key.data.read_from(key.fd, last_seen):
                    selector.unregister(key.fd)
            again = on_output()
            if remaining <= 0:
                break
            last_seen = ready_at
            if not failed and any(rank.status in ("error", "died") for rank in ranks):
                failed = True
                deadline = min(deadline, time.monotonic() + grace)
    failures = [rank for rank in ranks if rank.status in ("error", "died")]
    return min(failures, key=lambda rank: rank.failed_at).rank if failures else None


_MAX_FRAMES = 100
"""Maximal number of frames that faulthandler writes."""
_OUTERMOST = '"<string>"'
"""File name of a rank's outermost frame: the server was started by ``python -c``."""
_DSEXPLORE_FRAMES = (
    _OUTERMOST,
    "worlds/real/rank_server.py",
    "worlds/real/rank_process.py",
    "worlds/real/cell_process.py",
    "capture/timing/stopwatch.py",
    "capture/collectives/group_methods.py",
    "capture/modules/module_calls.py",
    "capture/collectives/observed_op.py",
    "capture/collectives/substrate.py",
    "capture/timing/tensor_waits.py",
)


def is_whole_stack(stack: str) -> bool:
    """Return True if a stack is complete: it ends with the outermost frame, or has as many frames as are written."""
    *_, last = ["", *stack.splitlines(keepends=True)]
    return last.endswith("\n") and (_OUTERMOST in last or _has_max_frames(stack))


def _has_max_frames(stack: str) -> bool:
    """Return True if a stack has as many frames as faulthandler writes."""
    return stack.count("\n  File ") >= _MAX_FRAMES


def contents(descriptor: int) -> bytes:
    """Return the content of a file without moving its offset, which the writing rank shares."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def readable(descriptor: int, seconds: float) -> bool:
    """Return True if the descriptor becomes readable within `seconds`."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
