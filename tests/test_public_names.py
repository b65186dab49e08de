"""What Tab completion shows: public names, and for results those that `docs/public_interface.md` lists.

Modules: none of the package.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import dsexplore
from dsexplore._internal.display import Displayable
from dsexplore._internal.views import VIEWS

INTERFACE = (Path(__file__).parents[1] / "docs" / "public_interface.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^\| `(dsexplore[\w.]*)` \|", INTERFACE, re.MULTILINE)
ROWS = re.findall(r"^\| `([A-Z]\w+)` \| (.*) \|$", INTERFACE, re.MULTILINE)
RESULTS = {name: set(re.findall(r"`(\w+)`", names)) for name, names in ROWS}


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def result_classes() -> list[type[Displayable]]:
    """Return the classes of results, which all have a view."""
    homes = (f"dsexplore._internal.{home}".partition(":") for home in VIEWS)
    return [getattr(import_module(module), name) for module, _, name in homes]


def assigned(kind: type) -> set[str]:
    """Return the attributes that the methods of a class set: ``self.name = …``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def shown(kind: type[Displayable]) -> set[str]:
    """Return what Tab completes on the instances of a class."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("dsexplore.")]
    of_instances = {name for base in ours for name in (*inspect.get_annotations(base), *assigned(base))}
    return public([*({*dir(kind)} | of_instances) - kind._INTERNAL])


def test_the_interface_lists_what_tab_completes_on_results() -> None:
    of_mode = public(dir(dsexplore.CommDebugMode())) - {*dir(TorchDispatchMode()), "comm_registry"}
    assert {**{kind.__name__: shown(kind) for kind in result_classes()}, "CommDebugMode": of_mode} == RESULTS


def test_instances_show_no_more() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(4))
    diff = trace.diff(trace)
    sharding = dsexplore.sharding((4,), "S(0)", "dp=2")
    further = (trace.headline(), trace.findings(), trace.skew(), trace.world_map(), diff.headline())
    for result in (trace, diff, trace.timeline(), *further, sharding, sharding.redistribute("R")):
        assert public(dir(result)) == RESULTS[type(result).__name__]


def test_every_class_that_displays_itself_has_a_view() -> None:
    classes = {
        node.name
        for path in (Path(dsexplore.__file__).parent / "_internal").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Displayable" for base in node.bases)
    }
    assert classes - {"Analyses"} <= {kind.__name__ for kind in result_classes()}  # the base class of `Trace`


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
