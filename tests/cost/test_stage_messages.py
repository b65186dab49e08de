"""The messages of a pipeline's actions: whose they are, and that what is picked among stages is a trace of them.

Modules: ``cost/step/predicted_timeline.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

import dsexplore
from dsexplore._internal.cost.step.predicted_timeline import messages_of_actions
from dsexplore._internal.cost.step.schedules import read_schedule
from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.causes import PIPELINE_SCHEDULE
from dsexplore._internal.trace.trace import Trace

MICROBATCHES = 4
SCHEDULES: dict[str, tuple[Callable[..., Any], int, int]] = {
    # name: (schedule, ranks, stages on each rank)
    "1F1B": (Schedule1F1B, 4, 1),
    "GPipe": (ScheduleGPipe, 3, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2, 2),
    "zero bubble": (ScheduleInterleavedZeroBubble, 2, 2),
    "V": (ScheduleZBVZeroBubble, 2, 2),
}


def record(name: str, steps: int = 1) -> Trace:
    """Return all ranks of a pipeline of linear layers."""
    schedule, ranks, each = SCHEDULES[name]
    traces = []
    for rank in range(ranks):
        own = [rank, 2 * ranks - 1 - rank] if name == "V" else [rank + ranks * part for part in range(each)]
        with dsexplore.simulate(mesh=f"pp={ranks}", rank=rank) as mesh, dsexplore.commtrace(costs=True) as trace:
            example = (torch.ones(2, 8, requires_grad=True),)
            stages = [
                PipelineStage(
                    nn.Linear(8, 8), one, ranks * each, torch.device("cpu"), example, example, group=mesh.get_group()
                )
                for one in own
            ]
            running = schedule(stages if each > 1 else stages[0], MICROBATCHES, loss_fn=nn.MSELoss())
            whole = torch.ones(2 * MICROBATCHES, 8)
            for _ in range(steps):
                running.step(*((whole,) if 0 in own else ()), **({"target": whole} if ranks * each - 1 in own else {}))
                trace.step()
        traces.append(trace)
    return Trace.merge(traces)


SENDS_TO_ITSELF = not torch_at_least("2.10")
"""A rank of torch 2.9 with two neighboring stages sends from one to the other."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Trace]:
    return {name: record(name) for name in SCHEDULES}


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_action_receives_from_the_stage_before_it_and_sends_to_the_one_behind(
    recorded: dict[str, Trace], name: str
) -> None:
    trace = recorded[name]
    schedule = read_schedule(trace.info.schedule)
    assert schedule is not None
    rank_of = {one.stage: rank for rank, actions in enumerate(schedule.order) for one in actions}
    wanted: Counter[Any] = Counter()
    for rank, actions in enumerate(schedule.order):
        for one in actions:
            onward = {"F": 1, "B": -1, "I": -1}.get(one.kind, 0)
            for neighbor, op in ((one.stage - onward, "recv"), (one.stage + onward, "send")):
                if onward and neighbor in rank_of and (SENDS_TO_ITSELF or rank_of[neighbor] != rank):
                    wanted[one, rank, op, rank_of[neighbor]] += 1
    found = messages_of_actions(schedule, trace.tables)
    of_event = trace.events.select("rank", "op", "peer").rows()
    assert Counter((action, *of_event[row]) for action, row in found) == wanted


def test_messages_whose_number_does_not_fit_belong_to_no_action(recorded: dict[str, Trace]) -> None:
    trace = recorded["1F1B"]
    schedule = read_schedule(trace.info.schedule)
    assert schedule is not None
    sent = {"rank": 0, "op": "send", "cause": PIPELINE_SCHEDULE}
    events = trace.events.with_row_index("row")
    lost = events.filter(**sent)["row"][0]
    fewer = replace(trace.tables, events=events.filter(pl.col("row") != lost).drop("row"))
    own = set(fewer.events.with_row_index("row").filter(**sent)["row"])
    found = {row for _, row in messages_of_actions(schedule, fewer)}
    assert found
    assert not found & own


def test_a_range_and_a_box_of_stages_are_traces(recorded: dict[str, Trace]) -> None:
    timeline = recorded["1F1B"].timeline(lanes="stage")
    first = timeline.between(0, 1)  # the first stage's first forward alone
    assert first.events.select("rank", "op", "peer").rows() == [(0, "send", 1)]
    explorer = timeline.explore()
    explorer.select(0, 1)
    assert explorer.selection.events.equals(first.events)
    assert explorer.widget.brushed["status"] == "1 message from 0 to 1: 64 B on the wire (64 B in messages)"
    drawn = explorer.widget.timeline
    box = next(i for i, text in enumerate(drawn["texts"]) if text.startswith("backward of microbatch 2 in stage 1"))
    assert " · sends 1 message, 64 B · " in drawn["texts"][box]
    assert " · receives 1 message, 64 B · " in drawn["texts"][box]
    explorer._on_event({"type": "pick", "box": box})
    picked = explorer.selection.events.select("rank", "op", "peer", "phase").rows()
    assert sorted(picked) == [(1, "recv", 2, "backward"), (1, "send", 0, "backward")]


def test_an_action_has_its_messages_of_all_steps() -> None:
    timeline = record("GPipe", steps=2).timeline(lanes="stage")
    assert timeline.between(0, 1).events.select("rank", "step", "op").rows() == [(0, 0, "send"), (0, 1, "send")]


def test_without_the_schedule_it_says_what_to_record(recorded: dict[str, Trace]) -> None:
    tables = recorded["1F1B"].tables
    unknown = Trace(replace(tables, info=replace(tables.info, schedule="")))
    with pytest.raises(UsageError, match="record it with costs=True"):
        unknown.timeline(lanes="stage")


def test_every_letter_on_a_box_is_explained(recorded: dict[str, Trace]) -> None:
    for trace in recorded.values():
        timeline = trace.timeline(lanes="stage")
        letters = {label[0] for label in timeline.spans["label"] if label}
        explained = timeline.note.rpartition("; ")[2].removesuffix(" of the microbatch with this number").split(", ")
        assert {part[0] for part in explained} == letters


def test_both_keys_list_a_pipelines_gaps_last(recorded: dict[str, Trace]) -> None:
    timeline = recorded["1F1B"].timeline(lanes="stage")
    names = ["forward", "backward", "waiting"]
    drawn = timeline.explore().widget.timeline
    assert [drawn["marks"][place][0] for place in drawn["key"]] == names
    html = timeline._repr_mimebundle_()["text/html"]
    assert re.findall(r'<span class="named"><span[^>]*>[^<]*</span> ([^<]*)', html) == names


def test_the_timeline_of_a_pipelines_ranks_concludes_how_long_its_stages_wait(recorded: dict[str, Trace]) -> None:
    timeline = recorded["1F1B"].timeline()
    shown = timeline._repr_mimebundle_()
    said = recorded["1F1B"].timeline(lanes="stage").verdict()
    assert timeline.order == "rounds"
    assert said in shown["text/plain"]
    assert said in unescape(shown["text/html"]).replace("\N{NO-BREAK SPACE}", " ")
    assert ">F0</b></i>" in shown["text/html"]  # the schedule, and below it what the ranks send
    assert "In what order the ranks send" in shown["text/html"]
