"""Predicted steps as timelines: the streams of one rank, and the stages of a pipeline with their microbatches.

Without hardware the stages of a pipeline are in slots: a forward takes one, a backward two, a message no time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import polars as pl

from dsexplore._internal.analysis.step_timeline import HELD, SPANS, TIES, WAITING, Order, Sizes, Timeline
from dsexplore._internal.cost.cluster import HardwareLike
from dsexplore._internal.cost.step.prediction import Prediction, predict
from dsexplore._internal.cost.step.schedules import Action, Schedule, ScheduledAction, place, read_schedule
from dsexplore._internal.cost.step.stream_simulation import COMPUTE_STREAM, GAPS
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.causes import PIPELINE_SCHEDULE
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_seconds, format_share

_MESSAGE_KEYS = ("rank", "step", "op", "phase", "group", "peer")
"""Messages that agree in these columns arrive in the order in which the sender's actions send them."""
_LEAST_SHARE = 1e-9
"""Share of a step below which a difference of its parts is rounding."""


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
    result: list[tuple[Action, int]] = []
    for key, part in messages.sort("seq").partition_by(_MESSAGE_KEYS, as_dict=True, maintain_order=True).items():
        rank, _, op, phase, group, peer = key
        stage, other = (pipelines[group].index(per_action) for per_action in (rank, peer))
        actions = _sending(schedule, stage, other, phase) if op == "send" else _receiving(schedule, other, stage, phase)
        per_action, remainder = divmod(part.height, len(actions)) if actions else (0, part.height)
        if not remainder:
            result += [(actions[i // per_action], row) for i, row in enumerate(part["row"])]
    return result


def _sending(schedule: Schedule, sender: int, receiver: int, phase: str) -> list[Action]:
    """Return the actions of one rank whose results go to another, in execution order."""
    onward, kinds = (1, "F") if phase == "forward" else (-1, "BI")
    there = {action.stage for action in schedule.order[receiver]}
    return [action for action in schedule.order[sender] if action.kind in kinds and action.stage + onward in there]


def _receiving(schedule: Schedule, sender: int, receiver: int, phase: str) -> list[Action]:
    """Return the actions of the receiver that consume what `_sending` sends, in its order."""
    onward, actions = 1 if phase == "forward" else -1, set(schedule.order[receiver])
    takes = []
    for stage, kind, number in _sending(schedule, sender, receiver, phase):
        whole = Action(stage + onward, "F" if kind == "F" else "B", number)
        takes.append(whole if whole in actions else Action(stage + onward, "I", number))
    return takes


LANES = ("stream", "stage")
_COLORS = ("phase", "axis", "op")
_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
_WORDS = {"F": "forward", "B": "backward", "I": "backward to the input", "W": "backward to the weights"}


def predicted_timeline(
    tables: Tables,
    hardware: HardwareLike | None,
    lanes: str | None = None,
    color_by: str | None = None,
    sizes: Sizes = "wire",
) -> Timeline:
    """Build the timeline of a predicted step, or of a pipeline's schedule; see `Trace.timeline`.

    Raises:
        UsageError: unknown lanes, color_by, sizes or hardware; stages of a step without a pipeline; a trace without
            costs.
    """
    if lanes not in (None, *LANES):
        raise UsageError(f"timeline(lanes={lanes!r}, hardware=…): predicted lanes are {', '.join(LANES)}")
    if sizes not in get_args(Sizes):
        raise UsageError(f"timeline(sizes={sizes!r}): no such sizes; they are {', '.join(get_args(Sizes))}")
    if lanes == "stage":
        if color_by not in (None, "phase"):
            raise UsageError(f"timeline(lanes='stage', color_by={color_by!r}): stages are colored by phase")
        return stage_timeline(tables, hardware)
    if color_by not in (None, *_COLORS):
        raise UsageError(f"timeline(color_by={color_by!r}, hardware=…): predicted colors are {', '.join(_COLORS)}")
    assert hardware is not None
    return stream_timeline(predict(tables, hardware), color_by or "phase", sizes)


def stream_timeline(prediction: Prediction, color_by: str = "phase", sizes: Sizes = "wire") -> Timeline:
    """Build the timeline of the slowest rank's streams: one lane for kernels, and one per stream of collectives.

    Args:
        prediction: of the step.
        color_by: what the colors stand for: phase, axis or op; gaps of the compute stream are `WAITING`.
        sizes: which bytes the collectives have.
    """
    events = prediction.tables.events
    of_rank = events.with_row_index("row").filter(pl.col("rank") == prediction.rank)
    sent = {seq: (row, size) for seq, row, size in of_rank.select("seq", "row", f"{sizes}_bytes").iter_rows()}
    rows: list[dict[str, Any]] = []
    for span in prediction.spans:
        gap = span.kind in GAPS
        row, size = sent.get(span.seq, (None, None))
        key = {"phase": span.phase, "axis": span.axis or NO_AXIS, "op": span.op or "kernels"}[color_by]
        waits = f"waits for {span.op}" if span.op else "waits for the CPU, which launches kernels"
        rows.append(
            {
                "lane": "compute stream" if span.stream == COMPUTE_STREAM else span.stream,
                "begin": span.start,
                "end": span.end,
                "mark": WAITING if gap else key,
                "name": waits if gap else span.op or f"{span.kind}, {span.module or 'outside any module'}",
                "bytes": size,
                "row": row,
            }
        )
    spans = pl.DataFrame(rows, schema=SPANS).sort("begin", maintain_order=True)
    lanes = tuple(sorted(set(spans["lane"]), key=lambda lane: (lane != "compute stream", lane)))
    place_of = {mark: i for i, mark in enumerate([*schema.PHASES, "kernels"])}
    marks = sorted(set(spans["mark"]) - {WAITING}, key=lambda mark: (place_of.get(mark, len(place_of)), mark))
    note = f"predicted on {prediction.cluster.title}, rank {prediction.rank}: {prediction.step}"
    marks += [WAITING] if spans["mark"].is_in([WAITING]).any() else []
    return Timeline(
        spans,
        lanes,
        tuple(marks),
        "predicted",
        color_by,
        prediction.tables,
        sizes,
        conclusion=_conclusion(prediction),
        note=note,
    )


def _conclusion(prediction: Prediction) -> str:
    """Return a sentence on how long the GPU does not compute in a step, and why, with the seconds of the prediction."""
    step, bubble = prediction.step.expected, prediction.bubble.expected
    parts = {
        "is idle, waiting for the CPU that launches kernels": prediction.idle.expected - bubble,
        "is idle, waiting for other stages": bubble,
        "waits for collectives (exposed communication)": prediction.exposed.expected,
    }
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    words = [
        f"{what}: {format_seconds(seconds)} ({format_share(seconds, step)})"
        for what, seconds in largest_first
        if seconds > _LEAST_SHARE * step
    ]
    if not words:
        return "Compute fills the step."
    return f"In a step of {format_seconds(step)} the GPU {'; it '.join(words)}."


def stage_timeline(tables: Tables, hardware: HardwareLike | None = None) -> Timeline:
    """Build the timeline of a pipeline: the microbatches that each stage computes, and its waits for other stages.

    Args:
        tables: the trace.
        hardware: the one that times are predicted on; None for slots.

    Raises:
        UsageError: the step has no pipeline.
    """
    schedule = read_schedule(tables.info.schedule)
    if schedule is None and PIPELINE_SCHEDULE in tables.events["cause"]:
        raise UsageError("timeline(lanes='stage'): the schedule is not in this trace: record it with costs=True")
    if schedule is None:
        raise UsageError("timeline(lanes='stage'): this step has no pipeline; give other lanes, such as 'rank'")
    if hardware is not None:
        prediction = predict(tables, hardware)
        return timeline_of_stages(schedule, prediction.stages(), "predicted", tables, prediction.expected_step)
    return timeline_of_stages(schedule, _slot_actions(schedule), "slots", tables)


def timeline_of_stages(
    schedule: Schedule, placed: list[ScheduledAction], order: Order, tables: Tables, step: float | None = None
) -> Timeline:
    """Build the timeline of a pipeline's actions.

    Args:
        schedule: of the pipeline.
        placed: its actions, in seconds or slots.
        order: which of the two.
        tables: the trace.
        step: seconds of the whole step, which has more than the schedule's actions; None in slots.
    """
    end = max(action.end for action in placed)
    lanes = tuple(_lane(schedule, rank) for rank in range(len(schedule.order)))
    rows, waited = [], 0.0
    for rank, lane in enumerate(lanes):
        of_rank = sorted((action for action in placed if action.rank == rank), key=lambda action: action.start)
        gaps = _gaps(of_rank, end)
        waited += sum(last - first for first, last in gaps)
        rows += [_span(lane, first, last, WAITING, "waits for other stages") for first, last in gaps]
        rows += [_action_span(lane, action) for action in of_rank]
    spans = pl.DataFrame(rows, schema=SPANS).sort("begin", maintain_order=True)
    marks = (WAITING, *dict.fromkeys(_PHASES[action.action.kind] for action in placed))
    share = waited / (end * len(lanes)) if end else 0.0
    kinds = {action.action.kind for action in placed}
    letters = ", ".join(f"{kind} {word}" for kind, word in _WORDS.items() if kind in kinds)
    whole = "the time" if step is None else f"the schedule's {format_seconds(end)}"
    more = "" if step is None else f" With what comes before and after it, a step takes {format_seconds(step)}."
    conclusion = f"Stages wait {format_share(share, 1)} of {whole}, the pipeline's bubble ({schedule.name}).{more}"
    note = f"{letters} of the microbatch with this number"
    ties, held = _ties(placed, lanes), _held(schedule, spans, tables)
    return Timeline(spans, lanes, marks, order, "phase", tables, ties=ties, conclusion=conclusion, note=note, held=held)


def _held(schedule: Schedule, spans: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return the messages of each action. Columns: `HELD`."""
    place_of = {name: i for i, name in enumerate(spans["name"])}
    rows = [(place_of[_name(action)], row) for action, row in messages_of_actions(schedule, tables)]
    return pl.DataFrame(rows, schema=HELD, orient="row")


def _slot_actions(schedule: Schedule) -> list[ScheduledAction]:
    stages = range(schedule.stages)
    return place(schedule, dict.fromkeys(stages, 1.0), dict.fromkeys(stages, 2.0), 0.0)


def _lane(schedule: Schedule, rank: int) -> str:
    stages = sorted({action.stage for action in schedule.order[rank]})
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"


def _gaps(actions: list[ScheduledAction], end: float) -> list[tuple[float, float]]:
    """Return the idle intervals of a rank, between the first and last action of any rank."""
    edges = [0.0, *(edge for action in actions for edge in (action.start, action.end)), end]
    return [(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if last - first > 1e-9 * end]


def _span(lane: str, begin: float, end: float, mark: str, name: str, label: str = "") -> dict[str, Any]:
    return {"lane": lane, "begin": begin, "end": end, "mark": mark, "name": name, "label": label}


def _action_span(lane: str, placed: ScheduledAction) -> dict[str, Any]:
    _, kind, number = placed.action
    return _span(
        lane, begin=placed.start, end=placed.end, mark=_PHASES[kind], name=_name(placed.action), label=f"{kind}{number}"
    )


def _name(action: Action) -> str:
    return f"{_WORDS[action.kind]} of microbatch {action.microbatch} in stage {action.stage}"


def _ties(placed: list[ScheduledAction], lanes: tuple[str, ...]) -> pl.DataFrame:
    """Return activations sent to the next stage's forward, and gradients sent to the previous stage's backward."""
    at = {action.action: action for action in placed}
    onward: dict[str, int] = defaultdict(int, {"F": 1, "B": -1, "I": -1})
    rows = []
    for action in placed:
        stage, kind, number = action.action
        later = at.get(Action(stage + onward[kind], kind, number)) if onward[kind] else None
        if later is not None and later.rank != action.rank:
            rows.append((lanes[action.rank], action.end, lanes[later.rank], later.start, None, None))
    return pl.DataFrame(rows, schema=TIES, orient="row")
