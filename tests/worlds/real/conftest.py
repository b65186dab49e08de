"""The process that local ranks are forked from, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsexplore import run_ranks
from dsexplore.worlds.real import rank_server as server_module


@pytest.fixture(scope="package")
def rank_server() -> Iterator[None]:
    """Start the process that ranks are forked from before the first test that needs it, and end it after the last."""
    run_ranks("", 1, backend=None).check()
    yield
    server_module.close()
