"""Microbatches that are skipped: a step of a GPipe or 1F1B schedule runs a few, and the others repeat these.

A stage begins with forwards (the warm-up), goes on with pairs of a backward and a forward, and ends with as many
backwards as it began with forwards; with GPipe all forwards are warm-up. Within each of the three, what is done for one
microbatch is what was done for the one before, but for the first. So four forwards of the warm-up are run, three pairs,
and four backwards: the second and the third of each are compared, and the third is repeated. The last forward is sent
later, and in the last backward gradients are reduced.

What the program gets back has its whole length: losses and outputs of microbatches that are skipped are the last one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import signature
from typing import Any

import torch

from dsexplore._internal.torch_internals.patches import Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.pipelining import (
    GPIPE_STEP,
    ONE_F_ONE_B_STEP,
    count_microbatches,
    shortened,
    stages_of,
)
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.marked_recording import MarkedRecording, PartMark
from dsexplore._internal.worlds.repeats.repeated_layers import local_part
from dsexplore._internal.worlds.repeats.skipped_layers import skipped_layers

_WARM_UP, _PAIRS = 4, 3
"""Number of warm-up forwards that run, with as many backwards at the end, and number of pairs."""
_REPEATED = 2
"""The number of the forward, pair or backward that is repeated."""


@contextmanager
def skip_repeats(*, is_script: bool = False) -> Iterator[MarkedRecording]:
    """Skip microbatches and layers in the block that repeat others, in a world of fake tensors, while one records.

    Args:
        is_script: skip layers in steps of schedules alone, and run each of them once before.

    Yields:
        What was recorded; its `MarkedRecording.whole` makes the tables of all that was skipped.

    Raises:
        CannotSkip: in the block, or by `MarkedRecording.whole`, where the program has to be run in full.
    """
    recording, patches = MarkedRecording(), Patches()
    try:
        install_all(PATCHES, {"always"}, patches, Parts(_Skipped(recording, is_script)))
        with nullcontext() if is_script else skipped_layers(recording):
            yield recording
    except Exception as error:  # the program's own, or because of what was skipped
        if recording.marks:
            raise CannotSkip(f"it ended with {type(error).__name__}") from error
        raise
    finally:
        patches.undo()


class _Skipped:
    """The microbatches that are skipped in a block."""

    def __init__(self, recording: MarkedRecording, is_script: bool) -> None:
        self._recording, self._is_script = recording, is_script

    def stepping(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap a schedule's method to run only some of the microbatches of a step."""

        @wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
            (stage,) = stages_of(schedule)
            is_torchs = vars(type(schedule)).get(original.__name__) is step
            if not is_torchs or not stage.has_backward or not self._recording.is_alone:
                original(schedule, *args, **kwargs)
                return
            call = signature(original).bind(schedule, *args, **kwargs)
            losses = call.arguments.get("losses")
            layers = skipped_layers(self._recording, stage.submod) if self._is_script else nullcontext()
            with layers, self._short(schedule, losses is not None) as (run, count):
                for name in ("arg_mbs", "kwarg_mbs", "target_mbs"):
                    if call.arguments.get(name):
                        call.arguments[name] = call.arguments[name][:run]
                original(*call.args, **call.kwargs)
            for kept in (losses, stage.output_chunks):
                if kept:
                    kept += [_detached(kept[-1]) for _ in range(count - run)]
            self._recording.microbatches.append((run, count))

        return step

    @contextmanager
    def _short(self, schedule: Any, keeps_losses: bool) -> Iterator[tuple[int, int]]:
        """Run only some of a schedule's microbatches in the block; yield their number, and that of all."""
        (stage,), count = stages_of(schedule), count_microbatches(schedule)
        warm_up = count
        if type(schedule).__name__ == "Schedule1F1B":
            warm_up = min(count, stage.num_stages - stage.stage_index)
        forwards, pairs = min(warm_up, _WARM_UP), min(count - warm_up, _PAIRS)
        run, ends = forwards + pairs, _marks(forwards, warm_up)
        marks = {
            "forward_one_chunk": iter(ends),
            "backward_one_chunk": iter([*_marks(pairs, count - warm_up), *ends]),
        }
        losses = dict.fromkeys([] if keeps_losses else ["bytes"], 0)

        def marking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if name not in marks:
                    drop_losses()
                elif (mark := next(marks[name], None)) is not None:
                    self._recording.mark(mark)
                if losses and isinstance(kwargs.get("loss"), torch.Tensor):
                    losses["bytes"] = local_part(kwargs["loss"]).untyped_storage().nbytes()
                return original(*args, **kwargs)

            return call

        def drop_losses() -> None:
            if losses:
                self._recording.mark(PartMark(0, losses.pop("bytes") * (count - run)))

        patches = Patches()
        try:
            for name in (*marks, "perform_reduce_grad"):
                if hasattr(stage, name):
                    patches.attribute(stage, name, marking(name, getattr(stage, name)))
            with shortened(schedule, run, stage.num_stages - (warm_up - forwards)):
                yield run, count
            drop_losses()  # where the schedule has not reduced gradients since
        finally:
            patches.undo()


def _marks(run: int, count: int) -> list[PartMark]:
    """Return one mark per forward, pair or backward that runs; one of them marks the ``count - run`` skipped ones."""
    return [PartMark(count - run if number == _REPEATED else 0) for number in range(run)]


def _detached(output: Any) -> Any:
    """Detach a stage's output, or a loss, from its graph."""
    if isinstance(output, (tuple, list)):
        return type(output)(map(_detached, output))
    return output.detach() if isinstance(output, torch.Tensor) else output


PATCHES = tuple(
    Patch(target, "it runs equal microbatches", lambda step, parts: parts[_Skipped].stepping(step), on_import=True)
    for target in (GPIPE_STEP, ONE_F_ONE_B_STEP)
)
