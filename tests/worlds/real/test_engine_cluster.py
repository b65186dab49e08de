"""Cells run on the engines of a real ipyparallel cluster, started like a launcher's: ranks by RANK, errors, Ctrl-C."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.real_cells import failure
from dsexplore._internal.worlds.real import engine_cluster
from dsexplore._internal.worlds.real.cell_end import CellRun
from dsexplore._internal.worlds.real.engine_cluster import EngineCluster, EngineRank
from dsexplore._internal.worlds.real.messages import CellReport
from tests.running_processes import is_waiting
from tests.waiting import wait_until
from tests.worlds.real.cells import cell_of

ipyparallel = pytest.importorskip("ipyparallel")

pytestmark = pytest.mark.processes

START = (
    "import torch, torch.distributed as dist\nx = torch.ones(4) * (rank + 1)\ndist.all_reduce(x)\nprint('rank', rank)"
)


def free_port() -> int:
    """Return a port below 32768, where Linux begins to assign ports, so that no program gets it first."""
    for port in random.sample(range(20_000, 30_000), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("a hundred ports are taken")


class Site:
    """Starts the processes of a cluster, each in its own session."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.port = 0

    def start(self, module: str, *options: str, **variables: str) -> None:
        command = [sys.executable, "-m", f"ipyparallel.{module}", "--profile=ranks", *options]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.started.append(subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True, **quiet))

    def start_engines(self, in_order: bool) -> None:
        """Two of one world.

        Args:
            in_order: whether rank 1 is to register first, and rank 0 next.
        """
        self.port = free_port()
        client = ipyparallel.Client(profile="ranks")
        before = set(client.ids)
        for number, rank in enumerate(("1", "0")):
            self.start("engine", RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_PORT=str(self.port))
            wait_until(lambda number=number: len(set(client.ids) - before) == number + 1 or not in_order)
        wait_until(lambda: len(set(client.ids) - before) == 2)
        client.close()

    def end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.started.remove(process)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a controller and two engines."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of engines that are killed while they run a cell
    for name, value in {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    site = Site()
    site.start("controller", "--ip=127.0.0.1")
    files = [tmp_path / "profile_ranks" / "security" / f"ipcontroller-{side}.json" for side in ("engine", "client")]
    wait_until(lambda: all(file.exists() and file.stat().st_size for file in files))
    site.start_engines(in_order=True)
    yield site
    site.end(site.started[::-1])


def test_engines_are_ranks(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in ("OUTPUT_WAIT", "INTERRUPT_WAIT"):
        monkeypatch.setattr(engine_cluster, wait, 60.0)  # as long as a busy machine needs
    cluster = EngineCluster("ranks", mesh="dp=2")
    cluster.open()
    try:
        assert [rank.engine for rank in cluster._ranks] == [1, 0]
        check_cells(cluster)
        check_errors(cluster, tmp_path / "begun")
        check_interrupt(cluster)
        check_a_cell_that_has_not_begun(cluster, tmp_path / "ran")
        with monkeypatch.context() as impatient:
            impatient.setattr(engine_cluster, "INTERRUPT_WAIT", 5.0)  # of an engine that does not come back
            check_engine_in_a_collective(cluster)
        check_other_engines(cluster, site)
        check_lost_engine(cluster)
    finally:
        cluster.close()


def check_cells(cluster: EngineCluster) -> None:
    run = cluster.run(cell_of(START, "x[0].item()"), timeout=240).check()
    assert isinstance(run, CellRun)
    assert run.values == [3.0, 3.0]
    assert [outcome.output for outcome in run.outcomes] == ["rank 0\n", "rank 1\n"]
    assert run.trace is not None
    assert run.trace.events.select("rank", "op", "state").rows() == [
        (rank, "all_reduce", "completed") for rank in (0, 1)
    ]
    kept = cluster.run(cell_of("x += rank", "(x[0].item(), mesh.size())"))
    assert kept.values == [(3.0, 2), (4.0, 2)]
    assert cluster.run(cell_of("first = mesh", "0")).values == [0, 0]
    assert cluster.run(cell_of("", "mesh is first")).values == [True, True]
    assert [outcome.rank for outcome in cluster.run(cell_of("", "rank"), ranks=[1]).outcomes] == [1]


SLOW = "import time\nprint('here', flush=True)\nfor _ in range(2000):\n    time.sleep(0.1)"
FAILING = """\
import os, time
if rank == 1:
    while not os.path.exists(begun):
        time.sleep(0.01)
    raise ValueError('no good')
open(begun, 'w').close()
"""


def check_errors(cluster: EngineCluster, begun: Path) -> None:
    """Check that all end if one rank raises while the other runs the cell."""
    failed = cluster.run(cell_of(f"begun = {str(begun)!r}\n{FAILING}{SLOW}"), timeout=240)
    assert failed.first_failure == 1
    assert [outcome.error for outcome in failed.outcomes] == ["KeyboardInterrupt", "ValueError: no good"]
    assert failed.outcomes[1].line == 6


def all_have_come(ranks: Sequence[EngineRank]) -> bool:
    return all("here" in rank.output.text for rank in ranks)


def check_interrupt(cluster: EngineCluster) -> None:
    def interrupt(ranks: Sequence[EngineRank]) -> None:
        if all_have_come(ranks):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        cluster.run(cell_of(SLOW), timeout=240, on_output=interrupt)
    run: CellRun = caught.value.run  # type: ignore[attr-defined]
    assert [outcome.error for outcome in run.outcomes] == ["KeyboardInterrupt"] * 2
    assert run.reason == "interrupted"
    assert cluster.run(cell_of("", "x[0].item()")).values == [3.0, 4.0]


def check_a_cell_that_has_not_begun(cluster: EngineCluster, ran: Path) -> None:
    """Check that all end if one rank raises while the other's engine still runs another task."""

    def work_on(begun: str) -> None:
        import pathlib
        import time

        pathlib.Path(begun).touch()
        for _ in range(2000):
            time.sleep(0.1)

    client = ipyparallel.Client(profile="ranks")
    try:
        client[cluster._ranks[0].engine].apply_async(work_on, f"{ran} begun")
        wait_until(Path(f"{ran} begun").exists)
        failed = cluster.run(
            cell_of(f"if rank == 1:\n    raise ValueError\nopen({str(ran)!r}, 'w').close()"), timeout=240
        )
        assert [outcome.error.partition(":")[0] for outcome in failed.outcomes] == ["KeyboardInterrupt", "ValueError"]
        assert failed.first_failure == 1
        assert cluster.run(cell_of("", "x[0].item()")).values == [3.0, 4.0]
        assert not ran.exists()
    finally:
        client.close()


def check_engine_in_a_collective(cluster: EngineCluster) -> None:
    """Check a time-out when one rank sleeps and the other waits inside a collective."""
    (pid,) = cluster.run(cell_of("import os", "os.getpid()"), ranks=[0]).values

    def hold(ranks: Sequence[EngineRank]) -> None:
        def hangs() -> bool:
            for rank in ranks:
                rank.update_output()
            return all_have_come(ranks) and is_waiting(pid)

        wait_until(hangs)

    cell = cell_of(
        "import time\nwork = dist.all_reduce(x, async_op=True) if rank == 0 else None\nprint('here', flush=True)\n"
        "if work is not None:\n    work.wait()\nfor _ in range(10000):\n    time.sleep(0.1)"
    )
    waiting = cluster.run(cell, timeout=0.01, on_output=hold)
    assert [outcome.status for outcome in waiting.outcomes] == ["stuck", "error"]
    said = "rank 1 left it when interrupted (cell line 7); rank 0 still runs it, and does not answer, as inside a"
    assert said in str(failure(waiting, 0.01))
    with pytest.raises(UsageError, match="an earlier cell still runs on rank 0"):
        cluster.run(cell_of(""))


def check_other_engines(cluster: EngineCluster, site: Site) -> None:
    """Check cells when the job is started again, long before the controller knows that its engines are gone, one
    inside a collective."""
    site.end(site.started[:0:-1])
    site.start_engines(in_order=False)
    assert cluster.run(cell_of(START, "x[0].item()"), timeout=240).values == [3.0, 3.0]
    assert {rank.engine for rank in cluster._ranks} == {2, 3}


def check_lost_engine(cluster: EngineCluster) -> None:
    body = f"import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n{SLOW}"
    lost = cluster.run(cell_of(body), timeout=180)
    assert [outcome.status for outcome in lost.outcomes] == ["error", "died"]
    assert lost.first_failure == 1
    with pytest.raises(UsageError, match="no engine for rank 1 of 2: "):
        cluster.run(cell_of(""))


class LatePrint:
    """An answer of an engine whose output arrives later."""

    stdout = stderr = ""

    def ready(self) -> bool:
        return True

    def get(self, timeout: float) -> bytes:
        return pickle.dumps(CellReport(True))

    def wait_for_output(self, timeout: float) -> None:
        self.stdout = "printed\n"


def test_output_that_comes_after_the_answer_is_kept() -> None:
    rank = EngineRank(0, 0)
    rank.answer = LatePrint()
    assert rank.outcome()[0].output == "printed\n"


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cluster = EngineCluster("nowhere")
    with pytest.raises(UsageError, match="no cluster answers under the profile 'nowhere'"):
        cluster.open()
    assert not cluster.is_open
