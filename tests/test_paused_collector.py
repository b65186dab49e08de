"""After a pause, the garbage collector is enabled if it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dsexplore._internal.paused_collector import no_collection


@pytest.fixture(params=[True, False])
def is_enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Yield True if the collector is enabled before the pause, else False."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_the_collector_runs_after_the_pause_where_it_ran_before(is_enabled: bool) -> None:
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled() is is_enabled


def test_an_error_ends_the_pause(is_enabled: bool) -> None:
    with pytest.raises(ArithmeticError), no_collection():
        raise ArithmeticError
    assert gc.isenabled() is is_enabled
