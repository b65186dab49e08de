"""Stand-ins take the arguments of the libraries that they replace: names, order and defaults.

``real_signatures.json`` holds those of the libraries, read in their sources at the commits that it names. Of each it
also lists what a stand-in leaves out: arguments that change nothing without a GPU, or that it does not compute.

Modules: ``worlds/extensions/registry.py``, ``worlds/extensions/fused_optimizers.py``.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dsexplore._internal.worlds.extensions import registry

DATA: list[dict[str, Any]] = json.loads((Path(__file__).parent / "real_signatures.json").read_text())
COMPILED = ("amp_C.", "deepspeed.", "transformer_engine.pytorch.optimizers.multi_tensor_")
"""Functions of C++, which are called by position."""


class Case(NamedTuple):
    """A function or method of a library: its package, name, signature, and parameters that the stand-in lacks."""

    package: str
    name: str
    signature: str
    left_out: frozenset[str]


def cases() -> Iterator[Case]:
    """Yield each function and method that `DATA` has a signature of."""
    for source in DATA:
        for names, signature in source["signatures"].items():
            for name in names.split():
                left_out = source["left_out"].get(names, "")
                yield Case(source["package"], name, signature, frozenset(left_out.split()))


def parameters_of(signature: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of positional parameters, and {name: default} of all; "" without a default."""
    arguments = ast.parse(f"def function{signature}: ...").body[0].args  # type: ignore[attr-defined] # a function
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    named = [argument.arg for argument in positional + arguments.kwonlyargs]
    texts = [ast.unparse(default) if default is not None else "" for default in defaults]
    return [argument.arg for argument in positional], dict(zip(named, texts, strict=True))


def parameters_here(case: Case) -> list[Parameter]:
    """Return the parameters of the stand-in, without ``self``."""
    names = registry.names_of(case.package)
    if case.name in names:
        stand_in: Any = names[case.name]
        return list(inspect.signature(getattr(stand_in, "apply", stand_in)).parameters.values())
    name, _, method = case.name.rpartition(".")
    stand_in = names[name]
    if method == "__init__":
        return list(inspect.signature(stand_in).parameters.values())
    return list(inspect.signature(getattr(stand_in, method)).parameters.values())[1:]


def differences(case: Case) -> list[str]:
    """Return how the stand-in's parameters differ from those of the library."""
    positional, defaults = parameters_of(case.signature)
    here = {parameter.name: parameter for parameter in parameters_here(case)}
    by_position = [name for name, parameter in here.items() if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    found = [
        f"argument {place} is {ours}, and {theirs} in the library"
        for place, (ours, theirs) in enumerate(zip(by_position, positional, strict=False))
        if ours != theirs
    ]
    left_out = set(defaults) - set(here)
    if left_out != case.left_out:
        found.append(f"left out are {sorted(left_out)}, and {sorted(case.left_out)} by real_signatures.json")
    for name in defaults.keys() & here.keys():
        default = here[name].default
        if defaults[name] == "" and default is Parameter.empty:
            continue
        try:
            is_same = default == ast.literal_eval(defaults[name])
        except (ValueError, SyntaxError):  # a name: of a dtype, a function, a constant
            is_same = defaults[name] == "" or default is not Parameter.empty
        if not is_same:
            found.append(f"{name} is {default!r} unless given, and {defaults[name]} in the library")
    required = [
        name
        for name, parameter in here.items()
        if name not in defaults
        and parameter.default is Parameter.empty
        and parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    return found + [f"{name} is required, and unknown to the library" for name in required]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.package}.{case.name}")
def test_arguments_are_those_of_the_library(case: Case) -> None:
    assert differences(case) == []


def test_each_stand_in_that_is_called_has_a_signature() -> None:
    known = {(case.package, case.name) for case in cases()} | {
        (case.package, case.name.rpartition(".")[0]) for case in cases()
    }
    unknown = [
        f"{package}.{name}"
        for package in registry._factories
        for name, stand_in in registry.names_of(package).items()
        if callable(stand_in) and (package, name) not in known
        if not (isinstance(stand_in, type) and issubclass(stand_in, (BaseException, Enum)))
    ]
    assert [name for name in unknown if not name.startswith(COMPILED)] == []
