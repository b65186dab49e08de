"""Private names of torch that modules outside of `torch_internals` name, read off the sources.

``python tests/torch_internals/private_names.py [PACKAGE]`` prints how many each room names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dsexplore" / "_internal"
ROOM = "torch_internals"
"""The room that may name them."""
OF_PYTHON = {
    "_asdict",
    "_current_frames",
    "_exit",
    "_fields",
    "_filename_map",
    "_getframe",
    "_make",
    "_option_string_actions",
    "_reconstruct",
    "_replace",
    "_shared_state",
    "_showwarnmsg",
}
"""Names with an underscore of Python's own library and of IPython."""
BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller"}
"""Functions that take the name of an attribute as text."""


def is_private(path: str) -> bool:
    """Return True if a dotted path has a part with a leading underscore that is no dunder and no mark of ours."""
    parts = [part for part in path.split(".") if part.startswith("_") and not part.startswith("__")]
    return any("dsexplore" not in part for part in parts)


def names_of_ours(trees: dict[Path, ast.Module]) -> set[str]:
    """Return what the package itself defines: functions, classes, variables, attributes of its own objects."""
    names = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
                names.update(
                    n.attr
                    for target in targets
                    for n in ast.walk(target)
                    if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")
                )
    return names


def names_of_torch(tree: ast.Module, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and path of each private name of torch in a module: imported, an attribute, or given as text."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    imported[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    if is_private(alias.name):
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name] = path
                if is_private(path):
                    yield node.lineno, path

    def path_of(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return imported.get(node.id)
        base = path_of(node.value) if isinstance(node, ast.Attribute) else None
        return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = path_of(node)
            if path is not None:
                if is_private(node.attr):
                    yield node.lineno, path
            elif is_private(node.attr) and node.attr not in ours | OF_PYTHON:
                yield node.lineno, f"….{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_NAME:
            for argument in node.args:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and is_private(text) and text not in ours | OF_PYTHON:
                    yield node.lineno, f"….{text}"


def paths(package: Path) -> list[Path]:
    """Return all modules outside of `torch_internals`."""
    return [path for path in sorted(package.rglob("*.py")) if ROOM not in path.relative_to(package).parts]


def sources(package: Path) -> dict[Path, ast.Module]:
    """Return the syntax trees of these modules."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths(package)}


def names_by_room(package: Path) -> dict[str, set[str]]:
    """Return the private names of torch that each room besides `torch_internals` names."""
    trees = sources(package)
    ours = names_of_ours(trees)
    rooms: dict[str, set[str]] = {}
    for path, tree in trees.items():
        parts = path.relative_to(package).parts
        room = "/".join(parts[: 2 if parts[0] == "worlds" and len(parts) > 2 else 1])
        rooms.setdefault(room, set()).update(name for _, name in names_of_torch(tree, ours))
    return rooms


def main() -> None:
    """Print the number of names per room, most first."""
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    rooms = names_by_room(package)
    for room, names in sorted(rooms.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        if names:
            print(f"{room:24} {len(names):4}")
    print(f"{'all rooms':24} {len(set().union(*rooms.values())):4} in {len(rooms)} rooms and modules")


if __name__ == "__main__":
    main()
