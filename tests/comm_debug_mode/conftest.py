"""Mesh that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with simulate(4, "tp=4") as mesh:
        yield mesh
