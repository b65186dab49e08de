"""Lets the tests in this folder and below import ``small_models``: pytest's import mode puts no folder on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsexplore import run_ranks
from dsexplore.worlds.real import rank_server as server_module

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="package")
def rank_server() -> Iterator[None]:
    """Start the process that real ranks are forked from before the first test that needs it."""
    run_ranks("", 1, backend=None).check()
    yield
    server_module.close()
