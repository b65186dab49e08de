"""Collectives of a simulated world write and return the same on each version of torch, from Python and from C++."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import dsexplore
from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.simulated import c10d_kernels

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning", "ignore:a value that another rank")

RANKS = 4
SHAPES = [(6, 4), (2, 4), (), (3,)]
BYTES = 4 * (24 + 8 + 1 + 3)


def gathered() -> list[torch.Tensor]:
    return [torch.zeros(3) for _ in range(RANKS)]


COLLECTIVES: dict[str, Callable[[torch.Tensor], tuple[Any, Any]]] = {
    # the work, and what its future must hold
    "all_reduce": lambda x: (dist.all_reduce(x, async_op=True), [x]),
    "broadcast": lambda x: (dist.broadcast(x, 0, async_op=True), [x]),
    "reduce": lambda x: (dist.reduce(x, 0, async_op=True), [x]),
    "all_gather": lambda x: (dist.all_gather(out := gathered(), x, async_op=True), [out]),
    "all_gather_into_tensor": lambda x: (dist.all_gather_into_tensor(out := x.repeat(RANKS), x, async_op=True), [out]),
    "reduce_scatter": lambda x: (dist.reduce_scatter(x, gathered(), async_op=True), [x]),
    "reduce_scatter_tensor": lambda x: (dist.reduce_scatter_tensor(x, x.repeat(RANKS), async_op=True), [x]),
    "gather": lambda x: (dist.gather(x, out := gathered(), async_op=True), [out]),
    "scatter": lambda x: (dist.scatter(x, gathered(), async_op=True), [x]),
    "all_to_all": lambda x: (dist.all_to_all(out := gathered(), gathered(), async_op=True), out),
    "all_to_all_single": lambda x: (dist.all_to_all_single(out := torch.zeros(4), torch.ones(4), async_op=True), [out]),
}


class TestFutures:
    @pytest.mark.parametrize("fake", [False, True])
    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_hold_what_the_collective_wrote(self, name: str, fake: bool) -> None:
        with simulate(RANKS, fake=fake):
            work, written = COLLECTIVES[name](torch.ones(3))
            assert work.wait()
            assert work.is_completed()
            value = work.get_future().value()
        assert [*map(type, value)] == [*map(type, written)]
        same = [torch.utils._pytree.tree_leaves(tensors) for tensors in (value, written)]
        assert [*map(id, same[0])] == [*map(id, same[1])]

    def test_that_somebody_waits_for_go_on(self) -> None:
        with simulate(RANKS):
            future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
            assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2, 2, 2]

    def test_are_not_made_where_nobody_can_ask_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []
        complete = c10d_kernels.completed_future
        monkeypatch.setattr(c10d_kernels, "completed_future", lambda function: made.append(1) or complete(function))
        with simulate(RANKS):
            dist.all_reduce(torch.ones(3))
            dist.send(torch.ones(3), 1)
            assert made == []
            dist.all_reduce(torch.ones(3), async_op=True)
            assert made == [1]


class TestValues:
    """Rank 1 of 4 sends the part [1, 2]."""

    @pytest.fixture(autouse=True)
    def _world(self) -> Any:
        with simulate(RANKS, rank=1):
            yield

    part = staticmethod(lambda: torch.tensor([1.0, 2.0]))

    def test_of_what_all_send_are_copies_of_this_ranks_own(self) -> None:
        whole = torch.zeros(RANKS * 2)
        dist.all_gather_into_tensor(whole, self.part())
        assert whole.tolist() == [1, 2] * RANKS
        listed = [torch.zeros(2) for _ in range(RANKS)]
        dist.all_gather(listed, self.part())
        assert [tensor.tolist() for tensor in listed] == [[1, 2]] * RANKS

    def test_of_what_only_another_rank_sends_are_zeros(self) -> None:
        for receive in (lambda x: dist.recv(x, 0), lambda x: dist.scatter(x, src=0), lambda x: dist.irecv(x, 2).wait()):
            tensor = self.part()
            receive(tensor)
            assert tensor.tolist() == [0, 0]

    def test_of_what_this_rank_sends_to_itself_are_its_own(self) -> None:
        out, listed = torch.zeros(2), [torch.full((2,), float(rank)) for rank in range(RANKS)]
        dist.scatter(out, listed, src=1)
        assert out.tolist() == [1, 1]
        dist.reduce_scatter_tensor(out, torch.arange(8.0))
        assert out.tolist() == [2, 3]
        dist.reduce_scatter(out, listed)
        assert out.tolist() == [1, 1]

    @pytest.mark.parametrize("root", [0, 1])
    def test_of_a_gather_are_written_on_the_root_alone(self, root: int) -> None:
        listed = [torch.zeros(2) for _ in range(RANKS)]
        dist.gather(self.part(), listed if root == 1 else None, dst=root)
        assert [tensor.tolist() for tensor in listed] == [[1, 2] if root == 1 else [0, 0]] * RANKS

    def test_of_an_exchange_are_as_many_of_its_own_as_fit(self) -> None:
        out = torch.ones(6)
        dist.all_to_all_single(out, torch.arange(4.0), [3, 1, 1, 1], [1, 1, 1, 1])
        assert out.tolist() == [0, 1, 2, 3, 0, 0]
        received = [torch.ones(size) for size in (2, 1, 3, 2)]
        dist.all_to_all(received, [torch.full((2,), float(rank)) for rank in range(RANKS)])
        assert [tensor.tolist() for tensor in received] == [[0, 0], [1], [2, 2, 0], [3, 3]]

    def test_of_several_at_once(self) -> None:
        outputs, inputs = [torch.zeros(8), torch.zeros(4)], [self.part(), torch.ones(1)]
        with dist._coalescing_manager():
            for output, part in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, part)
        assert [tensor.tolist() for tensor in outputs] == [[1, 2] * 4, [1] * 4]

    def test_of_a_parameter_leave_it_a_leaf(self) -> None:
        weight = nn.Parameter(torch.ones(2))
        dist.all_gather_into_tensor(whole := torch.zeros(8), weight)
        dist.broadcast(weight, 0)
        assert (weight.requires_grad, weight.is_leaf, whole.tolist()) == (True, True, [1] * 8)

    def test_are_written_to_tensors_with_gaps(self) -> None:
        table = torch.zeros(3, 8)
        dist.init_process_group("gloo")  # NCCL refuses them
        dist.all_gather([table[row] for row in range(3)] + [torch.zeros(8)], torch.ones(8))
        assert table.sum() == 24
        dist.all_gather_into_tensor(output := torch.zeros(2, 8).t(), torch.ones(2, 2))
        assert output.sum() == 16


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (1, 12), (12,), (2, 6)])
class TestOneTensor:
    """A tensor counts as memory; its shape does not matter."""

    def test_is_scattered(self, shape: tuple[int, ...], fake: bool) -> None:
        with simulate(RANKS, fake=fake), dsexplore.commtrace() as trace:
            part, whole = torch.empty(3), torch.ones(shape)
            dist.reduce_scatter_tensor(part, whole)
        assert (part.shape, whole.shape) == ((3,), shape)
        assert trace.events["op"].to_list() == ["reduce_scatter"]
        assert trace.events["message_bytes"].to_list() == [48]

    def test_is_gathered_into(self, shape: tuple[int, ...], fake: bool) -> None:
        with simulate(RANKS, fake=fake), dsexplore.commtrace() as trace:
            whole = torch.zeros(shape)
            dist.all_gather_into_tensor(whole, torch.ones(3))
            assert fake or whole.sum() == 12
        assert whole.shape == shape
        assert trace.events["message_bytes"].to_list() == [48]


def test_a_tensor_of_another_size_is_refused() -> None:
    with simulate(RANKS):
        with pytest.raises(ValueError, match="must be equal to world_size times input tensor size"):
            dist.all_gather_into_tensor(torch.zeros(7), torch.ones(2))
        with pytest.raises(ValueError, match="must be the same size as output size times world size"):
            dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(7))


def parts() -> list[torch.Tensor]:
    """Return a tensor for each of four ranks, filled with the rank plus one."""
    return [torch.full(shape, rank + 1.0) for rank, shape in enumerate(SHAPES)]


class TestPartsOfDifferentShapes:
    @pytest.mark.parametrize("fake", [False, True])
    @pytest.mark.parametrize("rank", range(RANKS))
    def test_are_one_all_gather_of_them_all(self, rank: int, fake: bool) -> None:
        with simulate(RANKS, rank=rank, fake=fake), dsexplore.commtrace() as trace:
            outputs = parts()
            work = dist.all_gather(outputs, outputs[rank], async_op=True)
            work.wait()
            assert [tuple(output.shape) for output in outputs] == SHAPES
            if not fake:
                assert {value.item() for output in outputs for value in output.flatten()} == {rank + 1.0}
                assert [tensor.shape for tensor in work.get_future().wait()[0]] == [part.shape for part in outputs]
        assert trace.events["op"].to_list() == ["all_gather"]
        assert trace.events["message_bytes"].to_list() == [BYTES]

    def test_may_have_no_elements(self) -> None:
        with simulate(2), dsexplore.commtrace() as trace:
            outputs = [torch.ones(0), torch.ones(3)]
            dist.all_gather(outputs, outputs[0])
        assert outputs[1].tolist() == [0, 0, 0]
        assert trace.events["message_bytes"].to_list() == [12]

    def test_are_refused_by_gloo(self) -> None:
        with simulate(RANKS, hardware="cpu"):
            outputs = parts()
            with pytest.raises(RuntimeError, match=r"size at index 1 .*: gloo requires parts of one shape"):
                dist.all_gather(outputs, outputs[0])

    def test_a_list_of_another_length_than_the_group_is_named(self) -> None:
        with simulate(2):
            outputs = parts()
            with pytest.raises(RuntimeError, match="the list has 4 tensors, and the group 2 ranks"):
                dist.all_gather(outputs, outputs[0])


Program = Callable[[], object]


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))


def deep_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def averaged(model: nn.Module) -> nn.Module:
    return AveragedModel(model).module


def saved_and_loaded(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return loaded


class TestDdp:
    """DDP's reducer in C++ sends as on real ranks, without a communication hook of this package."""

    def sent(self, model: nn.Module) -> list[tuple[str, int]]:
        with dsexplore.commtrace() as trace:
            model(torch.ones(2, 8)).sum().backward()
        return [row for row in trace.events.select("op", "message_bytes").rows() if row[0] == "all_reduce"]

    @pytest.mark.parametrize("fake", [False, True])
    def test_averages_gradients(self, fake: bool) -> None:
        with simulate(RANKS, fake=fake):
            model = DistributedDataParallel(layers())
            assert self.sent(model) == [("all_reduce", 512)]
            if not fake:
                alone = copy.deepcopy(model.module)
                alone.zero_grad()
                alone(torch.ones(2, 8)).sum().backward()
                assert torch.allclose(model.module[0].weight.grad * RANKS, alone[0].weight.grad)

    @pytest.mark.parametrize("target", ["cpu", "cuda"])
    def test_as_replicate_applies_it(self, target: str) -> None:
        with simulate(2, hardware="cpu" if target == "cpu" else None):  # type: ignore[arg-type]
            model = layers()
            replicate(model)
            with dsexplore.commtrace() as trace:
                model(torch.ones(2, 8)).sum().backward()
        assert trace.events.select("op", "message_bytes").rows() == [
            ("all_gather", 16),
            ("broadcast", 64),
            ("broadcast", 512),
            ("all_reduce", 512),
        ]

    @pytest.mark.parametrize("copied", [deep_copy, averaged, saved_and_loaded])
    def test_copies_send_too(self, copied: Callable[[nn.Module], nn.Module]) -> None:
        with simulate(RANKS):
            model = DistributedDataParallel(layers())
            model(torch.ones(2, 8))
            assert self.sent(copied(model)) == [("all_reduce", 512)]

    @pytest.mark.parametrize("fake", [False, True])
    def test_hooks_of_torch_in_cpp(self, fake: bool) -> None:
        with simulate(RANKS, fake=fake):
            model = DistributedDataParallel(layers())
            model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            assert self.sent(model) == [("all_reduce", 256)]

    def test_static_graphs_unused_parameters_and_sparse_gradients(self) -> None:
        with simulate(RANKS, hardware="cpu"):
            for options in ({"static_graph": True}, {"find_unused_parameters": True}):
                assert ("all_reduce", 512) in self.sent(DistributedDataParallel(layers(), **options))
            embedding = DistributedDataParallel(nn.Embedding(1000, 8, sparse=True))
            with dsexplore.commtrace() as trace:
                embedding(torch.tensor([1, 5])).sum().backward()
            assert embedding.module.weight.grad.coalesce().indices().tolist() == [[1, 5]]
            assert [row for row in trace.events["op"] if row == "all_reduce"] == ["all_reduce"]


def test_a_group_of_an_earlier_world_is_refused_while_another_is_open() -> None:
    with simulate(RANKS):
        group = dist.new_group([0, 1])
    with simulate(RANKS), pytest.raises(ClosedWorldError, match="closed"):
        dist.all_reduce(torch.ones(2), group=group)


def test_torch_has_its_own_kernels_again_afterwards() -> None:
    store = torch.testing._internal.distributed.fake_pg.FakeStore()
    hook = __import__("sys").excepthook
    with simulate(RANKS):
        pass
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work.get_future().value() is None
    finally:
        dist.destroy_process_group()
        __import__("sys").excepthook = hook
