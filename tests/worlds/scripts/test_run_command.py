"""``dsexplore run`` shows a trace in the terminal, and exits with the script's status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import dsexplore
from dsexplore._internal import cli
from dsexplore._internal.errors import UsageError, page_of

SEND = """\
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
"""


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(SEND + dedent(text))
    return str(path)


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    root = str(Path(dsexplore.__file__).parents[1])
    command = [sys.executable, "-m", "dsexplore", *arguments]
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    )


@pytest.mark.processes
class TestInATerminal:
    def test_shows_the_totals_and_where_the_files_are(self, tmp_path: Path) -> None:
        script(tmp_path, "print('from the script', sys.argv[1:])")
        arguments = ("run", "--mesh", "dp=8,tp=8", "--save", "t.parquet", "--html", "t.html", "train.py", "--lr", "1")
        out, err = (running := start(*arguments, folder=tmp_path)).communicate(timeout=200)
        assert (running.returncode, err) == (0, "")
        assert out.splitlines() == [
            "from the script ['--lr', '1']",
            "Trace: 1 collective of rank 0 of 64 (dp=8,tp=8), simulated",
            "  The program sends 32 B on the wire per rank, all in groups outside a mesh.",
            "  All of it is for what runs outside any module (train.py:3): all_reduce.",
            "  Wire bytes of rank 0 in one step:",
            "  all_reduce       –                  1  32 B",
            f"  note: made by: dsexplore {' '.join(arguments)}",
            "wrote t.parquet",
            "wrote t.html",
        ]
        assert f"made by: dsexplore {' '.join(arguments)}" in (tmp_path / "t.html").read_text().replace("<wbr>", "")
        assert len(dsexplore.load(tmp_path / "t.parquet")) == 1

    def test_ctrl_c_keeps_what_was_traced_and_shows_the_scripts_own_traceback(self, tmp_path: Path) -> None:
        script(tmp_path, "print('running', flush=True)\nwhile True:\n    pass\n")
        running = start("run", "--world-size", "4", "--save", "t.parquet", "train.py", folder=tmp_path)
        assert running.stdout is not None
        assert running.stdout.readline() == "running\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=240)
        assert running.returncode == 130
        first, second = err.splitlines()[:2]
        assert first == "Traceback (most recent call last):"
        assert second.startswith(f'  File "{tmp_path / "train.py"}", line ')
        assert err.count("  File ") == 1
        assert "dsexplore/" not in err
        assert "KeyboardInterrupt" in err
        assert "wrote t.parquet" in out
        assert len(dsexplore.load(tmp_path / "t.parquet")) == 1

    def test_a_module_that_torchscript_compiles_while_the_script_imports_it(self, tmp_path: Path) -> None:
        script(
            tmp_path,
            """\
            assert "torch.distributed.optim" not in sys.modules
            from torch.distributed.optim import ZeroRedundancyOptimizer
            layer = torch.nn.Linear(4, 4)
            optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.Adam)
            layer(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            """,
        )
        out, err = (running := start("run", "--world-size", "4", "train.py", folder=tmp_path)).communicate(timeout=200)
        assert running.returncode == 0, err
        assert "Trace: 3 collectives of rank 0 of 4" in out  # two of them broadcast what this optimizer updated


class Ran:
    """A command that ran in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.status = cli.main(["run", *arguments])
        self.out, self.err = capsys.readouterr()


class TestEnds:
    @pytest.mark.parametrize(
        ("end", "status", "err"),
        [
            ("", 0, ""),
            ("sys.exit()", 0, ""),
            ("sys.exit(1)", 1, ""),
            ("sys.exit(7)", 7, ""),
            ("sys.exit('no data')", 1, "no data\n"),
            (
                "raise ValueError('mine')",
                1,
                'Traceback (most recent call last):\n  File "{path}", line 4, in <module>\n'
                "    raise ValueError('mine')\nValueError: mine\n",
            ),
        ],
    )
    def test_the_status_is_the_scripts_and_the_trace_is_kept(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, status: int, err: str
    ) -> None:
        path = script(tmp_path, end)
        ran = Ran(capsys, "--world-size", "4", "--save", str(tmp_path / "t.parquet"), path)
        assert (ran.status, ran.err) == (status, err.format(path=path))
        assert ran.out.startswith("Trace: 1 collective")
        assert len(dsexplore.load(tmp_path / "t.parquet")) == 1

    def test_a_script_that_wants_an_argument_says_so_itself(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "train.py").write_text(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
        )
        ran = Ran(capsys, "--world-size", "4", str(tmp_path / "train.py"))
        assert ran.status == 2
        assert ran.err.splitlines()[-1] == "train.py: error: the following arguments are required: --data"

    def test_the_scripts_own_arguments_are_no_shortened_options(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own = ["--n", "3", "--r=1", "--m", "x"]  # each begins several of dsexplore's
        path = script(tmp_path, "print(sys.argv[1:])")
        ran = Ran(capsys, "--world-size", "4", path, *own)
        assert ran.status == 0
        assert str(own) in ran.out

    def test_code_of_another_rank_is_there_when_that_rank_runs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = script(tmp_path, "if dist.get_rank() == 1:\n    dist.send(torch.ones(3), 0)\n")
        out = Ran(capsys, "--world-size", "4", path).out
        assert f"({path}:4) runs on rank 1 only, and this is rank 0: --rank 1 runs it" in out
        assert "  send " not in out
        out = Ran(capsys, "--world-size", "4", "--rank", "1", path).out
        assert "  send " in out
        assert "runs on rank" not in out


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "world", "node"),
        [
            (["--world-size", "64"], 64, 8),
            (["--mesh", "dp=2,tp=4"], 8, 8),
            (["--nnodes", "4"], 32, 8),
            (["--nproc-per-node", "2"], 2, 2),
            (["--nnodes", "3", "--nproc_per_node", "2"], 6, 2),
            (["--world-size", "12", "--nnodes", "3"], 12, 4),
            (["--world-size", "12", "--ranks-per-node", "6"], 12, 6),
            (["--standalone", "--rdzv-backend=c10d", "--rdzv_endpoint=host:1", "--nproc-per-node=4"], 4, 4),
        ],
    )
    def test_the_world_as_torchrun_describes_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], world: int, node: int
    ) -> None:
        path = script(tmp_path, "import os\nprint(os.environ['WORLD_SIZE'], os.environ['LOCAL_WORLD_SIZE'])")
        assert Ran(capsys, *given, path).out.splitlines()[0] == f"{world} {node}"

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ([], "how many ranks has the world? Give --world-size 64"),
            (["--world-size", "10", "--nnodes", "3"], "10 ranks do not divide into --nnodes 3 nodes"),
            (["--nnodes", "0", "--nproc-per-node", "8"], "--nnodes 0 is not a number of nodes: give 1 or more"),
            (["--world-size", "8", "--nnodes", "2", "--nproc-per-node", "2"], "are 4 ranks, but the world has 8"),
            (["--world-size", "12", "--nproc-per-node", "8"], "does not divide into nodes of 8 ranks"),
            (["--world-size", "6", "--mesh", "dp=2,tp=4"], "8 ranks, but the world size is 6"),
            (["--world-size", "4", "--rank", "4"], "rank 4 is not in a world of 4 ranks"),
            (["--world-size", "4", "--rank", "1", "--ranks", "all"], "--rank 1 and --ranks all: give one of the two"),
            (["--world-size", "4", "--ranks", "0,4"], "rank 4 is not in a world of 4 ranks"),
            (["--world-size", "4", "--html", "no/folder/x.html"], "--html no/folder/x.html: there is no folder"),
        ],
    )
    def test_that_do_not_fit_are_one_line_and_status_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
    ) -> None:
        ran: Any = Ran(capsys, *given, script(tmp_path, ""))
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith("dsexplore run: ")
        assert message in ran.err
        assert ran.err.removesuffix(f"{page_of(UsageError)}\n").count("\n") == 1

    def test_no_such_script(self, capsys: pytest.CaptureFixture[str]) -> None:
        ran = Ran(capsys, "--world-size", "4", "nowhere.py")
        assert ran.status == 2
        assert ran.err.startswith("dsexplore run: there is no script nowhere.py in ")
