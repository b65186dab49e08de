"""Ops that torch does not cache on fake tensors return what torch's mode returns, at every call.

Modules: ``worlds/fake/fake_dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional

from dsexplore import simulate
from dsexplore._internal.worlds.fake import fake_dispatch
from dsexplore._internal.worlds.fake.fake_dispatch import SimulationMode

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
    return (torch.ops._c10d_functional.wait_tensor(torch.ones(rows, 3, dtype=dtype).t()),)


def described(results: Any) -> list[Any]:
    return [
        (result.shape, result.stride(), result.storage_offset(), result.dtype, result.device, type(result))
        if isinstance(result, torch.Tensor)
        else result
        for result in results
    ]


CALLS = [
    (copied_in, [(0, 8), (3, 8), (3, 4)]),
    (split, [(2, 3), (3, 2)]),
    (joined, [(2, 4), (4, 4)]),
    (waited, [(4, torch.float32), (4, torch.bfloat16), (2, torch.float32)]),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ops that reach torch's own mode, as in a process without an earlier world."""
    names: list[str] = []
    dispatch = FakeTensorMode.dispatch

    def noted(mode: Any, func: Any, *rest: Any) -> Any:
        names.append(func.name())
        return dispatch(mode, func, *rest)

    monkeypatch.setattr(fake_dispatch, "_kept", {})
    monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
    return names


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_every_call_returns_what_torchs_mode_returns(
    call: Callable[..., Any], arguments: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulate(mesh="tp=4", fake=True):
        ours = [described(call(*each)) for each in arguments * 3]
    monkeypatch.setattr(SimulationMode, "dispatch", FakeTensorMode.dispatch)
    with simulate(mesh="tp=4", fake=True):
        assert [described(call(*each)) for each in arguments * 3] == ours
    assert len({str(each) for each in ours}) == len(arguments)


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_torch_is_asked_once_for_each_shape(
    call: Callable[..., Any], arguments: list[tuple[Any, ...]], asked: list[str]
) -> None:
    with simulate(mesh="tp=4", fake=True):
        for each in arguments:
            call(*each)
        assert len([name for name in asked if name.startswith("fsdp::")]) in (0, len(arguments))
        asked.clear()
        for each in arguments * 2:
            call(*each)
    assert not asked


def test_an_op_that_changes_the_shape_of_what_it_is_given_is_called_each_time() -> None:
    with simulate(mesh="tp=4", fake=True):
        for _ in range(3):
            out = [torch.empty(0), torch.empty(0)]
            FSDP.split_with_sizes_copy(torch.ones(4, 5), [2, 3], 1, out=out)
            assert [tuple(each.shape) for each in out] == [(4, 2), (4, 3)]


def test_a_record_of_the_profiler_is_none_of_the_modes(asked: list[str]) -> None:
    with simulate(mesh="tp=4", fake=True), torch.profiler.record_function("step"):
        pass
    assert not [name for name in asked if name.startswith("profiler::")]


def test_ops_on_results_that_are_not_waited_for_never_reach_torchs_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[type, ...]] = []
    with simulate(mesh="tp=4", fake=True) as mesh:
        gathered = functional.all_reduce(torch.ones(8, 3), "sum", mesh.get_group())
        assert isinstance(gathered, functional.AsyncCollectiveTensor)
        dispatch = FakeTensorMode.dispatch
        monkeypatch.setattr(
            FakeTensorMode,
            "dispatch",
            lambda mode, func, types, *rest: asked.append(types) or dispatch(mode, func, types, *rest),
        )
        total = gathered + torch.ones(8, 3)
        assert total.shape == (8, 3)
        assert not isinstance(total, functional.AsyncCollectiveTensor)
        assert functional.wait_tensor(gathered).shape == (8, 3)
    assert not any(functional.AsyncCollectiveTensor in types for types in asked)
