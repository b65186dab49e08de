"""What pipeline schedules need on a simulated group, whose receives bring nothing.

Before its first microbatch a schedule lets its stages vote, down the pipeline and back, whether all of them were
told their shapes (``input_args`` and ``output_args``). What a simulated rank receives is not the others' vote, so it
would go on to ask its neighbours for shapes, and read those from memory that nobody wrote. In a simulated world the
vote is sent as in the real one, and its result is what it would be if the other ranks' stages were built like
this one's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode

from dsexplore.errors import UsageError
from dsexplore.worlds.patches import Patches


def patch_pipeline(patches: Patches) -> None:
    """Let pipeline stages that know their shapes run on simulated groups; say what the others lack."""
    original: Callable[..., torch.Tensor] = PipelineStage._warmup_backward_result
    vote: Callable[..., torch.Tensor] = PipelineStage._warmup_forward_vote

    @wraps(vote)
    def simulated_vote(stage: Any, has_backward: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        if InferenceMode.needs_dynamic(stage._user_meta, has_backward):
            raise UsageError(
                f"pipeline stage {stage.stage_index} does not know its shapes and cannot ask its neighbours in a "
                "simulated world: build it as PipelineStage(..., input_args=…, output_args=…), each a tensor of one "
                "microbatch's shape"
            )
        return vote(stage, has_backward, *args, **kwargs)

    @wraps(original)
    def simulated_result(stage: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.ones_like(original(stage, *args, **kwargs))

    patches.attribute(PipelineStage, "_warmup_forward_vote", simulated_vote)
    patches.attribute(PipelineStage, "_warmup_backward_result", simulated_result)
