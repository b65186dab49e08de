"""A room imports only from rooms on floors below it, or from itself: read off the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dsexplore"
FLOORS = (
    {"atomic", "constants", "units", "errors", "display", "interrupts", "meshes", "models", "placements", "progress"},
    {"trace", "sharding"},
    {"capture"},
    {"comm_debug_mode"},
    {"worlds", "comm", "aio"},
    {"views"},
    {"magics", "cells", "cli"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ONE_DOOR = {("display", "views")}
"""`display` alone reaches up, when asked to draw."""
ROOT = "__init__"
"""The package itself hands names on from everywhere, lazily."""


def room_of(path: Path) -> str:
    """The room of a module's file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str) -> Iterator[str]:
    """Rooms that a module imports anywhere in it, inside functions too; text given to import_module counts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert node.level == 0, "imports are absolute"
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "dsexplore" else [module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            names = [str(getattr(node.args[0], "value", ""))]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "dsexplore" and rest:
                yield rest.split(".")[0]


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
        above = FLOOR[other] >= FLOOR[room] and not (FLOOR[other] == FLOOR[room] and FLOOR[room] in (0, len(FLOORS) - 1))
        assert not above, f"{path.name}: {room} (floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"


def test_finds_imports_wherever_they_stand() -> None:
    source = """
import dsexplore.views.html
from dsexplore import comm, load
def later():
    from dsexplore.aio import config
    importlib.import_module("dsexplore.cli")
"""
    assert sorted(imports(source)) == ["aio", "cli", "comm", "load", "views"]
