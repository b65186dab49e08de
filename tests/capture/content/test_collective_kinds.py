"""Collectives that are alike have one kind, and what differs within a kind stays with its collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from dsexplore._internal.capture.collectives.groups import Group, Groups
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin, Redistribute
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.capture.content.collective_kinds import CollectiveKinds
from dsexplore._internal.capture.content.recorded_content import event_columns
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack import origins
from dsexplore._internal.capture.stack.stack_reading import StackReading
from dsexplore._internal.torch_internals.dtensor import mesh_without_groups

GROUP = Group("0", 2, (0, 1), "gloo", "", timing="work")
MESH = mesh_without_groups(torch.arange(2))
CODE = compile("1", "/elsewhere/train.py", "eval")
SENT = Message("all_reduce", 8, torch.float32, (2,))


def origin(offset: int = 0) -> Origin:
    return Origin("other", None, None, ((CODE, offset),))


def redistributed(before: Placement) -> Origin:
    """Return the origin of an all-gather of a DTensor."""
    return origin()._replace(redistribute=Redistribute("redistribute", (before,), (Replicate(),)))


ORIGIN = origin()
"""That of all calls of one line, as the recorder shares it."""


def issued(messages: Sequence[Message], start: int, end: int | None) -> Issued:
    return Issued("c10d::allreduce_", messages, GROUP, 0, ORIGIN, start=start, end=end)


def test_what_differs_by_time_alone_has_one_kind() -> None:
    messages = [SENT]
    found = CollectiveKinds([issued(messages, start, start + 3) for start in (5, 9, 40)])
    assert found.numbers == [0, 0, 0]
    assert found.columns["start"] == [5, 9, 40]
    assert found.columns["end"] == [8, 12, 43]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [SENT]},
        {"raw_op": "c10d::broadcast_"},
        {"group": None},
        {"rank": 1},
        {"is_async": True},
        {"failure": "failed: RuntimeError"},
        {"end": None},
        {"start": None, "end": None},
    ],
)
def test_what_differs_otherwise_has_another(change: dict[str, object]) -> None:
    one = issued([SENT], 1, 2)
    found = CollectiveKinds([one, replace(one, **change), one])  # type: ignore[arg-type]
    assert found.numbers == [0, 1, 0]
    assert [kind.state for kind in found.kinds] == [one.state, replace(one, **change).state]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"origin": origin(2)}, {"origin": redistributed(Shard(0))}, {"failure": "failed: RuntimeError", "end": None}],
)
def test_collectives_of_one_kind_may_have_several_origins(change: dict[str, object]) -> None:
    one = issued([SENT], 1, 2)
    other = replace(one, **change)  # type: ignore[arg-type]
    found = CollectiveKinds([one, other, one, other])
    assert found.origin_numbers == [0, 1, 0, 1]
    assert found.origins == [one, other]
    assert len(found.kinds) == 1 + ("failure" in change)
    table = event_columns(found, [], 1).table()
    assert table["cause"].to_list() == [one.cause_text, other.cause_text] * 2


def test_a_collective_without_messages_leaves_the_others_their_times() -> None:
    """There are as many messages as collectives, but not one of each."""
    table = event_columns(CollectiveKinds([issued([], 1, 2), issued([SENT, SENT], 3, 4)]), [1], 1).table()
    assert table.select("start", "end", "step", "seq").rows() == [(3, 4, 1, 0), (3, 4, 1, 1)]


def test_calls_of_one_line_share_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = Modules(lambda *_: None)
    made = origins.Origins(modules, Groups())

    def of(offset: int, before: Placement | None = None) -> Origin:
        reading = StackReading(1, modules, modules.own.calls, -1, "other")
        reading.sources = ((CODE, offset),)
        if before is not None:
            reading.before, reading.after = (DTensorSpec(MESH, (each,)) for each in (before, Replicate()))
        one = replace(issued([SENT], 1, 2), origin=made.of(reading))
        made.share_soon(one)
        made.share()
        return one.origin

    assert of(0) is of(0)
    assert of(0) == origin(0)
    assert of(2) == origin(2)
    assert of(0, Shard(0)) is of(0, Shard(0))
    assert of(0, Shard(0)) == redistributed(Shard(0))
    assert of(0, Shard(1)) == redistributed(Shard(1))
    assert of(2, Shard(1)).redistribute is of(0, Shard(1)).redistribute
    monkeypatch.setattr(origins, "_CACHE_SIZE", 2)
    assert of(4) == origin(4)  # all others are forgotten: a program that makes code as it runs may have any number
    assert len(made._by_content) == 1
    assert not made._redistributes


def test_origins_are_shared_before_many_wait() -> None:
    """Recordings of any length have hardly more origins than the program has lines."""
    modules = Modules(lambda *_: None)
    made = origins.Origins(modules, Groups())
    every = [replace(issued([SENT], 1, 2), origin=made.of(StackReading(1, modules, modules.own.calls, -1, "other")))
             for _ in range(150)]  # fmt: skip
    for one in every:
        made.share_soon(one)
    assert len({id(one.origin) for one in every[:100]}) == 1
    made.share()
    assert len({id(one.origin) for one in every}) == 1
