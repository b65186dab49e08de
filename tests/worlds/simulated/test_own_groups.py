"""Meshes create the groups of the simulated rank only, with the numbers that torch gives them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.simulated import own_groups

SHARES_GROUP_OF_ALL = torch_at_least("2.11")
"""torch 2.9 makes a group of its own for an axis of all ranks."""
ONE_BY_ONE = pytest.mark.skipif(not torch_at_least("2.11"), reason="torch 2.9 makes all groups of an axis at once")


def number(name: str) -> int:
    return int(name.rsplit(" ", 1)[-1])


@pytest.mark.parametrize(("rank", "shape"), list(product((0, 5, 11), ((3, 4), (2, 2, 3), (1, 12), (2, 1, 6)))))
def test_groups_have_torchs_ranks_and_numbers(rank: int, shape: tuple[int, ...]) -> None:
    with dsexplore.simulate(world_size=12, rank=rank):
        before = number(dist.new_group([0, rank] if rank else [0, 1]).group_name)
        mesh = init_device_mesh("cpu", shape)
        table, expected, counted = torch.arange(12).view(shape), [], before + 1
        for axis, size in enumerate(shape):
            groups = table.movedim(axis, -1).reshape(-1, size).tolist()
            own = next(index for index, ranks in enumerate(groups) if rank in ranks)
            is_all = size == 12 and SHARES_GROUP_OF_ALL
            expected.append((0 if is_all else counted + own, groups[own]))
            counted += 0 if is_all else len(groups)
        found = [(number(group.group_name), dist.get_process_group_ranks(group)) for group in mesh.get_all_groups()]
        assert found == expected
        after = dist.new_group([0, rank] if rank else [0, 1])
        assert number(after.group_name) == counted


def test_a_rank_outside_of_a_mesh_has_none_of_its_groups() -> None:
    with dsexplore.simulate(world_size=8, rank=6):
        before = number(dist.new_group([0, 6]).group_name)
        mesh = DeviceMesh("cpu", [[5, 1], [0, 3]], mesh_dim_names=("a", "b"))
        assert mesh.get_coordinate() is None
        assert number(dist.new_group([0, 6]).group_name) == before + 1 + 4


@ONE_BY_ONE
def test_few_groups_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []
    real = device_mesh.new_group

    def new_group(**kwargs: Any) -> Any:
        made.append(kwargs["ranks"])
        return real(**kwargs)

    monkeypatch.setattr(device_mesh, "new_group", new_group)
    with dsexplore.simulate(world_size=16_384, rank=6161):
        before = number(dist.new_group([0, 6161]).group_name)
        init_device_mesh("cpu", (16, 128, 8))
        after = number(dist.new_group([0, 6161]).group_name)
    assert [len(ranks) for ranks in made] == [16, 128, 8]
    assert f": {after - before - 1:,} for pp=16 × dp=128 × tp=8" in str(own_groups.__doc__)


@ONE_BY_ONE
def test_a_torch_that_makes_groups_in_another_way_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = DeviceMesh._init_one_process_group

    def other(layout: Any, *args: Any, **kwargs: Any) -> Any:
        return make(layout, *args, **kwargs)

    monkeypatch.setattr(DeviceMesh, "_init_one_process_group", staticmethod(other))
    with dsexplore.simulate(world_size=12, rank=5):
        assert DeviceMesh._init_one_process_group is other
        assert dist.get_process_group_ranks(init_device_mesh("cpu", (3, 4)).get_group(1)) == [4, 5, 6, 7]
