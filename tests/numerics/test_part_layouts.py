"""Layouts: which part of the whole a plain tensor is, found by shapes, mesh and numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dsexplore._internal.numerics.part_layouts import head_and_tail
from tests.numerics.compared import entry_of, values

WHOLE = values(8, 4, 6)


@pytest.mark.parametrize(
    ("mesh", "parts"),
    [
        ("dp=2,tp=2", [WHOLE] * 4),
        ("dp=2,tp=2", [WHOLE[:4], WHOLE[:4], WHOLE[4:], WHOLE[4:]]),
        ("dp=2,tp=2", [WHOLE[:4, :, :3], WHOLE[:4, :, 3:], WHOLE[4:, :, :3], WHOLE[4:, :, 3:]]),
        ("dp=2,tp=2", [part for _ in range(2) for part in WHOLE.chunk(2, 2)]),
        ("dp=2,cp=2", [WHOLE[rows, places] for rows in (slice(4), slice(4, 8)) for places in (slice(2), slice(2, 4))]),
        ("dp=4", list(WHOLE.chunk(4))),
        ("dp=2,cp=2", list(WHOLE.chunk(4))),
        ("dp=2,cp=2", [WHOLE.chunk(4)[at] for at in (0, 2, 1, 3)]),
        ("dp=2", [WHOLE[:3], WHOLE[3:]]),
        ("dp=2", [WHOLE[0::2], WHOLE[1::2]]),
        ("cp=2", [WHOLE[:, index] for index in head_and_tail(4, 2)]),
        ("tp=2", [WHOLE[0, 0, 0], WHOLE[0, 0, 0]]),
    ],
)
def test_parts_of_a_whole_are_right(mesh: str, parts: list[Tensor]) -> None:
    whole = WHOLE if parts[0].dim() else WHOLE[0, 0, 0]
    entry = entry_of(whole, parts, mesh)
    assert entry.is_right
    assert entry.relative_error() <= 1e-15


@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_is_wrong_is_named(rank: int) -> None:
    parts = [part.clone() for part in (WHOLE[:4], WHOLE[:4], WHOLE[4:], WHOLE[4:])]
    parts[rank][1, 2] += 0.1
    assert entry_of(WHOLE, parts, "dp=2,tp=2").wrong_ranks == (rank,)


def test_not_a_number_is_wrong() -> None:
    parts = [WHOLE.clone(), WHOLE.clone()]
    parts[1][0, 0, 0] = torch.nan
    entry = entry_of(WHOLE, parts, "tp=2")
    assert entry.wrong_ranks == (1,)
    assert entry.relative_error() == float("inf")


@pytest.mark.parametrize("shape", [(8, 4), (7, 4, 6), (8, 4, 6, 1)])
def test_shapes_that_fit_in_no_way_are_not_compared(shape: tuple[int, ...]) -> None:
    assert not entry_of(WHOLE, [values(*shape)] * 2, "dp=2").is_compared


def test_a_factor_of_gradients_of_outputs_is_looked_past() -> None:
    entry = entry_of(WHOLE, [WHOLE[:4] * 2, WHOLE[4:] * 2], "dp=2", "backward")
    assert entry.is_right
    assert {part.factor for part in entry.parts} == {2.0}
