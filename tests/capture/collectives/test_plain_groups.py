"""Groups made with ``new_group`` and no mesh have the axis that their description or their ranks say, or none."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dsexplore._internal.capture.collectives.plain_groups import axes_of_peers, axes_of_ranks, axis_of_description
from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate


def axis_of(group: dist.ProcessGroup | None) -> str:
    with record() as trace:
        dist.all_reduce(torch.ones(1), group=group)
    return str(trace.events["axis"].item())


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_GLOO", "dp"),
        ("data_parallel_group", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", "cp"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_GLOO_L1", "cp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp_cp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp_cp"),
        ("HYBRID_DP_CP_GROUP_4", "dp_cp"),
        ("MODEL_PARALLEL_GROUP", "tp_pp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "tp_dp_cp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp_cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "etp_ep"),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "etp_ep_pp"),
        ("EMBEDDING_GROUP", "pp"),
        ("tp", "tp"),
        ("tp_group", "tp"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", ""),
        ("WEIGHT_GRADIENT_COMM_GROUP", ""),
        ("default_pg", ""),
        ("undefined", ""),
        ("", ""),
        ("parallel", ""),
        ("dpx", ""),
    ],
)
def test_what_a_description_says(description: str, axis: str) -> None:
    assert axis_of_description(description, ()) == axis


def test_a_description_names_the_axis_of_its_group() -> None:
    with simulate(8):
        assert axis_of(dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")) == "tp"
        assert axis_of(dist.new_group([0, 2], group_desc="MY_GROUP")) == ""


def test_an_axis_of_one_rank_is_left_out_of_a_group_along_several() -> None:
    with simulate(4):
        both = dist.new_group(range(4), group_desc="DATA_PARALLEL_GROUP_WITH_CP")
        assert axis_of(both) == "dp_cp"
        alone = dist.new_group([0], group_desc="CONTEXT_PARALLEL_GROUP")
        assert axis_of(both) == "dp"
        assert axis_of(alone) == "cp"


def test_a_group_that_this_rank_is_not_in_is_in_no_ones_way() -> None:
    with simulate(4):
        dist.new_group([2, 3], group_desc="CONTEXT_PARALLEL_GROUP")
        assert axis_of(dist.new_group([0, 1], group_desc="DATA_PARALLEL_GROUP_WITH_CP")) == "dp_cp"


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [
        ([0, 1], "tp"),
        ([0, 2], "cp"),
        ([0, 4], "dp"),
        ([0, 2, 4, 6], "dp_cp"),
        ([6, 4, 2, 0], "dp_cp"),
        ([0, 1, 4, 5], "dp_tp"),
        ([0, 1, 2, 3], "cp_tp"),
        ([0, 3], ""),
        ([0, 1, 2], ""),
        ([0], ""),
        (list(range(8)), ""),
    ],
)
def test_ranks_name_the_axis_of_the_mesh_that_was_asked_for(ranks: list[int], axis: str) -> None:
    with simulate(8, "dp=2,cp=2,tp=2"):
        assert axis_of(dist.new_group(ranks)) == axis


def test_a_rank_that_is_not_the_first() -> None:
    with simulate(8, "dp=2,cp=2,tp=2", rank=7):
        assert axis_of(dist.new_group([3, 7])) == "dp"
        assert axis_of(dist.new_group([1, 3, 5, 7])) == "dp_cp"


def test_a_description_counts_before_ranks() -> None:
    """Expert parallel groups have the ranks of data parallel ones."""
    with simulate(4, "dp=2,tp=2"):
        assert axis_of(dist.new_group([0, 2], group_desc="EXPERT_MODEL_PARALLEL_GROUP")) == "ep"
        assert axis_of(dist.new_group([0, 1], group_desc="dp")) == "dp"


def test_an_axis_of_the_users_own_naming_is_found_in_a_description() -> None:
    with simulate(4, "mine=4"):
        assert axis_of(dist.new_group([0, 1], group_desc="mine")) == "mine"


def test_ranks_that_two_meshes_name_differently_have_no_axis() -> None:
    with simulate(4):
        meshes = [init_device_mesh("cpu", (2, 2), mesh_dim_names=names) for names in (("a", "b"), ("c", "b"))]
        assert axis_of(dist.new_group([0, 1])) == "b"
        assert axis_of(dist.new_group([0, 2])) == ""
        assert len(meshes) == 2


def test_a_group_of_the_whole_world_is_the_one_axis_that_has_it() -> None:
    with simulate(4, "dp=4"):
        assert axis_of(dist.new_group(range(4))) == "dp"


def test_a_mesh_without_names_names_no_plain_group() -> None:
    """A simulated world has such a mesh, and real ranks that run the same program have none."""
    with simulate(4):
        assert axis_of(dist.new_group(range(4))) == ""
        assert axis_of(dist.new_group([0, 1])) == ""


def test_a_mesh_of_an_earlier_world_names_no_ranks() -> None:
    with simulate(4, "old=2,older=2") as mesh:
        pass
    with simulate(4):
        assert axis_of(dist.new_group([0, 1])) == ""
        assert mesh is not None


def test_the_order_of_an_irregular_mesh_is_not_added_up() -> None:
    along = {"a": (0, 1, 5), "b": (0, 3), "c": (0, 9)}
    assert axes_of_ranks((0, 1, 3, 4, 5, 8), along, 0) == set()
    assert axes_of_ranks((0, 1, 5), along, 0) == {"a"}


@pytest.mark.parametrize(("peer", "axis"), [(1, "pp"), (7, "dp"), (2, "tp"), (0, "")])
def test_a_message_in_the_group_of_all_ranks_has_the_axis_between_its_two(peer: int, axis: str) -> None:
    with simulate(mesh="dp=2,pp=2,tp=2", rank=3), record() as trace:
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(1), peer), dist.P2POp(dist.irecv, torch.ones(1), peer)]
        ):
            work.wait()
        dist.send(torch.ones(1), peer)
        dist.all_reduce(torch.ones(1))
    assert trace.events["axis"].to_list() == [axis, axis, axis, ""]


def test_a_message_in_a_part_of_an_axis_is_on_none_as_the_groups_collectives_are() -> None:
    with simulate(4), record() as trace:
        group = dist.new_group([0, 2])
        dist.send(torch.ones(1), 2, group=group)
        dist.all_reduce(torch.ones(1), group=group)
    assert trace.events["axis"].to_list() == ["", ""]


def test_a_rank_on_an_axis_that_two_meshes_name_differently_is_on_none() -> None:
    meshes = [{"a": (0, 2), "b": (0, 1)}, {"c": (0, 2), "b": (0, 1)}]
    assert axes_of_peers(meshes) == {1: "b"}
