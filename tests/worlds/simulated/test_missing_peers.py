"""Calls that wait for another rank return a usable result, or an error that says what is missing."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.simulated.missing_peers import JOINED


def test_a_monitored_barrier_is_a_barrier_on_gloo_and_torchs_error_on_others() -> None:
    with simulate(4), dsexplore.commtrace() as trace:
        dist.init_process_group("gloo")
        dist.monitored_barrier()
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match=r"only implemented for GLOO|requires a group with a CPU-capable backend"):
            dist.monitored_barrier()
    assert trace.events["op"].to_list() == ["barrier"]


def test_a_groups_own_monitored_barrier_is_a_barrier_where_the_group_has_gloo() -> None:
    """Lightning calls it to let rank 0 prepare data first, on a group with a timeout of 10,000 days."""
    with simulate(4), dsexplore.commtrace() as trace:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        dist.group.WORLD.monitored_barrier()
        dist.new_group(backend="gloo", timeout=timedelta(days=10_000)).monitored_barrier()
        with pytest.raises(RuntimeError, match="does not support monitoredBarrier"):
            dist.new_group(backend="nccl").monitored_barrier()
    assert trace.events["op"].to_list() == ["barrier", "barrier"]


@pytest.mark.filterwarnings("ignore:recv without a source")
def test_recv_without_a_source_returns_a_rank_and_says_so() -> None:
    with simulate(4, rank=0), dsexplore.commtrace() as trace:
        assert dist.recv(torch.zeros(2)) == 1
        assert dist.recv(torch.zeros(2), 3) == 3
    assert trace.events["message_bytes"].to_list() == [8, 8]
    assert "recv without a source" in trace.info.notes[0]


def join_twice(ranks: int, **options: Any) -> tuple[list[str], list[str]]:
    """Return the notes on `Join` of a program that trains in two such blocks, and its warnings with their lines."""
    with simulate(ranks), dsexplore.commtrace() as trace, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(nn.Linear(4, 4))
        for _ in range(2):
            with Join([model], **options):
                model(torch.ones(2, 4)).sum().backward()
    said = [one for one in caught if str(one.message) == JOINED]
    code = join_twice.__code__
    lines = [f"{one.filename == code.co_filename}:{one.lineno - code.co_firstlineno}" for one in said]
    return [note for note in trace.info.notes if note.startswith(JOINED)], lines


@pytest.mark.parametrize("options", [{}, {"throw_on_early_termination": True}])
def test_join_hears_of_this_rank_alone_and_says_so_once(options: dict[str, Any]) -> None:
    (note,), warned = join_twice(4, **options)
    assert warned == ["True:6"]  # the line of the block
    assert note.endswith(f"test_missing_peers.py:{join_twice.__code__.co_firstlineno + 6})")


def test_join_says_nothing_where_it_asks_nobody() -> None:
    assert join_twice(4, enable=False) == ([], [])
    assert join_twice(1) == ([], [])


@pytest.mark.parametrize("rank", range(4))
def test_the_last_rank_in_a_join_sends_its_parameters_as_all_end_together(rank: int) -> None:
    with simulate(4, rank=rank), dsexplore.commtrace() as trace:
        model = DistributedDataParallel(nn.Linear(4, 4))
        with Join([model]):
            model(torch.ones(2, 4)).sum().backward()
    last = trace.events.filter(op="broadcast").tail(1)
    assert (last["root"][0], last["message_bytes"][0]) == (3, 4 * 20)


def test_split_group_gives_the_part_that_this_rank_is_in() -> None:
    with simulate(8, rank=5):
        group = dist.split_group(split_ranks=[[0, 1, 2], [4, 5]])
        assert dist.get_process_group_ranks(group) == [4, 5]
        assert dist.split_group(dist.new_group([3, 5]), [[1]]).size() == 1
        assert dist.split_group(split_ranks=[[0, 1]]) is None
        with pytest.raises(ValueError, match="must list ranks of the parent group, 0 to 7"):
            dist.split_group(split_ranks=[[0, 8]])


def test_the_store_has_what_this_rank_sets() -> None:
    with simulate(4, rank=2):
        store = dist.distributed_c10d._get_default_store()
        store.set("a", "1")
        assert (store.get("a"), store.check(["a"]), store.check(["b"])) == (b"1", True, False)
        assert (store.add("n", 2), store.add("n", 3), store.get("n")) == (2, 5, b"5")
        assert (store.compare_set("a", "1", "2"), store.compare_set("a", "1", "3")) == (b"2", b"2")
        assert (store.compare_set("new", "", "x"), store.delete_key("new"), store.delete_key("new")) == (
            b"x",
            True,
            False,
        )
        store.wait(["nobody sets this"])
        with pytest.raises(UsageError, match=r"store.get\('late'\) waits for a value of another rank.*rank 2 too"):
            store.get("late")


def test_a_mesh_may_be_smaller_than_the_world() -> None:
    with simulate(8, rank=5):
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2))
        assert mesh.get_coordinate() is None
        assert dist.device_mesh.DeviceMesh("cpu", [4, 5]).get_coordinate() in ([1], (1,))


def test_random_dtensors() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, randn

    with simulate(4, hardware="h100") as mesh:
        assert randn(8, 8, device_mesh=mesh, placements=[Shard(0)]).to_local().shape == (2, 8)
    with simulate(4) as mesh:
        weight = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        assert nn.init.uniform_(nn.functional.dropout(weight)).to_local().shape == (2, 8)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))


def test_an_error_inside_half_built_fsdp_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    def program() -> None:
        with simulate(4) as mesh:
            kept.append(FSDPParamGroup.__new__(FSDPParamGroup))
            FSDPParamGroup.__init__(kept[0], [])
            fully_shard(Scalar(), mesh=mesh)

    kept: list[FSDPParamGroup] = []
    with pytest.raises(TypeError, match="missing"):
        program()
    with pytest.raises(ValueError, match="scalar parameters"), simulate(4) as mesh:
        fully_shard(Scalar(), mesh=mesh)


def test_ddp_takes_its_module_by_name() -> None:
    with simulate(4):
        net = nn.Linear(4, 4)
        model = DistributedDataParallel(module=net)
        model(input=torch.ones(2, 4)).sum().backward()
        assert net.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_rpc_is_refused() -> None:
    import torch.distributed.rpc as rpc

    with simulate(2), pytest.raises(UsageError, match="RPC is not recorded"):
        rpc.init_rpc("worker0", rank=0, world_size=2)
