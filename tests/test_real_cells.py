"""``%%commtrace --real`` runs cells on local ranks, shows their values and errors, and leaves no process behind."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError as ShellUsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from dsexplore import RanksFailedError
from dsexplore._internal import real_cells
from dsexplore._internal.errors import UsageError
from dsexplore._internal.real_cells import RankScreen
from dsexplore._internal.torch_internals.names import minor_version, torch_at_least
from dsexplore._internal.views.ranks.rank_texts import RankText
from dsexplore._internal.worlds.real import rank_world
from dsexplore._internal.worlds.real import server_handle as server_module
from dsexplore._internal.worlds.real.rank_world import RankWorld
from tests.real_notebook import SUM, Notebook, opened_notebook
from tests.running_processes import is_running, is_waiting
from tests.waiting import wait_until
from tests.worlds.real.cells import cell_of

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


@pytest.fixture
def notebook(plain_shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    yield from opened_notebook(plain_shell, monkeypatch)


def test_a_cell_runs_on_new_ranks_and_brings_back_values_output_and_trace(notebook: Notebook) -> None:
    notebook.ok("offset = 10\ndef shifted(number):\n    return number + offset")
    text = notebook.ok(
        f"%%commtrace --real 4 -o seen\n{SUM}print('even' if rank % 2 == 0 else 'odd')\nshifted(x[0].item())"
    )
    seen = notebook.names["seen"]
    assert seen is notebook.trace
    assert seen.results == dict.fromkeys(range(4), 20.0)
    assert seen.events.select("rank", "op", "message_bytes", "source", "state").rows() == [
        (rank, "all_reduce", 16, "In[3]:4", "completed") for rank in range(4)
    ]
    assert (seen.info.world_size, seen.info.simulated, seen.info.notes) == (4, False, ())
    assert (seen.events["end"] > seen.events["start"]).all()
    expected = ["[ranks 0, 2] even", "[ranks 0, 2] 20.0", "[ranks 1, 3] odd", "[ranks 1, 3] 20.0"]
    assert text.splitlines()[:4] == expected
    assert "x" not in notebook.names
    assert notebook.kept_pids == []


def test_quiet_shows_what_ranks_print_and_no_trace(notebook: Notebook) -> None:
    with capture_output() as captured:
        notebook.shell.run_cell(f"%%commtrace --real 1 -q\n{SUM}print('here')")
    assert captured.stdout == "[rank 0] here\n"
    assert captured.outputs == []
    assert len(notebook.trace) == 1


def test_ranks_of_an_open_world_live_on_between_cells(notebook: Notebook) -> None:
    assert "2 real ranks (dp=2)" in notebook.ok("%commtrace --real 2 --mesh dp=2")
    pids = notebook.kept_pids
    notebook.ok("lr = 1")
    notebook.ok(f"%%commtrace\n{SUM}assert mesh.size() == 2\nclass Model:\n    rate = lr\nmodel = Model();")
    notebook.ok("lr = 5\nmesh = 'in the notebook'")
    notebook.ok("%%commtrace --real 2\n(x[0].item(), type(model).__name__, model.rate, lr, mesh)")
    assert notebook.trace.results == dict.fromkeys(range(2), (3.0, "Model", 1, 5, "in the notebook"))
    notebook.ok("%%commtrace --ranks 1\nrank")
    assert notebook.trace.results == {1: 1}
    assert notebook.trace.info.notes == ("this cell ran on rank 1 of 2 ranks",)
    for options, said in (("--real 2 --rank 1", "give one"), ("--rank 1", "or --ranks 1 for a cell on the real ranks")):
        error, text = notebook.run(f"%%commtrace {options}\nrank")
        assert isinstance(error, ShellUsageError)
        assert said in text
    assert notebook.kept_pids == pids
    assert "a world of 2 real ranks (dp=2) is open" in notebook.ok("%commtrace")
    error, text = notebook.run("%%commtrace --real 3\n1")
    assert isinstance(error, ShellUsageError)
    assert "asks for another" in text
    assert "closed the world of 2 real ranks (dp=2)" in notebook.ok("%commtrace --close")
    assert not any(map(is_running, pids))


def test_an_error_on_all_ranks_leaves_the_kept_world_open(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2")
    notebook.ok(f"%%commtrace\n{SUM}")
    error, text = notebook.run("%%commtrace\ny = 1\n\nundefined")
    assert isinstance(error, RanksFailedError)
    assert "ranks 0, 1: NameError: name 'undefined' is not defined (cell line 4)" in text
    assert text.count("Traceback") == 1
    assert 'File "In[4]", line 4, in <module>\n    undefined' in text
    notebook.ok("%%commtrace\nx[0].item() + y")
    assert notebook.trace.results == {0: 4.0, 1: 4.0}


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("dist.all_reduce(x, async_op=True)\n    os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os._exit(7)", "ended with exit code 7, without a result"),
    ],
)
def test_a_rank_that_dies_is_named(notebook: Notebook, end: str, how: str) -> None:
    error, text = notebook.run(f"%%commtrace --real 2\n{SUM}import os\nif rank == 1:\n    {end}\ndist.all_reduce(x)")
    assert isinstance(error, RanksFailedError)
    assert f"rank 1: {how}" in text
    assert any(note == "1 of 2 ranks left no trace: rank 1" for note in notebook.trace.info.notes)
    notebook.ok(f"%%commtrace --real 2\n{SUM}")


@pytest.fixture
def all_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the other ranks enough time to notice that a peer has ended."""
    monkeypatch.setattr(rank_world, "GRACE", 60.0)


@pytest.mark.usefixtures("all_end_by_themselves")
@pytest.mark.parametrize("other", ["torch.ones(8)", "torch.ones(4, dtype=torch.float64)"], ids=["size", "dtype"])
def test_a_collective_of_another_size_or_dtype_is_an_error(notebook: Notebook, other: str) -> None:
    error, text = notebook.run(f"%%commtrace --real 2\n{SUM}dist.all_reduce({other} if rank == 1 else x)")
    assert isinstance(error, RanksFailedError)
    assert "Received data size doesn't match expected size" in text  # gloo's words, before it ends the process
    # Where rank 0's connection closes before rank 1 waits for it, gloo lets rank 1 wait for ever: seldom, and then for
    # all of the time that it is given here.
    raised, waits = r": RuntimeError: .*\(cell line 5\)", r" was waiting in all_reduce \(In\[2\]:5, group 0, 32 B\)"
    end = f"\nrank 0: killed by SIGABRT\nrank 1({raised}|{waits})\nthe ranks were ended: rank 0 died"
    assert re.search(end, text), text


def test_a_cell_after_the_kept_ranks_were_ended_does_not_run_in_the_kernel(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2 --mesh dp=2")
    error, _ = notebook.run(f"%%commtrace\n{SUM}if rank == 1: raise ValueError('on purpose')\ndist.barrier()")
    assert isinstance(error, RanksFailedError)
    for cell in ("%%commtrace\nran_here = 1", "%%commtrace --ranks 1\nran_here = 1"):
        _, text = notebook.run(cell)
        assert (
            "the world of 2 real ranks (dp=2) was ended by an earlier cell: open it again "
            "(%commtrace --real 2 --mesh dp=2), or give it up (%commtrace --close) and run this cell here" in text
        )
    assert "ran_here" not in notebook.names
    notebook.ok("%%commtrace --mesh tp=2\nran_simulated = 1")
    notebook.ok("%commtrace --real 2 --mesh dp=2")
    notebook.ok("%%commtrace\nassert rank in (0, 1)")
    notebook.ok("%commtrace --close")
    notebook.ok("%%commtrace\nran_here = 1")
    assert notebook.names["ran_here"] == 1


def test_a_rank_that_has_reported_is_not_ended_before_those_that_still_wait_for_it(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2")
    notebook.ok("%%commtrace\nrank")
    os.kill(notebook.kept_pids[1], signal.SIGTERM)  # as where Ctrl-C comes while its report is on its way
    notebook.ok("%%commtrace\nrank")
    assert notebook.trace.results == {0: 0, 1: 1}


def test_a_kept_rank_that_died_between_cells_is_named(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2")
    pids = notebook.kept_pids
    notebook.ok("%%commtrace\nrank")
    ended = os.pidfd_open(pids[1])
    os.kill(pids[1], signal.SIGKILL)
    select.select([ended], [], [], 60)
    os.close(ended)
    error, text = notebook.run("%%commtrace\nrank")
    assert isinstance(error, ShellUsageError)
    assert "has lost a rank since its last cell (rank 1 killed by SIGKILL): open it again" in text
    assert not any(map(is_running, pids))
    notebook.ok("%%commtrace --real 1\nrank")


def test_much_output_is_read_on_and_its_middle_left_out(notebook: Notebook) -> None:
    text = notebook.ok(
        "%%commtrace --real 2\nif rank == 1:\n    for _ in range(100):\n        print('y' * 1048576)\n    print('end')"
    )
    assert "of output left out …" in text
    assert "[rank 1] end\n" in text
    assert len(text) < 400_000


def test_lines_are_shown_while_ranks_run(notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cell continues when its first line has been shown."""
    go = tmp_path / "go"

    class Shown(RankScreen):
        def _print_lines(self, texts: Mapping[int, RankText]) -> None:
            super()._print_lines(texts)
            if "first" in texts[0].output:
                go.touch()

    monkeypatch.delenv("DSEXPLORE_PROGRESS", raising=False)
    monkeypatch.setattr(real_cells, "INTERVAL", 0.0)
    monkeypatch.setattr(real_cells, "RankScreen", Shown)
    wait = f"print('first')\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('last')"
    text = notebook.ok(f"%%commtrace --real 1 --timeout 100\n{wait}")
    assert text.splitlines()[:2] == ["[rank 0] first", "[rank 0] last"]


def test_a_port_that_is_taken_does_not_matter(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        notebook.ok(f"%%commtrace --real 2\n{SUM}")


def test_many_cells_leave_no_process_descriptor_or_file(notebook: Notebook) -> None:
    def held() -> tuple[int, set[str]]:
        children = Path(f"/proc/{server_module.server().pid}/task/{server_module.server().pid}/children").read_text()
        return len([*Path("/proc/self/fd").iterdir()]), {*children.split()}

    before = held()
    for _ in range(3):
        notebook.ok(f"%%commtrace --real 2\n{SUM}")
        notebook.run("%%commtrace --real 2\n1 / 0")
    assert held() == before


def names_of(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_a_hundred_cells_in_a_row_leave_the_ranks_as_they_were(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2")
    kept = notebook.kept_world

    def held() -> list[tuple[Any, ...]]:
        # A thread that was joined is still listed while it ends: it runs until it is gone.
        wait_until(lambda: all(map(is_waiting, notebook.kept_pids)))
        processes = [Path(f"/proc/{pid}") for pid in (os.getpid(), server_module.server().pid, *notebook.kept_pids)]
        return [
            (
                len([*process.glob("fd/*")]),  # sockets, too
                len([*process.glob("task/*")]) if process.name != str(os.getpid()) else 0,
                "".join(children.read_text() for children in process.glob("task/*/children")),
                (process / "maps").read_text().count("/dev/shm"),
                [name for name in names_of(Path("/dev/shm")) if process.name in re.findall(r"\d+", name)],
            )
            for process in processes
        ]

    notebook.ok(f"%%commtrace -q\n{SUM}")
    cell = cell_of("dist.all_reduce(x)")
    before = held(), {*Path(tempfile.gettempdir()).iterdir()}
    for _ in range(100):
        assert kept.run(cell).ok
    assert (held(), {*Path(tempfile.gettempdir()).iterdir()}) == before


def test_ranks_whose_server_was_killed_are_named(notebook: Notebook) -> None:
    notebook.ok("%commtrace --real 2")
    ended = [os.pidfd_open(pid) for pid in notebook.kept_pids]
    os.kill(server_module.server().pid, signal.SIGKILL)
    for descriptor in ended:
        select.select([descriptor], [], [], 60)
        os.close(descriptor)
    error, text = notebook.run("%%commtrace\nrank")
    assert isinstance(error, ShellUsageError)
    assert "has lost a rank since its last cell (rank 0 has ended, rank 1 has ended): open it again" in text


def test_a_full_dev_shm_is_the_error_of_what_needs_it_alone(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = "mount -t tmpfs -o size=8k shm /dev/shm; head -c 8192 /dev/zero > /dev/shm/full"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], check=False, capture_output=True).returncode:
        pytest.skip("this machine gives no mount namespaces")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(inside)} \'{mount}; exec "$0" "$@"\' {sys.executable} "$@"\n')
    python.chmod(0o700)
    server_module.close()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(python))
        server_module.server()
    try:
        notebook.ok("%commtrace --real 2")
        notebook.ok(f"%%commtrace\n{SUM}")
        error, text = notebook.run("%%commtrace\nx.share_memory_()")
        assert isinstance(error, RanksFailedError)
        failed = "allocate shared memory" if torch_at_least("2.10") else "write to file </torch_"
        assert f"rank 0: RuntimeError: unable to {failed}" in text
        says_why = minor_version(torch.__version__) != (2, 11)  # which asks for the reason when it is gone
        assert ("No space left on device" if says_why else "Success") in text
        notebook.ok("%%commtrace\ndist.all_reduce(x)\nx[0].item()")
        assert notebook.trace.results == {0: 6.0, 1: 6.0}
    finally:
        notebook.run("%commtrace --close")
        server_module.close()


def test_nccl_needs_a_gpu_per_rank_and_warns_where_the_kernel_itself_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are simulated: a world with NCCL is created, but not opened."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="this machine shows 2 for 3 ranks: give --backend gloo, or --real 2"):
        RankWorld(3, backend="nccl")
    RankWorld(2, backend="nccl")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == 1, raising=False)
    with pytest.warns(RuntimeWarning, match="has a CUDA context on GPU 1, where a rank will run"):
        RankWorld(2, backend="nccl")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%commtrace --real 0\n1", "world size 0 is not a number of ranks"),
        ("%%commtrace --real 2 --mesh dp=3\n1", "mesh dp=3 has 3 = 3 ranks, but the world size is 2"),
        (
            "%%commtrace --real 2 --backend mpi\n1",
            "backend 'mpi': local ranks have gloo, or nccl with one GPU per rank",
        ),
        ("%%commtrace --real 2 --fake\n1", "--fake is about a simulated world, and --real 2 about real ranks"),
        ("%%commtrace --real 2 --ranks 1\n1", "--ranks 1 chooses among the ranks of an open world"),
        (
            "%%commtrace --ranks 1\n1",
            "the ranks of an open world: start them with %commtrace --real N in a line",
        ),
        ("%%commtrace --real 2 --rank 1\n1", "--rank is about a simulated world, and --real 2 about real ranks"),
        ("%%commtrace --real 2 --timeout 0\n1", "--timeout 0: give seconds above 0"),
        ("%%commtrace --timeout 5\n1", "--timeout 5.0 is about real ranks: give --real N"),
        ("%commtrace --real 2 --timeout 5", "--ranks and --timeout belong to a cell"),
        ("%%commtrace --real 2\n!ls", "this cell uses the shell command !ls of IPython,"),
        ("%%commtrace --real 2\n%timeit 1", "this cell uses the magic %timeit of IPython,"),
        (
            "import threading\nheld = threading.Lock()\nget_ipython().run_cell_magic('commtrace', '--real 2', 'held')",
            "this cell's names cannot all be sent to its ranks: held (lock: cannot pickle",
        ),
        ("%%commtrace --world-size 2 --rank 0,1\n1", "invalid int value: '0,1' (did you mean --ranks?)"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(notebook: Notebook, cell: str, message: str) -> None:
    error, text = notebook.run(cell)
    assert isinstance(error, ShellUsageError), text
    assert message in text
