"""Collectives that are alike have one origin between them, however often a program issues them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

import dsexplore
from dsexplore.capture import origins
from dsexplore.capture.groups import Groups
from dsexplore.capture.issued_collective import Origin
from dsexplore.capture.modules import Modules
from dsexplore.capture.recorder_in_use import in_use
from dsexplore.capture.recording import Recording
from dsexplore.capture.stack_reading import StackReading

CODE = compile("1", "/elsewhere/train.py", "eval")
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def origin(offset: int) -> Origin:
    return Origin("other", None, None, ((CODE, offset),))


def test_calls_of_one_line_share_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = Modules(lambda *_: None)
    made = origins.Origins(modules, Groups())

    def of(offset: int) -> Origin:
        reading = StackReading(1, modules, modules.own.calls, -1, "other")
        reading.sources = ((CODE, offset),)
        return made.of(reading)

    assert of(0) is of(0)
    assert of(0) == origin(0)
    assert of(2) == origin(2)
    monkeypatch.setattr(origins, "_MOST_KNOWN", 2)
    assert of(4) == origin(4)  # all others are forgotten: a program that makes code as it runs may have any number
    assert len(made._known) == 1


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with dsexplore.simulate(mesh="dp=2,tp=4") as mesh:
        yield mesh


def redistribute(meshes: Iterable[DeviceMesh], *changes: tuple[Placement, Placement]) -> list[Origin]:
    """The origins of redistributes that one line asks for, each change once on each mesh."""
    recording = Recording(stack_depth=1, simulated=True, mesh="")
    recorder = in_use()
    recorder.open(recording)
    try:
        for mesh in meshes:
            for before, after in changes:
                tensor = DTensor.from_local(torch.ones(8, 8), mesh, [before], run_check=False)
                tensor.redistribute(mesh, [after])
    finally:
        recorder.close(recording)
    return [issued.origin for issued in recording.issued]


def test_redistributes_of_one_line_share_an_origin(mesh: DeviceMesh) -> None:
    first, second, third = redistribute([mesh["tp"]], (S0, R), (S0, R), (S0, R))
    assert first is second is third
    assert str(first.redistribute) == "redistribute S(0)→R"


def test_redistributes_of_other_placements_have_an_origin_of_their_own(mesh: DeviceMesh) -> None:
    found = redistribute([mesh["tp"]], (S0, R), (S1, R), (S0, S1), (S0, R))
    assert [str(one.redistribute) for one in found] == [
        "redistribute S(0)→R",
        "redistribute S(1)→R",
        "redistribute S(0)→S(1)",
        "redistribute S(0)→R",
    ]


def test_a_redistribute_on_another_mesh_has_an_origin_of_its_own(mesh: DeviceMesh) -> None:
    """Its mesh is remembered then, too, as its axes name the groups."""
    one, other = redistribute([mesh["dp"], mesh["tp"]], (S0, R))
    assert one == other
    assert one is not other
