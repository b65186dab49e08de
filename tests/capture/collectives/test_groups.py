"""A process group is named by the mesh axis that it is, never by that of another world."""

import gc
import sys

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsexplore
from dsexplore._internal.capture.collectives.groups import Groups
from dsexplore._internal.capture.record import record
from dsexplore._internal.mesh import mesh_text
from dsexplore._internal.worlds.simulate import simulate


def axis_of(group: dist.ProcessGroup | None) -> str:
    with record() as trace:
        dist.all_reduce(torch.ones(1), group=group)
    return str(trace.events["axis"].item())


def test_axes_of_a_mesh() -> None:
    with simulate(8, "dp_shard=2,tp=4") as mesh:
        assert axis_of(mesh["dp_shard"].get_group()) == "dp_shard"
        assert axis_of(mesh["tp"].get_group()) == "tp"
        assert mesh_text(mesh) == "dp_shard=2,tp=4"


def test_an_axis_that_spans_the_world_is_named_though_its_group_is_the_default_one() -> None:
    with simulate(4, "tp=4") as mesh:
        assert mesh.get_group() is dist.group.WORLD
        assert axis_of(None) == "tp"


def test_meshes_are_found_without_a_list_of_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold tuples that other threads are only just making, and those fail then."""
    with simulate(4, "tp=4"):
        monkeypatch.delattr(gc, "get_objects")
        assert axis_of(None) == "tp"


def test_a_flattened_axis_has_its_own_name() -> None:
    with simulate(8, "pp=2,dp=2,tp=2") as mesh:
        flat = mesh["dp", "tp"]._flatten()
        assert axis_of(flat.get_group()) == "dp_tp"


def test_a_group_outside_any_mesh_has_no_axis() -> None:
    with simulate(world_size=4):
        assert axis_of(dist.new_group([0, 3])) == ""


def test_a_mesh_of_an_earlier_group_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    names = []
    for axes in (("old",), None):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        try:
            if axes is not None:
                mesh = init_device_mesh("cpu", (4,), mesh_dim_names=axes)
            names.append((dist.group.WORLD.group_name, axis_of(None)))  # type: ignore[union-attr]
        finally:
            dist.destroy_process_group()
    assert mesh.ndim == 1  # still alive
    assert names == [("0", "old"), ("0", "")]


def test_a_mesh_with_names_counts_before_the_world_s_own_without() -> None:
    with simulate(world_size=4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        assert axis_of(mesh.get_group()) == "dp"
        assert axis_of(None) == "dp"  # torch makes no second group of all ranks


def test_an_unnamed_mesh_counts_its_dims() -> None:
    with simulate(world_size=8):
        mesh = init_device_mesh("cpu", (2, 4))
        assert axis_of(mesh.get_group(1)) == "dim_1"
        assert mesh_text(mesh) == "dim_0=2,dim_1=4"


def test_a_part_of_a_named_axis_is_that_axis() -> None:
    """FSDP2 with ``reshard_after_forward=2`` gathers in backward over pairs of the sharding axis."""
    with simulate(8, "replicate=2,shard=4") as mesh:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in model:
            fully_shard(layer, mesh=mesh["shard"], reshard_after_forward=2)
        with record() as trace:
            model(torch.ones(2, 8)).sum().backward()
    gathers = trace.events.filter(pl.col("op") == "all_gather").select("phase", "axis", "group_size").unique()
    assert sorted(gathers.rows()) == [("backward", "shard", 2), ("forward", "shard", 4)]


def test_handles_of_every_form_are_the_same_group() -> None:
    with simulate(4, "tp=4"):
        groups = Groups()
        group = dist.group.WORLD
        assert group is not None
        found = groups.find(group)
        assert groups.find(group.group_name) is found
        assert groups.find(group.boxed()) is found
        assert (found.size, found.ranks, found.backend) == (4, (0, 1, 2, 3), "fake")


def test_releasing_keeps_descriptions_but_no_group() -> None:
    with simulate(4, "tp=4") as mesh:
        groups = Groups()
        groups.find(dist.group.WORLD)
        groups.add_mesh(mesh)
        groups.described()
        groups.release()
    assert [group.axis for group in groups.described()] == ["tp"]


@pytest.mark.parametrize("size", [2, 16_384])
def test_ranks_of_a_subgroup(size: int) -> None:
    with simulate(size, f"dp={size // 2},tp=2") as mesh:
        with record() as trace:
            dist.all_reduce(torch.ones(1), group=mesh["tp"].get_group())
        assert trace.groups["ranks"].item().to_list() == [0, 1]
        assert trace.info.world_size == size
        assert trace.info.mesh == f"dp={size // 2},tp=2"


def test_a_slice_of_a_mesh_is_shown_as_the_whole_mesh() -> None:
    with simulate(world_size=8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        groups = Groups()
        groups.find(mesh.get_group("dp"))
        groups.add_mesh(mesh["dp"])
        assert [(group.axis, group.mesh) for group in groups.described()] == [("dp", "dp=2,tp=4")]


@pytest.mark.parametrize("of_all", [True, False])
def test_an_axis_outlives_a_mesh_that_has_died_before_its_group_is_used(of_all: bool) -> None:
    def group_of_mesh() -> dist.ProcessGroup:
        if of_all:
            return init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)).get_group()
        return DeviceMesh.from_group(dist.new_group([0, 2]), "cpu", mesh_dim_names=("shard",)).get_group()

    method = vars(DeviceMesh)["get_group"]
    with dsexplore.simulate(world_size=4), dsexplore.commtrace() as trace:
        group = group_of_mesh()
        gc.collect()
        dist.all_reduce(torch.ones(8), group=group)
    assert trace.events["axis"].to_list() == ["shard"]
    assert vars(DeviceMesh)["get_group"] is method


@pytest.mark.parametrize("kind", ["all ranks", "from_group"])
def test_an_axis_outlives_its_mesh(kind: str) -> None:
    def main() -> None:
        if kind == "all ranks":
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
        else:
            mesh = DeviceMesh.from_group(dist.new_group([0, 2]), "cpu", mesh_dim_names=("shard",))
        dist.all_reduce(torch.ones(8), group=mesh.get_group())

    with dsexplore.simulate(world_size=4), dsexplore.commtrace() as trace:
        main()
        gc.collect()
    assert trace.events["axis"].to_list() == ["shard"]
    size = 4 if kind == "all ranks" else 2
    assert trace.groups["mesh"].to_list() == [f"shard={size}"]
