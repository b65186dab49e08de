"""Conditions on the rank in a program's own source: ``if rank == 1``, ``rank % 2``, ``local_rank in (0, 4)``.

Ranks for which such a condition holds run other code, and may send other messages. Only conditions that depend on the
rank alone are found. They consist of the usual names of the rank, of the rank on its node and on its mesh axes
(``local_rank``, ``dp_rank``, ``mesh.get_local_rank("dp")``), the world size, numbers, arithmetic and comparisons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsexplore._internal.capture.stack.source_lines import file_name
from dsexplore._internal.worlds.scripts.rank_axes import Axis

_VARIABLES = {
    "rank": ("rank", "get_rank", "global_rank", "get_global_rank", "world_rank", "my_rank", "process_index"),
    "local": ("local_rank", "get_local_rank", "local_process_index"),
    "node": ("node_rank", "group_rank", "get_node_rank"),
    "world": ("world_size", "get_world_size", "num_processes", "nprocs"),
    "per_node": ("local_world_size",),
    "is_main": ("is_main_process", "is_world_process_zero", "is_global_zero"),
    "is_local_main": ("is_local_main_process", "is_local_process_zero"),
}
"""{variable of `_numbers`: the names that programs have for it}."""
_VARIABLE_OF_NAME = {name: variable for variable, names in _VARIABLES.items() for name in names}

_ALLOWED = (
    *(ast.Expression, ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Constant, ast.Tuple, ast.List, ast.Set),
    *(ast.Name, ast.Load, ast.operator, ast.cmpop, ast.unaryop, ast.boolop),
)
_UNBOUNDED = (ast.Pow, ast.LShift)
"""Operators that are not evaluated, because their results may be huge."""
MAX_CONDITIONS = 200
"""Maximal number of conditions that are evaluated; usual programs have a few."""


@dataclass(frozen=True)
class RankTest:
    """A condition on the rank.

    Attributes:
        text: source code of the condition.
        where: its first line, ``"train.py:31"``; empty if no program has it.
        holds: for each rank of the world, True if the condition holds.
    """

    text: str
    where: str
    holds: tuple[bool, ...]


@dataclass(frozen=True)
class WorldLayout:
    """Nodes and axes of a world, which give a rank's index on its node and on each axis."""

    world_size: int
    ranks_per_node: int
    axes: Sequence[Axis] = ()


def conditions_on_rank(files: Iterable[str], layout: WorldLayout) -> list[RankTest]:
    """Return the distinct conditions in some files that hold for some ranks and not for others.

    Of conditions that hold for the same ranks, or for exactly the other ranks, the first is returned.

    Args:
        files: paths of Python sources; unreadable ones are skipped.
        layout: nodes and axes of the world.
    """
    tests: dict[tuple[bool, ...], RankTest] = {}
    seen: set[str] = set()
    numbers = _numbers(layout)
    for file in files:
        for node in _conditions(file):
            condition = _rewrite_condition(node, layout.axes)
            if not condition or condition in seen:
                continue
            seen.add(condition)
            if len(seen) > MAX_CONDITIONS:
                return list(tests.values())
            holds = _evaluate(condition, numbers)
            if holds is not None and len(set(holds)) > 1:
                test = RankTest(text=ast.unparse(node), where=_line_of(file, node), holds=holds)
                tests.setdefault(_first_false(holds), test)
    return list(tests.values())


def code_of_other_ranks(script: str, rank: int, layout: WorldLayout) -> list[str]:
    """Return a note for each ``if rank == 1:`` of a script that is true on a single rank, and not on this one.

    Code for rank 0 is left out: it is mostly logging.

    Args:
        script: path of the script.
        rank: the rank that runs.
        layout: nodes and axes of the world.
    """
    notes, numbers = [], _numbers(layout)
    for node in _tests_of_if(script):
        condition = _rewrite_condition(node, layout.axes)
        holds = _evaluate(condition, numbers) if condition else None
        if holds is None or sum(holds) != 1 or holds[0] or holds[rank]:
            continue
        other = holds.index(True)
        notes.append(
            f"the code under `{ast.unparse(node)}` ({_line_of(script, node)}) runs on rank {other} only, and this is "
            f"rank {rank}: --rank {other} runs it"
        )
    return notes


def _first_false(holds: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return the same mask for a condition and its negation: the first element is False."""
    return tuple(not value for value in holds) if holds[0] else holds


def _conditions(file: str) -> Iterator[ast.expr]:
    """Yield the comparisons in a file, and all expressions that are tested for truth."""
    for node in _nodes(file):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.operand
        elif isinstance(node, ast.Compare):
            yield node


def _tests_of_if(file: str) -> Iterator[ast.expr]:
    return (node.test for node in _nodes(file) if isinstance(node, ast.If))


def _nodes(file: str) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a file; none if it cannot be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    yield from ast.walk(tree)


def _line_of(file: str, node: ast.expr) -> str:
    """Return the first line of an expression: ``"train.py:31"``."""
    return f"{file_name(str(Path(file).absolute()))}:{node.lineno}"


def _rewrite_condition(node: ast.expr, axes: Sequence[Axis]) -> str:
    """Rewrite a condition over the variables of `_numbers`; empty if it needs anything else."""
    names = _Names(axes)
    body = names.visit(ast.parse(ast.unparse(node), mode="eval"))
    parts = list(ast.walk(body))
    if not names.variables or any(isinstance(part, _UNBOUNDED) or not isinstance(part, _ALLOWED) for part in parts):
        return ""
    if any(isinstance(part, ast.Name) and part.id not in names.variables for part in parts):
        return ""
    return ast.unparse(body)


class _Names(ast.NodeTransformer):
    """Replaces expressions for the rank, such as ``dist.get_rank()``, by variables of `_numbers`.

    Attributes:
        variables: the variables that were used.
    """

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.variables: set[str] = set()
        self._axes = axes

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            name = _variable(*_name_and_argument(node), self._axes)
            if name:
                self.variables.add(name)
                return ast.Name(name, ast.Load())
        return super().generic_visit(node)


def _name_and_argument(node: ast.AST) -> tuple[str, str]:
    """Return the name that an expression refers to, ``get_local_rank``, and its text argument, ``dp`` or empty."""
    if isinstance(node, ast.Name):
        return node.id.lower(), ""
    if isinstance(node, ast.Attribute):
        return node.attr.lower(), ""
    if isinstance(node, ast.Subscript):  # os.environ["RANK"]
        return _text(node.slice).lower(), ""
    assert isinstance(node, ast.Call)
    name = _name_and_argument(node.func)[0] if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
    first = node.args[0] if node.args else None
    if name == "int" and first is not None and isinstance(first, (ast.Call, ast.Subscript)):
        return _name_and_argument(first)
    if name in ("get", "getenv"):  # os.environ.get("RANK", 0)
        return _text(first).lower(), ""
    return name, _text(first)


def _text(node: ast.AST | None) -> str:
    """Return the value of a string constant; empty for any other expression."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _variable(name: str, argument: str, axes: Sequence[Axis]) -> str:
    """Return the variable of `_numbers` that a name with this argument refers to; empty for none."""
    words = re.split(r"[\W_]+", name)
    for index, axis in enumerate(axes):
        if argument == axis.name or ("rank" in words and axis.name.lower() in words):
            return f"axis_{index}" if "rank" in words else ""
    return _VARIABLE_OF_NAME.get(name, "")


def _numbers(layout: WorldLayout) -> dict[str, list[int]]:
    """Return {variable of conditions: its value for each rank}."""
    ranks = range(layout.world_size)
    per_node = layout.ranks_per_node
    columns: dict[str, list[int]] = {
        "rank": list(ranks),
        "local": [rank % per_node for rank in ranks],
        "node": [rank // per_node for rank in ranks],
        "world": [layout.world_size] * layout.world_size,
        "per_node": [per_node] * layout.world_size,
        "is_main": [rank == 0 for rank in ranks],
        "is_local_main": [rank % per_node == 0 for rank in ranks],
    }
    for index, axis in enumerate(layout.axes):
        columns[f"axis_{index}"] = [axis.coordinate(rank) for rank in ranks]
    return columns


def _evaluate(condition: str, numbers: Mapping[str, Sequence[int]]) -> tuple[bool, ...] | None:
    """Evaluate a condition over the variables of `_numbers` for each rank; return None if that fails."""
    holds: Callable[..., object] = eval(f"lambda {', '.join(numbers)}: {condition}", {"__builtins__": {}})
    try:
        return tuple(map(bool, map(holds, *numbers.values())))
    except (ArithmeticError, TypeError, ValueError):
        return None
