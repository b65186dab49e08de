"""DeepSpeed's enumeration of reductions, and their conversion to torch's.

``dsexplore.comm.ReduceOp`` is torch's own class. The enumeration here is for code that imports
``deepspeed.comm.reduce_op``. The collectives of `dsexplore.comm` accept both.
"""

from __future__ import annotations

from enum import Enum

import torch.distributed as td

from dsexplore._internal.errors import UsageError

SUM = td.ReduceOp.SUM


class ReduceOp(Enum):
    """The reductions of DeepSpeed."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    AVG = 7
    UNUSED = 8

    @property
    def torch(self) -> td.ReduceOp.RedOpType:
        """torch's reduction of that name.

        Raises:
            UsageError: UNUSED, which is a placeholder.
        """
        if self is ReduceOp.UNUSED:
            raise UsageError("ReduceOp.UNUSED is not a reduction: use SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR or BXOR")
        reduction: td.ReduceOp.RedOpType = getattr(td.ReduceOp, self.name)
        return reduction


Reduction = ReduceOp | td.ReduceOp | td.ReduceOp.RedOpType
"""Types that the parameter ``op`` of a collective accepts."""


def to_torch(op: Reduction) -> td.ReduceOp | td.ReduceOp.RedOpType:
    """Return torch's reduction for a member of this enumeration or of ``deepspeed.comm``'s.

    Any other object is returned unchanged, since torch checks its arguments itself.
    """
    if op is SUM:  # the usual case; the checks below would cost an 8 B call of gloo one percent
        return op
    if isinstance(op, ReduceOp):
        return op.torch
    if isinstance(op, Enum) and type(op).__name__ == ReduceOp.__name__:
        return ReduceOp[op.name].torch  # a member of deepspeed.comm's enumeration, which has the same names
    return op


def reduction_name(op: object) -> str:
    """Return ``SUM``, ``MAX``, … for a reduction of torch or of an enumeration; empty for anything else."""
    if op is SUM:  # the usual case; the name of a torch reduction takes a microsecond
        return "SUM"
    if isinstance(op, str):
        return op.upper()
    name = getattr(op, "name", None)
    return name if isinstance(name, str) else ""
