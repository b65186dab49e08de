"""`import dsexplore` is light: it costs little beside torch, and loads nothing that is only used when drawing.

Modules: ``__init__.py``.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

import dsexplore
from tests.programs import printed

ROOT = Path(dsexplore.__file__).parents[1]
HEAVY = ("plotly", "ipywidgets", "anywidget", "ipyparallel", "pandas", "IPython", "transformers", "matplotlib")


def run(program: str) -> object:
    """Return what a fresh interpreter prints as JSON."""
    return json.loads(printed(program))


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


def test_scripts_beside_the_package_import_names_that_it_has() -> None:
    """Benchmarks and `docs/pictures.py` run in no test, so a name that they need could leave the package unseen."""
    scripts = [path for folder in ("benchmarks", "docs", "tests") for path in (ROOT / folder).glob("*.py")]
    missing = []
    for script in scripts:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dsexplore":
                missing += [f"{script.name}: {node.module}.{one.name}" for one in node.names if not has(node, one.name)]
    assert missing == []
    assert len(scripts) > 40


def has(statement: ast.ImportFrom, name: str) -> bool:
    """Return whether a module has a name, or a module of that name."""
    found = importlib.import_module(str(statement.module))
    if hasattr(found, name) or not hasattr(found, "__path__"):
        return hasattr(found, name)
    return importlib.util.find_spec(f"{statement.module}.{name}") is not None


def errors_raised() -> set[str]:
    """Return the names of the error classes that the package defines; private ones end where they begin."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "dsexplore").rglob("*.py")]
    names = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name for name in names if name.endswith("Error") and not name.startswith("_")}


WITHOUT_NAME = {"CellSyntaxError", "MissingNameError", "NVMLError", "UnknownArgumentError"}
"""A cell that does not parse: IPython shows it, and no program can catch it; what is caught as the TypeError,
ImportError or UsageError that it is; and what stands in for an error of another package."""


def test_every_error_can_be_caught_by_its_public_name() -> None:
    names = errors_raised() - WITHOUT_NAME
    assert names >= {"UsageError", "TraceFileError", "ClosedWorldError", "ExpectationError", "RanksFailedError"}
    assert names <= set(dsexplore.__all__)
    assert all(issubclass(getattr(dsexplore, name), Exception) for name in names)


def test_a_failed_run_of_ranks_is_caught_by_its_public_name() -> None:
    with pytest.raises(dsexplore.UsageError, match="world_size 0"):
        dsexplore.run_ranks("1", 0)


def test_one_page_shows_every_public_name() -> None:
    page = (ROOT / "docs" / "everything.md").read_text(encoding="utf-8")
    of_ipython = {"load_ipython_extension", "unload_ipython_extension", "__version__"}  # %load_ext calls these
    shown = {name for name in dsexplore.__all__ if re.search(rf"\bdsexplore\.{name}\b", page)}
    assert set(dsexplore.__all__) - of_ipython <= shown


def test_an_unknown_name_is_one_error_that_lists_the_known() -> None:
    with pytest.raises(AttributeError, match=r"'nothing'; it has .*simulate"):
        dsexplore.nothing  # noqa: B018
