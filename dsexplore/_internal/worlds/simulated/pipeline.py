"""Pipeline schedules in a simulated world, where other stages answer nothing.

Before its first microbatch a schedule has all its stages agree whether each was given its shapes (``input_args`` and
``output_args``): by messages down the pipeline and back in torch 2.13, by one all_reduce in torch 2.15. What a
simulated rank receives is not the others' answer. So the messages are sent as in a real pipeline, and the result is
what it would be if the stages of other ranks were built like this rank's.

Stages that were not given their shapes find them out in turn: each runs its module once on inputs of the shapes that
the stage before it sends, and sends on those of its outputs; then those of the gradients go back. Here the shapes of an
earlier stage come from `StageShapes.ask`, which plays the ranks of the earlier stages where a script is run (see
`worlds.scripts.stage_shapes`). The gradients that a later stage sends back are taken to have the shapes,
dtypes and placements of what was sent there; torch 2.9 sends no shapes of gradients. Both travel torch's whole way, so
the same messages are recorded.

Schedules go other ways on groups whose backend is "fake": they find the backend of a real cluster here.
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
    "the gradients that later pipeline stages send are taken to have the shapes of the activations that they receive"
)


@dataclass
class StageShapes:
    """The source of other stages' shapes, and where those of this rank's stages go.

    Attributes:
        ask: called with a stage of this rank and the index of the stage before it; returns what that one sends on,
            torch's description of its outputs. None where nobody can answer.
        record: called with each stage of this rank once its outputs' shapes are known.
    """

    ask: Callable[[Any, int], Any] | None = None
    record: Callable[[Any], None] = lambda _stage: None

    def of_stage_before(self, stage: Any) -> Any:
        """Return the message that the preceding stage sends.

        Raises:
            UsageError: nobody can answer.
        """
        if self.ask is None:
            raise UsageError(
                f"pipeline stage {stage.stage_index} does not know its shapes and cannot ask its neighbors in a "
                "simulated world: build it as PipelineStage(..., input_args=…, output_args=…), each a tensor of one "
                "microbatch's shape"
            )
        return self.ask(stage, stage.stage_index - 1)


def _agree(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap the agreement of a schedule's stages to use what this rank's stages know."""
    shapes, remarks = parts[StageShapes], parts[Remarks]

    @wraps(original)
    def agree(self: Any, /, stages: list[Any], has_backward: bool, *args: Any, **kwargs: Any) -> None:
        manual = [*filter(pipelining.is_manual, stages)]
        lacking = [stage for stage in manual if pipelining.lacks_shapes(stage, has_backward)]
        for stage in lacking:
            if not stage.is_first and shapes.ask is None:
                shapes.of_stage_before(stage)  # raises, before anything is sent
        with remarks.silent():  # it reads what the other stages answer, which is replaced below
            original(self, stages, has_backward, *args, **kwargs)
        for stage in manual:
            pipelining.set_shape_inference(stage, bool(lacking))

    return agree


def _receive_shapes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    shapes, objects, remarks = parts[StageShapes], parts[Objects], parts[Remarks]

    @wraps(original)
    def receive(self: Any, /, src_stage: int) -> Any:
        if src_stage > self.stage_index:
            remarks.note(_LIKE_ACTIVATIONS)
            message = pipelining.gradient_message(self)
        else:
            message = shapes.of_stage_before(self)
        with objects.standing_for(message):
            return original(self, src_stage)

    return receive


def _infer_forward(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    shapes = parts[StageShapes]

    @wraps(original)
    def infer(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        sent = original(self, *args, **kwargs)
        shapes.record(self)
        return sent

    return infer


def _infer_shapes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a stage's shape inference, which receives shapes and records those of outputs in one, up to torch 2.11."""
    infer, shapes, objects = _infer_forward(original, parts), parts[StageShapes], parts[Objects]

    @wraps(original)
    def receive_and_infer(self: Any, /, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        receives = not self.is_first and not pipelining.is_on_same_rank(self, self.stage_index - 1)
        with objects.standing_for(shapes.of_stage_before(self)) if receives else nullcontext():
            return infer(self, args, kwargs)

    return receive_and_infer


def _answer_real_backends(_original: ModuleType, parts: Parts) -> ModuleType:
    return DistWithBackends(parts[SetUpCalls].backend_of)


_WHY = "stages of other ranks answer nothing"
PATCHES: tuple[Entry, ...] = tuple(
    Patch(target, why, make, on_import=True)
    for target, why, make in (
        (pipelining.VOTE, _WHY, _agree),
        (pipelining.INITIALIZE_STAGES, _WHY, _agree),
        (pipelining.RECEIVE_SHAPES, _WHY, _receive_shapes),
        (pipelining.INFER_FORWARD, "later stages of the script may be played next", _infer_forward),
        (pipelining.INFER_SHAPES, _WHY, _infer_shapes),
        (pipelining.DIST_OF_SCHEDULES, "schedules go another way on simulated groups", _answer_real_backends),
        (pipelining.DIST_OF_EDGES, "connections go another way on simulated groups", _answer_real_backends),
    )
)
