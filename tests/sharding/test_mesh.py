"""Ranks and coordinates of a mesh, with ranks in order and not."""

from __future__ import annotations

import numpy as np
import pytest

from dsexplore.errors import UsageError
from dsexplore.sharding.mesh import Mesh

IN_ORDER = Mesh(("dp", "tp"), (2, 3))
TURNED = Mesh(("dp", "tp"), (2, 3), np.array([[5, 3, 1], [4, 2, 0]]))


@pytest.mark.parametrize("mesh", [IN_ORDER, TURNED, Mesh()])
def test_coordinates_are_those_of_the_rank(mesh: Mesh) -> None:
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.size)] == list(range(mesh.size))


def test_ranks_that_are_not_in_order() -> None:
    assert [TURNED.coordinates(rank) for rank in (5, 1, 0)] == [(0, 0), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("mesh", "rank", "known"), [(IN_ORDER, 6, "ranks 0 to 5"), (IN_ORDER, -1, "ranks 0 to 5"), (TURNED, 6, "its ranks")]
)
def test_a_rank_that_is_not_there(mesh: Mesh, rank: int, known: str) -> None:
    with pytest.raises(UsageError, match=f"rank {rank} is not on the mesh .*: give one of {known}"):
        mesh.coordinates(rank)
