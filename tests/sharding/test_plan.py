"""`dsexplore.sharding`: what it takes, what it refuses, and that real DTensors and models are read as they lie."""

from __future__ import annotations

import math
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.placement_text import Placement, read, read_all, short
from dsexplore._internal.sharding.joint_mesh import join
from dsexplore._internal.torch_internals.dtensor import mesh_without_groups
from dsexplore._internal.worlds.simulate import simulate
from dsexplore.sharding import Sharding
from tests.programs import printed

MESHES = {"dp=4": 4, "dp=2,tp=2": 4, "dp=2,cp=1,tp=3": 6}


def rows_by_rank(shown, name):
    frame = shown.to_frame()
    return {row["rank"]: row for row in frame.filter(frame["tensor"] == name).rows(named=True)}


def feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6), nn.LayerNorm(7))


def two_ways(mesh: DeviceMesh) -> nn.Module:
    model = parallelize_module(feed_forward(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_every_rank_of_a_simulated_world_has_the_local_shape_that_is_shown(mesh, placement):
    for rank in range(MESHES[mesh]):
        with simulate(mesh=mesh, rank=rank) as device_mesh:
            placements = [Shard(0)] + [placement] * (device_mesh.ndim - 1)
            tensor = distribute_tensor(torch.zeros(7, 5), device_mesh, placements, src_data_rank=None)
            row = rows_by_rank(dsexplore.sharding(tensor), "tensor")[rank]
            assert row["local_shape"] == list(tensor.to_local().shape)
            assert row["bytes"] == tensor.to_local().nbytes


@pytest.mark.parametrize("fake", [False, True])
def test_a_model_under_tp_and_fsdp_is_shown_on_all_its_axes_from_any_rank(fake):
    frames = []
    for rank in range(8):
        with simulate(mesh="dp=2,tp=4", rank=rank, fake=fake) as mesh:
            model = two_ways(mesh)
            shown = dsexplore.sharding(model)
            for name, parameter in model.named_parameters():
                assert rows_by_rank(shown, name)[rank]["local_shape"] == list(parameter.to_local().shape)
            frames.append(shown.to_frame())
            placements = dict(shown.by_tensor().select("tensor", "placements").iter_rows())
    assert all(frame.equals(frames[0]) for frame in frames)
    assert placements["0.weight"] == "_S(0, 4), S(0)"
    assert placements["3.weight"] == "S(0)"  # on dp alone, and still shown on every rank
    assert shown.mesh.axes == ("dp", "tp")


def test_axes_that_no_parameter_lies_on_are_left_out():
    with simulate(mesh="pp=2,dp=2,tp=2", rank=5) as mesh:
        shown = dsexplore.sharding(two_ways(mesh))
    assert str(shown.mesh) == "dp=2,tp=2"
    assert sorted(set(shown.to_frame()["rank"])) == [4, 5, 6, 7]


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("axes", [("dp", "tp"), ("tp", "dp")], ids=",".join)
def test_on_axes_that_no_mesh_has_the_ranks_are_those_beside_this_one(axes, rank):
    with simulate(mesh="pp=2,dp=2,tp=2", rank=rank) as mesh:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        for part, axis in zip(model, axes, strict=True):
            part.weight = nn.Parameter(distribute_tensor(part.weight.data, mesh[axis], [Shard(0)]))
        shown = dsexplore.sharding(model)
    stage = rank // 4 * 4
    assert sorted(set(shown.to_frame()["rank"])) == [*range(stage, stage + 4)]


unflattened = pytest.mark.skipif(not hasattr(DeviceMesh, "_unflatten"), reason="torch 2.9 cannot unflatten a mesh")


@unflattened
def test_meshes_that_split_the_same_ranks_in_two_ways():
    with simulate(mesh="world=8") as world:
        dense, sparse = world._unflatten(0, (2, 4), ("dp", "tp")), world._unflatten(0, (4, 2), ("efsdp", "ep"))
        model = nn.Sequential(nn.Linear(4, 16), nn.Linear(4, 9))
        for part, mesh in zip(model, (dense, sparse), strict=True):
            for name, parameter in list(part.named_parameters()):
                placed = distribute_tensor(parameter.data, mesh, [Shard(0), Shard(0)], src_data_rank=None)
                setattr(part, name, nn.Parameter(placed))
        shown = dsexplore.sharding(model)
    assert shown.mesh.size == 8
    for tensor, mesh in (("0.weight", "dp=2,tp=4"), ("1.weight", "efsdp=4,ep=2")):
        alone = dsexplore.sharding(next(t.shape for t in shown.tensors if t.name == tensor), "S(0), S(0)", mesh)
        assert {r: row["index"] for r, row in rows_by_rank(shown, tensor).items()} == {
            r: row["index"] for r, row in rows_by_rank(alone, "tensor").items()
        }


@unflattened
def test_sizes_without_a_common_grid_are_told_rank_by_rank():
    with simulate(mesh="world=12") as world:
        by_four, by_three = world._unflatten(0, (3, 4), ("a", "b")), world._unflatten(0, (4, 3), ("c", "d"))
        tensors = {
            "x": distribute_tensor(torch.zeros(8, 8), by_four, [Shard(0), Shard(1)], src_data_rank=None),
            "y": distribute_tensor(torch.zeros(8, 8), by_three, [Shard(0), Shard(1)], src_data_rank=None),
        }
        shown = dsexplore.sharding(tensors)
    assert shown.mesh.axes == ("rank",)
    for name, mesh in (("x", "a=3,b=4"), ("y", "c=4,d=3")):
        alone = dsexplore.sharding((8, 8), "S(0), S(1)", mesh)
        assert {r: row["ranges"] for r, row in rows_by_rank(shown, name).items()} == {
            r: row["ranges"] for r, row in rows_by_rank(alone, "tensor").items()
        }
    assert sum(row["ranks"] for row in shown.memory().rows(named=True)) == 12


def test_meshes_whose_ranks_have_no_order_in_common():
    def on_paper(ranks):
        return mesh_without_groups(torch.tensor(ranks), ("dp",))

    with pytest.raises(UsageError, match="show the tensors of one mesh at a time"):
        join([on_paper([0, 1, 2, 3]), on_paper([0, 1, 3, 2])])
    mesh, _ = join([on_paper([4, 5, 6, 7]), on_paper([4, 6])])
    assert mesh.block((0,) * len(mesh.shape), mesh.shape).tolist() == [4, 5, 6, 7]


def test_meshes_of_one_rank_each_are_one_rank():
    def alone(rank, name):
        return mesh_without_groups(torch.tensor([rank]), (name,))

    mesh, readings = join([alone(5, "dp"), alone(5, "tp")])
    assert (mesh.axes, mesh.shape, mesh.rank((0,))) == (("rank",), (1,), 5)
    assert [axis((0,)) for (axis,) in readings] == [0, 0]


def test_a_sharding_says_how_many_tensors_it_has():
    assert repr(dsexplore.sharding((4,), "S(0)", "dp=2")) == "<Sharding of 1 tensor, 16 B, on dp=2, 2 ranks>"
    assert repr(dsexplore.sharding(nn.Linear(2, 2), mesh="dp=2")) == "<Sharding of 2 tensors, 24 B, on dp=2, 2 ranks>"


@pytest.fixture
def local_world():
    """Eight ranks whose values are all true, in this process."""
    local = pytest.importorskip("torch.distributed._local_tensor", reason="torch 2.9 has no LocalTensorMode")
    excepthook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        with local.LocalTensorMode(8):
            yield init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


@pytest.mark.parametrize(
    "placements",
    [(Shard(0), Shard(1)), (Shard(0), Shard(0)), (Replicate(), Shard(1)), (Shard(1), Replicate())],
    ids=lambda placements: ",".join(map(str, placements)),
)
def test_true_values_of_all_ranks_are_those_of_the_ranges_shown(local_world, placements, by_ranges):
    whole = torch.arange(7 * 9).reshape(7, 9)
    tensor = distribute_tensor(whole, local_world, placements)
    rows = rows_by_rank(dsexplore.sharding(tensor), "tensor")
    for rank, local in tensor.to_local()._local_tensors.items():
        assert torch.equal(local, by_ranges((7, 9), rows[rank]["ranges"]))


def test_a_plan_on_paper_needs_no_process_group_and_reads_a_mesh_in_any_form():
    on_paper = mesh_without_groups(torch.arange(8).reshape(2, 4), ("dp", "tp"))
    forms = [on_paper, "dp=2,tp=4", {"dp": 2, "tp": 4}]
    frames = [dsexplore.sharding((9, 5), [Shard(0), Shard(1)], mesh).to_frame() for mesh in forms]
    assert not dist.is_initialized()
    assert frames[0].equals(frames[1])
    assert frames[1].equals(frames[2])
    assert frames[0].rows(named=True)[7] == {
        "tensor": "tensor",
        "rank": 7,
        "coordinates": {"dp": 1, "tp": 3},
        "local_shape": [4, 0],
        "index": "5:9 | –",
        "ranges": [[[5, 9]], []],
        "bytes": 0,
    }


def test_ranks_of_a_mesh_in_another_order():
    reversed_ranks = torch.arange(4).flip(0)
    mesh = mesh_without_groups(reversed_ranks, ("dp",))
    rows = rows_by_rank(dsexplore.sharding((8,), Shard(0), mesh), "tensor")
    assert [rows[rank]["index"] for rank in range(4)] == ["6:8", "4:6", "2:4", "0:2"]


def test_a_model_without_placements_is_whole_on_every_rank():
    alone = dsexplore.sharding(nn.Linear(4, 2))
    assert alone.mesh.size == 1
    many = dsexplore.sharding(nn.Linear(4, 2), mesh="dp=3")
    assert many.memory().rows(named=True)[0]["ranks"] == 3
    assert many.by_tensor()["copies"].to_list() == [3, 3]
    with simulate(6):
        assert dsexplore.sharding(nn.Linear(4, 2)).mesh.size == 6


def test_plain_tensors_beside_placed_ones_are_noted_with_their_number():
    with simulate(mesh="dp=2") as mesh:
        placed = distribute_tensor(torch.zeros(4), mesh, [Shard(0)], src_data_rank=None)
        for plain, text in ((1, "1 plain tensor without"), (2, "2 plain tensors without")):
            shown = dsexplore.sharding({"placed": placed, **{f"plain{i}": torch.zeros(2) for i in range(plain)}})
            assert shown.notes == (f"{text} placements: each of the 2 ranks holds a whole tensor.",)


def test_tied_frozen_and_wrapped_parameters():
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False), "norm": nn.LayerNorm(4)})
    model["head"].weight = model["embed"].weight
    model["norm"].weight.requires_grad = False
    shown = dsexplore.sharding(torch.compile(model))
    assert [(tensor.name, tensor.also) for tensor in shown.tensors] == [
        ("embed.weight", ("head.weight",)),
        ("norm.weight", ()),
        ("norm.bias", ()),
    ]
    assert shown.title == "ModuleDict"
    (row,) = shown.memory().rows(named=True)
    assert (row["parameters"], row["gradients"], row["optimizer"]) == (40 * 4, 36 * 4, 72 * 4)


def test_memory_in_other_dtypes_and_with_other_optimizers():
    shown = dsexplore.sharding((10,), "S(0)", "dp=2", dtype="bfloat16")
    (row,) = shown.memory(state_dtype=torch.float32, gradient_dtype=torch.float32).rows(named=True)
    assert (row["parameters"], row["gradients"], row["optimizer"]) == (10, 20, 40)
    assert shown.memory("sgd").rows(named=True)[0]["optimizer"] == 0
    assert shown.memory(3).rows(named=True)[0]["optimizer"] == 30
    for wrong in ("adamv", -1, True):
        with pytest.raises(UsageError, match=r"states|0 or more"):
            shown.memory(wrong)


def test_a_plain_tensor_may_be_given_placements():
    shown = dsexplore.sharding(torch.zeros(8, 3, dtype=torch.float16, requires_grad=True), [Shard(0)], "dp=4")
    (row,) = shown.memory().rows(named=True)
    assert (row["parameters"], row["gradients"], row["optimizer"]) == (2 * 3 * 2, 2 * 3 * 2, 2 * 2 * 3 * 2)
    assert shown.to_frame(ranks=3)["index"].to_list() == ["6:8 | 0:3"]
    frozen = dsexplore.sharding(torch.zeros(8, 3), [Shard(0)], "dp=4")
    assert frozen.memory().rows(named=True)[0]["gradients"] == 0


def test_no_value_is_read():
    shown = dsexplore.sharding({"meta": torch.empty(4, 4, device="meta"), "plain": torch.ones(2)})
    assert shown.by_tensor()["bytes"].to_list() == [64, 8]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Shard(-1), Placement("shard", -1)),
        (_StridedShard(1, split_factor=4), Placement("strided", 1, 4)),
        (Replicate(), Placement("replicate")),
        (Partial("avg"), Placement("partial", reduce_op="avg")),
        ("Shard(dim=2)", Placement("shard", 2)),
        ("_StridedShard(dim=0, sf=3)", Placement("strided", 0, 3)),
        ("Partial(max)", Placement("partial", reduce_op="max")),
    ],
    ids=str,
)
def test_placements_are_read_from_objects_and_text(placement, expected):
    assert read(placement) == expected
    assert read(str(expected)) == expected
    if not isinstance(placement, str):
        assert short(placement) == str(expected)


def test_text_of_several_placements():
    assert list(map(str, read_all("_S(0, 2), S(0), R, P(max)"))) == ["_S(0, 2)", "S(0)", "R", "P(max)"]
    assert read_all("") == ()


def test_a_negative_dim_counts_from_the_end():
    shown = dsexplore.sharding((4, 6), [Shard(-1)], "tp=2")
    assert str(shown.tensors[0].placements[0]) == "S(1)"


LAZY = nn.LazyLinear(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dsexplore.sharding((4,), "S(0)", "dp:2"), "'dp:2' is not AXIS=RANKS: write it like 'dp=2,tp=4'"),
        (lambda: dsexplore.sharding((4,), "S(0)", "dp=0"), "axis dp has 0 ranks"),
        (lambda: dsexplore.sharding((4,), "S(0)"), "needs a mesh: write mesh='dp=2,tp=4'"),
        (lambda: dsexplore.sharding((4,), "S(0)", 8), "mesh 8 is not a mesh"),
        (lambda: dsexplore.sharding((4,), "S(0), R", "dp=2"), "2 placements (S(0), R) for 1 mesh axis (dp)"),
        (lambda: dsexplore.sharding((4,), "", "dp=2,tp=2"), "0 placements (none) for 2 mesh axes (dp, tp)"),
        (lambda: dsexplore.sharding((4, 8), "R, S(2)", "dp=2,tp=2"), "S(2) on axis tp, but"),
        (lambda: dsexplore.sharding((), "S(0)", "dp=2"), "no dims: it can be replicated, not cut"),
        (lambda: dsexplore.sharding((4,), "Q(0)", "dp=2"), "'Q(0)' is not a placement: write Shard(0)"),
        (lambda: dsexplore.sharding((4,), "_S(0, 0)", "dp=2"), "_S(0, 0): the split factor is a number of pieces"),
        (lambda: dsexplore.sharding((4, -1), "S(0)", "dp=2"), "(4, -1) is not a shape"),
        (lambda: dsexplore.sharding("weights", "S(0)", "dp=2"), "'weights' is not a shape"),
        (lambda: dsexplore.sharding((4,)), "(4,) is neither a model nor a tensor; for a shape give placements="),
        (lambda: dsexplore.sharding((4,), "S(0)", "dp=2", dtype="float33"), "'float33' is not a dtype of torch"),
        (lambda: dsexplore.sharding({"w": (4, 4)}, mesh="dp=2"), "w: 4 is not a placement: write Shard(0)"),
        (lambda: dsexplore.sharding({"w": 4}, mesh="dp=2"), "entry 'w' is 4: give each name a pair"),
        (lambda: dsexplore.sharding(nn.Linear(2, 2), "S(0)"), "a model has those of its parameters"),
        (lambda: dsexplore.sharding({"w": ((4,), "R")}, "S(0)", "dp=2"), "a mapping has those of its entries"),
        (lambda: dsexplore.sharding(LAZY), "weight has no shape yet: run the model once"),
        (lambda: dsexplore.sharding((4,), "S(0)", "dp=2")["v"], "no tensor 'v' here"),
        (lambda: dsexplore.sharding((4,), "S(0)", "dp=2").to_frame(ranks=2), "rank 2 is not on the mesh dp=2"),
        (lambda: dsexplore.sharding((4,), "S(0)", "dp=3000000").to_frame(), "to_frame(ranks=range(8))"),
        (
            lambda: dsexplore.sharding(dict.fromkeys("ab", ((4,), "S(0)")), mesh="dp=1000001").to_frame(),
            "2 tensors on 1,000,001 ranks are 2,000,002 rows",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_with_what_to_do(call, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        call()


def test_a_dtensor_keeps_its_own_placements_and_mesh():
    with simulate(mesh="dp=2") as mesh, implicit_replication():
        tensor = distribute_tensor(torch.zeros(4), mesh, [Shard(0)], src_data_rank=None)
        with pytest.raises(UsageError, match="leave placements= out"):
            dsexplore.sharding(tensor, [Shard(0)])
        with pytest.raises(UsageError, match="leave it out"):
            dsexplore.sharding(tensor, mesh="dp=2")


def test_the_package_is_the_function():
    program = (
        "import dsexplore.sharding, inspect\n"
        "shown = dsexplore.sharding((4,), 'S(0)', 'dp=2')\n"
        "from dsexplore import sharding\n"
        "assert sharding is dsexplore.sharding and isinstance(shown, sharding.Sharding)\n"
        "assert list(inspect.signature(sharding).parameters) == ['shown', 'placements', 'mesh', 'dtype']\n"
        "import sys\n"
        "assert 'torch.distributed.tensor' not in sys.modules, 'a plan on paper needs no DTensor'\n"
        "assert not {'plotly', 'pandas', 'ipywidgets'} & set(sys.modules)\n"
    )
    assert printed(program) == ""
    assert isinstance(dsexplore.sharding((4,), "S(0)", "dp=2"), Sharding)
    with pytest.raises(AttributeError, match="no attribute 'shardings'"):
        dsexplore.sharding.shardings  # noqa: B018


def test_ranks_are_told_on_request():
    shown = dsexplore.sharding((64, 3), [Shard(0), Replicate()], "dp=8,tp=2")
    assert shown.to_frame(ranks=5)["index"].to_list() == ["16:24 | 0:3"]
    assert shown.to_frame(ranks=[15, 0])["rank"].to_list() == [15, 0]
    assert shown.to_frame().height == math.prod(shown.mesh.shape)
