"""Save a recording while its block still runs: when the process is ended by SIGTERM, and when nothing moves on.

A launcher ends the ranks that are left with SIGTERM once one has failed. Python runs a signal handler only when its
main thread comes back to Python, and a rank that waits inside gloo or NCCL never does. So a thread reads the signals
from a pipe (`signal.set_wakeup_fd`), saves what was recorded, and then lets the signal have its default effect.

A program with a SIGTERM handler of its own keeps it, and what it does then is its own affair. The same holds where
another thread than the main one records, which may not set handlers.
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
from typing import Any

from dsexplore._internal.atomic import writing

LOOKS = 8
"""How often in the time-out of a recording the thread looks whether anything has moved on."""
TICK = 0.5
"""Seconds between two calls of `EarlySave.settle`."""
LINGER = 0.25
"""Seconds between the save and the end of a process that SIGTERM ends: of ranks that are ended together, the first that
is gone makes the collectives of those fail that have not saved yet."""
HOLD = 0.5 + LINGER
"""Seconds for which a program that is ended does not go on while its recording is saved, which takes about 0.02."""


@dataclass(eq=False)
class EarlySave:
    """One recording that may have to be saved before its block ends."""

    save: Callable[[str], None]
    """Writes the recording as it is now; its argument says why, for the notes."""
    progress: Callable[[], object] = lambda: None
    """Returns another value whenever a collective has begun or ended."""
    timeout: float | None = None
    """Seconds without progress after which it is saved; None for never."""
    settle: Callable[[], None] | None = None
    """Called every `TICK` seconds, to write which calls have ended; None for never."""
    _last: object = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _was_saved: bool = field(default=False, init=False)

    def look(self, now: float) -> None:
        """Save if nothing has progressed for ``timeout`` seconds; at most once until something does.

        Args:
            now: seconds, by any clock that does not jump.
        """
        if self.settle is not None:
            self.settle()
        seen = self.progress()
        if self._since == 0.0 or seen != self._last:
            self._last, self._since, self._was_saved = seen, now, False
        elif self.timeout is not None and not self._was_saved and now - self._since >= self.timeout:
            self._was_saved = True
            self.save(f"saved while its block ran: no collective began or ended for {self.timeout:g} s")

    def stood(self, now: float) -> float:
        """Return the seconds since the last progress; 0 if they are fewer than ``timeout``, or not measured.

        Args:
            now: as in `look`.
        """
        seconds = now - self._since if self._since and self.progress() == self._last else 0.0
        return seconds if self.timeout is not None and seconds >= self.timeout else 0.0


class _Watcher:
    """The thread that saves, and the signal's way to it; there is one while any `EarlySave` is active."""

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
        """Wake the thread, and hold the program until the thread has ended the process.

        The signal may have been held back when its byte came. The hold is short, as the thread may need a lock that the
        program holds.
        """
        self._wake(number)
        time.sleep(HOLD)

    def _wake(self, number: int) -> None:
        with suppress(BlockingIOError):
            os.write(self._writing, bytes([number]))

    def _run(self) -> None:
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
        for save in list(self.saves):
            with _reported():
                stood = save.stood(time.monotonic())
                since = f", no collective had begun or ended for {stood:.3g} s" if stood else ""
                save.save(f"saved while its block ran: the process was ended by SIGTERM{since}")
        if signal.getsignal(signal.SIGTERM) == self._handle:
            time.sleep(LINGER)
            # The default effect, which another thread than the main one can only set in C.
            ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Restore the signal's handler and end the thread."""
        if self._takes_signal:
            if signal.getsignal(signal.SIGTERM) == self._handle:  # else the program has set one of its own meanwhile
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
        os.close(self._writing)
        self._thread.join()
        os.close(self._reading)

    def forget_in_child(self) -> None:
        """Restore the signal's handler in a forked process, such as a worker of a data loader.

        It must not write into its parent's pipe when it is ended. It does not have the thread.
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
    others = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(others)
    return others == -1


@contextmanager
def _reported() -> Iterator[None]:
    """Print an error, so that neither the thread nor the program stops for it."""
    try:
        yield
    except Exception as fault:
        print(f"dsexplore could not save the trace early: {fault!r}", file=sys.stderr)


_watcher: _Watcher | None = None
_lock = threading.Lock()


@contextmanager
def saved_early(early: EarlySave) -> Iterator[None]:
    """Save that recording when the process is ended by SIGTERM, and when it makes no progress, until the block ends."""
    global _watcher
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        watcher = _watcher
        watcher.saves = [*watcher.saves, early]
        watcher._wake(0)  # the thread looks how long it may sleep now
    try:
        yield
    finally:
        with _lock:
            watcher.saves = [save for save in watcher.saves if save is not early]
            if not watcher.saves and _watcher is watcher:  # else this is a child, which has none
                _watcher = None
                watcher.close()


_held = threading.local()
"""The signals that the forking thread held back before, while it forks."""


def _hold() -> None:
    if _watcher is not None:
        _held.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release() -> None:
    before = getattr(_held, "before", None)
    if before is not None:
        _held.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_in_child() -> None:
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
    main = threading.main_thread().ident
    frames: list[tuple[int, Any]] = [
        (number, frame) for number, frame in sys._current_frames().items() if number != threading.get_ident()
    ]
    frames.sort(key=lambda frame: frame[0] != main)
    return "\n".join(
        f"Thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}" for number, frame in frames
    )


def write_stacks(target: Path) -> None:
    """Write `stacks` to a file."""
    with writing(target) as partial:
        partial.write_text(stacks(), encoding="utf-8")
