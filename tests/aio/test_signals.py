"""Signals, forks and ends of the program while data moves: nothing is lost, nothing is left.

Modules: ``aio/pool.py``, ``aio/driver.py``.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio.backends import linux_aio
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.buffers import fill_random
from dsexplore.aio import Buffer, SweepResult, aio_handle
from tests.programs import python

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return ``start(program)``, which starts a process that is ended after the test."""
    with ExitStack() as stack:

        def begin(program: str) -> subprocess.Popen[str]:
            words = [sys.executable, "-c", textwrap.dedent(program)]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a program has printed a line that begins so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(words):
            return
    pytest.fail(f"it ended without a word of {words!r}: {process.communicate()}")


def test_signals_do_not_lose_requests(tmp_path: Path, backend: str) -> None:
    """Interrupt the process thousands of times a second while it moves data."""
    data = fill_random(Buffer(24 << 20))
    caught = []
    previous = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        with aio_handle(65536, 8, False, True, 2, backend=backend) as handle:
            handle.sync_pwrite(data, str(tmp_path / "file"))
            back = Buffer(24 << 20)
            handle.sync_pread(back, str(tmp_path / "file"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert caught
    assert np.array_equal(back.bytes, data.bytes)


@pytest.mark.usefixtures("python_loop")
@pytest.mark.parametrize(("name", "code", "every"), [("io_getevents", errno.EINTR, 2), ("io_submit", errno.EAGAIN, 2)])
@pytest.mark.parametrize("single", [True, False])
def test_interrupted_and_refused_system_calls_are_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, code: int, every: int, single: bool
) -> None:
    """Every second call fails, and so does every so many-th of the repetitions that ask why, the first one too."""
    real_fast, real_slow, times, repeated = sc.fast, getattr(sc, name), itertools.count(), itertools.count()
    failing = {"io_getevents": linux_aio._GETEVENTS, "io_submit": linux_aio._SUBMIT}[name]

    def fast(number: object, *arguments: object) -> int:
        return -1 if number is failing and next(times) % 2 == 0 else int(real_fast(number, *arguments))

    def slow(*arguments: int) -> int:
        if next(repeated) % every == 0:
            ctypes.set_errno(code)
            return -1
        return int(real_slow(*arguments))

    monkeypatch.setattr(sc, "fast", fast)
    monkeypatch.setattr(sc, name, slow)
    data = fill_random(Buffer(1 << 20))
    with aio_handle(65536, 4, single, True, backend="linux-aio") as handle:
        handle.sync_pwrite(data, str(tmp_path / "file"))
    assert next(repeated) >= 3
    assert (tmp_path / "file").read_bytes() == data.bytes.tobytes()


def test_a_fork_after_use(tmp_path: Path, backend: str) -> None:
    done = python(f"""
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        import numpy as np
        from dsexplore.aio import aio_handle
        path = {str(tmp_path)!r} + "/"
        handle = aio_handle(4096, 4, intra_op_parallelism=2, backend={backend!r})
        data = np.arange(50_000)
        handle.sync_pwrite(data, path + "parent")
        handle.async_pwrite(data, path + "pending")
        child = os.fork()
        if child == 0:
            back = np.zeros_like(data)
            assert handle.sync_pread(back, path + "parent") == 1  # the parent's pending operation is not the child's
            assert np.array_equal(back, data)
            handle.sync_pwrite(data[::-1].copy(), path + "child")
            handle.close()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert handle.wait() == 1
        assert np.array_equal(np.fromfile(path + "pending", np.int64), data)
        assert np.array_equal(np.fromfile(path + "child", np.int64), data[::-1])
        handle.close()
        print("right")
    """)
    assert (done.stdout, done.stderr) == ("right\n", "")


def test_a_program_that_ends_without_closing_ends(tmp_path: Path, backend: str) -> None:
    done = python(f"""
        import numpy as np
        from dsexplore.aio import aio_handle
        handle = aio_handle(4096, 4, backend={backend!r})
        handle.async_pwrite(np.arange(50_000), {str(tmp_path / "file")!r})
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert np.array_equal(np.fromfile(tmp_path / "file", np.int64), np.arange(50_000))


INTERRUPTED = """
    import os, signal, sys, threading, weakref
    import numpy as np
    from dsexplore.aio import aio_handle
    from dsexplore._internal.aio import pool
    drive, gate = pool.drive, threading.Event()
    main = threading.main_thread().ident
    def slow(*arguments):
        while sys._current_frames()[main].f_code is not pool.Latch.wait.__code__:
            pass
        while not gate.wait(0.01):  # one that comes just before the lock is waited for does not wake it
            os.kill(os.getpid(), signal.SIGINT)
        drive(*arguments)
    def once(*_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, once)
    pool.drive = slow
    handle, data, path = aio_handle(4096, 4), {data}, {path!r}
    held = weakref.ref(data)
    try:
        {interrupted}
    except KeyboardInterrupt as interrupt:
        print(*interrupt.__notes__)
    del data
    kept = held()  # the handle keeps it
    gate.set()
    print(handle.wait(), np.array_equal(kept, np.arange(50_000)))
"""
"""A program that Ctrl-C meets while it waits for a transfer, which goes on only then."""


@pytest.mark.parametrize("operation", ["write", "read"])
@pytest.mark.parametrize(
    "interrupted",
    ["handle.async_p{}(data, path), handle.wait()", "handle.sync_p{}(data, path)", "handle.{}(data, path)"],
)
def test_ctrl_c_while_waiting_keeps_the_operation(tmp_path: Path, operation: str, interrupted: str) -> None:
    path = tmp_path / "file"
    data = "np.arange(50_000)"
    if operation == "read":
        np.arange(50_000).tofile(path)
        data = "np.zeros(50_000, np.int64)"
    done = python(INTERRUPTED.format(data=data, path=str(path), interrupted=interrupted.format(operation)))
    note = f"Still in flight: {operation} of 400,000 bytes, {path}. Call wait() before you use their buffers."
    assert (done.stdout, done.stderr) == (f"{note}\n1 True\n", "")
    assert np.array_equal(np.fromfile(path, np.int64), np.arange(50_000))


SWEEP = """
    from dsexplore.aio import sweep
    result = sweep({folder!r}, "32MiB", 60, progress=lambda p: print(p.text, flush=True))
    print("interrupted", result.interrupted, len(result.measured) > 0)
"""


def test_ctrl_c_in_a_sweep(tmp_path: Path, start: Start) -> None:
    process = start(SWEEP.format(folder=str(tmp_path)))
    read_until(process, "descent")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert out.splitlines()[-1] == "interrupted True True", err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("words", ["writing", "descent"])
def test_a_sweep_that_is_ended_leaves_no_file(tmp_path: Path, start: Start, number: signal.Signals, words: str) -> None:
    process = start(SWEEP.format(folder=str(tmp_path)))
    read_until(process, words)
    process.send_signal(number)
    process.communicate(timeout=240)
    assert process.returncode == -number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_sigterm_ends_the_command_with_the_results_so_far(tmp_path: Path, start: Start) -> None:
    """Send SIGTERM, as a scheduler does at the end of a job's time."""
    saved = tmp_path / "result.json"
    process = start(f"""
        import sys
        from dsexplore._internal.aio.sweeps import sweeping
        from dsexplore._internal.cli import main
        real = sweeping.sweep
        def reported(*args, **kwargs):
            return real(*args, **{{**kwargs, "progress": lambda p: print(p.text, flush=True)}})
        sweeping.sweep = reported
        sys.exit(main(["aio", {str(tmp_path)!r}, "--size", "32MiB", "--save", {str(saved)!r}]))
    """)
    read_until(process, "descent")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "Interrupted: the results so far." in out
    assert SweepResult.load(saved).interrupted
    assert list(tmp_path.iterdir()) == [saved]
