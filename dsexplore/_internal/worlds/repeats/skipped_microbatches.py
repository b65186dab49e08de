"""Skip microbatches: a step of a GPipe or 1F1B schedule runs a few, whose rows are repeated for the others.

A stage runs forwards (the warm-up), then pairs of a backward and a forward, then as many backwards as there were
warm-up forwards; with GPipe all forwards are warm-up. Within each of these three, a microbatch does what the one before
it did, except the first and the last: the last forward is sent later, and the last backward reduces gradients. So four
warm-up forwards, three pairs and four backwards run; the second and the third of each are compared, and the third is
repeated.

The program gets as many losses and outputs as it expects: skipped microbatches have those of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dsexplore._internal.worlds.repeats.marked_recording import MarkedRecording, Microbatches, PartMark
from dsexplore._internal.worlds.repeats.repeated_layers import local_part
from dsexplore._internal.worlds.repeats.skipped_layers import skipped_layers

_WARM_UP, _PAIRS = 4, 3
"""Number of warm-up forwards that run (and of backwards at the end), and number of pairs that run."""
_REPEATED = 2
"""Index of the forward, pair or backward that is repeated."""


@contextmanager
def skip_repeats(*, is_script: bool = False) -> Iterator[MarkedRecording]:
    """Skip microbatches and layers that repeat others in the block, in a world of fake tensors and while one records.

    Args:
        is_script: True to skip layers only in steps of schedules, after each ran once. False skips them everywhere.

    Yields:
        The marked recording; `MarkedRecording.whole` returns the tables with all layers and microbatches.

    Raises:
        CannotSkip: in the block or from `MarkedRecording.whole`, if the program has to run in full.
    """
    recording, patches = MarkedRecording(), Patches()
    try:
        install_all(PATCHES, {"always"}, patches, Parts(_Skipped(recording, is_script)))
        with nullcontext() if is_script else skipped_layers(recording):
            yield recording
    except Exception as error:  # the program's own, or caused by the skipping
        if recording.marks:
            raise CannotSkip(f"it ended with {type(error).__name__}") from error
        raise
    finally:
        patches.undo()


class _Skipped:
    """The microbatches that are skipped in a block."""

    def __init__(self, recording: MarkedRecording, is_script: bool) -> None:
        self._recording, self._is_script = recording, is_script

    def wrap_step(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap a schedule's method to run only some of the microbatches of a step."""

        @wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
            (stage,) = stages_of(schedule)
            is_of_torch = vars(type(schedule)).get(original.__name__) is step
            if not is_of_torch or not stage.has_backward or not self._recording.is_alone:
                original(schedule, *args, **kwargs)
                return
            call = signature(original).bind(schedule, *args, **kwargs)
            losses = call.arguments.get("losses")
            layers = skipped_layers(self._recording, stage.submod) if self._is_script else nullcontext()
            with layers, self._short(schedule, keeps_losses=losses is not None) as microbatches:
                for name in ("arg_mbs", "kwarg_mbs", "target_mbs"):
                    if call.arguments.get(name):
                        call.arguments[name] = call.arguments[name][: microbatches.run]
                original(*call.args, **call.kwargs)
            for results in (losses, stage.output_chunks):
                if results:
                    results += [_detached(results[-1]) for _ in range(microbatches.total - microbatches.run)]
            self._recording.microbatches.append(microbatches)

        return step

    @contextmanager
    def _short(self, schedule: Any, *, keeps_losses: bool) -> Iterator[Microbatches]:
        """Run only some of a schedule's microbatches in the block, and mark where the others would run.

        Args:
            schedule: the schedule.
            keeps_losses: True if the program keeps the losses; else they are freed after the last backward.
        """
        (stage,), total = stages_of(schedule), count_microbatches(schedule)
        warm_up = total
        if type(schedule).__name__ == "Schedule1F1B":
            warm_up = min(total, stage.num_stages - stage.stage_index)
        forwards, pairs = min(warm_up, _WARM_UP), min(total - warm_up, _PAIRS)
        microbatches = Microbatches(run=forwards + pairs, total=total)
        ends = _marks(forwards, warm_up)
        marks = {"forward_one_chunk": ends, "backward_one_chunk": [*_marks(pairs, total - warm_up), *ends]}
        losses_to_free = 0 if keeps_losses else total - microbatches.run
        marker, patches = _StageMarker(self._recording, marks, losses_to_free), Patches()
        try:
            for name in (*marks, "perform_reduce_grad"):
                if hasattr(stage, name):
                    patches.attribute(stage, name, marker.wrap(name, getattr(stage, name)))
            with shortened(schedule, microbatches.run, stage.num_stages - (warm_up - forwards)):
                yield microbatches
            marker.free_losses()  # unless the schedule has reduced gradients, and freed them there
        finally:
            patches.undo()


class _StageMarker:
    """Marks the calls of a stage's methods in a step that runs only some microbatches.

    Args:
        recording: the recording to mark.
        marks: {method: the marks of its calls}; any other method comes after the last backward.
        losses: number of losses of skipped microbatches to free after the last backward.
    """

    def __init__(self, recording: MarkedRecording, marks: Mapping[str, Sequence[PartMark]], losses: int) -> None:
        self._recording = recording
        self._marks = {name: iter(of_calls) for name, of_calls in marks.items()}
        self._losses, self._loss_bytes = losses, 0

    def wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method to mark each call."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in self._marks:
                self.free_losses()
            elif (mark := next(self._marks[name], None)) is not None:
                self._recording.mark(mark)
            if isinstance(kwargs.get("loss"), torch.Tensor):
                self._loss_bytes = local_part(kwargs["loss"]).untyped_storage().nbytes()
            return original(*args, **kwargs)

        return call

    def free_losses(self) -> None:
        """Mark that the losses of skipped microbatches are freed here; only the first call does."""
        if self._losses:
            self._recording.mark(PartMark(skipped=0, freed=self._loss_bytes * self._losses))
            self._losses = 0


def _marks(run: int, count: int) -> list[PartMark]:
    """Return a mark per forward, pair or backward that runs; the repeated one has the number of those skipped.

    Args:
        run: number of those that run.
        count: number of all.
    """
    return [PartMark(skipped=count - run if index == _REPEATED else 0) for index in range(run)]


def _detached(output: Any) -> Any:
    """Detach a stage's output, or a loss, from its graph."""
    if isinstance(output, (tuple, list)):
        return type(output)(map(_detached, output))
    return output.detach() if isinstance(output, torch.Tensor) else output


PATCHES = tuple(
    Patch(target, "it runs equal microbatches", lambda step, parts: parts[_Skipped].wrap_step(step), on_import=True)
    for target in (GPIPE_STEP, ONE_F_ONE_B_STEP)
)
