"""The sample traces as fixtures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def traces() -> ModuleType:
    """The module ``traces.py`` beside this file."""
    spec = importlib.util.spec_from_file_location("views_traces", Path(__file__).with_name("traces.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
