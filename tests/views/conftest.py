"""The sample traces as fixtures."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.views import traces as samples


@pytest.fixture(scope="session")
def traces() -> ModuleType:
    """Return the module ``traces.py`` beside this file."""
    return samples
