"""Threads of the engine: what happens where the system has none left, and where Ctrl-C comes while they start.

Modules: ``aio/pool.py``, ``aio/sweeps/measure.py``.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from dsexplore._internal.aio import pool as pools
from dsexplore._internal.aio.pool import Pool
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore.aio import AioConfig, aio_handle

PAIR = AioConfig(block_size=256 << 10, queue_depth=4, thread_count=2)


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dsexplore-aio")]


def test_ctrl_c_while_threads_start_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start_thread = pools.start_thread

    def interrupted(name: str, *rest: object) -> threading.Thread:
        if name.endswith("2"):
            raise KeyboardInterrupt
        return start_thread(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(pools, "start_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        aio_handle(queue_depth=2, intra_op_parallelism=3)
    assert engine_threads() == []


@pytest.mark.timeout(240)
def test_ctrl_c_between_the_shares_of_a_slice_is_no_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 << 20))
    source = TransferFile(path, write=False)
    bench = Bench("threads", source, 8 << 20)
    start = Pool.start

    def interrupted(pool: Pool, job: pools.TransferJob, share: int, thread: int) -> None:
        if share == 1:
            raise KeyboardInterrupt
        start(pool, job, share, thread)

    with monkeypatch.context() as patched:
        patched.setattr(Pool, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.measure(PAIR, "read", 0.01)
    assert bench.measure(PAIR, "read", 0.01).bytes >= PAIR.bytes_in_flight  # and the bench still works
    bench.close()
    source.close()
    assert engine_threads() == []


def test_a_system_without_more_threads(tmp_path: Path) -> None:
    """Serve requests with fewer threads for a user whose number of processes is limited; raise if there is none."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone who runs nothing else")
    program = """
        import os, resource, sys, threading
        from dsexplore.aio import aio_handle
        import fcntl
        from dsexplore._internal.aio.backends import linux_aio, threads  # while they may be read
        os.setuid(100_000 + os.getpid())  # who runs nothing else

        def allow(more):
            running = len(os.listdir("/proc/self/task"))
            resource.setrlimit(resource.RLIMIT_NPROC, (running + more, resource.getrlimit(resource.RLIMIT_NPROC)[1]))

        few, one = (aio_handle(4096, 8, backend="threads") for _ in range(2))
        data = bytearray(range(256)) * 1000
        source = int(sys.argv[1])
        for handle, more in ((few, 1), (one, 0)):
            allow(more)
            back = bytearray(len(data))
            print(handle.sync_pread(back, source), back == data, threading.active_count())
        for backend, parallel in (("threads", 1), (None, 3)):
            allow(1)
            try:
                aio_handle(4096, 8, intra_op_parallelism=parallel, backend=backend)
            except OSError as error:
                print(error.errno, "starts no thread beyond" in str(error), threading.active_count())
        for handle in (few, one):
            handle.close()
        print(threading.active_count())
    """
    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    with (tmp_path / "file").open("rb") as source:  # opened here: the other user may not enter this folder
        words = [sys.executable, "-c", textwrap.dedent(program), str(source.fileno())]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=240, pass_fds=[source.fileno()], check=False
        )
    refused = f"{errno.EAGAIN} True 6"
    assert done.stdout.splitlines() == ["1 True 6", "1 True 6", refused, refused, "1"], done.stderr
