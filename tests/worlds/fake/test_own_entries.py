"""Ops of which torch's fake-tensor cache keeps no entry: results are what torch's mode returns, at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_gather_single

import dsexplore.worlds.fake.own_entries as own_entries
from dsexplore import simulate
from dsexplore.worlds.fake.fake_dispatch import SimulationMode
from dsexplore.worlds.fake.own_entries import entry_of

FSDP = torch.ops.fsdp


def copied_in(rank: int, length: int) -> Any:
    gathered = torch.empty(4 * length)
    own, whole = FSDP.all_gather_copy_in([torch.ones(length)], gathered, [length], length, rank)
    return own, whole is gathered, own.untyped_storage()._cdata == gathered.untyped_storage()._cdata


def split(first: int, second: int) -> Any:
    out = [torch.empty(4, first), torch.empty(4, second)]
    result = FSDP.split_with_sizes_copy(torch.ones(4, first + second), [first, second], 1, out=out)
    return (result, *out)


def joined(chunks: int, rows: int) -> Any:
    out = torch.empty(chunks, rows * 3 // chunks)
    return FSDP.chunk_cat([torch.ones(rows, 3)], 0, chunks, out=out), out


def waited(rows: int, dtype: torch.dtype) -> Any:
    return (torch.ops._c10d_functional.wait_tensor(torch.ones(rows, 3, dtype=dtype)),)


def described(results: Any) -> list[Any]:
    return [
        (one.shape, one.stride(), one.storage_offset(), one.dtype, one.device, one.requires_grad, type(one))
        if isinstance(one, torch.Tensor)
        else one
        for one in results
    ]


CALLS = [
    (copied_in, [(0, 8), (3, 8), (3, 4)]),
    (split, [(2, 3), (3, 2)]),
    (joined, [(2, 4), (4, 4)]),
    (waited, [(4, torch.float32), (4, torch.bfloat16), (2, torch.float32)]),
]


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_every_call_returns_what_torchs_mode_returns(
    call: Callable[..., Any], arguments: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for ops in (own_entries._OPS, frozenset()):
        monkeypatch.setattr(own_entries, "_OPS", ops)
        with simulate(mesh="tp=4", fake=True):
            seen.append([described(call(*each)) for each in arguments * 3])
    assert seen[0] == seen[1]
    assert len({str(each) for each in seen[0]}) == len(arguments)


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_torch_is_asked_once_for_each_shape(
    call: Callable[..., Any], arguments: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with simulate(mesh="tp=4", fake=True):
        of_torch = FakeTensorMode.dispatch
        monkeypatch.setattr(
            FakeTensorMode,
            "dispatch",
            lambda mode, func, *rest: asked.append(func.name()) or of_torch(mode, func, *rest),
        )
        for each in arguments * 3:
            call(*each)
    assert len([name for name in asked if name in own_entries._OPS]) == len(arguments)


def test_an_op_that_changes_the_shape_of_what_it_is_given_is_called_each_time() -> None:
    with simulate(mesh="tp=4", fake=True):
        for _ in range(3):
            out = [torch.empty(0), torch.empty(0)]
            FSDP.split_with_sizes_copy(torch.ones(4, 5), [2, 3], 1, out=out)
            assert [tuple(one.shape) for one in out] == [(4, 2), (4, 3)]


def test_a_result_that_shares_memory_with_a_part_of_a_list_has_no_entry() -> None:
    with SimulationMode():
        one = torch.ones(4, 3)
        assert entry_of(one[:2], (one,), {}) is not None
        assert entry_of(one[:2], ([one],), {}) is None
        assert entry_of(one[:2], (), {"out": one}) is None
        assert entry_of(3, (one,), {}) is None
        assert entry_of(torch.tensor(3.0), (one,), {}) is None  # its value is known


def test_ops_on_results_that_are_not_waited_for_never_reach_torchs_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[type, ...]] = []
    with simulate(mesh="tp=4", fake=True) as mesh:
        gathered = all_gather_single(torch.ones(2, 3), 0, mesh.get_group())
        assert isinstance(gathered, AsyncCollectiveTensor)
        of_torch = FakeTensorMode.dispatch
        monkeypatch.setattr(
            FakeTensorMode,
            "dispatch",
            lambda mode, func, types, *rest: asked.append(types) or of_torch(mode, func, types, *rest),
        )
        total = gathered + torch.ones(8, 3)
        assert total.shape == (8, 3)
        assert not isinstance(total, AsyncCollectiveTensor)
    assert not any(AsyncCollectiveTensor in types for types in asked)
