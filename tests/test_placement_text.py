"""Placements are parsed from their short form, and formatted."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from dsexplore._internal.placement_text import change, joined, short


class MaskedPartial(Partial):
    """A kind of partial placement, such as that of a sharded embedding."""


class Unknown:
    """A placement of a later torch."""

    def __str__(self) -> str:
        return "Ragged(0)"


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (Shard(1), "S(1)"),
        (_StridedShard(0, split_factor=2), "_S(0, 2)"),
        (Replicate(), "R"),
        (Partial(), "P"),
        (Partial("avg"), "P(avg)"),
        (MaskedPartial(), "P"),
        (Unknown(), "Ragged(0)"),
    ],
    ids=str,
)
def test_one_placement(placement: object, text: str) -> None:
    assert short(placement) == text


def test_several_are_in_mesh_order() -> None:
    assert joined([Shard(0), Replicate(), Partial()]) == "S(0), R, P"
    assert joined([]) == ""


def test_a_change_has_parentheses_on_a_mesh_of_several_axes_only() -> None:
    assert change([Shard(0)], [Replicate()]) == "S(0)→R"
    assert change([Replicate(), Partial()], [Replicate(), Replicate()]) == "(R, P)→(R, R)"
    assert change([Shard(0)], [Replicate(), Replicate()]) == "(S(0))→(R, R)"
