"""Fixtures of the explorer's tests: a trace, and no widget that outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from ipywidgets import Widget

from dsexplore._internal.trace.trace import Trace


@pytest.fixture(autouse=True)
def widgets_are_closed() -> Iterator[None]:
    yield
    Widget.close_all()


@pytest.fixture
def trace(traces: ModuleType) -> Trace:
    made: Trace = traces.layered(8, odd=3)
    return made
