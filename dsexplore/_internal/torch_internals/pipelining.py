"""Pipeline parallelism: what schedules and stages know of themselves, and the local variables of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from dsexplore._internal.torch_internals.fake_tensors import without_fake_mode
from dsexplore._internal.torch_internals.names import TorchName, internal, is_there


def is_schedule(candidate: Any) -> bool:
    """Return True for a pipeline schedule."""
    return hasattr(candidate, "_n_microbatches")


def count_microbatches(schedule: Any) -> int:
    """Return the number of microbatches of a schedule."""
    count: int = schedule._n_microbatches
    return count


def stages_of(schedule: Any) -> list[Any]:
    """Return the stages of a schedule on this rank; none for another object."""
    if hasattr(schedule, "_stage"):
        return [schedule._stage]
    return list(getattr(schedule, "_stages", ()))


def rank_of_stage(stage: Any, index: int) -> int:
    """Return the global rank of another stage of the pipeline."""
    group = stage.group or dist.group.WORLD
    assert group is not None
    return dist.get_global_rank(group, stage.stage_index_to_group_rank[index])


def is_on_same_rank(stage: Any, index: int) -> bool:
    """Return True if another stage of the pipeline is on the same rank."""
    return bool(stage.stage_index_to_group_rank[index] == stage.group_rank)


def is_manual(stage: Any) -> bool:
    """Return True for a stage that a program made of a module of its own, rather than of a traced one."""
    return isinstance(stage, internal("torch.distributed.pipelining.stage:PipelineStage"))


def lacks_shapes(stage: Any, has_backward: bool) -> bool:
    """Return True if a stage has to find out its shapes, as it was not given them."""
    mode = internal("torch.distributed.pipelining._utils:InferenceMode", since="2.12")
    return bool(mode.needs_dynamic(stage._user_meta, has_backward))


def set_shape_inference(stage: Any, is_on: bool) -> None:
    """Set whether a stage infers its shapes or uses those it was given."""
    mode = internal("torch.distributed.pipelining._utils:InferenceMode", since="2.12")
    stage._inference_mode = mode.DYNAMIC if is_on else mode.STATIC


def output_message(stage: Any) -> Any:
    """Return the message that a stage sends to the next one once it knows its shapes: metadata of its outputs."""
    message = internal("torch.distributed.pipelining._utils:_StageForwardMeta", since="2.12")
    if is_there(message):
        return message(forward_metas=stage._stage_meta.outputs)
    with without_fake_mode():  # torch sends tensors without memory, which must not be fake in another process
        return tuple(
            torch.empty_strided(output.size(), output.stride(), dtype=output.dtype, device="meta")
            for output in stage.get_outputs_meta()
        )


def gradient_message(stage: Any) -> Any:
    """Return the next stage's answer if each output that requires grad gets a gradient like itself."""
    message = internal("torch.distributed.pipelining._utils:_StageBackwardMeta", since="2.12")
    outputs = stage._stage_meta.outputs
    return message(tuple(replace(meta, requires_grad=False) if meta.requires_grad else None for meta in outputs))


@contextmanager
def shortened(schedule: Any, microbatches: int, stages: int) -> Iterator[None]:
    """Run fewer microbatches in a schedule's step for the block, as if the pipeline had that many stages."""
    before = schedule._n_microbatches, schedule._num_stages
    schedule._n_microbatches, schedule._num_stages = microbatches, stages
    try:
        yield
    finally:
        schedule._n_microbatches, schedule._num_stages = before


GPIPE_STEP = TorchName("torch.distributed.pipelining.schedules:ScheduleGPipe._step_microbatches")
ONE_F_ONE_B_STEP = TorchName("torch.distributed.pipelining.schedules:Schedule1F1B._step_microbatches")
"""The methods that run the microbatches of a step."""

SCALE_GRADS = TorchName("torch.distributed.pipelining.stage:_PipelineStageBase.scale_grads")
REDUCE_GRADS = TorchName("torch.distributed.pipelining.stage:_PipelineStageBase.perform_reduce_grad", since="2.10")
"""The methods of a stage that finish its gradients, at the end of a step."""

_STAGE = "torch.distributed.pipelining.stage:PipelineStage"
_SCHEDULE = "torch.distributed.pipelining.schedules:_PipelineSchedule"
INFER_SHAPES = TorchName(f"{_STAGE}._shape_inference", until="2.11")
"""The method by which a stage receives its shapes, runs its module on them, and sends those of its outputs:
``(args, kwargs)``."""

RECEIVE_SHAPES = TorchName(f"{_STAGE}._recv_meta", since="2.12")
"""The method by which a stage receives shapes from another one: ``(src_stage)``."""

INFER_FORWARD = TorchName(f"{_STAGE}._forward_metadata_inference", since="2.12")
"""The method by which a stage finds out the shapes of its outputs, and sends them on."""

VOTE = TorchName(f"{_SCHEDULE}._warmup_p2p", since="2.12", until="2.14")
INITIALIZE_STAGES = TorchName(f"{_SCHEDULE}._initialize_pipeline_distributed_state", since="2.15")
"""The methods by which a schedule has all stages agree whether to find out shapes: ``(stages, has_backward, …)``."""

DIST_OF_SCHEDULES = TorchName("torch.distributed.pipelining.schedules:dist")
DIST_OF_EDGES = TorchName("torch.distributed.pipelining._p2p:dist", since="2.15")
"""The names under which schedules, and what gives each connection a group, find ``torch.distributed``."""

_allocate_buffer = TorchName("torch.distributed.pipelining.stage:_RecvInfo.allocate_buffer", since="2.15")


def stages_hold_buffers() -> bool:
    """Return True if a stage makes a buffer for each message before the first one, not when it is needed."""
    return not _allocate_buffer.is_there


INPUT_PLACEHOLDER = TorchName("torch.distributed.pipelining.stage:_RootArgPlaceholder.__init__", until="2.11")
"""The method that describes an input of the first stage, once for each microbatch, by a copy on the meta device."""
