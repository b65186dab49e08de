"""`Notebook`: a shell of IPython that runs cells, as tests of magics do."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


@dataclass
class Ran:
    """Result of running a cell."""

    value: Any
    error: BaseException | None
    out: str
    err: str
    shown: list[Any]

    @property
    def text(self) -> str:
        return self.out + self.err


class Notebook:
    """An IPython shell that runs cells."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.names = shell.user_ns

    def run(self, cell: str) -> Ran:
        with capture_output() as captured:
            result = self.shell.run_cell(textwrap.dedent(cell), store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return Ran(result.result, error, captured.stdout, captured.stderr, captured.outputs)

    def ok(self, cell: str) -> Ran:
        ran = self.run(cell)
        assert ran.error is None, ran.text
        return ran
