"""A world of fake tensors that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture
def fake() -> Iterator[None]:
    with simulate(4, fake=True):
        yield
