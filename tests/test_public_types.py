"""Public functions and results have types without `Any`, at any depth.

Modules: ``__init__.py``.

The public names of the package are followed from function to result to what the result holds; annotations are read as
type checkers read them, with the imports that stand under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh

import dsexplore
from dsexplore._internal.cost.cluster import Cluster, HardwareLike
from dsexplore._internal.display import OptionsOfView
from dsexplore._internal.mesh import MeshLike
from dsexplore._internal.sharding.plan import sharding
from dsexplore._internal.views import view_class

MODULES = ("dsexplore", "dsexplore.comm", "dsexplore.aio", "dsexplore.cost", "dsexplore.lessons")
SHOWN_BY_NAME = ("__init__", "__call__", "__enter__", "__getitem__", "__iter__")
"""Methods without a public name that users call."""


@cache
def names_for_type_checkers(module: str) -> dict[str, Any]:
    """Return what the annotations of a module can name."""
    found = import_module(module)
    names = dict(vars(found))
    for node in ast.walk(ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports = [each for each in node.body if isinstance(each, (ast.Import, ast.ImportFrom))]
            exec(compile(ast.Module(imports, []), module, "exec"), names)
    for name, text in {"MeshLike": MeshLike, "HardwareLike": HardwareLike}.items():  # texts, which import nothing
        if names.get(name) is text:
            names[name] = eval(text, {"Mapping": Mapping, "DeviceMesh": DeviceMesh, "Cluster": Cluster, "os": os})
    return names


def parts(annotation: Any) -> Iterator[Any]:
    """Yield a type and the types inside it; an array's shape is numpy's own matter."""
    yield annotation
    if getattr(typing.get_origin(annotation), "__module__", "") == "numpy":
        return
    for inner in typing.get_args(annotation):
        for each in inner if isinstance(inner, list) else [inner]:
            yield from parts(each)


class Types:
    """Return the types of public functions and results by place: ``Trace.skew``, ``Trace.where(conditions)``."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self._seen: set[type] = set()

    @property
    def classes(self) -> set[type]:
        """Public classes, and those of what they hold and return."""
        return self._seen

    def follow(self, name: str, shown: Any) -> None:
        """Add a public function, class or value, and the classes that it returns or holds."""
        if inspect.isclass(shown):
            self._follow_class(shown)
        elif callable(shown):
            self._follow_function(name, shown)

    def _follow_class(self, shown: type) -> None:
        if shown in self._seen or not shown.__module__.startswith("dsexplore"):
            return
        self._seen.add(shown)
        for home in [each for each in shown.__mro__ if each.__module__.startswith("dsexplore")]:
            for name, annotation in vars(home).get("__annotations__", {}).items():
                if not name.startswith("_"):
                    self._add_result(f"{home.__name__}.{name}", self._read(annotation, home.__module__))
            for name, value in vars(home).items():
                function = function_of(value)
                if function is not None and (not name.startswith("_") or name in SHOWN_BY_NAME):
                    self._follow_function(f"{home.__name__}.{name}", function, home)
            self._follow_attributes(home)
        view = view_class(shown)
        for method in ("page", "figure", "explore") if view is not None else ():
            for name, annotation in self._parameters(getattr(view, method)).items():
                self.parameters[f"{shown.__name__}.{method}({name})"] = annotation

    def _follow_attributes(self, home: type) -> None:
        """Add what ``__init__`` assigns with an annotation: ``self.results: Mapping[int, object] = {}``."""
        made = vars(home).get("__init__")
        if made is None or hasattr(home, "__dataclass_fields__"):  # whose source nobody wrote
            return
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(made))))
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target).startswith("self."):
                name = ast.unparse(node.target).removeprefix("self.")
                if not name.startswith("_"):
                    found = self._read(ast.unparse(node.annotation), home.__module__)
                    self._add_result(f"{home.__name__}.{name}", found)

    def _follow_function(self, name: str, shown: Any, home: type | None = None) -> None:
        function = inspect.unwrap(shown)
        if isinstance(function, FunctionType) and function.__module__.startswith("dsexplore"):
            if "return" in function.__annotations__:
                self._add_result(name, self._read(function.__annotations__["return"], function.__module__))
            for parameter, annotation in self._parameters(function, home).items():
                self.parameters[f"{name}({parameter})"] = annotation

    def _parameters(self, shown: Any, home: type | None = None) -> dict[str, Any]:
        """Return the types of a function's parameters, but not of ``*args`` and ``**options``.

        Those of a dataclass's ``__init__`` are fields, which are read in the module of the class that declares them.
        """
        function = inspect.unwrap(shown)
        code = function.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return {
            name: self._read(
                annotation,
                declared_in(name, home)
                if function.__name__ == "__init__" and home is not None and is_dataclass(home)
                else function.__module__,
            )
            for name, annotation in function.__annotations__.items()
            if name in named
        }

    def _read(self, annotation: Any, module: str) -> Any:
        if not isinstance(annotation, str):
            return annotation
        return eval(annotation, names_for_type_checkers(module))

    def _add_result(self, name: str, annotation: Any) -> None:
        self.results[name] = annotation
        for each in parts(annotation):
            home = typing.get_origin(each) or each
            if inspect.isclass(home):
                self._follow_class(home)


def function_of(value: Any) -> Callable[..., Any] | None:
    """Return the function of what stands in a class: a method of any kind, a property."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    if isinstance(value, cached_property):
        return value.func
    if isinstance(value, OptionsOfView):
        return value.method
    return value if isinstance(value, FunctionType) else None


def declared_in(field: str, home: type) -> str:
    """Return the module of the class that declares a field; that of `home` where none does."""
    return next((each for each in home.__mro__ if field in vars(each).get("__annotations__", {})), home).__module__


@pytest.fixture(scope="module")
def types() -> Types:
    found = Types()
    for module in map(import_module, MODULES):
        for name in module.__all__:
            found.follow(f"{module.__name__}.{name}", getattr(module, name))
    found.follow("dsexplore.sharding", sharding)
    return found


def with_any(types: dict[str, Any], but: Callable[[Any], bool] = lambda _: False) -> list[str]:
    return [
        f"{name}: {found}"
        for name, found in types.items()
        if any(each is Any for each in parts(found)) and not but(found)
    ]


def takes_a_function(annotation: Any) -> bool:
    """Return whether what a function takes is a function, of which it asks nothing."""
    return any(typing.get_origin(each) is Callable or "Callable" in str(each) for each in parts(annotation))


def test_no_public_result_is_any(types: Types) -> None:
    assert with_any(types.results) == []


def test_no_public_parameter_is_any(types: Types) -> None:
    assert with_any(types.parameters, takes_a_function) == []


def test_what_users_ask_for_most_is_among_them(types: Types) -> None:
    shown = {
        name: getattr(types.results[name], "__name__", "")
        for name in (
            "Analyses.headline",
            "Analyses.findings",
            "Analyses.timeline",
            "Analyses.world_map",
            "Analyses.parameter_history",
        )
    }
    assert shown == {
        "Analyses.headline": "Headline",
        "Analyses.findings": "Findings",
        "Analyses.timeline": "Timeline",
        "Analyses.world_map": "WorldMap",
        "Analyses.parameter_history": "ParameterHistory",
    }
    assert len(types.results) > 300
    assert {
        "Trace.results",
        "RanksRun.values",
        "Displayable.figure",
        "dsexplore.comm.all_reduce",
    } < types.results.keys()


def test_any_is_found_however_deep() -> None:
    assert with_any({"deep": dict[str, list[tuple[int, Any]]]}) != []
    assert with_any({"deep": Callable[[Any], int]}) != []
    assert with_any({"object": dict[str, object]}) == []


def test_dsexplore_names_what_it_imports_for_type_checkers() -> None:
    """`TYPE_CHECKING` lists the same public names that are imported on first use."""
    listed = names_for_type_checkers("dsexplore")
    assert set(dsexplore.__all__) - set(listed) <= {"__version__"}
