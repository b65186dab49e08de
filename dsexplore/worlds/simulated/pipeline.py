"""What pipeline schedules need on a simulated group, whose receives bring nothing.

Before its first microbatch a schedule of torch 2.13 lets its stages vote, down the pipeline and back, whether all of
them were told their shapes (``input_args`` and ``output_args``). What a simulated rank receives is not the others'
vote, so it would go on to ask its neighbours for shapes, and read those from memory that nobody wrote. In a simulated
world the vote is sent as in the real one, and its result is what it would be if the other ranks' stages were built
like this one's. A schedule of torch 2.15 leaves the vote out on a simulated group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import _PipelineSchedule

from dsexplore.errors import UsageError
from dsexplore.worlds.patches import Patches


def patch_pipeline(patches: Patches) -> None:
    """Let pipeline stages that know their shapes run on simulated groups; say what the others lack."""
    if hasattr(PipelineStage, "_warmup_forward_vote"):
        _patch_vote(patches)
    else:  # torch 2.15 holds no vote on a fake group
        _patch_initialisation(patches)


def _patch_vote(patches: Patches) -> None:
    result: Callable[..., torch.Tensor] = PipelineStage._warmup_backward_result
    vote: Callable[..., torch.Tensor] = PipelineStage._warmup_forward_vote

    @wraps(vote)
    def simulated_vote(stage: Any, /, has_backward: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        _check_shapes(stage, has_backward)
        return vote(stage, has_backward, *args, **kwargs)

    @wraps(result)
    def simulated_result(stage: Any, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.ones_like(result(stage, *args, **kwargs))

    patches.attribute(PipelineStage, "_warmup_forward_vote", simulated_vote)
    patches.attribute(PipelineStage, "_warmup_backward_result", simulated_result)


def _patch_initialisation(patches: Patches) -> None:
    name = "_initialize_pipeline_distributed_state"
    initialise: Callable[..., None] = getattr(_PipelineSchedule, name)

    @wraps(initialise)
    def simulated(schedule: Any, /, stages: list[Any], has_backward: bool, *args: Any, **kwargs: Any) -> None:
        for stage in stages:
            if isinstance(stage, PipelineStage):
                _check_shapes(stage, has_backward)
        initialise(schedule, stages, has_backward, *args, **kwargs)

    patches.attribute(_PipelineSchedule, name, simulated)


def _check_shapes(stage: Any, has_backward: bool) -> None:
    if InferenceMode.needs_dynamic(stage._user_meta, has_backward):
        raise UsageError(
            f"pipeline stage {stage.stage_index} does not know its shapes and cannot ask its neighbours in a "
            "simulated world: build it as PipelineStage(..., input_args=…, output_args=…), each a tensor of one "
            "microbatch's shape"
        )
