"""Notes for the trace of a script: remedies for its error, and messages outside of its steps.

`remedy_for` says what to do about an error whose cause is the simulated world. `note_what_preceded` and
`note_what_followed` name messages before the first step or after the last one that may look like a step's.
"""

from __future__ import annotations

import re

import polars as pl

from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.steps import IN_A_STEP
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.worlds.extensions.registry import WITHOUT_STAND_IN, registered_package
from dsexplore._internal.worlds.remarks import Remarks, named_lines

_WITHOUT_CUDA = re.compile("cuda|nvidia|accelerator device|dummy base class", re.IGNORECASE)
"""Words of torch's errors for a program that asks for CUDA without a GPU; the errors differ by build and version."""
_NO_CPU_KERNEL = re.compile(r"Could not run '(aten::\w+)' with arguments from the 'CPU' backend")
"""Torch's error for ops with GPU kernels only."""
_MAX_LINES = 3
"""Maximal number of source lines that a note names."""


def remedy_for(error: BaseException, *, has_cuda: bool, rank: int, is_alone: bool) -> str:
    """Return a note for the trace of a script that an error ended; empty if the error explains itself.

    Args:
        error: the error.
        has_cuda: True if the CPU stands in for GPUs.
        rank: the rank that ran.
        is_alone: True if no other rank of the world runs.
    """
    if not has_cuda and not isinstance(error, OSError) and _WITHOUT_CUDA.search(str(error)):
        return (
            "the script asks for a GPU, and in this world there is none: leave out --hardware cpu (hardware='cpu'), or "
            "give the script its own options for training on CPUs"
        )
    kernel = _NO_CPU_KERNEL.match(str(error)) if isinstance(error, NotImplementedError) and has_cuda else None
    if kernel is not None:
        return (
            f"the script calls {kernel[1]} itself, which has no kernel for the CPU that stands in for GPUs: run it "
            "with --fake (fake=True), which needs shapes alone"
        )
    missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing == "triton":
        return "torch's builds for CUDA bring triton, this one does not: pip install triton, which needs no GPU"
    if missing == "torchcomms":
        return "torchcomms is not recorded: give the script the option that takes torch.distributed's own groups"
    if registered_package(missing) and not has_cuda:
        return f"a world of GPUs has a stand-in for {missing}: leave out --hardware cpu (hardware='cpu')"
    if missing in WITHOUT_STAND_IN or registered_package(missing):
        return (
            f"{missing} is an extension for GPUs, which cannot run here: give the script the option that takes torch's "
            "own form in its place, such as attn_implementation='sdpa'"
        )
    if isinstance(error, FileNotFoundError) and rank and is_alone:
        return (
            f"the script looked for {error.filename or 'a file'}, which does not exist: while rank {rank} runs "
            "alone, no other rank writes files; run --rank 0 first, in the same folder"
        )
    return ""


def note_what_preceded(trace: Trace, remarks: Remarks) -> None:
    """Note source lines that send before the model does, as one step does not show whether they send in every step.

    Args:
        trace: the recording of the program, which has ended.
        remarks: gets the note.
    """
    events = trace.events
    if events.is_empty() or int(events["step"].max() or 0):  # type: ignore[arg-type]  # an integer column
        return
    of_program = (pl.col("phase") == "other") & ~pl.col("cause").fill_null("").str.starts_with("FSDP")
    early = events.filter(of_program & (pl.col("phase").is_in(IN_A_STEP).cast(pl.Int32).cum_sum() == 0))
    if not early.is_empty() and early.height < events.height and events["phase"].is_in(IN_A_STEP).any():
        remarks.note(
            f"before the model sent anything, calls outside any module sent {_summary(early)}: they count to the one "
            "step that was traced; --steps 2 shows whether they are sent in every step"
        )


def note_what_followed(trace: Trace, steps: int, remarks: Remarks) -> None:
    """Note messages after a program's last optimizer step.

    Args:
        trace: the recording of the program, which has ended.
        steps: number of optimizer steps that it took.
        remarks: gets the note.
    """
    if not steps:
        return
    after = trace.where(step=steps).events
    unfinished, evaluation = after.filter(IN_STEPS), after.filter(phase="no-grad forward")
    if not unfinished.is_empty():
        remarks.note(
            f"after the last optimizer step the script sent {_summary(unfinished)}: they are of a step that did not "
            "end, which no figure per step counts"
        )
    if not evaluation.is_empty():
        remarks.note(
            f"after the last optimizer step forwards without gradients sent {_summary(evaluation)}: no figure per step "
            f"counts them, and --steps {steps} leaves them out"
        )


def _summary(events: pl.DataFrame) -> str:
    """Summarize events: ``"2 collectives (4.00 KiB; train.py:5, train.py:7)"``."""
    lines = [line for line in events["source"].unique(maintain_order=True).to_list() if line]
    size = format_bytes(int(events["message_bytes"].sum()))
    count = format_count(events.height, "collective")
    return f"{count} ({size}; {named_lines(lines, _MAX_LINES)})"
