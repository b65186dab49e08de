"""Tab completion shows public names, and for results those that `docs/public_interface.md` lists.

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
from dsexplore._internal.display import Displayable, Result, plain_text
from dsexplore._internal.trace.trace import TraceDiff
from dsexplore._internal.views import VIEWS

INTERFACE = (Path(__file__).parents[1] / "docs" / "public_interface.md").read_text(encoding="utf-8")
MODULES = ("dsexplore", "dsexplore.aio", "dsexplore.comm", "dsexplore.cost", "dsexplore.lessons", "dsexplore.sharding")
LISTED = dict(re.findall(r"^\| `(\w+\.[\w.]+)` \| [^|]+ \|(?: `([^`]+)`)? ?\|?$", INTERFACE, re.MULTILINE))
"""{public name: the type that it returns, or an empty text}."""
ROWS = re.findall(r"^\| `([A-Z]\w+)` \| [^|]+ \|(.*)\|$", INTERFACE, re.MULTILINE)
SHARED = {"verdict", "lines", "to_frame", "to_html", "figure", "explore"}
OTHER_WORDS = {"sentence", "sentences", "summary", "text", "report", "advice", "conclusion"}
"""Names that a result's `verdict` or `lines` has had."""
NAMES = {name: set(re.findall(r"`(\w+)`", names)) for name, names in ROWS}


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


def listed(kind: type[Displayable]) -> set[str]:
    """Return the names that the page lists for a class."""
    return NAMES[kind.__name__] | (SHARED if issubclass(kind, Result) else set())


def object_of(name: str) -> object:
    """Return the object of a listed name: ``dsexplore.aio.sweep``, ``Trace.headline``."""
    first, *parts = name.split(".")
    kinds = {kind.__name__: kind for kind in result_classes()}
    found: object = dsexplore if first == "dsexplore" else kinds[first]
    for part in parts:
        found = getattr(found, part)
    return found


def shown(kind: type[Displayable]) -> set[str]:
    """Return what Tab completes on the instances of a class."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("dsexplore.")]
    of_instances = {name for base in ours for name in (*inspect.get_annotations(base), *assigned(base))}
    return public([*({*dir(kind)} | of_instances) - kind._INTERNAL])


def test_the_interface_lists_what_tab_completes_on_results() -> None:
    of_mode = public(dir(dsexplore.CommDebugMode())) - {*dir(TorchDispatchMode()), "comm_registry"}
    assert of_mode == NAMES["CommDebugMode"]
    assert NAMES.keys() == {"CommDebugMode", *(kind.__name__ for kind in result_classes())}
    for kind in result_classes():
        assert shown(kind) == listed(kind)


def test_the_interface_lists_every_public_name() -> None:
    names = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__}
    further = {name for name in names if name.startswith(("dsexplore.comm.", "dsexplore.aio.AIO"))}
    lone = {name for name in names if isinstance(object_of(name), ModuleType)} - {"dsexplore.sharding"}
    of_modules = {name for name in LISTED if name.startswith("dsexplore.")}
    assert of_modules - further == names - further - lone - {"dsexplore.__version__"}
    assert of_modules <= names


@pytest.mark.parametrize("name", sorted(name for name, returned in LISTED.items() if returned))
def test_a_listed_name_returns_what_the_interface_says(name: str) -> None:
    found = object_of(name)
    if inspect.isclass(found):
        returned = found.__name__
    elif inspect.isroutine(found) or isinstance(found, ModuleType):
        annotation = inspect.unwrap(found).__annotations__["return"]  # type: ignore[arg-type]  # a package that is called
        returned = re.sub(r"^Iterator\[(.*)\]$|^(RanksRun)\[.*$", r"\1\2", str(annotation))
    else:
        returned = str(inspect.get_annotations(type(found)).get("return", type(found).__name__))
    assert returned.partition("[")[0] == LISTED[name].partition("[")[0]


def test_instances_show_no_more() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(4))
    diff = trace.diff(trace)
    sharding = dsexplore.sharding((4,), "S(0)", "dp=2")
    further = (trace.headline(), trace.findings(), trace.skew(), trace.world_map(), diff.headline())
    for result in (trace, diff, trace.timeline(), *further, sharding, sharding.redistribute("R")):
        assert public(dir(result)) == listed(type(result))


def test_every_class_that_displays_itself_has_a_view() -> None:
    classes = {
        node.name
        for path in (Path(dsexplore.__file__).parent / "_internal").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ("Displayable", "Result") for base in node.bases)
    }
    base_classes = {"Analyses", "Result"}
    assert classes - base_classes <= {kind.__name__ for kind in result_classes()}


def test_a_result_says_what_it_concludes_by_one_name() -> None:
    for kind in set(result_classes()) - {dsexplore.Trace, TraceDiff}:
        assert issubclass(kind, Result), kind
        assert Result.verdict is not kind.verdict, kind
        assert Result.to_frame is not kind.to_frame, kind
        assert not shown(kind) & OTHER_WORDS, kind


def test_the_first_line_is_the_verdict() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(4))
    diff, empty = trace.diff(trace), dsexplore.Trace()
    sharding = dsexplore.sharding((4,), "S(0)", "dp=2")
    of_traces = [
        result
        for each in (trace, empty)
        for result in (each.headline(), each.findings(), each.skew(), each.timeline(), each.world_map())
    ]
    for result in (*of_traces, diff.headline(), diff.timeline(), sharding, sharding.redistribute("R")):
        verdict, *_ = result.lines()
        assert verdict == result.verdict() != ""
        assert verdict in plain_text(result)


@pytest.mark.parametrize("module", MODULES)
def test_modules_show_public_names_alone(module: str) -> None:
    found = import_module(module)
    shown = set(dir(found))
    assert set(found.__all__) <= shown
    assert public(list(shown - set(found.__all__))) <= {*dir(dist), "cdb", "default_pg_timeout"}
    modules = {name for name in shown if isinstance(getattr(found, name), ModuleType)}
    assert modules <= {"aio", "comm", "cost", "lessons", "sharding"}
    assert not shown & {"Any", "TYPE_CHECKING", "annotations", "logging", "sys", "timedelta", "torch", "typing"}


def test_every_package_that_dsexplore_exports_is_public() -> None:
    exported = {name for name in dsexplore.__all__ if hasattr(getattr(dsexplore, name), "__path__")}
    assert set(MODULES) == {"dsexplore", *(f"dsexplore.{name}" for name in exported)}


def test_every_listed_module_is_there() -> None:
    for name in ("comm.torch", "comm.constants", "comm.reduce_op", "constants"):
        assert f"`dsexplore.{name}`" in INTERFACE
        import_module(f"dsexplore.{name}")
