"""Find the layer and function that issued a collective which did not come through this package.

The layer is read from the Python stack while the collective's op runs. From the innermost outwards, the frames belong
to torch, then to ``deepspeed.comm`` if the program called it, then to the program.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from dsexplore._internal.comm.reduce_op import reduction_name
from dsexplore._internal.torch_internals.frames import REDUCTION_PARAMETERS
from dsexplore._internal.torch_internals.frames import TORCH as TORCH_FOLDER

OWN = "dsexplore.comm"
DEEPSPEED = "deepspeed.comm"
TORCH = "torch.distributed"

REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Plain ops that have a reduction."""

_BELOW = (TORCH_FOLDER, str(Path(__file__).parents[3]) + os.sep, contextlib.__file__)
"""Files of the frames between a layer's function and an op's kernel: torch, the recorder, ``with`` blocks."""


class Caller(NamedTuple):
    """The function that issued a collective without this package."""

    layer: str
    """`DEEPSPEED` or `TORCH`."""
    name: str
    """The call's name in DeepSpeed's own log; the plain op for a call of torch."""
    prof: bool
    """True if the call requests DeepSpeed's log to record it although not all are recorded."""
    reduction: str
    """``SUM``, ``MAX``, …; empty for an op without one, or if C++ code issued it."""
    function: str
    """The name of the function that called the layer."""


def caller_of(op: str) -> Caller:
    """Return the function that issued the collective now running in this thread.

    Args:
        op: the plain op.
    """
    frame: FrameType | None = sys._getframe(1)
    deepspeed = _folder_of_deepspeed_comm()
    reduction, called = "", None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_BELOW) or file.endswith("typing_extensions.py"):  # torch's deprecated names
            if not reduction and op in REDUCING and file in REDUCTION_PARAMETERS:
                reduction = reduction_name(_argument(frame, REDUCTION_PARAMETERS[file]))
        elif deepspeed and file.startswith(deepspeed):
            # The innermost one with the parameter that says how DeepSpeed logs it; without any the outermost one.
            if called is None or _argument(called, "log_name") is None:
                called = frame
        else:
            break
        frame = frame.f_back
    function = frame.f_code.co_name if frame is not None else ""
    if called is None:
        return Caller(TORCH, op, False, reduction, function)
    name = _argument(called, "log_name") or called.f_code.co_name
    return Caller(DEEPSPEED, str(name), bool(_argument(called, "prof")), reduction, function)


def _argument(frame: FrameType, parameter: str) -> Any:
    """Return the argument that a function was called with; None if it has no such parameter."""
    return frame.f_locals.get(parameter) if parameter in frame.f_code.co_varnames else None


def _folder_of_deepspeed_comm() -> str:
    """Return the directory from which ``deepspeed.comm`` was imported; empty if it was not."""
    folder = next(iter(getattr(sys.modules.get(DEEPSPEED), "__path__", ())), "")
    return folder + os.sep if folder else ""
