"""Under torchrun, real ranks write a file each, and what is loaded is the whole recording.

Modules: ``capture/record.py``, ``trace/files.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import dsexplore
from dsexplore._internal.errors import UsageError
from tests.programs import ROOT, python

PROGRAM = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    import dsexplore

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(self.up(x))

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    try:
        with dsexplore.commtrace(save=sys.argv[1]) as trace:
            model(torch.ones(4, 8)).sum().backward()
            trace.step()
            dist.all_reduce(torch.ones(256))
            dist.barrier()
        with dsexplore.commtrace(save=sys.argv[2]) as trace:
            dist.all_reduce(torch.ones(256))
            raise RuntimeError("in the middle")
    finally:
        dist.barrier()  # torchrun ends the other ranks when the first one fails
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings of one job, ``whole`` and ``failed``, and what torchrun wrote in ``errors.txt``."""
    folder = tmp_path_factory.mktemp("torchrun")
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(script), "whole/", "failed"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode != 0
    (folder / "errors.txt").write_text(done.stderr, encoding="utf-8")
    return folder


@pytest.mark.processes
def test_every_rank_writes_a_file_and_loading_merges_them(folder: Path, tmp_path: Path) -> None:
    assert sorted(file.name for file in (folder / "whole").iterdir()) == ["rank-00000.parquet", "rank-00001.parquet"]
    trace = dsexplore.load(folder / "whole")
    assert trace.info.ranks == (0, 1)
    assert trace.info.world_size == 2
    assert not trace.info.simulated
    assert len(set(trace.info.clocks)) == 1  # of one host: nothing is to be aligned, however busy it is
    assert trace.info.clock_offsets == (0, 0)
    assert trace.info.notes == ()
    for rank in (0, 1):
        own = trace.where(rank=rank)
        assert own.events["op"].to_list() == ["all_reduce", "all_reduce", "barrier"]
        assert own.events["step"].to_list() == [0, 1, 1]
        assert own.events["owner"].to_list() == ["MLP.down", "", ""]
        assert own.events["message_bytes"].to_list() == [4 * 8 * 4, 1024, 0]
        assert own.events["seq"].to_list() == [0, 1, 2]
    assert (trace.events["end"] >= trace.events["start"]).all()
    assert trace.parameters.filter(trace.parameters["name"] == "MLP.up.weight")["placements"].to_list() == ["S(0)"] * 2
    assert trace.modules["calls"].to_list() == [1, 1, 1]
    assert dict(trace.groups.select("axis", "backend").iter_rows())["tp"] == "gloo"
    whole = dsexplore.load(trace.save(tmp_path / "whole.parquet"))
    assert_frame_equal(whole.events, trace.events)


@pytest.mark.processes
def test_a_program_that_fails_leaves_its_traces(folder: Path) -> None:
    assert "in the middle" in (folder / "errors.txt").read_text(encoding="utf-8")
    trace = dsexplore.load(folder / "failed")
    assert trace.info.ranks == (0, 1)
    assert trace.by_op()["count"].to_list() == [2]
    assert trace.info.notes == ("the recording ended early, with RuntimeError",)


TERMINATED = """
import os, signal
from dsexplore._internal.capture import record
save = record.save_recording

def terminated(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return save(*arguments)

record.save_recording = terminated
with record.record(save="trace/"):
    print("recorded", flush=True)
print("not reached", flush=True)
"""


@pytest.mark.processes
def test_a_rank_that_its_launcher_ends_while_it_writes_its_file_writes_it_first(tmp_path: Path) -> None:
    done = python(TERMINATED, folder=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "recorded\n")
    assert len(dsexplore.load(tmp_path / "trace")) == 0


def test_one_file_for_two_processes_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = False
    with (
        pytest.raises(UsageError, match=r"save='trace\.parquet' names one file, but 2 processes record"),
        dsexplore.commtrace(save="trace.parquet"),
    ):
        ran = True
    assert not ran
