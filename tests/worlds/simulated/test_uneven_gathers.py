"""Gathers of parts that have different shapes on different ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dsexplore

SHAPES = [(6, 4), (2, 4), (), (3,)]
BYTES = 4 * (24 + 8 + 1 + 3)


def parts(device: str = "cpu") -> list[torch.Tensor]:
    """A tensor of each rank of four, filled with the rank's number and one."""
    return [torch.full(shape, rank + 1.0, device=device) for rank, shape in enumerate(SHAPES)]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("rank", range(4))
def test_a_gather_of_any_shapes_is_one_all_gather_of_them_all(rank: int, fake: bool) -> None:
    with dsexplore.simulate(4, rank=rank, fake=fake), dsexplore.commtrace() as trace:
        gathered = parts()
        work = dist.all_gather(gathered, gathered[rank], async_op=True)
        work.wait()
        assert [tuple(each.shape) for each in gathered] == SHAPES
        if not fake:
            assert {value.item() for each in gathered for value in each.flatten()} == {rank + 1.0}
            assert [each.shape for each in work.get_future().wait()[0]] == [each.shape for each in gathered]
    assert trace.events["op"].to_list() == ["all_gather"]
    assert trace.events["message_bytes"].to_list() == [BYTES]


def test_a_part_without_elements_is_gathered() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        gathered = [torch.ones(0), torch.ones(3)]
        dist.all_gather(gathered, gathered[0])
    assert gathered[1].tolist() == [0, 0, 0]
    assert trace.events["message_bytes"].to_list() == [12]


def test_gloo_takes_parts_of_one_shape() -> None:
    with dsexplore.simulate(4, target="cpu"):
        gathered = parts()
        with pytest.raises(RuntimeError, match=r"gloo takes parts of one shape, and tensor 1 .* is \(2, 4\) where"):
            dist.all_gather(gathered, gathered[0])


def test_a_list_of_another_length_than_the_group_is_named() -> None:
    with dsexplore.simulate(2):
        gathered = parts()
        with pytest.raises(RuntimeError, match="the list has 4 tensors, and the group 2 ranks"):
            dist.all_gather(gathered, gathered[0])
