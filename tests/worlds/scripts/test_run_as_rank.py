"""A script runs unmodified as one simulated rank, and leaves nothing behind."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace

DDP = """\
import os, pickle, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Config:
    steps = 3

assert not dist.is_initialized()
dist.init_process_group("nccl")
assert dist.is_initialized()
assert dist.get_backend() == "nccl"
assert type(pickle.loads(pickle.dumps(Config()))) is Config
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(Config.steps):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
assert not dist.is_initialized()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(DDP)
    return path


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(dedent(text))
    return path


def gradients(trace: Trace) -> list[int]:
    """Return the step of each all-reduce of a gradient bucket."""
    return trace.where(op="all_reduce", phase="backward").events["step"].to_list()


class TestRun:
    def test_traces_a_script_and_marks_its_steps(self, script: Path) -> None:
        trace = dsexplore.run(script, world_size=64)
        assert gradients(trace) == [0, 1, 2]
        assert trace.events["group_size"].unique().to_list() == [64]
        assert trace.info.simulated
        assert trace.info.world_size == 64

    def test_main_arguments_path_and_folder_are_the_scripts(self, tmp_path: Path) -> None:
        (tmp_path / "beside_the_script.py").write_text("VALUE = 7\n")
        path = write(
            tmp_path,
            f"""\
            import os, sys
            import beside_the_script
            import __main__
            assert __main__.__dict__ is globals() and __name__ == "__main__"
            assert sys.argv == [{str(tmp_path / "script.py")!r}, "--lr", "0.1"], sys.argv
            assert sys.path[0] == {str(tmp_path)!r} and __file__ == {str(tmp_path / "script.py")!r}
            assert os.getcwd() == {str(Path.cwd())!r}
            assert (__package__, __spec__) == (None, None)
            assert beside_the_script.VALUE == 7
            assert os.environ["RANK"] == "5" and os.environ["LOCAL_RANK"] == "1"
            """,
        )
        dsexplore.run(path, "--lr", 0.1, world_size=8, rank=5, ranks_per_node=4)
        del sys.modules["beside_the_script"]

    def test_what_a_script_sets_for_all_of_torch_ends_with_it(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(
            "import torch\n"
            "torch.set_default_dtype(torch.bfloat16)\n"
            "torch.backends.cuda.matmul.allow_tf32 = True\n"
            "torch.distributed.init_process_group()\n"
            "torch.distributed.all_reduce(torch.ones(4))\n"
        )
        trace = dsexplore.run(path, world_size=4)
        assert trace.events["message_bytes"].to_list() == [4 * 2]
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cuda.matmul.fp32_precision == "none"

    def test_a_module_of_a_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "recipes"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "sizes.py").write_text("WIDTH = 3\n")
        (package / "train.py").write_text(
            "import sys, torch, torch.distributed as dist\n"
            "from .sizes import WIDTH\n"
            "assert __package__ == 'recipes' and __spec__.name == 'recipes.train'\n"
            "assert sys.argv == [__file__, 'x']\n"
            "dist.init_process_group('gloo')\n"
            "dist.all_reduce(torch.ones(WIDTH))\n"
        )
        (package / "__main__.py").write_text("from . import train\n")
        monkeypatch.chdir(tmp_path)
        for name in ("recipes.train", "recipes"):
            if name == "recipes":
                (package / "train.py").write_text("import torch, torch.distributed as d; d.all_reduce(torch.ones(3))")
            trace = dsexplore.run(name, "x", world_size=4, module=True)
            assert trace.events["message_bytes"].to_list() == [12]
            for module in [each for each in sys.modules if each.startswith("recipes")]:
                del sys.modules[module]

    def test_ends_after_steps_and_says_so(self, script: Path) -> None:
        trace = dsexplore.run(script, world_size=4, steps=2)
        assert gradients(trace) == [0, 1]
        assert "the script was ended after 2 optimizer steps, as asked" in trace.info.notes
        trace = dsexplore.run(script, world_size=4, steps=7)
        assert gradients(trace) == [0, 1, 2]
        assert "the script came to its end after 3 optimizer steps" in trace.info.notes

    def test_ends_it_through_its_own_handlers(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            f"""\
            import torch
            weight = torch.nn.Parameter(torch.ones(2))
            optimizer = torch.optim.SGD([weight])
            try:
                for _ in range(9):
                    weight.sum().backward()
                    try:
                        optimizer.step()
                    except Exception:
                        raise SystemExit("not to be caught")
            finally:
                open({str(tmp_path / "closed")!r}, "w").close()
            """,
        )
        dsexplore.run(path, world_size=1, steps=1)
        assert (tmp_path / "closed").exists()

    def test_saves_what_it_returns(self, script: Path, tmp_path: Path) -> None:
        trace = dsexplore.run(script, world_size=4, save=tmp_path / "step.parquet")
        assert dsexplore.load(tmp_path / "step.parquet").events.equals(trace.events)


class TestErrors:
    @pytest.mark.parametrize("error", ["ValueError('mine')", "KeyboardInterrupt", "SystemExit(3)"])
    def test_keep_the_trace_and_the_scripts_own_traceback(self, tmp_path: Path, error: str) -> None:
        path = write(
            tmp_path,
            f"""\
            import torch, torch.distributed as dist
            def fail():
                dist.all_reduce(torch.ones(2))
                raise {error}
            dist.init_process_group("gloo")
            fail()
            """,
        )
        with pytest.raises(BaseException) as caught:  # noqa: PT011 # the three have nothing else in common
            dsexplore.run(path, world_size=4, save=tmp_path / "kept.parquet")
        assert repr(caught.value).startswith(error.partition("(")[0])
        assert caught.value.trace.events["op"].to_list() == ["all_reduce"]
        assert dsexplore.load(tmp_path / "kept.parquet").events["op"].to_list() == ["all_reduce"]
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files[-2:] == [str(path)] * 2
        inside = files[files.index(str(path)) :]
        assert inside == [str(path)] * 2
        assert not dist.is_initialized()

    @pytest.mark.parametrize("status", ["", "0"])
    def test_an_exit_without_an_error_is_an_end(self, tmp_path: Path, status: str) -> None:
        path = write(tmp_path, f"import sys\nsys.exit({status})")
        assert len(dsexplore.run(path, world_size=1)) == 0

    def test_a_syntax_error_is_the_scripts(self, tmp_path: Path) -> None:
        with pytest.raises(SyntaxError) as caught:
            dsexplore.run(write(tmp_path, "a = = 1"), world_size=2)
        assert caught.value.filename == str(tmp_path / "script.py")

    def test_a_second_init_process_group(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            """\
            import torch.distributed as dist
            dist.init_process_group("gloo")
            dist.init_process_group("gloo")
            """,
        )
        with pytest.raises(UsageError, match="init_process_group is called a second time"):
            dsexplore.run(path, world_size=4)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"world_size": 4, "steps": 0}, "steps=0 is not a number of optimizer steps"),
            ({"world_size": 12, "ranks_per_node": 8}, "a world of 12 ranks does not divide into nodes of 8"),
            ({}, "needs a size"),
        ],
    )
    def test_numbers_that_do_not_fit(self, script: Path, arguments: dict[str, int], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            dsexplore.run(script, **arguments)

    def test_no_such_script_or_module(self, tmp_path: Path) -> None:
        for name, module, message in (
            ("nowhere.py", False, r"there is no script nowhere\.py in"),
            (str(tmp_path), False, "is a folder"),
            ("no_such_module", True, "there is no module no_such_module"),
            ("no_such.module", True, "No module named 'no_such'"),
            ("unittest.mock.nothing", True, "-m unittest.mock.nothing: "),
            ("xml", True, "xml is a package without a __main__ module"),
        ):
            with pytest.raises(UsageError, match=message):
                dsexplore.run(name, world_size=2, module=module)


class TestNothingSent:
    """A script that sends nothing although it was given a world says why that may be."""

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("import torch\ntorch.ones(2) + 1", "the program never initialized a process group"),
            (
                "import multiprocessing, time\n"
                "process = multiprocessing.get_context('fork').Process(target=time.time)\n"
                "process.start()\n"
                "process.join()",
                "the program started processes of its own",
            ),
            ("import torch.distributed as d; d.init_process_group()", "no module was distributed over it"),
            (
                "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (4,))",
                "a device mesh was made, but nothing that was distributed over it ran",
            ),
            (
                "import torch, torch.distributed as d\nfrom torch.distributed.fsdp import fully_shard\n"
                "d.init_process_group('gloo')\nfully_shard(torch.nn.Linear(2, 2))",
                "a module was distributed, but no forward or backward",
            ),
        ],
    )
    def test_says_why(self, tmp_path: Path, text: str, why: str) -> None:
        (note,) = dsexplore.run(write(tmp_path, text), world_size=4).info.notes
        assert note.startswith("nothing was sent, although the world has 4 ranks: ")
        assert why in note

    @pytest.mark.parametrize(("processes", "is_stale"), [(None, False), (1, True), (4, False)])
    def test_an_accelerate_that_keeps_to_one_process_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int | None, is_stale: bool
    ) -> None:
        """By the attributes that accelerate sets: its package is no dependency of the tests."""
        shared = {} if processes is None else {"num_processes": processes}
        state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state=shared))
        monkeypatch.setitem(sys.modules, "accelerate.state", state)
        (note,) = dsexplore.run(write(tmp_path, "1"), world_size=4).info.notes
        assert "it ran as a single process" in note
        assert ("; accelerate was set up for 1 process before" in note) == is_stale

    def test_not_in_a_world_of_one_nor_in_a_cell_of_a_world_that_stays(self, tmp_path: Path) -> None:
        assert dsexplore.run(write(tmp_path, "1"), world_size=1).info.notes == ()
        with dsexplore.simulate(4), dsexplore.commtrace() as trace:
            pass
        assert trace.info.notes == ()
        with dsexplore.commtrace(world_size=4) as trace:
            pass
        assert "never initialized" in trace.info.notes[0]


class TestSpawn:
    SCRIPT = """\
        import torch, torch.distributed as dist, torch.multiprocessing as mp
        def main(rank, world_size, width):
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
            dist.all_reduce(torch.ones(width))
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(main, args=(4, 5), nprocs=4, join=True)
        """

    @pytest.mark.filterwarnings("ignore:torch.multiprocessing.spawn")
    def test_runs_the_function_as_one_rank(self, tmp_path: Path) -> None:
        trace = dsexplore.run(write(tmp_path, self.SCRIPT), world_size=4, rank=3)
        assert trace.events.select("rank", "message_bytes").rows() == [(3, 20)]
        (note,) = trace.info.notes
        assert "started no process: this one runs as number 3 of 4 (" in note
        assert "script.py:7)" in note

    def test_of_another_number_is_one_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"spawn starts 4 processes, but the simulated world has 8 ranks"):
            dsexplore.run(write(tmp_path, self.SCRIPT), world_size=8)


CUDA = """\
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
assert (dist.get_backend(), torch.cuda.device_count(), torch.cuda.current_device()) == ("nccl", 4, local_rank)
device = torch.device("cuda", local_rank)
model = DDP(nn.Linear(16, 16).to(device), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 16).cuda(non_blocking=True)).sum()
    assert loss.device.type == "cuda"
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


class TestGpus:
    """A script for GPUs runs where there is none."""

    def test_a_script_for_gpus(self, tmp_path: Path) -> None:
        trace = dsexplore.run(write(tmp_path, CUDA), world_size=8, rank=6, ranks_per_node=4)
        assert gradients(trace) == [0, 1]

    def test_in_a_simulated_world(self) -> None:
        with dsexplore.commtrace(mesh="dp=2,tp=4", hardware="a100") as trace:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
            assert (mesh.device_type, dist.get_backend()) == ("cuda", "nccl")
            assert "A100" in torch.cuda.get_device_name()
            dist.all_reduce(torch.ones(2, device="cuda"), group=mesh["tp"].get_group())
        assert trace.events.select("op", "axis").rows() == [("all_reduce", "tp")]

    def test_that_are_not_known(self, script: Path) -> None:
        with pytest.raises(UsageError, match="voodoo"):
            dsexplore.run(script, world_size=2, hardware="voodoo")
        with pytest.raises(UsageError, match="no hardware named 'tpu'"), dsexplore.simulate(2, hardware="tpu"):
            pass
