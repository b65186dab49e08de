"""The messages between the stages of a pipeline, by the action of the schedule that sends or receives them."""

from __future__ import annotations

import polars as pl

from dsexplore.cost.schedules import Action, Schedule
from dsexplore.trace.causes import PIPELINE_SCHEDULE
from dsexplore.trace.schema import IN_STEPS
from dsexplore.trace.tables import Tables

_ONE_WAY = ("rank", "step", "op", "phase", "group", "peer")
"""Messages that agree in these columns arrive in the order in which the sender's actions send them."""


def messages_of_actions(schedule: Schedule, tables: Tables) -> list[tuple[Action, int]]:
    """Return (action, row of the trace's events) for each message that a recorded rank sends or receives for a stage.

    An action that sends several tensors has one message for each. Messages whose number does not fit the schedule, or
    whose group is not the pipeline, belong to no action.

    Args:
        schedule: of the pipeline.
        tables: the trace.
    """
    pipelines = {
        group: list(ranks)
        for group, ranks in tables.groups.filter(size=len(schedule.order)).select("group", "ranks").iter_rows()
    }
    sent = (pl.col("cause") == PIPELINE_SCHEDULE) & pl.col("op").is_in(["send", "recv"]) & pl.col("peer").is_not_null()
    messages = tables.events.with_row_index("row").filter(IN_STEPS & sent & pl.col("group").is_in(list(pipelines)))
    found: list[tuple[Action, int]] = []
    for key, part in messages.sort("seq").partition_by(_ONE_WAY, as_dict=True, maintain_order=True).items():
        rank, _, op, phase, group, peer = key
        own, other = (pipelines[group].index(each) for each in (rank, peer))
        actions = _sending(schedule, own, other, phase) if op == "send" else _receiving(schedule, other, own, phase)
        each, left = divmod(part.height, len(actions)) if actions else (0, part.height)
        if not left:
            found += [(actions[i // each], row) for i, row in enumerate(part["row"])]
    return found


def _sending(schedule: Schedule, sender: int, receiver: int, phase: str) -> list[Action]:
    """Return the actions of one rank whose results go to another, in execution order."""
    onward, kinds = (1, "F") if phase == "forward" else (-1, "BI")
    there = {one.stage for one in schedule.order[receiver]}
    return [one for one in schedule.order[sender] if one.kind in kinds and one.stage + onward in there]


def _receiving(schedule: Schedule, sender: int, receiver: int, phase: str) -> list[Action]:
    """Return the actions of the receiver that consume what `_sending` sends, in its order."""
    onward, own = 1 if phase == "forward" else -1, set(schedule.order[receiver])
    takes = []
    for stage, kind, number in _sending(schedule, sender, receiver, phase):
        whole = Action(stage + onward, "F" if kind == "F" else "B", number)
        takes.append(whole if whole in own else Action(stage + onward, "I", number))
    return takes
