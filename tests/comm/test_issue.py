"""How a call is issued whose tensors are not contiguous, or have no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsexplore import run_ranks
from dsexplore._internal.comm.issue import stage
from dsexplore._internal.comm.spellings import ALL_GATHER


def test_a_list_with_a_tensor_that_is_not_contiguous_is_sent_in_copies() -> None:
    strided, plain, given = torch.zeros(4, 2)[:, 0], torch.zeros(4), torch.ones(4)
    (staged, sent, *rest), copies = stage(ALL_GATHER, ([strided, plain], given, None, False), "all_gather", None)
    assert all(tensor.is_contiguous() for tensor in staged)
    assert staged[1] is plain
    assert sent is given
    assert rest == [None, False]
    assert [tensor is strided and copy is staged[0] for tensor, copy in copies] == [True]
    args = ([plain], given, None, False)
    assert stage(ALL_GATHER, args, "all_gather", None) == (args, [])


def scatter_strided() -> list[float]:
    """Return, on a rank, what it gets of tensors that are not contiguous, in one that is."""
    from dsexplore import comm as dist

    columns = torch.arange(6.0).reshape(3, 2)
    got = torch.zeros(3)
    dist.scatter(got, [columns[:, 0], columns[:, 1]] if dist.get_rank() == 0 else None, 0)
    return got.tolist()


def test_a_list_that_is_not_contiguous_is_sent_whole_though_all_else_is(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, scatter_strided) == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def calls_on_tensors_without_memory() -> dict[str, str]:
    """Return, by kind and call, the class of the error; a signal would end this rank."""
    import dsexplore.comm as dist
    from tests.aio.test_kinds_of_tensors import WITHOUT

    calls: dict[str, Callable[[Any, Any], Any]] = {
        "all_reduce": lambda t, other: dist.all_reduce(t),
        "broadcast": lambda t, other: dist.broadcast(t, 0),
        "all_gather into": lambda t, other: dist.all_gather_into_tensor(t, other),
        "all_gather of": lambda t, other: dist.all_gather_into_tensor(other, t),
        "all_gather list": lambda t, other: dist.all_gather([t], other),
        "all_gather list of": lambda t, other: dist.all_gather([other], t),
        "reduce_scatter into": lambda t, other: dist.reduce_scatter_tensor(t, other),
        "reduce_scatter of": lambda t, other: dist.reduce_scatter_tensor(other, t),
        "all_to_all into": lambda t, other: dist.all_to_all_single(t, other),
        "all_to_all of": lambda t, other: dist.all_to_all_single(other, t),
        "gather": lambda t, other: dist.gather(t, [other], 0),
        "scatter": lambda t, other: dist.scatter(t, [other], 0),
        "scatter list": lambda t, other: dist.scatter(other, [t], 0),
    }
    raised = {}
    kinds = ("freed", "freed in part", "nested", "sparse", "opaque", "uninitialized", "wrapper", "no memory but zeros")
    for kind in (*kinds, "two elements in a byte"):
        for name, call in calls.items():
            other = torch.arange(4096.0)
            try:
                call(WITHOUT[kind](), other)
            except Exception as error:  # whatever it is, no memory was touched
                raised[f"{kind}, {name}"] = type(error).__name__
                assert torch.equal(other, torch.arange(4096.0)), (kind, name)
            else:
                raised[f"{kind}, {name}"] = "nothing"
    return raised


@pytest.mark.processes
def test_no_call_touches_memory_that_is_not_there() -> None:
    (raised,) = run_ranks(calls_on_tensors_without_memory, 1, timeout=240).values
    assert [name for name, error in raised.items() if error == "nothing"] == []
    for name in ("freed, all_reduce", "wrapper, all_gather list", "wrapper, scatter list"):
        assert raised[name] == "UsageError"
