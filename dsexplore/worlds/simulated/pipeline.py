"""Changes to pipeline schedules for a simulated group, whose receives bring nothing.

Before its first microbatch a schedule of torch 2.13 lets its stages vote, down the pipeline and back, whether all of
them were given their shapes (``input_args`` and ``output_args``). What a simulated rank receives is not the others'
vote. So the vote is sent as in the real one, and its result is what it would be if the other ranks' stages were built
like this one's.

Stages that were not given their shapes find them out in turn: each runs its module once on inputs of the shapes that
the stage before it sends, and sends on those of its outputs; then those of the gradients go back. Here the shapes of an
earlier stage come from `StageShapes.ask`, which plays the ranks of the earlier stages where a script is run (see
`dsexplore.worlds.scripts.stage_shapes`). The gradients that a later stage sends back are taken to have the
shapes, dtypes and placements of what was sent there. Both travel torch's whole way, so the same messages are recorded.

A schedule of torch 2.15 votes by one all-reduce and tries each connection once, but neither on groups whose backend is
"fake", where it refuses stages without shapes: so it gets the name of the target's backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import InferenceMode, _StageBackwardMeta, _StageForwardMeta
from torch.distributed.pipelining.schedules import _PipelineSchedule

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks
from dsexplore.worlds.simulated.other_ranks_objects import Objects

_LIKE_ACTIVATIONS = (
    "the gradients that later pipeline stages send are taken to have the shapes of the activations that they receive"
)


@dataclass
class StageShapes:
    """Where the shapes of other stages come from, and where those of this rank's go.

    Attributes:
        ask: called with a stage of this rank and the index of the stage before it; returns what that one sends on,
            torch's description of its outputs. None where nobody can answer.
        found: called with each stage of this rank once its outputs' shapes are known.
    """

    ask: Callable[[Any, int], Any] | None = None
    found: Callable[[Any], None] = lambda _stage: None


def patch_pipeline(patches: Patches, shapes: StageShapes, objects: Objects, remarks: Remarks, backend: str) -> None:
    """Make pipeline stages run on simulated groups; say what those lack that cannot find out their shapes.

    Args:
        patches: where the changes are kept.
        shapes: answers for other stages.
        objects: brings what another rank would send.
        remarks: where assumptions are reported.
        backend: the backend that schedules see in groups for which the program chose none.
    """
    if hasattr(PipelineStage, "_warmup_forward_vote"):
        _patch_vote(patches, shapes)
    else:  # torch 2.15
        _patch_initialisation(patches, shapes, backend)
    _patch_messages(patches, shapes, objects, remarks)


def _patch_vote(patches: Patches, shapes: StageShapes) -> None:
    result: Callable[..., torch.Tensor] = PipelineStage._warmup_backward_result
    vote: Callable[..., torch.Tensor] = PipelineStage._warmup_forward_vote
    without_shapes: list[int] = []

    @wraps(vote)
    def simulated_vote(stage: Any, /, has_backward: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        if InferenceMode.needs_dynamic(stage._user_meta, has_backward):
            if shapes.ask is None and not stage.is_first:
                raise _no_shapes(stage)
            without_shapes.append(stage.stage_index)
        return vote(stage, has_backward, *args, **kwargs)

    @wraps(result)
    def simulated_result(stage: Any, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        sent = result(stage, *args, **kwargs)
        return torch.tensor([0 if without_shapes else 1], dtype=sent.dtype)

    patches.attribute(PipelineStage, "_warmup_forward_vote", simulated_vote)
    patches.attribute(PipelineStage, "_warmup_backward_result", simulated_result)


def _patch_messages(patches: Patches, shapes: StageShapes, objects: Objects, remarks: Remarks) -> None:
    receive: Callable[..., Any] = PipelineStage._recv_meta
    infer: Callable[..., Any] = PipelineStage._forward_metadata_inference

    @wraps(receive)
    def simulated_receive(stage: Any, /, src_stage: int) -> Any:
        if src_stage > stage.stage_index:
            remarks.note(_LIKE_ACTIVATIONS)
            brought = _gradients_of(stage._stage_meta.outputs)
        elif shapes.ask is None:
            raise _no_shapes(stage)
        else:
            brought = shapes.ask(stage, src_stage)
        with objects.standing_for(brought):
            return receive(stage, src_stage)

    @wraps(infer)
    def watched_inference(stage: Any, /, *args: Any, **kwargs: Any) -> Any:
        sent = infer(stage, *args, **kwargs)
        shapes.found(stage)
        return sent

    patches.attribute(PipelineStage, "_recv_meta", simulated_receive)
    patches.attribute(PipelineStage, "_forward_metadata_inference", watched_inference)


def sent_on(stage: Any) -> Any:
    """The message of a stage to the next one once the shapes of its outputs are known."""
    return _StageForwardMeta(forward_metas=stage._stage_meta.outputs)


def _gradients_of(outputs: Any) -> Any:
    """The message that the next stage would send back: a description of the gradient of each output that needs one."""
    described = tuple(replace(meta, requires_grad=False) if meta.requires_grad else None for meta in outputs)
    return _StageBackwardMeta(backward_metas=described)


def _patch_initialisation(patches: Patches, shapes: StageShapes, backend: str) -> None:
    name = "_initialize_pipeline_distributed_state"
    initialise: Callable[..., None] = getattr(_PipelineSchedule, name)

    @wraps(initialise)
    def simulated(schedule: Any, /, stages: list[Any], has_backward: bool, *args: Any, **kwargs: Any) -> None:
        for stage in stages:
            if (
                isinstance(stage, PipelineStage)
                and InferenceMode.needs_dynamic(stage._user_meta, has_backward)
                and shapes.ask is None
                and not stage.is_first
            ):
                raise _no_shapes(stage)
        initialise(schedule, stages, has_backward, *args, **kwargs)

    patches.attribute(_PipelineSchedule, name, simulated)
    patches.attribute(schedules, "dist", _NeverFake(backend))


class _NeverFake(ModuleType):
    """``torch.distributed`` without a group whose backend is "fake"."""

    def __init__(self, backend: str) -> None:
        super().__init__("torch.distributed")
        self._backend = backend

    def get_backend(self, group: dist.ProcessGroup | None = None) -> str:
        """The backend that the program asked for, else the target's."""
        asked = dist.get_backend(group)
        return self._backend if asked == "fake" else asked

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)


def _no_shapes(stage: Any) -> UsageError:
    return UsageError(
        f"pipeline stage {stage.stage_index} does not know its shapes and cannot ask its neighbours in a "
        "simulated world: build it as PipelineStage(..., input_args=…, output_args=…), each a tensor of one "
        "microbatch's shape"
    )
