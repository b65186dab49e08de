"""`import dsexplore` is light: it costs little beside torch, and loads nothing that is only used when drawing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dsexplore

ROOT = Path(dsexplore.__file__).parents[1]
HEAVY = ("plotly", "ipywidgets", "anywidget", "ipyparallel", "pandas", "IPython", "transformers", "matplotlib")


def run(program: str) -> object:
    """What a fresh interpreter prints as JSON."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT)
    return json.loads(done.stdout)


def test_loads_nothing_heavy() -> None:
    program = f"import dsexplore, sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert run(program) == []


def test_tracing_loads_nothing_that_draws() -> None:
    program = f"""
import dsexplore, sys, json, torch, torch.distributed as dist
with dsexplore.commtrace(world_size=2) as trace:
    dist.all_reduce(torch.ones(2))
assert len(trace) == 1
print(json.dumps([m for m in {HEAVY} if m in sys.modules and m != "pandas"]))
"""
    assert run(program) == []


def test_adds_one_module_to_torch() -> None:
    program = """
import json, sys, torch
before = set(sys.modules)
import dsexplore
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    assert run(program) == ["dsexplore"]


def test_every_public_name_is_there_and_listed() -> None:
    assert set(dir(dsexplore)) == set(dsexplore.__all__)
    for name in dsexplore.__all__:
        assert getattr(dsexplore, name) is not None


def test_an_unknown_name_is_one_error_that_lists_the_known() -> None:
    with pytest.raises(AttributeError, match=r"'nothing'; it has .*simulate"):
        dsexplore.nothing  # noqa: B018
