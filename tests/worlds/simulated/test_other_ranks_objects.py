"""This rank's objects replace those of other ranks, or an error names the missing one; only they are unpickled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*receives (an object of rank|objects of all ranks)")


@pytest.fixture(autouse=True)
def only_what_was_pickled_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that only objects that were pickled here are unpickled, with new memory filled with other bytes."""
    pickled: set[bytes] = set()
    to_tensor, to_object = c10d._object_to_tensor, c10d._tensor_to_object

    def noted(obj: object, device: object, group: object, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        data, size = to_tensor(obj, device, group, *rest)
        pickled.add(bytes(data.tolist()))
        return data, size

    def checked(tensor: torch.Tensor, size: int, group: object, *rest: object) -> object:
        assert bytes(tensor[: int(size)].tolist()) in pickled
        return to_object(tensor, size, group, *rest)

    monkeypatch.setattr(c10d, "_object_to_tensor", noted)
    monkeypatch.setattr(c10d, "_tensor_to_object", checked)
    with _filled():
        yield


class _filled:
    """Makes torch fill new memory with the largest number of its type."""

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
class TestObjects:
    def test_broadcast(self, rank: int, fake: bool) -> None:
        with simulate(4, rank=rank, fake=fake), dsexplore.commtrace() as trace:
            objects = [{"run": rank}, "name"]
            dist.broadcast_object_list(objects)
            assert objects == [{"run": rank}, "name"]
            dist.broadcast_object_list(objects, src=1, device=torch.device("cpu"))
            dist.broadcast_object_list(object_list=objects, group_src=0, group=dist.group.WORLD)
            assert objects == [{"run": rank}, "name"]
        assert trace.events["op"].to_list() == ["broadcast"] * 6
        assert trace.events["message_bytes"][0] == 16

    def test_scatter(self, rank: int, fake: bool) -> None:
        with simulate(4, rank=rank, fake=fake), dsexplore.commtrace() as trace:
            received: list[object] = ["mine"]
            dist.scatter_object_list(received, ["a", "b", "c", "d"] if rank == 0 else None, src=0)
            assert received == (["a"] if rank == 0 else ["mine"])
        assert trace.events["op"].to_list() == ["broadcast", "scatter", "scatter"]

    @pytest.mark.parametrize("batch", [False, True])
    def test_recv(self, rank: int, fake: bool, batch: bool) -> None:
        with simulate(4, rank=rank, fake=fake), dsexplore.commtrace() as trace:
            received = [("own", rank)]
            assert dist.recv_object_list(received, src=2, use_batch=batch) == 2
            assert received == [("own", rank)]
            dist.send_object_list(received, dst=3)
        assert trace.events["op"].to_list() == ["recv", "recv", "send", "send"]

    def test_gather(self, rank: int, fake: bool) -> None:
        with simulate(4, rank=rank, fake=fake):
            everyone: list[object] = [None] * 4
            dist.all_gather_object(everyone, {"rank": rank})
            assert everyone == [{"rank": rank}] * 4
            gathered: list[object] | None = [None] * 4 if rank == 0 else None
            dist.gather_object("x", gathered)
            assert gathered == (["x"] * 4 if rank == 0 else None)


def test_without_an_own_object_one_error_says_so() -> None:
    with simulate(4, rank=3):
        for name, call in (
            ("broadcast_object_list", lambda: dist.broadcast_object_list([None], src=1)),
            ("scatter_object_list", lambda: dist.scatter_object_list([None], None, src=1)),
            ("recv_object_list", lambda: dist.recv_object_list([None], src=1)),
        ):
            with pytest.raises(UsageError, match=f"{name} receives an object of rank 1, .* this is rank 3") as caught:
                call()
            assert "(--rank 1)" in str(caught.value)


@pytest.mark.parametrize("world_size", [1, 4])
def test_gathered_copies_are_said_where_there_are_other_ranks(world_size: int) -> None:
    with simulate(world_size), dsexplore.commtrace() as trace:
        dist.all_gather_object([None] * world_size, "own")
        dist.gather_object("own", [None] * world_size)
    names = ["all_gather_object", "gather_object"] if world_size > 1 else []
    said = [note for note in trace.info.notes if "receives objects of all ranks" in note]
    assert [note.split()[0] for note in said] == names
    assert all("test_other_ranks_objects.py:" in note for note in said)


def test_a_rank_that_gathers_nothing_says_nothing() -> None:
    with simulate(4, rank=3), dsexplore.commtrace() as trace:
        dist.gather_object("own", None)
    assert trace.info.notes == ()


def test_a_substitution_is_said_once_with_its_lines() -> None:
    with simulate(4, rank=3), dsexplore.commtrace() as trace:
        for _ in range(3):
            dist.broadcast_object_list(["own"])
    (note,) = trace.info.notes
    assert note.startswith("broadcast_object_list receives an object of rank 0, which no process runs")
    assert note.endswith(")")
    assert note.count("test_other_ranks_objects.py:") == 1


def test_a_message_from_any_rank_is_refused_as_torch_refuses_it() -> None:
    with simulate(2), pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
        dist.recv_object_list(["mine"])
