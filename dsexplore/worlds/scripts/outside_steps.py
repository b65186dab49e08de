"""Notes on bytes sent before a program's first step and after its last: phases and step numbers do not show them.

What torch sends while it sets a model, a mesh or a group up has the phase ``start-up``. A call of the program itself,
or of a framework, such as ``dist.broadcast(parameter, 0)`` in a loop or a barrier, has the phase ``other`` wherever it
stands. What a checkpoint or a metric sends after the last optimizer step has a step number of its own; forwards without
gradients have the phase ``no-grad forward``, which no figure per step counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from dsexplore.trace.schema import IN_STEPS
from dsexplore.trace.steps import in_steps
from dsexplore.trace.trace import Trace
from dsexplore.units import format_bytes, format_count
from dsexplore.worlds.remarks import Remarks, named_lines

_LINES = 3
"""Lines that the note names."""


@contextmanager
def own_start_up(trace: Trace, remarks: Remarks) -> Iterator[None]:
    """Note what lines of the program send in the block until the first module runs.

    Args:
        trace: the recording of the program.
        remarks: where it is noted.
    """
    handles: list[RemovableHandle] = []

    def first_call(_module: Any, _inputs: Any) -> None:
        _remove(handles)
        early = trace.where(phase="other").events.filter(~pl.col("cause").fill_null("").str.starts_with("FSDP"))
        if not early.is_empty():
            remarks.note(_said(early))

    handles.append(register_module_forward_pre_hook(first_call))
    try:
        yield
    finally:
        _remove(handles)


def _remove(handles: list[RemovableHandle]) -> None:
    while handles:
        handles.pop().remove()


def _said(early: pl.DataFrame) -> str:
    """Worked example: ``before the first module ran, … sent 2 collectives (8 B; train.py:5): …``."""
    return (
        f"before the first module ran, calls outside any module sent {_what(early)}: figures per step count them, "
        "although they belong to the start (their phase is other)"
    )


def note_what_followed(trace: Trace, steps: int, remarks: Remarks) -> None:
    """Note what a program sent after its last optimizer step.

    Args:
        trace: the recording of the program, which has come to its end.
        steps: optimizer steps that it took.
        remarks: where it is noted.
    """
    if not steps:
        return
    after = trace.where(step=steps).events
    counted, apart = after.filter(IN_STEPS), after.filter(~IN_STEPS)
    if not counted.is_empty():
        is_step = in_steps(trace.events)["step"].max() == steps
        count_as = "as one more step" if is_step else "to that step"
        remarks.note(
            f"after the last optimizer step the script sent {_what(counted)}: they count {count_as}, and --steps "
            f"{steps} leaves them out"
        )
    if not apart.is_empty():
        remarks.note(
            f"after the last optimizer step forwards without gradients sent {_what(apart)}: no figure per step counts "
            f"them, and --steps {steps} leaves them out"
        )


def _what(events: pl.DataFrame) -> str:
    lines = [line for line in events["source"].unique(maintain_order=True).to_list() if line]
    size = format_bytes(int(events["message_bytes"].sum()))
    count = format_count(events.height, "collective")
    return f"{count} ({size}; {named_lines(lines, _LINES)})"
