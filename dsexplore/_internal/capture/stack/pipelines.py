"""Finds the stage and the phase for which a pipeline schedule sends or receives.

A schedule sends and receives between its calls of the stages' modules, so no module is running then. The schedule's
local variables show which stage a message belongs to: it sends the result of its current action, and it receives into a
buffer that one of its stages holds for an activation or a gradient.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.stack.stack_reading import StackReading
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.pipelining import count_microbatches, is_schedule, stages_of
from dsexplore._internal.torch_internals.tensors import storage_number
from dsexplore._internal.trace.schema import Phase


def place(reading: StackReading, op: str, args: Sequence[Any]) -> tuple[nn.Module | None, Phase]:
    """Return the stage's module and the phase of a collective that a pipeline schedule issues.

    Args:
        reading: the reading of the stack, with the local variables of the schedule's frames.
        op: the plain name of the collective.
        args: the op's arguments.

    Returns:
        (module, phase). The module is None for FSDP's collectives, whose owner the stack shows, and if it is unknown.
    """
    if reading.owner is not None:
        return None, _fsdp_phase(reading.schedule, reading.cause)
    stage, phase = _message_origin(reading.schedule, op, args)
    return stage, "no-grad forward" if phase == "forward" and not torch.is_grad_enabled() else phase


def _message_origin(frames: Sequence[dict[str, Any]], op: str, args: Sequence[Any]) -> tuple[nn.Module | None, Phase]:
    """Return the stage's module and the phase of a message.

    Args:
        frames: local variables of the schedule's frames, innermost first.
        op: ``send`` or ``recv``; other collectives are no messages between stages.
        args: the op's arguments; the first tensor among them is sent or received into.

    Returns:
        (module, phase); (None, "other") if the schedule's variables do not show them.
    """
    stages = _stages(frames)
    if op == "recv":
        return _receiver(stages, next(tensors_in(args), None))
    if op == "send":
        return _sender(stages, frames)
    return None, "other"


def _fsdp_phase(frames: Sequence[dict[str, Any]], cause: str) -> Phase:
    """Return the phase of FSDP's collectives that a schedule issues outside the stages' modules and autograd.

    A schedule gathers a stage's parameters before the stage's next computation, and reduces its gradients after the
    backward of the stage's last microbatch.

    Args:
        frames: local variables of the schedule's frames, innermost first.
        cause: the cause of the collective, ``"FSDP post_backward"``.

    Returns:
        The phase; ``other`` if neither the cause nor the schedule shows it.
    """
    if cause.endswith("backward"):
        return "backward"
    if cause.endswith("forward"):
        return "forward"
    action: Any = next((names["action"] for names in frames if names.get("action") is not None), None)
    running = next((names for names in frames if "time_step" in names), None)
    if action is None or running is None:
        return "other"
    schedule: Any = running["self"]
    for later in schedule.pipeline_order_with_comms[schedule.rank][running["time_step"] + 1 :]:
        for sub_action in getattr(later, "sub_actions", None) or (later,):
            computation = sub_action.computation_type.name
            if sub_action.stage_index == action.stage_index and computation in _COMPUTATIONS:
                return _COMPUTATIONS[computation]
    return "other"


_COMPUTATIONS: dict[str, Phase] = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "backward",
    "BACKWARD_WEIGHT": "backward",
}
"""{computation type of a schedule's action: its phase}."""


def _stages(frames: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the schedule's stages on this rank."""
    return next((stages for names in frames if (stages := stages_of(names.get("self")))), [])


def _receiver(stages: Iterable[Any], tensor: torch.Tensor | None) -> tuple[nn.Module | None, Phase]:
    """Return the module of the stage that has `tensor` as a receive buffer, and the phase that the buffer is for."""
    storage = _storage(tensor)
    if storage is None:
        return None, "other"
    for stage in stages:
        directions: tuple[tuple[Any, Phase], ...] = (
            (stage.args_recv_info, "forward"),
            (stage.grad_recv_info, "backward"),
        )
        for buffers, phase in directions:
            for microbatch in buffers.values():
                if any(_storage(getattr(info, "buffer", None)) == storage for info in microbatch):
                    return stage.submod, phase
    return None, "other"


def _sender(stages: list[Any], frames: Sequence[dict[str, Any]]) -> tuple[nn.Module | None, Phase]:
    """Return the module of the sending stage, and the phase of the schedule's current action."""
    for names in frames:
        action = names.get("action")
        if action is not None:
            stage = next((local for local in stages if local.stage_index == action.stage_index), None)
            forward = action.computation_type.name in ("FORWARD", "SEND_F")
            return getattr(stage, "submod", None), "forward" if forward else "backward"
        description = names.get("desc")
        if description and len(stages) == 1:  # "fwd_send", "bwd_send", "fwd_send_bwd_recv", …
            return stages[0].submod, "forward" if "fwd_send" in description else "backward"
    return None, "other"


def _storage(tensor: torch.Tensor | None) -> int | None:
    """Return the number of the storage of a tensor, or of a DTensor's local tensor; None for None."""
    local = local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
    return storage_number(local.untyped_storage()) if local is not None else None


def describe(frames: Sequence[dict[str, Any]]) -> str:
    """Describe the schedule that calls the stages as JSON; empty if there is none.

    Args:
        frames: local variables of the schedule's frames, innermost first.

    Returns:
        An object with ``schedule``, the class; ``microbatches`` and ``stages``, the numbers of these in the pipeline;
        ``own``, the stages of this rank; and ``order``, the actions of each rank, if the schedule lists them.
    """
    schedule: Any = next((names["self"] for names in frames if is_schedule(names.get("self"))), None)
    stages = _stages(frames)
    if schedule is None or not stages:
        return ""
    order = getattr(schedule, "pipeline_order", None) or {}
    return json.dumps(
        {
            "schedule": type(schedule).__name__,
            "microbatches": count_microbatches(schedule),
            "stages": stages[0].num_stages,
            "own": [stage.stage_index for stage in stages],
            "order": {
                str(rank): " ".join(str(action) for action in actions if action is not None)
                for rank, actions in order.items()
            },
        }
    )
