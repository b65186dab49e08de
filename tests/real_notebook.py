"""`Notebook`: a shell of IPython whose cells run on real ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from dsexplore._internal import real_cells
from dsexplore._internal.magics import CommtraceMagics
from dsexplore._internal.worlds.real import cell_end

SUM = "import torch, torch.distributed as dist\nx = torch.ones(4) * (rank + 1)\ndist.all_reduce(x)\n"


class Notebook:
    """An IPython shell that runs cells."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.names = shell.user_ns

    def run(self, cell: str) -> tuple[BaseException | None, str]:
        """Return the error of a cell, and what it showed."""
        with capture_output() as captured:
            result = self.shell.run_cell(textwrap.dedent(cell), store_history=True)
        return result.error_before_exec or result.error_in_exec, captured.stdout + captured.stderr

    def ok(self, cell: str) -> str:
        error, text = self.run(cell)
        assert error is None, text
        return text

    @property
    def trace(self) -> Any:
        return self.names["_trace"]

    @property
    def kept_world(self) -> Any:
        magics = self.shell.magics_manager.registry["CommtraceMagics"]
        assert isinstance(magics, CommtraceMagics)
        return magics._real.open_world

    @property
    def kept_pids(self) -> list[int]:
        kept = self.kept_world
        return [rank.pid for rank in kept._ranks] if kept is not None else []


def opened_notebook(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Yield a notebook with the extension loaded, in which what ranks print is shown at the end of a cell."""
    monkeypatch.setattr(real_cells, "INTERVAL", 1e6)
    monkeypatch.setattr(cell_end, "SAVE_WAIT", 60.0)  # a machine that is busy may need more than a user would wait
    opened = Notebook(shell)
    opened.ok("%load_ext dsexplore")
    yield opened
    opened.ok("%unload_ext dsexplore")
