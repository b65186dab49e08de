"""How a call is issued whose tensors are not contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsexplore.comm.issue import stage
from dsexplore.comm.spellings import ALL_GATHER


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
    """On a rank: what it gets of tensors that are not contiguous, in one that is."""
    from dsexplore import comm as dist

    columns = torch.arange(6.0).reshape(3, 2)
    got = torch.zeros(3)
    dist.scatter(got, [columns[:, 0], columns[:, 1]] if dist.get_rank() == 0 else None, 0)
    return got.tolist()


def test_a_list_that_is_not_contiguous_is_sent_whole_though_all_else_is(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, scatter_strided) == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
