"""One name has one meaning where it is read: comprehensions hide no name that is in use around them.

Modules: none of the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dsexplore"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_in(targets: Iterable[ast.AST]) -> set[str]:
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def hidden(node: ast.AST, in_use: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield line and name where a comprehension's variable is also a parameter, a loop's variable or what is assigned.

    Args:
        node: the code that is searched.
        in_use: names that it is in reach of.
    """
    inside = in_use
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        inside = frozenset(given.arg for given in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    elif isinstance(node, COMPREHENSIONS):
        own = names_in(generator.target for generator in node.generators) - {"_"}
        yield from ((node.lineno, name) for name in sorted(own & in_use))
        inside = in_use | own
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from hidden(node.iter, in_use)
        for statement in (*node.body, *node.orelse):
            yield from hidden(statement, in_use | names_in([node.target]))
        return
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        inside = in_use | names_in(node.targets if isinstance(node, ast.Assign) else [node.target])
    for child in ast.iter_child_nodes(node):
        yield from hidden(child, inside)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("calls = [call for calls in sides for call in calls]", ["calls"]),
        ("def f(name):\n    return {name for name in names}", ["name"]),
        ("for job in jobs:\n    any(job.is_done for job in others)", ["job"]),
        ("for job in (job for job in jobs):\n    pass", []),
        ("def f(size, *, most):\n    return [[row for row in rows] for rows in table]", []),
    ],
)
def test_what_hides_a_name_is_found(code: str, names: list[str]) -> None:
    assert [name for _, name in hidden(ast.parse(code))] == names


def test_no_comprehension_hides_a_name_in_use() -> None:
    found = [
        (f"{path.relative_to(PACKAGE)}:{line}", name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in hidden(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found
