"""Find which layer issued a collective that was not issued by this package: torch, or ``deepspeed.comm``.

The layer is read from the Python stack while the collective's op runs. From the innermost frame outwards, frames belong
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
"""Files of frames between a layer's function and the op's kernel: torch, this package, ``with`` blocks."""


class Caller(NamedTuple):
    """The function that issued a collective without this package."""

    layer: str
    """`DEEPSPEED` or `TORCH`."""
    name: str
    """The call's name in DeepSpeed's own log; the plain op for a call of torch."""
    prof: bool
    """True if the caller passed ``prof=True``: DeepSpeed logs the call even if it does not log all calls."""
    reduction: str
    """``SUM``, ``MAX``, …; empty for an op without one, or if C++ code issued it."""
    function: str
    """Name of the function that called the layer."""


def caller_of(op: str) -> Caller:
    """Return the function that issued the collective whose op `op`, a plain name, now runs in this thread."""
    frame: FrameType | None = sys._getframe(1)
    deepspeed = _folder_of_deepspeed_comm()
    reduction = ""
    deepspeed_frame = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_BELOW) or file.endswith("typing_extensions.py"):  # torch's deprecated names
            if not reduction and op in REDUCING and file in REDUCTION_PARAMETERS:
                reduction = reduction_name(_argument(frame, REDUCTION_PARAMETERS[file]))
        elif deepspeed and file.startswith(deepspeed):
            # DeepSpeed's log takes the innermost function with a ``log_name``; without any, the outermost function.
            if deepspeed_frame is None or _argument(deepspeed_frame, "log_name") is None:
                deepspeed_frame = frame
        else:
            break
        frame = frame.f_back
    function = frame.f_code.co_name if frame is not None else ""
    if deepspeed_frame is None:
        return Caller(TORCH, op, prof=False, reduction=reduction, function=function)
    name = _argument(deepspeed_frame, "log_name") or deepspeed_frame.f_code.co_name
    prof = bool(_argument(deepspeed_frame, "prof"))
    return Caller(DEEPSPEED, str(name), prof=prof, reduction=reduction, function=function)


def _argument(frame: FrameType, parameter: str) -> Any:
    """Return the value of a parameter in a frame; None if its function has no such parameter."""
    return frame.f_locals.get(parameter) if parameter in frame.f_code.co_varnames else None


def _folder_of_deepspeed_comm() -> str:
    """Return the directory from which ``deepspeed.comm`` was imported; empty if it was not."""
    folder = next(iter(getattr(sys.modules.get(DEEPSPEED), "__path__", ())), "")
    return folder + os.sep if folder else ""
