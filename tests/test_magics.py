"""``%%commtrace`` runs a cell in a simulated world or in the user's, and restores the namespace and torch."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from IPython.core.error import UsageError as ShellUsageError
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import dsexplore
from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.magics import CommtraceMagics
from dsexplore._internal.worlds.simulate import current_world
from tests.kernels import running_kernel
from tests.notebook_cells import Notebook
from tests.programs import python

SEND = "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(4))"
OWN_GROUP = """
import sys, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
hook = sys.excepthook
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
"""
MODEL = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
"""


class TestCell:
    def test_runs_in_the_users_namespace_and_shows_value_and_trace(self, notebook: Notebook) -> None:
        ran = notebook.ok(f"%%commtrace --world-size 8 --mesh dp=2,tp=4 -o seen\n{SEND}\nanswer = 41\nanswer + 1")
        assert ran.value == 42
        assert notebook.names["answer"] == 41
        assert notebook.names["Out"][2] == notebook.names["_"] == 42
        assert "Out[2]: 42" in ran.out
        seen = notebook.names["seen"]
        assert seen.events["op"].to_list() == ["all_reduce"]
        assert (seen.info.world_size, seen.info.mesh, seen.info.simulated) == (8, "dp=2,tp=4", True)
        assert [shown.data["text/plain"] for shown in ran.shown] == [seen._repr_mimebundle_()["text/plain"]]
        assert notebook.names["_trace"] is seen

    def test_a_semicolon_hides_the_value(self, notebook: Notebook) -> None:
        ran = notebook.ok("%%commtrace --world-size 2\n42;  # quiet")
        assert ran.value is None
        assert "42" not in ran.out

    def test_has_the_mesh_for_itself_alone(self, notebook: Notebook) -> None:
        ran = notebook.ok("%%commtrace --mesh dp=2,tp=4 --rank 5\nmesh.get_coordinate()")
        assert tuple(ran.value) == (1, 1)
        assert "mesh" not in notebook.names
        notebook.ok("mesh = 'mine'")
        notebook.ok("%%commtrace --mesh dp=2\nassert mesh.size() == 2")
        assert notebook.names["mesh"] == "mine"
        notebook.ok("%%commtrace --mesh dp=2\nmesh = 'new'")
        assert notebook.names["mesh"] == "new"

    def test_functions_decorators_and_magics_of_ipython_work_inside(self, notebook: Notebook) -> None:
        ran = notebook.ok("%%commtrace --world-size 2\ndef f():\n    return len(files)\nfiles = !echo a\nf()")
        assert ran.value == 1

    def test_may_set_up_its_own_group(self, notebook: Notebook) -> None:
        cell = """\
            %%commtrace --world-size 8 -o seen
            import torch, torch.distributed as dist
            from torch.distributed.device_mesh import init_device_mesh
            dist.init_process_group("nccl")
            pair = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
            dist.all_reduce(torch.ones(4), group=pair["tp"].get_group())
            dist.destroy_process_group()
            """
        notebook.ok(cell)
        assert notebook.names["seen"].events.select("axis", "group_size").rows() == [("tp", 4)]

    def test_fake_tensors(self, notebook: Notebook) -> None:
        cell = f"%%commtrace --mesh dp=2,tp=4 --fake -o seen\n{MODEL}\nmodel(torch.randn(4, 16)).sum().backward()"
        notebook.ok(cell)
        seen = notebook.names["seen"]
        assert "FakeTensor" in repr(notebook.names["model"][0].weight)
        assert seen.where(phase="forward").events["op"].to_list() == ["all_reduce"]

    def test_a_cell_for_gpus(self, notebook: Notebook) -> None:
        cell = """\
            %%commtrace --world-size 4 --hardware a100 -o seen
            import torch, torch.distributed as dist
            dist.init_process_group("nccl")
            dist.all_reduce(torch.ones(4).cuda())
            torch.cuda.get_device_name()
            """
        assert "A100" in notebook.ok(cell).value
        assert notebook.names["seen"].events["op"].to_list() == ["all_reduce"]
        assert not torch.cuda.is_available() or "A100" not in torch.cuda.get_device_name()

    def test_a_script_run_by_ipythons_own_magic(self, notebook: Notebook, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(
            "import os, sys, torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "dist.all_reduce(torch.ones(int(sys.argv[1]) * int(os.environ['WORLD_SIZE'])))\n"
        )
        notebook.ok(f"%%commtrace --world-size 8 -o seen\n%run {script} 3")
        assert notebook.names["seen"].events.select("op", "message_bytes").rows() == [("all_reduce", 96)]
        assert notebook.names["seen"].events["source"].to_list() == [f"{script}:3"]

    def test_explore_shows_the_application_instead(self, notebook: Notebook) -> None:
        ran = notebook.ok(f"%%commtrace --world-size 2 --explore\n{SEND}")
        assert "application/vnd.jupyter.widget-view+json" in ran.shown[-1].data

    def test_bare_records_the_users_own_group(self, notebook: Notebook) -> None:
        notebook.ok(OWN_GROUP)
        notebook.ok("%%commtrace -o seen\ndist.all_reduce(torch.ones(4))")
        assert notebook.names["seen"].events["group_size"].to_list() == [4]
        assert dist.is_initialized()
        notebook.ok("dist.destroy_process_group()\nsys.excepthook = hook")


class TestLine:
    def test_opens_a_world_for_the_cells_that_follow(self, notebook: Notebook) -> None:
        assert "8 ranks (dp=2,tp=4)" in notebook.ok("%commtrace --world-size 8 --mesh dp=2,tp=4").out
        notebook.ok(MODEL)
        notebook.ok("%%commtrace -o seen\nmodel(torch.randn(4, 16)).sum().backward()")
        assert notebook.names["seen"].events.select("op", "owner", "axis").rows() == [
            ("all_reduce", "Sequential.1", "tp")
        ]
        assert "8 ranks (dp=2,tp=4)" in notebook.ok("%commtrace").out
        assert "closed the world of 8 ranks" in notebook.ok("%commtrace --close").out
        assert "no world is open" in notebook.ok("%commtrace").out
        assert "no world is open" in notebook.ok("%commtrace --close").out

    @pytest.mark.parametrize("other", ["%commtrace --mesh tp=2", f"%%commtrace --mesh tp=2\n{SEND}"])
    def test_another_world_closes_it_and_its_models_say_so(self, notebook: Notebook, other: str) -> None:
        notebook.ok("%commtrace --mesh dp=2,tp=4")
        notebook.ok(MODEL)
        assert "closed the world of 8 ranks (dp=2,tp=4)" in notebook.ok(other).out
        call = "model(torch.randn(4, 16))"
        for cell in (call, f"%%commtrace\n{call}", f"%%commtrace --mesh dp=2,tp=4\n{call}"):
            ran = notebook.run(cell)
            assert isinstance(ran.error, ClosedWorldError)
            assert "8 ranks (dp=2,tp=4)" in str(ran.error)
            assert len(ran.text.splitlines()) < 12, "the sentence, and the user's own frames"
            assert "Warning" not in ran.text
            assert "model(torch.randn(4, 16))" in ran.text

    def test_a_cells_own_world_closes_with_it(self, notebook: Notebook) -> None:
        notebook.ok(f"%%commtrace --mesh dp=2,tp=4\n{MODEL}")
        ran = notebook.run("model(torch.randn(4, 16))")
        assert isinstance(ran.error, ClosedWorldError)
        assert "closed" in ran.text

    def test_fake_stays_on_between_cells(self, notebook: Notebook) -> None:
        notebook.ok("%commtrace --world-size 2 --fake")
        assert "FakeTensor" in notebook.ok("import torch\ntorch.ones(2)").out
        notebook.ok("%commtrace --close")
        assert "FakeTensor" not in notebook.ok("torch.ones(2)").out

    def test_reloading_the_extension_closes_it(self, notebook: Notebook) -> None:
        notebook.ok("%commtrace --world-size 2")
        notebook.ok("%reload_ext dsexplore")
        assert current_world() is None
        notebook.ok("%%commtrace --world-size 3\n1")


class TestNextStep:
    """A message says what to do if a step was omitted."""

    def test_a_cell_that_communicates_without_a_world(self, notebook: Notebook) -> None:
        ran = notebook.run(f"%%commtrace\n{SEND}")
        assert "Default process group has not been initialized" in ran.text
        assert "%commtrace --world-size 8 opens one that stays, %%commtrace --world-size 8 one for its cell" in ran.text

    def test_a_cell_that_sends_nothing_without_a_world(self, notebook: Notebook) -> None:
        assert "nothing was sent, and no world is open: %commtrace --world-size 8" in notebook.ok("%%commtrace\n1").out
        other = notebook.run("%%commtrace\n1 / 0").text
        assert "ZeroDivisionError" in other
        assert "no world is open" not in other
        assert "nothing was sent" not in notebook.ok("%%commtrace --world-size 2\n1").out
        assert "no world is open: %commtrace --world-size 8 opens one" in notebook.ok("%commtrace").out

    def test_the_magic_before_the_extension_is_loaded(self, notebook: Notebook) -> None:
        notebook.ok("%unload_ext dsexplore")
        for line in ("%%commtrace --world-size 8\n1", "%commtrace --world-size 8"):
            ran = notebook.run(line)
            assert type(ran.error) is ShellUsageError
            assert "is not loaded yet: run %load_ext dsexplore in a cell before this one" in ran.text
        notebook.ok("%load_ext dsexplore")
        assert notebook.ok("%%commtrace --world-size 2\n1 + 1").value == 2

    def test_importing_the_package_is_enough_to_be_told(self) -> None:
        program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import dsexplore")
shell.run_cell("%%commtrace\\n1")
"""
        done = python(program)
        assert done.returncode == 0
        assert "%%commtrace is not loaded yet: run %load_ext dsexplore" in done.stdout + done.stderr


class TestBadInput:
    """Bad input raises one clear error, and the next %%commtrace in the same kernel works."""

    @pytest.mark.parametrize(
        ("cell", "message"),
        [
            ("%%commtrace --nope 8\n1", "commtrace: unrecognized arguments: --nope 8; %commtrace -h lists the options"),
            ("%%commtrace --worldsize 8\n1", "unrecognized arguments: --worldsize 8 (did you mean --world-size?); "),
            ("%%commtrace --world-size many\n1", "argument --world-size: invalid int value: 'many'"),
            ("%%commtrace --world-size many\n1", "'many' (give a whole number, such as --world-size 8)"),
            ("%%commtrace --device cuda\n1", "(did you mean --hardware?); %commtrace -h lists the options"),
            (
                "%%commtrace --world-size 6 --mesh dp=2,tp=4\n1",
                "mesh dp=2,tp=4 has 2×4 = 8 ranks, but the world size is 6",
            ),
            ("%%commtrace --mesh 'dp=2\n1", "cannot be split into words"),
            ("%%commtrace --mesh dp2\n1", "'dp2' is not AXIS=RANKS"),
            ("%%commtrace --world-size 4 --rank 4\n1", "rank 4 is not in a world of 4 ranks"),
            ("%%commtrace --fake\n1", "--fake is about a simulated world: give --world-size or --mesh"),
            ("%%commtrace --rank 1\n1", "--rank 1 is about a simulated world"),
            ("%%commtrace --close\n1", "--close belongs to the line form"),
            ("%commtrace -o x", "-o belongs to a cell that is traced"),
            ("%commtrace --mesh dp=2 --explore", "--explore belongs to a cell that is traced"),
            (
                "%%commtrace --world-size 2\nimport asyncio\nawait asyncio.sleep(0)",
                "with dsexplore.commtrace(...) as trace:",
            ),
        ],
    )
    def test_of_options(self, notebook: Notebook, cell: str, message: str) -> None:
        ran = notebook.run(cell)
        assert type(ran.error) is ShellUsageError
        assert message in ran.text
        assert ran.text.count("Error") == 1
        self.next_one_works(notebook)

    def test_a_group_of_another_size(self, notebook: Notebook) -> None:
        notebook.ok(OWN_GROUP)
        ran = notebook.run("%%commtrace --world-size 8\n1")
        assert type(ran.error) is ShellUsageError
        assert "a process group of 4 ranks (backend fake) is initialized already" in ran.text
        notebook.ok("dist.destroy_process_group()\nsys.excepthook = hook")
        self.next_one_works(notebook)

    def test_a_cell_that_asks_for_another_size(self, notebook: Notebook) -> None:
        ran = notebook.run(
            "%%commtrace --world-size 8\nimport torch.distributed as dist\ndist.init_process_group(world_size=4)"
        )
        assert "asks for 4 ranks, but a simulated world of 8 ranks is open" in ran.text
        self.next_one_works(notebook)

    def test_a_syntax_error(self, notebook: Notebook) -> None:
        ran = notebook.run("%%commtrace --world-size 2\nfine = 1\nbroken = = 2")
        assert "In[2], line 3" in ran.text
        assert "broken = = 2" in ran.text
        assert ran.text.rstrip().endswith("SyntaxError: invalid syntax")
        assert "magics.py" not in ran.text
        assert "run_cell_magic" not in ran.text
        assert "fine" not in notebook.names
        self.next_one_works(notebook)

    def test_an_exception_in_the_third_module(self, notebook: Notebook) -> None:
        cell = """\
            %%commtrace --mesh dp=2,tp=4 -o seen
            import torch
            from torch import nn

            class Broken(nn.Module):
                def forward(self, x):
                    raise ValueError("the third one")

            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Broken(), nn.Linear(4, 4))
            torch.distributed.all_reduce(torch.ones(2))
            model(torch.ones(1, 4))
            """
        ran = notebook.run(cell)
        assert isinstance(ran.error, ValueError)
        assert ran.text.count("Traceback (most recent call last)") == 1
        assert "In[2], line 11" in ran.text
        assert "In[2], line 7, in Broken.forward" in ran.text
        assert f"{Path(dsexplore.__file__).parent}/" not in ran.text
        assert "run_cell_magic" not in ran.text
        seen = notebook.names["seen"]
        assert seen.events["op"].to_list() == ["all_reduce"]
        assert any("ValueError" in note for note in seen.info.notes)
        self.next_one_works(notebook)

    @pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit", "MemoryError"])
    def test_other_ends(self, notebook: Notebook, kind: str) -> None:
        ran = notebook.run(f"%%commtrace --world-size 2 --fake\nraise {kind}")
        assert type(ran.error).__name__ == kind
        self.next_one_works(notebook)

    def test_an_error_of_the_users_own_keeps_its_traceback(self, notebook: Notebook) -> None:
        cell = (
            "%%commtrace --world-size 2\nfrom dsexplore._internal.errors import UsageError\nraise UsageError('theirs')"
        )
        ran = notebook.run(cell)
        assert "In[2], line 3" in ran.text

    def next_one_works(self, notebook: Notebook) -> None:
        assert current_world() is None
        assert not dist.is_initialized()
        notebook.ok(f"%%commtrace --mesh dp=2,tp=4 -o after\n{SEND}")
        assert notebook.names["after"].events["op"].to_list() == ["all_reduce"]


class TestHelp:
    @pytest.mark.parametrize("cell", ["%commtrace -h", "%commtrace --help", "%%commtrace -h\npass"])
    def test_prints_the_docstring(self, notebook: Notebook, cell: str) -> None:
        ran = notebook.ok(cell)
        assert ran.out.strip() == (CommtraceMagics.commtrace.__doc__ or "").strip()
        for option in ("--world-size", "--mesh", "--rank", "--fake", "-o NAME", "--explore", "--close"):
            assert option in ran.out
        assert ran.out.count("values are not") == 1


KERNEL_CELLS = [
    "%load_ext dsexplore",
    f"%%commtrace --mesh dp=2,tp=4\n{SEND}\n'the value'",
    "%%commtrace --mesh dp=2,tp=4\nboom = 1\nraise ValueError('stop here')",
    "never = 'reached'",
]


@pytest.mark.processes
class TestKernel:
    """A real kernel is needed for these tests."""

    def test_nbclient_stops_on_an_error(self) -> None:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in KERNEL_CELLS])
        with pytest.raises(CellExecutionError, match="stop here"):
            NotebookClient(notebook, timeout=240, startup_timeout=240, kernel_name="python3").execute()
        kinds = [[output["output_type"] for output in cell.outputs] for cell in notebook.cells]
        assert kinds[1:] == [["execute_result", "display_data"], ["error"], []]
        result, trace = notebook.cells[1].outputs
        assert result["data"]["text/plain"] == "'the value'"
        assert result["execution_count"] == notebook.cells[1].execution_count
        assert trace["data"]["text/html"]
        assert len([line for line in notebook.cells[2].outputs[0]["traceback"] if "Traceback" in line]) <= 1

    def test_an_interrupt_leaves_a_kernel_that_works(self) -> None:
        endless = f"%%commtrace --mesh dp=2,tp=4 -o cut\n{SEND}\nprint('running', flush=True)\nwhile True:\n    pass"
        with running_kernel() as kernel:
            kernel.ok("%load_ext dsexplore")
            reply = kernel.run(endless, interrupt_when=lambda shown: "running" in shown)
            assert reply["ename"] == "KeyboardInterrupt"
            assert "What was recorded until then is in `cut`" in "".join(reply["traceback"])
            kernel.ok("assert len(cut) == 1 and 'KeyboardInterrupt' in cut.info.notes[0]")
            kernel.ok("import torch.distributed as dist; assert not dist.is_initialized()")
            kernel.ok("import torch; assert type(torch.ones(1)) is torch.Tensor")
            kernel.ok(f"%%commtrace --mesh dp=2,tp=4 -o t\n{SEND}")
            kernel.ok("assert len(t) == 1")
