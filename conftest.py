"""How ``pytest --nbval`` runs the notebooks: as JupyterLab does, with numbered cells, but without progress bars."""

from __future__ import annotations

import os
from typing import Any

from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell


def execute_numbered(kernel: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Send a cell to the kernel; nbval itself would not let it count, and every source line would be in ``In[0]``."""
    message: str = kernel.kc.execute(cell_input, allow_stdin=allow_stdin, stop_on_error=False)
    return message


_made = IPyNbCell.__init__


def make_patient(item: Any, /, *given: Any, **named: Any) -> None:
    """Let a cell's outputs take two minutes after its end: nbval allows five seconds, which a busy machine may need."""
    _made(item, *given, **named)
    item.output_timeout = 120


RunningKernel.execute_cell_input = execute_numbered
IPyNbCell.__init__ = make_patient
os.environ["DSEXPLORE_PROGRESS"] = "0"
