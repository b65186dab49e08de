"""Ranks that load cached results of other ranks get the same results."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dsexplore._internal.worlds.fake import fake_dispatch
from dsexplore._internal.worlds.fake.fake_dispatch import fake_mode
from dsexplore._internal.worlds.fake.shared_entries import read, shared_entries


def described() -> list[Any]:
    """Return the properties of results of ops of several kinds."""
    a, b = torch.empty(4, 6, requires_grad=True), torch.empty(6, 8, dtype=torch.float32)
    made = [
        a @ b,
        a.view(3, 8),
        a.t(),
        torch.cat([a, a], 1),
        *a.split([1, 3]),
        a.to(torch.bfloat16),
        a.detach().mul_(2),
        torch.zeros_like(a, memory_format=torch.contiguous_format),
        a.sum(dim=(0, 1), dtype=torch.float64),
    ]
    return [(each.shape, each.stride(), each.dtype, each.device, each.requires_grad, each._is_view()) for each in made]


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ops that reached torch's own mode, as in a process without an earlier world."""
    monkeypatch.setattr(fake_dispatch, "_kept", {})
    found: list[str] = []
    original = FakeTensorMode.dispatch

    def noted(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(str(func))
        return original(mode, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
    return found


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Clear the cached results, as in another process."""
    return lambda: monkeypatch.setattr(fake_dispatch, "_kept", {})


def test_later_ranks_ask_torch_for_nothing_that_the_first_one_knew(
    tmp_path: Path, dispatched: list[str], forgotten: Callable[[], None]
) -> None:
    with fake_mode(), shared_entries(str(tmp_path), 3):
        first = described()
    asked = len(dispatched)
    assert [file.name for file in tmp_path.iterdir()] == ["entries-3.pickle"]
    dispatched.clear()
    forgotten()
    with fake_mode(), shared_entries(str(tmp_path), 5):
        assert described() == first
    assert len(dispatched) < asked / 3, dispatched
    assert len(list(tmp_path.iterdir())) == 1


def test_ranks_begin_with_what_the_process_has_read_that_they_are_forked_from(
    tmp_path: Path, dispatched: list[str], forgotten: Callable[[], None]
) -> None:
    read(str(tmp_path))  # nothing yet
    with fake_mode(), shared_entries(str(tmp_path), 3):
        first = described()
    asked = len(dispatched)
    read(str(tmp_path))
    (tmp_path / "entries-3.pickle").write_bytes(b"not looked at again")
    dispatched.clear()
    forgotten()
    with fake_mode(), shared_entries(str(tmp_path), 5):
        assert described() == first
    assert len(dispatched) < asked / 3, dispatched
    another = tmp_path / "another"
    another.mkdir()
    read(str(another))
    dispatched.clear()
    forgotten()
    with fake_mode(), shared_entries(str(another), 0):
        assert described() == first
    assert len(dispatched) == asked


def test_a_rank_that_is_alone_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_mode(), shared_entries("", 0):
        described()
    with shared_entries(str(tmp_path), 0):  # on real tensors
        described()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_pickled_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_content: Any) -> bytes:
        raise pickle.PicklingError

    monkeypatch.setattr(pickle, "dumps", refused)
    with fake_mode(), shared_entries(str(tmp_path), 0):
        described()
    assert not list(tmp_path.iterdir())


def test_a_later_world_of_a_process_asks_torch_for_nothing_that_an_earlier_one_knew(dispatched: list[str]) -> None:
    with fake_mode():
        first = described()
    asked = len(dispatched)
    dispatched.clear()
    with fake_mode():
        assert described() == first
    assert len(dispatched) < asked / 3, dispatched
