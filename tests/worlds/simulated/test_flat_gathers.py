"""Collectives of one tensor whose first dim is not that of the parts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dsexplore


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (1, 12), (12,), (2, 6)])
def test_a_tensor_of_any_shape_is_scattered(shape: tuple[int, ...], fake: bool) -> None:
    with dsexplore.simulate(4, fake=fake), dsexplore.commtrace() as trace:
        part, whole = torch.empty(3), torch.ones(shape)
        dist.reduce_scatter_tensor(part, whole)
    assert (part.shape, whole.shape) == ((3,), shape)
    assert trace.events["op"].to_list() == ["reduce_scatter"]
    assert trace.events["message_bytes"].to_list() == [48]
