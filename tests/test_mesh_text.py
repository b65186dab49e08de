"""Meshes as text: reading what people write, and writing torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from dsexplore.errors import UsageError
from dsexplore.mesh_text import MeshSpec, axis_names, mesh_text, parse_mesh


def device_mesh(names: tuple[str, ...] | None) -> DeviceMesh:
    ranks = torch.arange(8).reshape(2, 4)
    return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


def test_text_and_mappings_are_read() -> None:
    assert parse_mesh(" dp=2, tp=4 ") == parse_mesh({"dp": 2, "tp": 4}) == MeshSpec(("dp", "tp"), (2, 4))
    assert parse_mesh("dp=1") == MeshSpec(("dp",), (1,))
    assert parse_mesh("") == parse_mesh(None) == MeshSpec()


def test_a_mesh_has_the_product_of_its_axes_and_its_own_text() -> None:
    spec = parse_mesh("dp=2,cp=3,tp=4")
    assert spec.size == 24
    assert str(spec) == "dp=2,cp=3,tp=4"
    assert parse_mesh(str(spec)) == spec
    assert MeshSpec().size == 1


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
    assert "write it like 'dp=2,tp=4'" in str(caught.value) or "give each axis a name" in str(caught.value)


def test_a_device_mesh_is_written_with_its_names_or_with_numbers() -> None:
    assert axis_names(device_mesh(("dp", "tp"))) == ("dp", "tp")
    assert mesh_text(device_mesh(("dp", "tp"))) == "dp=2,tp=4"
    assert mesh_text(device_mesh(None)) == "dim_0=2,dim_1=4"
