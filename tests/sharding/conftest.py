"""Fixtures of the sharding room: plans drawn by hypothesis, and torch's own result for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard


@dataclass(frozen=True)
class Plan:
    shape: tuple[int, ...]
    mesh: dict[str, int]
    placements: tuple[Any, ...]

    @property
    def cuts(self) -> bool:
        return any(isinstance(placement, (Shard, _StridedShard)) for placement in self.placements)


@st.composite
def plans(draw: st.DrawFn, most_dims: int = 4, most_axes: int = 4) -> Plan:
    """Return any tensor, 0-d and empty ones included, on any small mesh of 1 to 4 axes."""
    shape = tuple(draw(st.lists(st.integers(0, 13), max_size=most_dims)))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=most_axes))
    return Plan(
        shape, {f"axis{i}": size for i, size in enumerate(sizes)}, tuple(draw(_placement(shape)) for _ in sizes)
    )


def _placement(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    whole = st.sampled_from([Replicate(), Partial(), Partial("max")])
    if not shape:
        return whole
    dims = st.integers(0, len(shape) - 1)
    strided = st.builds(lambda dim, pieces: _StridedShard(dim, split_factor=pieces), dims, st.integers(1, 6))
    return st.one_of(whole, st.builds(Shard, dims), st.builds(Shard, dims), strided)


@pytest.fixture(scope="session")
def any_plan() -> st.SearchStrategy[Plan]:
    return plans()


def indices_by_torch(plan: Plan, coordinates: tuple[int, ...]) -> torch.Tensor:
    """Return the flat indices in the local tensor of one rank, cut by torch's placements one after the other."""
    local = torch.arange(math.prod(plan.shape)).reshape(plan.shape)
    for placement, parts, coordinate in zip(plan.placements, plan.mesh.values(), coordinates, strict=True):
        if isinstance(placement, (Shard, _StridedShard)):
            local = placement._split_tensor(local, parts, with_padding=False)[0][coordinate]
    return local


@pytest.fixture(scope="session")
def by_torch() -> Callable[[Plan, tuple[int, ...]], torch.Tensor]:
    return indices_by_torch


@pytest.fixture(scope="session")
def by_ranges() -> Callable[..., torch.Tensor]:
    """Return the same from the ranges of each dim."""

    def take(shape: tuple[int, ...], ranges: Any) -> torch.Tensor:
        whole = np.arange(math.prod(shape)).reshape(shape)
        picked = [[i for start, stop in dim for i in range(start, stop)] for dim in ranges]
        return torch.from_numpy(whole[np.ix_(*[np.array(each, dtype=int) for each in picked])] if shape else whole)

    return take
