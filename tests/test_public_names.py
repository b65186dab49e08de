"""What Tab completion shows: public names, and for results those that `docs/public_interface.md` lists.

Modules: none of the package.
"""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import dsexplore
from dsexplore.aio import SweepResult

INTERFACE = (Path(__file__).parents[1] / "docs" / "public_interface.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^\| `(dsexplore[\w.]*)` \|", INTERFACE, re.MULTILINE)
ROWS = re.findall(r"^\| `([A-Z]\w+)` \| (.*) \|$", INTERFACE, re.MULTILINE)
RESULTS = {name: set(re.findall(r"`(\w+)`", names)) for name, names in ROWS}


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def shown_results() -> dict[str, set[str]]:
    """Return what Tab completes on a result, by class."""
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(4))
    made = {
        "Trace": trace,
        "TraceDiff": trace.diff(trace),
        "Timeline": trace.timeline(),
        "Sharding": dsexplore.sharding((4,), "S(0)", "dp=2"),
    }
    of_torch = set(dir(TorchDispatchMode()))
    return {
        **{name: public(dir(result)) for name, result in made.items()},
        "SweepResult": public(dir(SweepResult)) | {field.name for field in fields(SweepResult)},
        "CommDebugMode": public(dir(dsexplore.CommDebugMode())) - of_torch - {"comm_registry"},
    }


def test_results_show_what_the_interface_lists() -> None:
    assert shown_results() == RESULTS


@pytest.mark.parametrize("module", MODULES)
def test_modules_show_public_names_alone(module: str) -> None:
    found = import_module(module)
    shown = set(dir(found))
    assert set(found.__all__) <= shown
    assert public(list(shown - set(found.__all__))) <= {*dir(dist), "cdb", "default_pg_timeout"}
    modules = {name for name in shown if isinstance(getattr(found, name), ModuleType)}
    assert modules <= {"aio", "comm", "cost", "lessons", "sharding"}
    assert not shown & {"Any", "TYPE_CHECKING", "annotations", "logging", "sys", "timedelta", "torch", "typing"}


def test_the_interface_lists_the_packages_that_dsexplore_exports() -> None:
    exported = {name for name in dsexplore.__all__ if hasattr(getattr(dsexplore, name), "__path__")}
    assert set(MODULES) == {"dsexplore", *(f"dsexplore.{name}" for name in exported)}


def test_every_listed_module_is_there() -> None:
    for name in re.findall(r"`(dsexplore(?:\.[a-z_]+)*?)(?:\.__all__)?`", INTERFACE):
        import_module(name)
