"""One remark names the lines that read values of other ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.worlds.simulated.received_values import RECEIVED


def received(way: str) -> torch.Tensor:
    values = torch.ones(8)
    if way == "recv":
        dist.recv(values, 1)
    elif way == "broadcast":
        dist.broadcast(values, 1)
    elif way == "all_gather":
        dist.all_gather([values, *(torch.ones(8) for _ in range(3))], torch.ones(8))
    else:
        dist.scatter(values, src=1)
    return values


READS: list[Callable[[torch.Tensor], object]] = [
    lambda values: values[0].item(),
    lambda values: values.tolist(),
    lambda values: bool(values[0] > 0.5),
    lambda values: int(values.view(2, 4)[1, 1]),
    lambda values: "yes" if values[0] == 1 else "no",
]


@pytest.mark.parametrize(("way", "kept"), [("recv", False), ("scatter", False), ("broadcast", True)])
def test_what_only_another_rank_sends_is_zeros(way: str, kept: bool) -> None:
    with dsexplore.simulate(4), warnings.catch_warnings(action="ignore"):
        assert received(way).tolist() == [float(kept)] * 8
        dist.scatter(values := torch.ones(2), [torch.full((2,), 3.0) for _ in range(4)], src=0)
        assert values.tolist() == [3, 3]  # this rank's own


def test_received_gradients_of_a_leaf_and_inference_tensors() -> None:
    with dsexplore.simulate(4), torch.inference_mode():
        dist.recv(values := torch.ones(2), 1)
    assert values.sum() == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("way", ["recv", "broadcast", "all_gather", "scatter"])
def test_is_said_for_each_way_of_receiving(way: str, device: str) -> None:
    with dsexplore.simulate(4, hardware="h100" if device == "cuda" else None), dsexplore.commtrace() as trace:
        values = received(way)
        with pytest.warns(RuntimeWarning, match="a value that another rank sends was read"):
            values[0].item()
    (note,) = [note for note in trace.info.notes if note.startswith(RECEIVED)]
    assert "test_received_values.py:" in note


@pytest.mark.parametrize("read", READS)
def test_is_said_for_each_way_of_reading(read: Callable[[torch.Tensor], object]) -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        values = received("recv")
        with pytest.warns(RuntimeWarning, match="a value that another rank sends was read"):
            read(values)
            read(values)
    assert len([note for note in trace.info.notes if note.startswith(RECEIVED)]) == 1


def test_what_this_rank_sends_or_makes_is_its_own() -> None:
    with warnings.catch_warnings(), dsexplore.simulate(4):
        warnings.simplefilter("error")
        own = torch.ones(2)
        dist.broadcast(own, 0)
        dist.send(own, 1)
        other = received("recv")
        assert own[0].item() == 1
        assert bool(torch.ones(()) == 1)
        assert other.shape == (8,)
        del other
        assert [torch.ones(8)[0].item() for _ in range(20)] == [1.0] * 20  # memory that is used again


def test_nothing_is_left_of_it() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("item", "__bool__", "__eq__")}
    with dsexplore.simulate(4):
        assert torch.Tensor.item is not before["item"]
    assert {name: getattr(torch.Tensor, name) for name in before} == before
