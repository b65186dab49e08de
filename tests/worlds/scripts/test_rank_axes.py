"""The axes of a world are inferred from the groups of one rank."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dsexplore._internal.mesh import Mesh, parse_mesh
from dsexplore._internal.worlds.scripts.rank_axes import Axis, ObservedGroup, axes_of, progressions


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([3, 11, 19, 27], ((8, 4),)),
        ([0, 1, 8, 9], ((1, 2), (8, 2))),
        (range(64), ((1, 64),)),
        ([0, 1, 3], None),
        ([0, 1, 4, 6], None),
        ([0, 1, 8, 9, 17, 18], None),
        ([5], None),
    ],
)
def test_regular_groups(ranks: Iterable[int], found: object) -> None:
    assert progressions(list(ranks)) == found


def test_the_borders_of_all_groups_cut_the_world() -> None:
    groups = [ObservedGroup("tp", ((1, 8),)), ObservedGroup("", ((1, 1024),)), ObservedGroup("pp", ((1024, 16),), True)]
    assert axes_of(groups, Mesh(), 16384) == [
        Axis("pp", 1024, 16, True),
        Axis("ranks 8 apart", 8, 128),
        Axis("tp", 1, 8),
    ]


def test_names_come_from_the_mesh_that_the_user_named() -> None:
    assert axes_of([], parse_mesh("dp=4,tp=2"), 8) == [Axis("dp", 2, 4), Axis("tp", 1, 2)]


def test_a_group_that_does_not_fit_the_others_cuts_nothing() -> None:
    groups = [ObservedGroup("a", ((1, 4),)), ObservedGroup("b", ((3, 2),))]
    assert [axis.name for axis in axes_of(groups, Mesh(), 8)] == ["ranks 4 apart", "a"]


def test_a_world_of_one_has_none() -> None:
    assert axes_of([], Mesh(), 1) == []


def test_coordinates() -> None:
    assert [Axis("dp", 2, 4).coordinate(rank) for rank in (0, 1, 2, 7, 8)] == [0, 0, 1, 3, 0]
