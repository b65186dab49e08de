"""A simulation for CPUs refuses the calls that gloo refuses, with the same class of error and torch's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import simulate

RANKS = 2


def _numbers(dtype: torch.dtype = torch.float32, count: int = 4) -> torch.Tensor:
    return torch.ones(count).to(dtype)


def _apart() -> torch.Tensor:
    return torch.ones(4, 4).t()[:, :2]


def _at_root(*parts: torch.Tensor) -> list[torch.Tensor] | None:
    return list(parts) if dist.get_rank() == 0 else None


def _pair(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [_numbers(dtype), _numbers(dtype)]


SHORT, UNSIGNED, FLOAT8, COMPLEX = torch.int16, torch.uint16, torch.float8_e4m3fn, torch.complex64
OP = dist.ReduceOp
CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce of int16": lambda: dist.all_reduce(_numbers(SHORT)),
    "all_reduce of uint16": lambda: dist.all_reduce(_numbers(UNSIGNED)),
    "all_reduce of float8": lambda: dist.all_reduce(_numbers(FLOAT8)),
    "all_reduce of complex": lambda: dist.all_reduce(_numbers(COMPLEX)),
    "all_reduce of strided": lambda: dist.all_reduce(_apart()),
    "all_reduce PREMUL_SUM": lambda: dist.all_reduce(_numbers(), dist._make_nccl_premul_sum(2.0)),
    "all_reduce BAND of floats": lambda: dist.all_reduce(_numbers(), OP.BAND),
    "all_reduce BOR of bfloat16": lambda: dist.all_reduce(_numbers(torch.bfloat16), OP.BOR),
    "all_reduce AVG of int64": lambda: dist.all_reduce(_numbers(torch.int64), OP.AVG),
    "all_reduce MAX of complex": lambda: dist.all_reduce(_numbers(COMPLEX), OP.MAX),
    "all_reduce MAX of sparse": lambda: dist.all_reduce(torch.eye(3).to_sparse(), OP.MAX),
    "all_reduce_coalesced of int16": lambda: dist.all_reduce_coalesced([_numbers(SHORT)]),
    "all_reduce_coalesced of two dtypes": lambda: dist.all_reduce_coalesced([_numbers(), _numbers(torch.float64)]),
    "reduce BXOR of floats": lambda: dist.reduce(_numbers(), 0, OP.BXOR),
    "broadcast of int16": lambda: dist.broadcast(_numbers(SHORT), 0),
    "broadcast of strided": lambda: dist.broadcast(_apart(), 0),
    "broadcast from nobody": lambda: dist.broadcast(_numbers(), 5),
    "gather of complex": lambda: dist.gather(_numbers(COMPLEX), _at_root(*_pair(COMPLEX)), 0),
    "gather into a short list": lambda: _at_root() is not None and dist.gather(_numbers(), [_numbers()], 0),
    "gather of two shapes": lambda: (
        _at_root() is not None and dist.gather(_numbers(), [_numbers(), _numbers(count=3)], 0)
    ),
    "scatter of int16": lambda: dist.scatter(_numbers(SHORT), _at_root(*_pair(SHORT)), 0),
    "scatter of a short list": lambda: _at_root() is not None and dist.scatter(_numbers(), [_numbers()], 0),
    "scatter of two shapes": lambda: (
        _at_root() is not None and dist.scatter(_numbers(), [_numbers(), _numbers(count=3)], 0)
    ),
    "scatter of nothing": lambda: _at_root() is not None and dist.scatter(_numbers(), None, 0),
    "all_gather of int16": lambda: dist.all_gather(_pair(SHORT), _numbers(SHORT)),
    "all_gather of two shapes": lambda: dist.all_gather([_numbers(), _numbers(count=2)], _numbers()),
    "all_gather into a short list": lambda: dist.all_gather([_numbers()], _numbers()),
    "all_gather of two dtypes": lambda: dist.all_gather(_pair(torch.float64), _numbers()),
    "all_gather_into_tensor along columns": lambda: dist.all_gather_into_tensor(torch.ones(4, 4), torch.ones(4, 2)),
    "all_gather_into_tensor of a wrong size": lambda: dist.all_gather_into_tensor(torch.ones(7), _numbers()),
    "all_gather_into_tensor of two dtypes": lambda: dist.all_gather_into_tensor(_numbers(torch.float64, 8), _numbers()),
    "reduce_scatter_tensor of int16": lambda: dist.reduce_scatter_tensor(_numbers(SHORT, 2), _numbers(SHORT)),
    "reduce_scatter_tensor BAND": lambda: dist.reduce_scatter_tensor(torch.ones(2), _numbers(), OP.BAND),
    "all_to_all_single of int16": lambda: dist.all_to_all_single(_numbers(SHORT), _numbers(SHORT)),
    "all_to_all_single of strided": lambda: dist.all_to_all_single(torch.ones(4, 4).t(), torch.ones(4, 4).t()),
    "all_to_all_single of two dtypes": lambda: dist.all_to_all_single(_numbers(torch.float64), _numbers()),
    "all_to_all_single, splits of another sum": lambda: dist.all_to_all_single(_numbers(), _numbers(), [1, 2], [2, 2]),
    "all_to_all_single, too few splits": lambda: dist.all_to_all_single(_numbers(), _numbers(), [4], [2, 2]),
    "send of strided": lambda: dist.send(_apart(), 1 - dist.get_rank()),
    "send to itself": lambda: dist.send(_numbers(), dist.get_rank()),
}
"""Calls, most of which gloo refuses before anything is sent."""


def answers() -> dict[str, list[str]]:
    """Return the class and the message of each call's error, both empty if it succeeds."""
    said = {}
    for name, call in CALLS.items():
        try:
            call()
        except Exception as error:
            said[name] = [type(error).__name__, str(error)]
        else:
            said[name] = ["", ""]
    return said


@pytest.fixture(scope="module")
def real() -> dict[str, list[str]]:
    """Return the answers of rank 0 of two real ranks."""
    return dsexplore.run_ranks(answers, RANKS, timeout=120).check().values[0]


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[str]]:
    """Return the answers of rank 0 of a simulated world on CPUs."""
    with simulate(RANKS, hardware="cpu"):
        return answers()


@pytest.mark.processes
def test_a_simulation_for_cpus_refuses_what_gloo_refuses_in_its_words(
    real: dict[str, list[str]], simulated: dict[str, list[str]]
) -> None:
    assert {name: kind for name, (kind, _) in simulated.items()} == {name: kind for name, (kind, _) in real.items()}
    own_words = "all_gather_into_tensor: gloo concatenates 2 parts of shape"
    for name, (_, words) in real.items():
        said, of_torch = simulated[name][1], words.partition(" (expected TensorOptions")[0]
        is_own = said.startswith(own_words) and "allgather: invalid tensor size at index" in words
        assert said.startswith(of_torch) or is_own, f"{name}: {words!r} of gloo is {said!r} here"
    assert sum(bool(kind) for kind, _ in real.values()) > 30
