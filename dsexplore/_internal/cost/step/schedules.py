"""When the stages of a pipeline compute, and how long each waits for its neighbors (the bubble).

A schedule is a list of actions per rank of the pipeline. An action is a forward, a backward, or half of a backward, of
one stage and one microbatch. torch's schedules that hold such lists are recorded with them. GPipe and 1F1B hold none:
their lists are built here, in the order of ``Schedule1F1B._step_microbatches``. An action begins when its rank is free
and its inputs have arrived.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsexplore._internal.errors import UsageError

_ACTION = re.compile(r"(?<![A-Z_\d])(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """One action: ``F`` forward, ``B`` backward, ``I`` backward to the input, ``W`` backward to the weights."""

    stage: int
    kind: Literal["F", "B", "I", "W"]
    microbatch: int


class ScheduledAction(NamedTuple):
    """An action with its time in seconds, from the start of the first one."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule.

    Attributes:
        name: of the class in torch.
        stages: number of stages of the pipeline.
        microbatches: number of microbatches of a step.
        order: actions of each rank of the pipeline.
    """

    name: str
    stages: int
    microbatches: int
    order: tuple[tuple[Action, ...], ...]

    @property
    def stages_per_rank(self) -> int:
        """Number of stages of each rank."""
        return self.stages // len(self.order)


def read_schedule(text: str) -> Schedule | None:
    """Parse `TraceInfo.schedule`; None if the trace has none.

    Raises:
        UsageError: an unknown schedule without a list of actions.
    """
    if not text:
        return None
    data = json.loads(text)
    name, stages, microbatches = data["schedule"], data["stages"], data["microbatches"]
    order: tuple[tuple[Action, ...], ...]
    if name == "ScheduleGPipe":
        order = tuple(gpipe(stage, microbatches) for stage in range(stages))
    elif name == "Schedule1F1B":  # torch's own list of it numbers the microbatches of later stages from 1
        order = tuple(one_forward_one_backward(stage, stages, microbatches) for stage in range(stages))
    elif data["order"]:
        order = tuple(_parsed(data["order"][rank]) for rank in sorted(data["order"], key=int))
    else:
        raise UsageError(
            f"the actions of {name} are not known, so its bubble cannot be predicted: use a schedule of torch"
        )
    return Schedule(name, stages, microbatches, order)


def _parsed(text: str) -> tuple[Action, ...]:
    return tuple(Action(int(stage), kind, int(microbatch)) for stage, kind, microbatch in _ACTION.findall(text))


def gpipe(stage: int, microbatches: int) -> tuple[Action, ...]:
    """Return all forwards, then all backwards."""
    return tuple(Action(stage, kind, number) for kind in ("F", "B") for number in range(microbatches))


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Return forwards until the last stage has its first, then alternate backward and forward, then backwards."""
    ahead = min(microbatches, stages - stage)
    actions = [Action(stage, "F", number) for number in range(ahead)]
    for number in range(microbatches):
        actions.append(Action(stage, "B", number))
        if ahead + number < microbatches:
            actions.append(Action(stage, "F", ahead + number))
    return tuple(actions)


def interleaved_1f1b(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Return the actions of a rank with stages ``rank``, ``rank + ranks``, …: groups of microbatches, stage by stage.

    Args:
        rank: its index in the pipeline.
        ranks: number of ranks of the pipeline.
        stages_per_rank: number of stages of each rank.
        microbatches: of the step; if ``ranks`` does not divide them, the last group is smaller.
    """
    forwards, backwards = [], []
    for first in range(0, microbatches, ranks):
        group = range(first, min(first + ranks, microbatches))
        for part in range(stages_per_rank):
            forwards += [Action(rank + part * ranks, "F", number) for number in group]
            backwards += [Action(rank + (stages_per_rank - 1 - part) * ranks, "B", number) for number in group]
    ahead = min(2 * (ranks - rank - 1) + (stages_per_rank - 1) * ranks + 1, len(forwards))
    actions = forwards[:ahead]
    for number, backward in enumerate(backwards):
        actions.append(backward)
        actions += forwards[ahead + number : ahead + number + 1]
    return tuple(actions)


def place(
    schedule: Schedule, forward: Mapping[int, float], backward: Mapping[int, float], transfer: float
) -> list[ScheduledAction]:
    """Compute when each action runs.

    Args:
        schedule: whose actions.
        forward: seconds of one microbatch's forward, by stage.
        backward: seconds of one microbatch's backward, by stage.
        transfer: seconds that a message between two stages takes.

    Raises:
        UsageError: actions that wait for each other.
    """
    done: dict[Action, float] = {}
    ranks = {
        stage: rank for rank, actions in enumerate(schedule.order) for stage in {action.stage for action in actions}
    }
    waiting = [list(reversed(actions)) for actions in schedule.order]
    free = [0.0] * len(waiting)
    placed: list[ScheduledAction] = []
    while any(waiting):
        progressed = False
        for rank, actions in enumerate(waiting):
            while actions:
                ready = _ready(actions[-1], schedule, done, ranks, transfer)
                if ready is None:
                    break
                action = actions.pop()
                start = max(free[rank], ready)
                free[rank] = done[action] = start + _seconds(action, forward, backward)
                placed.append(ScheduledAction(rank, action, start, free[rank]))
                progressed = True
        if not progressed:
            raise UsageError(f"the actions of {schedule.name} wait for each other: its order cannot run")
    return placed


def _seconds(action: Action, forward: Mapping[int, float], backward: Mapping[int, float]) -> float:
    if action.kind == "F":
        return forward[action.stage]
    return backward[action.stage] * (1.0 if action.kind == "B" else 0.5)


def _ready(
    action: Action, schedule: Schedule, done: Mapping[Action, float], ranks: Mapping[int, int], transfer: float
) -> float | None:
    """Return the time in seconds at which all inputs of an action have arrived; None while that is unknown."""
    stage, kind, number = action
    needed: list[tuple[Action, bool]] = []
    if kind == "F" and stage > 0:
        needed.append((Action(stage - 1, "F", number), ranks.get(stage - 1) != ranks[stage]))
    elif kind in ("B", "I"):
        needed.append((Action(stage, "F", number), False))
        if stage < schedule.stages - 1:
            whole = Action(stage + 1, "B", number)
            later = whole if any(whole in actions for actions in schedule.order) else Action(stage + 1, "I", number)
            needed.append((later, ranks.get(stage + 1) != ranks[stage]))
    elif kind == "W":
        needed.append((Action(stage, "I", number), False))
    times = []
    for dependency, travels in needed:
        if dependency not in done:
            return None
        times.append(done[dependency] + (transfer if travels else 0.0))
    return max(times, default=0.0)
