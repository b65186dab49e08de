"""Checks like DeepSpeed's pass on every simulated rank; `make frameworks` runs DeepSpeed's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate

UTILS = """\
import torch
from deepspeed import comm as dist

def decorated(function):
    def called(*args):
        return function(*args)
    return called

@decorated
def assert_lst_len_same_as_other_ranks(lst):
    length = torch.tensor(len(lst) if dist.get_rank() == 0 else -1)
    dist.broadcast(length, src=0)
    if length.item() != len(lst):
        raise RuntimeError(f"rank 0 has {length.item()}, this one {len(lst)}")

def get_lst_from_rank0(lst):
    numbers = torch.tensor(lst if dist.get_rank() == 0 else [-1] * len(lst))
    dist.broadcast(numbers, src=0)
    return numbers.tolist()

def same_as_rank_0(lst):
    assert_lst_len_same_as_other_ranks(lst)
    return get_lst_from_rank0(lst) == lst, dist.get_rank()
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Yield a package with checks like DeepSpeed's."""
    folder = tmp_path / "deepspeed"
    (folder / "runtime" / "zero").mkdir(parents=True)
    for each in (folder, folder / "runtime", folder / "runtime" / "zero"):
        (each / "__init__.py").touch()
    (folder / "comm.py").write_text("from torch.distributed import broadcast, get_rank\n")
    (folder / "runtime" / "zero" / "utils.py").write_text(UTILS)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
            patch.delitem(sys.modules, name)
        yield
        for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
            del sys.modules[name]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_agrees_with_rank_0_whose_numbers_it_sends(rank: int, fake: bool) -> None:
    with simulate(4, rank=rank, fake=fake), record() as trace:
        utils = import_module("deepspeed.runtime.zero.utils")
        assert utils.same_as_rank_0([5, 7, 9]) == (True, rank)
    assert trace.events.select("op", "message_bytes").rows() == [("broadcast", 8), ("broadcast", 24)]


def test_the_module_is_left_as_it_was() -> None:
    utils = import_module("deepspeed.runtime.zero.utils")
    before = dict(vars(utils))
    with simulate(4, rank=1):
        assert vars(utils) != before
    assert vars(utils) == before
