"""No module outside of `dsexplore.torch_internals` names what is not public in torch; read off the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dsexplore"
DOOR = "torch_internals"
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


def sources() -> dict[Path, ast.Module]:
    """Return the syntax trees of all modules outside of the door."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if DOOR not in path.parts]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


TREES = sources()
OURS = names_of_ours(TREES)


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_names_what_is_private_in_torch(path: Path) -> None:
    found = [f"{path.name}:{line}: {name}" for line, name in names_of_torch(TREES[path], OURS)]
    assert not found, f"ask dsexplore.{DOOR} for these: {found}"


def test_the_scan_finds_every_form() -> None:
    source = """
import torch._utils
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch import nn
torch._C._current_graph_task_id()
c10d._world.pg_map
tensor._local_tensor
getattr(tensor, "_spec", None)
nn.Module._apply
sys._getframe()
self._ours
nn.Linear.__init__
"""
    found = {name for _, name in names_of_torch(ast.parse(source), {"_ours"})}
    assert found == {
        "torch._utils",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._C",
        "torch._C._current_graph_task_id",
        "torch.distributed.distributed_c10d._world",
        "…._local_tensor",
        "…._spec",
        "torch.nn.Module._apply",
    }
