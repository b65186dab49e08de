"""Pipeline parallelism: attributes of schedules and stages, the messages about shapes, and the methods of a step."""

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
    """Return the stages of a schedule on this rank; empty if the object is not a schedule."""
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
    """Return True for a stage that the program made from a module, and not from a traced graph."""
    return isinstance(stage, internal("torch.distributed.pipelining.stage:PipelineStage"))


def lacks_shapes(stage: Any, has_backward: bool) -> bool:
    """Return True if a stage has to infer its shapes, because it was not given them."""
    mode = internal("torch.distributed.pipelining._utils:InferenceMode", since="2.12")
    return bool(mode.needs_dynamic(stage._user_meta, has_backward))


def set_shape_inference(stage: Any, is_on: bool) -> None:
    """Set whether a stage infers its shapes or uses the given ones."""
    mode = internal("torch.distributed.pipelining._utils:InferenceMode", since="2.12")
    stage._inference_mode = mode.DYNAMIC if is_on else mode.STATIC


def output_message(stage: Any) -> Any:
    """Return the message that a stage sends to the next one when it knows its shapes: metadata of its outputs."""
    message = internal("torch.distributed.pipelining._utils:_StageForwardMeta", since="2.12")
    if is_there(message):
        return message(forward_metas=stage._stage_meta.outputs)
    with without_fake_mode():  # torch sends meta tensors, and fake ones would be useless in another process
        return tuple(
            torch.empty_strided(output.size(), output.stride(), dtype=output.dtype, device="meta")
            for output in stage.get_outputs_meta()
        )


def gradient_message(stage: Any) -> Any:
    """Return the message of the next stage on gradients: one like the output for each output that requires grad."""
    message = internal("torch.distributed.pipelining._utils:_StageBackwardMeta", since="2.12")
    outputs = stage._stage_meta.outputs
    return message(tuple(replace(meta, requires_grad=False) if meta.requires_grad else None for meta in outputs))


@contextmanager
def shortened(schedule: Any, microbatches: int, stages: int) -> Iterator[None]:
    """Set a schedule's number of microbatches and of stages inside the block."""
    before = schedule._n_microbatches, schedule._num_stages
    schedule._n_microbatches, schedule._num_stages = microbatches, stages
    try:
        yield
    finally:
        schedule._n_microbatches, schedule._num_stages = before


GPIPE_STEP = TorchName("torch.distributed.pipelining.schedules:ScheduleGPipe._step_microbatches")
ONE_F_ONE_B_STEP = TorchName("torch.distributed.pipelining.schedules:Schedule1F1B._step_microbatches")
"""Methods that run the microbatches of a step."""

SCALE_GRADS = TorchName("torch.distributed.pipelining.stage:_PipelineStageBase.scale_grads")
REDUCE_GRADS = TorchName("torch.distributed.pipelining.stage:_PipelineStageBase.perform_reduce_grad", since="2.10")
"""Methods of a stage that finish its gradients at the end of a step."""

_STAGE = "torch.distributed.pipelining.stage:PipelineStage"
_SCHEDULE = "torch.distributed.pipelining.schedules:_PipelineSchedule"
INFER_SHAPES = TorchName(f"{_STAGE}._shape_inference", until="2.11")
"""Method by which a stage receives its shapes, runs its module on them, and sends the shapes of its outputs:
``(args, kwargs)``."""

RECEIVE_SHAPES = TorchName(f"{_STAGE}._recv_meta", since="2.12")
"""Method by which a stage receives shapes from another one: ``(src_stage)``."""

INFER_FORWARD = TorchName(f"{_STAGE}._forward_metadata_inference", since="2.12")
"""Method by which a stage infers the shapes of its outputs, and sends them on."""

VOTE = TorchName(f"{_SCHEDULE}._warmup_p2p", since="2.12", until="2.14")
INITIALIZE_STAGES = TorchName(f"{_SCHEDULE}._initialize_pipeline_distributed_state", since="2.15")
"""Methods by which the stages of a schedule agree whether to infer shapes: ``(stages, has_backward, …)``."""

DIST_OF_SCHEDULES = TorchName("torch.distributed.pipelining.schedules:dist")
DIST_OF_EDGES = TorchName("torch.distributed.pipelining._p2p:dist", since="2.15")
"""Names under which schedules, and the code that makes a group per connection, find ``torch.distributed``."""

_allocate_buffer = TorchName("torch.distributed.pipelining.stage:_RecvInfo.allocate_buffer", since="2.15")


def stages_hold_buffers() -> bool:
    """Return True if a stage allocates the buffers of all messages before the first one, and not one by one."""
    return not _allocate_buffer.is_there


INPUT_PLACEHOLDER = TorchName("torch.distributed.pipelining.stage:_RootArgPlaceholder.__init__", until="2.11")
"""Method that describes an input of the first stage, for each microbatch anew, by a copy on the meta device."""
