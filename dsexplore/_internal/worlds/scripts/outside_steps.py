"""Notes on bytes that a program sends before its first step or after its last, and that may look like a step's."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.steps import IN_A_STEP
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.worlds.remarks import Remarks, named_lines

_LINES = 3
"""Lines that the note names."""


def note_what_preceded(trace: Trace, remarks: Remarks) -> None:
    """Note the source lines that send before the model does: a single step cannot show whether they send in each.

    Args:
        trace: the recording of the program, which has come to its end.
        remarks: where it is noted.
    """
    events = trace.events
    if events.is_empty() or int(events["step"].max() or 0):  # type: ignore[arg-type]  # an integer column
        return
    of_program = (pl.col("phase") == "other") & ~pl.col("cause").fill_null("").str.starts_with("FSDP")
    early = events.filter(of_program & (pl.col("phase").is_in(IN_A_STEP).cast(pl.Int32).cum_sum() == 0))
    if not early.is_empty() and early.height < events.height and events["phase"].is_in(IN_A_STEP).any():
        remarks.note(
            f"before the model sent anything, calls outside any module sent {_what(early)}: they count to the one step "
            "that was traced; whether they come again is seen in two (--steps 2)"
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
    counted, apart = after.filter(IN_STEPS), after.filter(phase="no-grad forward")
    if not counted.is_empty():
        remarks.note(
            f"after the last optimizer step the script sent {_what(counted)}: they are of a step that did not end, "
            "which no figure per step counts"
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
