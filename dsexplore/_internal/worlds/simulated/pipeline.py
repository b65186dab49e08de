"""Pipeline schedules in a simulated world, where the stages of other ranks send nothing.

Before its first microbatch a schedule asks all stages whether they have shapes (``input_args`` and ``output_args``): by
messages down the pipeline and back in torch 2.13, by one all_reduce in torch 2.15. A simulated rank does not receive
the others' answers. The messages are sent as in a real pipeline, and the result assumes that the stages of other ranks
are built like this rank's.

Stages without shapes infer them one after another: each runs its module once on inputs of the shapes that the previous
stage sends, and sends the shapes of its outputs; then the shapes of gradients go back. Here the shapes of an earlier
stage come from `StageShapes.ask`, which runs the ranks of earlier stages if a script is run (see
`worlds.scripts.stage_shapes`). The gradients of a later stage are assumed to have the shapes, dtypes and placements of
the activations sent there; torch 2.9 sends no shapes of gradients. Both pass through torch's own code, so the same
messages are recorded.

Schedules branch by the backend of a group; instead of "fake", they find the backend of a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals import pipelining
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.simulated.other_ranks_objects import Objects
from dsexplore._internal.worlds.simulated.set_up_calls import SetUpCalls
from dsexplore._internal.worlds.simulated.target_traffic import DistWithBackends

_LIKE_ACTIVATIONS = (
    "the gradients that later pipeline stages send are assumed to have the shapes of the activations that they receive"
)


@dataclass
class StageShapes:
    """Functions that supply the shapes of earlier stages, and take those of this rank's stages.

    Attributes:
        ask: returns the message with the shapes of a stage's outputs, in torch's form, given a stage of this rank and
            the index of the stage before it; None if no other rank can be run.
        record: takes each stage of this rank once the shapes of its outputs are known.
    """

    ask: Callable[[Any, int], Any] | None = None
    record: Callable[[Any], None] = lambda _stage: None

    def of_stage_before(self, stage: Any) -> Any:
        """Return the message that the preceding stage sends.

        Raises:
            UsageError: no other rank can be run.
        """
        if self.ask is None:
            raise UsageError(
                f"pipeline stage {stage.stage_index} does not know its shapes and cannot ask its neighbors in a "
                "simulated world: build it as PipelineStage(..., input_args=…, output_args=…), each a tensor of the "
                "shape of one microbatch"
            )
        return self.ask(stage, stage.stage_index - 1)


def _agree(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap the vote of a schedule's stages on shape inference to count only this rank's stages."""
    shapes, remarks = parts[StageShapes], parts[Remarks]

    @wraps(original)
    def agree(self: Any, /, stages: list[Any], has_backward: bool, *args: Any, **kwargs: Any) -> None:
        manual = [*filter(pipelining.is_manual, stages)]
        without_shapes = [stage for stage in manual if pipelining.lacks_shapes(stage, has_backward)]
        for stage in without_shapes:
            if not stage.is_first and shapes.ask is None:
                shapes.of_stage_before(stage)  # raises, before anything is sent
        with remarks.silent():  # torch reads the answers of other stages, which are replaced below
            original(self, stages, has_backward, *args, **kwargs)
        for stage in manual:
            pipelining.set_shape_inference(stage, bool(without_shapes))

    return agree


def _receive_shapes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a stage's receipt of shapes: those of outputs come from `StageShapes`, those of gradients are assumed."""
    shapes, objects, remarks = parts[StageShapes], parts[Objects], parts[Remarks]

    @wraps(original)
    def receive(self: Any, /, src_stage: int) -> Any:
        if src_stage > self.stage_index:
            remarks.note(_LIKE_ACTIVATIONS)
            message = pipelining.gradient_message(self)
        else:
            message = shapes.of_stage_before(self)
        with objects.delivering(message):
            return original(self, src_stage)

    return receive


def _infer_forward(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a stage's shape inference to record the stage afterwards."""
    shapes = parts[StageShapes]

    @wraps(original)
    def infer(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        message = original(self, *args, **kwargs)
        shapes.record(self)
        return message

    return infer


def _infer_shapes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a stage's shape inference up to torch 2.11, where one method both receives and infers."""
    infer, shapes, objects = _infer_forward(original, parts), parts[StageShapes], parts[Objects]

    @wraps(original)
    def receive_and_infer(self: Any, /, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        receives = not self.is_first and not pipelining.is_on_same_rank(self, self.stage_index - 1)
        with objects.delivering(shapes.of_stage_before(self)) if receives else nullcontext():
            return infer(self, args, kwargs)

    return receive_and_infer


def _answer_real_backends(_original: ModuleType, parts: Parts) -> ModuleType:
    """Replace ``torch.distributed`` in torch's pipeline code by one that names the program's backend of each group."""
    return DistWithBackends(parts[SetUpCalls].backend_of)


_WHY = "stages of other ranks send nothing"
PATCHES: tuple[Entry, ...] = tuple(
    Patch(target, why, make, on_import=True)
    for target, why, make in (
        (pipelining.VOTE, _WHY, _agree),
        (pipelining.INITIALIZE_STAGES, _WHY, _agree),
        (pipelining.RECEIVE_SHAPES, _WHY, _receive_shapes),
        (pipelining.INFER_FORWARD, "later stages may ask for the shapes of its outputs", _infer_forward),
        (pipelining.INFER_SHAPES, _WHY, _infer_shapes),
        (pipelining.DIST_OF_SCHEDULES, "schedules branch by the backend", _answer_real_backends),
        (pipelining.DIST_OF_EDGES, "connections branch by the backend", _answer_real_backends),
    )
)
