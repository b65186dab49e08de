"""A program's own stores do not wait for other ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.simulate import simulate

AT_ONCE = timedelta(seconds=1)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", ["server and clients", "client", "file", "rendezvous"])
def test_a_group_is_made_with_the_programs_store(kind: str, rank: int, tmp_path: Path) -> None:
    with simulate(4, rank=rank), dsexplore.commtrace() as trace:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if kind == "server and clients":
            store = dist.TCPStore(*where, 4, rank == 0, AT_ONCE)
        elif kind == "client":
            store = dist.TCPStore(host_name=where[0], port=where[1], wait_for_workers=False, timeout=AT_ONCE)
        elif kind == "file":
            store = dist.FileStore(str(tmp_path / "store"), 4)
        else:
            store, _, _ = next(dist.rendezvous("env://", timeout=AT_ONCE))
        dist.init_process_group("gloo", store=dist.PrefixStore("mine", store), rank=rank, world_size=4)
        dist.all_reduce(torch.ones(4))
    assert len(trace) == 1


def test_stores_at_one_place_are_one() -> None:
    with simulate(4):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        assert (store.host, store.port > 0) == ("127.0.0.1", True)
        store.set("model", "7B")
        assert dist.TCPStore("127.0.0.1", 0).get("model") == store.clone().get("model") == b"7B"
        assert not dist.TCPStore("127.0.0.1", 1).check(["model"])
    assert dist.TCPStore is torch._C._distributed_c10d.TCPStore
    assert dist.TCPStore.__module__ == "torch._C._distributed_c10d"


def test_several_values_at_once() -> None:
    with simulate(4):
        store = dist.PrefixStore("mine", dist.TCPStore("127.0.0.1", 29500, 4, True))
        store.multi_set(["a", "b"], ["1", "2"])
        store.append("b", "3")
        assert store.has_extended_api()
        assert store.multi_get(["a", "b"]) == [b"1", b"23"]
        with pytest.raises(UsageError, match=r"store.get\('c'\) waits for a value of another rank"):
            store.multi_get(["a", "c"])


def test_a_value_is_replaced_where_torch_replaces_it() -> None:
    def replaced(store: dist.Store) -> list[bytes]:
        asked = [("a", "1", "2"), ("a", "", "3"), ("a", "1", "4"), ("a", "3", "5")]
        return [store.compare_set(*each) for each in asked]

    with simulate(4):
        assert replaced(dist.TCPStore("127.0.0.1", 29500)) == replaced(dist.HashStore()) == [b"1", b"3", b"3", b"5"]


def test_a_name_that_was_imported_meanwhile_makes_torchs_own_store_later() -> None:
    with simulate(4):
        store_class = dist.TCPStore
        assert type(store_class("127.0.0.1", 29500)) is store_class
    made = store_class("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert type(made) is dist.TCPStore
    made.set("a", "1")
    assert made.get("a") == b"1"
