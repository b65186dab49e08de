"""How modules may lean on each other, read off the sources: floors, no import circles, each name once.

Modules: ``dsexplore/``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dsexplore" / "_internal"
PREFIX = "dsexplore._internal."
FLOORS = (
    {
        "data_files",
        "units",
        "user_warnings",
        "errors",
        "free_memory",
        "hardware",
        "display",
        "interrupts",
        "launch_constants",
        "io_accesses",
        "mesh",
        "model_names",
        "near_names",
        "output",
        "paused_collector",
        "placement_text",
        "progress",
        "saved_json",
        "signatures",
        "tensor_memory",
        "torch_internals",
        "tracebacks",
        "unloaded_magic",
        "user_code",
    },
    {"trace"},
    {"sharding"},
    {"capture", "analysis"},
    {"comm_debug_mode"},
    {"worlds", "comm", "aio"},
    {"cost", "lessons", "numerics"},
    {"views"},
    {"magics", "compare_magic", "magic_parser", "run_cell", "real_cells", "cli"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ONE_DOOR = {("display", "views"), ("sharding", "aio"), ("trace", "analysis"), ("trace", "cost"), ("trace", "views")}
"""`display` imports from above when something is shown; `Trace` names the types of what its methods return, which it
calls by the table in `trace/analyses.py`, and which a test keeps to type checkers; `Sharding.checkpoint` asks `aio`
about a disk."""
ROOT = "__init__"
WITH_CIRCLES: set[str] = set()
"""Rooms whose modules still import each other in a circle; a room leaves this list with its last circle."""


def room_of(path: Path) -> str:
    """Return the room of a module's file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Return the dotted name of a module's file: ``trace.files``; of a package its folder: ``trace``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(source: str, modules: set[str]) -> Iterator[str]:
    """Yield those of our modules that a module imports anywhere in it: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [member if member.removeprefix(PREFIX) in modules else str(node.module) for member in members]
        else:
            continue
        ours = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
        yield from ours & modules


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return one circle of imports, from a module back to itself; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def imports(source: str) -> Iterator[str]:
    """Rooms that a module imports anywhere in it, inside functions too; text given to import_module counts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert node.level == 0, "imports are absolute"
            names = [f"{module}.{alias.name}" for alias in node.names] if module == PREFIX[:-1] else [module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            names = [str(getattr(node.args[0], "value", ""))]
        else:
            continue
        yield from (name.removeprefix(PREFIX).split(".")[0] for name in names if name.startswith(PREFIX))


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {ROOT}
    assert rooms <= FLOOR.keys(), f"give {rooms - FLOOR.keys()} a floor"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_below(path: Path) -> None:
    room = room_of(path)
    if room == ROOT:
        return
    for other in imports(path.read_text(encoding="utf-8")):
        if other == room or (room, other) in ONE_DOOR or other not in FLOOR:
            continue
        above = FLOOR[other] >= FLOOR[room] and not (
            FLOOR[other] == FLOOR[room] and FLOOR[room] in (0, len(FLOORS) - 1)
        )
        assert not above, f"{path.name}: {room} (floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"


def test_public_modules_import_internal_ones_and_not_the_other_way_round() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            upward = [name for name in modules if name.startswith("dsexplore.") and not name.startswith(PREFIX[:-1])]
            assert not upward, f"{path} imports {upward[0]}, which stands above dsexplore._internal"


class RunTime(ast.NodeTransformer):
    """Return the code of a module that runs outside of type checkers."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def test_traces_import_from_above_for_type_checkers_alone() -> None:
    upward = {other for room, other in ONE_DOOR if room == "trace"}
    for path in (PACKAGE / "trace").rglob("*.py"):
        left = ast.unparse(RunTime().visit(ast.parse(path.read_text(encoding="utf-8"))))
        assert not upward & {*imports(left)}, path.name


def test_finds_imports_wherever_they_stand() -> None:
    source = """
import dsexplore._internal.views.html
from dsexplore._internal import comm, mesh
def later():
    from dsexplore._internal.aio import config
    importlib.import_module("dsexplore._internal.cli")
"""
    assert sorted(imports(source)) == ["aio", "cli", "comm", "mesh", "views"]


def room_circle(room: str) -> list[str]:
    """Return one circle of imports among the modules of a room; empty where there is none."""
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py") if room_of(path) == room}
    names = set(paths)
    return circle({name: {*imported_modules(path.read_text(encoding="utf-8"), names)} for name, path in paths.items()})


@pytest.mark.parametrize("room", sorted(FLOOR))
def test_no_room_imports_in_a_circle(room: str) -> None:
    found = room_circle(room)
    if room in WITH_CIRCLES:
        assert found, f"{room} has no circle any more: remove it from WITH_CIRCLES"
    else:
        assert not found, f"imports run in a circle: {' → '.join(found)}"


def test_no_rooms_import_in_a_circle() -> None:
    graph = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) != ROOT:
            others = set(imports(path.read_text(encoding="utf-8"))) & FLOOR.keys()
            graph[room_of(path)] |= {other for other in others if (room_of(path), other) not in ONE_DOOR}
    for room, others in graph.items():
        others.discard(room)
    assert circle(graph) == []


def test_finds_circles_of_types_and_in_functions() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from dsexplore._internal.trace.trace import Trace
def later():
    from dsexplore._internal.trace import files
    import dsexplore._internal.trace.diff
"""
    assert {*imported_modules(source, {"trace", "trace.trace", "trace.files", "trace.diff"})} == {
        "trace.trace",
        "trace.files",
        "trace.diff",
    }
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})[0] in "abc"
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_each_module_name_stands_once() -> None:
    folders = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path.stem not in (ROOT, "__main__"):
            folders[path.stem].add(str(path.parent.relative_to(PACKAGE)))
    twice = {name: sorted(where) for name, where in folders.items() if len(where) > 1}
    assert not twice, f"one name, one meaning: {twice}"


def test_each_class_name_stands_in_one_module() -> None:
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(module_of(path))
    twice = {name: sorted(where) for name, where in modules.items() if len(where) > 1}
    assert not twice, f"one name, one meaning: {twice}"
