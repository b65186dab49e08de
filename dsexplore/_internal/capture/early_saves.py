"""Saves a recording while its block still runs: when SIGTERM ends the process, or when no collective progresses.

When one rank fails, a launcher ends the others with SIGTERM. Python runs a signal handler only when its main thread
returns to Python, and a rank that waits inside gloo or NCCL never does. So a thread reads the signals from a pipe
(`signal.set_wakeup_fd`), saves what was recorded, and then lets the signal have its default effect.

A program that has a SIGTERM handler keeps it, and SIGTERM saves nothing. The same holds if a thread other than the main
one records, since only the main thread may set handlers.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dsexplore._internal.output import writing

LOOKS = 8
"""Number of calls of `EarlySave.look` within one time-out."""
TICK = 0.5
"""Seconds between two calls of `EarlySave.settle`."""
LINGER = 0.25
"""Seconds from the save to the end of a process that SIGTERM ends. When a launcher ends all ranks, the first rank to
exit makes the collectives of the others fail, so it gives them time to save."""
HOLD = 0.5 + LINGER
"""Seconds for which SIGTERM's handler holds the main thread; saving takes about 0.02 of them."""


@dataclass(eq=False)
class EarlySave:
    """One recording that may have to be saved before its block ends."""

    save: Callable[[str], None]
    """Writes the recording as it is now; its argument is the reason, for the trace's notes."""
    progress: Callable[[], object] = lambda: None
    """Returns a different value once a collective has begun or ended."""
    timeout: float | None = None
    """Seconds without progress after which it is saved; None for never."""
    settle: Callable[[], None] | None = None
    """Called every `TICK` seconds, to write which calls have ended; None for never."""
    _latest: object = field(default=None, init=False)
    """The latest value of ``progress``."""
    _since: float = field(default=0.0, init=False)
    """The time at which that value was first seen; 0 before the first look."""
    _was_saved: bool = field(default=False, init=False)
    """True if the recording was saved since then."""

    def look(self, now: float) -> None:
        """Save if nothing has progressed for ``timeout`` seconds; at most once until something does.

        Args:
            now: the time in seconds, by a monotonic clock.
        """
        if self.settle is not None:
            self.settle()
        latest = self.progress()
        if self._since == 0.0 or latest != self._latest:
            self._latest, self._since, self._was_saved = latest, now, False
        elif self.timeout is not None and not self._was_saved and now - self._since >= self.timeout:
            self._was_saved = True
            self.save(f"saved while its block ran: no collective began or ended for {self.timeout:g} s")

    def stalled_for(self, now: float) -> float:
        """Return the seconds since the last progress; 0 if they are fewer than ``timeout``, or not measured.

        Args:
            now: the time in seconds, by the clock of `look`.
        """
        if self.timeout is None or self._since == 0.0 or self.progress() != self._latest:
            return 0.0
        seconds = now - self._since
        return seconds if seconds >= self.timeout else 0.0


class _Watcher:
    """The thread that saves, and the pipe that brings it the signal; one exists while any `EarlySave` is active."""

    def __init__(self) -> None:
        self.saves: list[EarlySave] = []
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._takes_signal = _may_take_signal()
        if self._takes_signal:
            signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            signal.signal(signal.SIGTERM, self._handle)
        self._thread = threading.Thread(target=self._run, name="dsexplore-early-saves", daemon=True)
        self._thread.start()

    def _handle(self, number: int, frame: object) -> None:
        """Wake the thread, and hold the main thread while it saves and ends the process.

        The thread is woken again, as the signal may have been blocked when its byte was written. The hold is short, as
        the thread may need a lock that the program holds.
        """
        self._wake(number)
        time.sleep(HOLD)

    def _wake(self, number: int) -> None:
        """Send the thread the number of a signal; 0 only makes it work out anew how long it may sleep."""
        with suppress(BlockingIOError):
            os.write(self._writing, bytes([number]))

    def _run(self) -> None:
        """Look at each recording in its turn, and end the process at SIGTERM, until the pipe is closed."""
        while True:
            waits = [save.timeout / LOOKS for save in self.saves if save.timeout is not None]
            waits += [TICK for save in self.saves if save.settle is not None]
            ready, _, _ = select.select([self._reading], [], [], min(waits, default=None))
            if ready:
                numbers = os.read(self._reading, 512)
                if not numbers:
                    return
                if signal.SIGTERM in numbers:
                    self._end_process()
            now = time.monotonic()
            for save in list(self.saves):
                with _reported():
                    save.look(now)

    def _end_process(self) -> None:
        """Save all recordings, and end the process unless the program has set a handler of its own since."""
        for save in list(self.saves):
            with _reported():
                seconds = save.stalled_for(time.monotonic())
                since = f", no collective had begun or ended for {seconds:.3g} s" if seconds else ""
                save.save(f"saved while its block ran: the process was ended by SIGTERM{since}")
        if signal.getsignal(signal.SIGTERM) == self._handle:
            time.sleep(LINGER)
            # Restores the default effect; Python's signal.signal works in the main thread only.
            ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Restore the signal's handler and end the thread."""
        if self._takes_signal:
            if signal.getsignal(signal.SIGTERM) == self._handle:  # else the program has set its own handler
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
        os.close(self._writing)
        self._thread.join()
        os.close(self._reading)

    def forget_in_child(self) -> None:
        """Restore the signal's handler in a forked process, such as a worker of a data loader.

        A forked process has no copy of the thread, and must not write into its parent's pipe when SIGTERM ends it.
        """
        if self._takes_signal:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(self._writing)
        os.close(self._reading)


def _may_take_signal() -> bool:
    """Return True if this is the main thread, SIGTERM has its default handler, and no wakeup fd is set."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    wakeup_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup_fd)
    return wakeup_fd == -1


@contextmanager
def _reported() -> Iterator[None]:
    """Print an error of the block and suppress it, so that the thread goes on."""
    try:
        yield
    except Exception as fault:
        print(f"dsexplore could not save the trace early: {fault!r}", file=sys.stderr)


_watcher: _Watcher | None = None
_lock = threading.Lock()


@contextmanager
def saved_early(early: EarlySave) -> Iterator[None]:
    """Save a recording when SIGTERM ends the process, and when it makes no progress, until the block ends."""
    global _watcher
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        watcher = _watcher
        watcher.saves = [*watcher.saves, early]
        watcher._wake(0)
    try:
        yield
    finally:
        with _lock:
            watcher.saves = [save for save in watcher.saves if save is not early]
            if not watcher.saves and _watcher is watcher:  # a forked child has no watcher
                _watcher = None
                watcher.close()


_held = threading.local()
"""``_held.before`` is the signal mask of the forking thread before `_hold`, while it forks."""


def _hold() -> None:
    """Block SIGTERM while this thread forks: in the child it must not reach the parent's pipe."""
    if _watcher is not None:
        _held.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release() -> None:
    """Restore the signal mask of before the fork."""
    before = getattr(_held, "before", None)
    if before is not None:
        _held.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_in_child() -> None:
    """Drop the parent's watcher in a forked process; its lock may be held by a thread that was not copied."""
    global _watcher, _lock
    watcher, _watcher, _lock = _watcher, None, threading.Lock()
    if watcher is not None:
        watcher.saves = []
        watcher.forget_in_child()
    _release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget_in_child)


def stacks() -> str:
    """Return the Python stack of each other thread of this process, main thread first, outermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames: dict[int, FrameType] = sys._current_frames()
    del frames[threading.get_ident()]
    main = threading.main_thread().ident
    return "\n".join(
        f"Thread {names.get(thread, thread)}:\n{''.join(traceback.format_stack(frames[thread]))}"
        for thread in sorted(frames, key=lambda thread: thread != main)
    )


def write_stacks(target: Path) -> None:
    """Write `stacks` to a file."""
    with writing(target) as partial:
        partial.write_text(stacks(), encoding="utf-8")
