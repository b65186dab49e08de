"""Meshes are parsed from text and formatted; coordinates give ranks, in row-major and in other orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, axis_names, mesh_text, parse_mesh
from dsexplore._internal.torch_internals.names import torch_at_least

IN_ORDER = Mesh(("dp", "tp"), (2, 3))
NEEDS_NO_GROUP = pytest.mark.skipif(not torch_at_least("2.10"), reason="meshes of torch 2.9 need process groups")
TURNED = Mesh(("dp", "tp"), (2, 3), np.array([[5, 3, 1], [4, 2, 0]]))


def device_mesh(names: tuple[str, ...] | None) -> DeviceMesh:
    return unopened(torch.arange(8).reshape(2, 4), names)


def unopened(ranks: torch.Tensor, names: tuple[str, ...] | None) -> DeviceMesh:
    """Return a mesh without process groups."""
    return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


def test_text_and_mappings_are_read() -> None:
    for given in (" dp=2, tp=4 ", {"dp": 2, "tp": 4}):
        assert (parse_mesh(given).axes, parse_mesh(given).shape) == (("dp", "tp"), (2, 4))
    assert (parse_mesh("dp=1").axes, parse_mesh("dp=1").shape) == (("dp",), (1,))
    assert parse_mesh("").axes == parse_mesh(None).axes == ()


@NEEDS_NO_GROUP
def test_a_device_mesh_keeps_its_names_and_ranks() -> None:
    turned = unopened(torch.tensor([[1, 0], [3, 2]]), ("dp", "tp"))
    parsed = parse_mesh(turned)
    assert (parsed.axes, parsed.shape) == (("dp", "tp"), (2, 2))
    assert [parsed.rank(at) for at in ((0, 0), (0, 1), (1, 0))] == [1, 0, 3]
    assert parse_mesh(parsed) is parsed


def test_a_mesh_has_the_product_of_its_axes_and_its_own_text() -> None:
    spec = parse_mesh("dp=2,cp=3,tp=4")
    assert spec.size == 24
    assert str(spec) == "dp=2,cp=3,tp=4"
    assert str(parse_mesh(str(spec))) == str(spec)
    assert Mesh().size == 1


@pytest.mark.parametrize(
    ("mesh", "named"),
    [
        ("dp", "'dp' is not AXIS=RANKS"),
        ("dp=", "'dp=' is not AXIS=RANKS"),
        ("dp=two", "'dp=two' is not AXIS=RANKS"),
        ("dp=2,,tp=4", "'' is not AXIS=RANKS"),
        ("=2", "'' is not a name"),
        ("2d=2", "'2d' is not a name"),
        ("dp=0", "axis dp has 0 ranks"),
        ("dp=-2", "axis dp has -2 ranks"),
        ("dp=2,dp=4", "names axis dp twice"),
        ({"dp": 2.0}, "axis dp has 2.0 ranks"),
        ({"dp": True}, "axis dp has True ranks"),
        ({1: 2}, "1 is not a name"),
    ],
)
def test_a_bad_mesh_is_one_error_that_names_it(mesh: object, named: str) -> None:
    with pytest.raises(UsageError, match="mesh") as caught:
        parse_mesh(mesh)  # type: ignore[arg-type]
    assert named in str(caught.value)
    assert "write it like 'dp=2,tp=4'" in str(caught.value) or "give each axis its own name" in str(caught.value)


@NEEDS_NO_GROUP
def test_a_device_mesh_is_written_with_its_names_or_with_numbers() -> None:
    assert axis_names(device_mesh(("dp", "tp"))) == ("dp", "tp")
    assert mesh_text(device_mesh(("dp", "tp"))) == "dp=2,tp=4"
    assert mesh_text(device_mesh(None)) == "dim_0=2,dim_1=4"


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
