"""Notes that the trace of a played script gets, for `play_rank`.

`remedy_for` says what to do about an error that ended the script because its simulated world lacks something.
`note_what_preceded` and `note_what_followed` are about bytes that it sent before its first step or after its last, and
that may look like a step's.
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
"""What torch's many errors say where a program asks for CUDA and there is none; they differ by build and version."""
_OF_GPUS = re.compile(r"Could not run '(aten::\w+)' with arguments from the 'CPU' backend")
"""The error of torch for ops with GPU kernels only."""


def remedy_for(error: BaseException, *, has_cuda: bool, rank: int, is_alone: bool) -> str:
    """Return a note for the trace of a script that an error ended; empty if the error explains itself.

    Args:
        error: what the script raised.
        has_cuda: whether the CPU stands in for GPUs.
        rank: the one that was played.
        is_alone: whether no other rank of the world is played.
    """
    if not has_cuda and not isinstance(error, OSError) and _WITHOUT_CUDA.search(str(error)):
        return (
            "the script asks for a GPU, and in this world there is none: leave out --hardware cpu (hardware='cpu'), or "
            "give the script its own options for training on CPUs"
        )
    kernel = _OF_GPUS.match(str(error)) if isinstance(error, NotImplementedError) and has_cuda else None
    if kernel:
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
            f"the script looked for {error.filename or 'a file'}, which is not there: what rank 0 would write, nobody "
            f"writes while rank {rank} is played alone; play --rank 0 first, in the same folder"
        )
    return ""


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
