"""Mutants: small changes of one place in the package, drawn by a seed. See `tests/mutants.py`."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Keyword, ReturnStmt

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsexplore" / "_internal"

TURNED = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
    "Lt": ("LtE", "GtE"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "LtE"),
    "GtE": ("Gt", "Lt"),
}
EXCHANGED = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "Div": "Mul",
    "FloorDiv": "Mul",
    "Mod": "FloorDiv",
    "Pow": "Mul",
    "BitOr": "BitAnd",
    "BitAnd": "BitOr",
    "BitXor": "BitOr",
    "LShift": "RShift",
    "RShift": "LShift",
}
OPERATORS = (
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, others in TURNED.items() for b in others),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in EXCHANGED.items()),
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "NumberReplacer",
    "ZeroIterationForLoop",
)

Position = tuple[int, int]


class ReturnNone(Operator):  # type: ignore[misc]  # cosmic-ray is not there when mypy runs
    """``return value`` → ``return None``."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        """Yield the position of a returned expression that is not None."""
        if isinstance(node, ReturnStmt) and len(node.children) == 2 and node.children[1].get_code().strip() != "None":
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement with None in place of its expression."""
        node.children[1] = Keyword("None", node.children[1].start_pos, prefix=" ")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return no examples; only cosmic-ray's own tests use them."""
        return ()


def operators() -> dict[str, Operator]:
    """Return the changes that are made, by name."""
    return {"ReturnNone": ReturnNone(), **{name: get_operator(f"core/{name}")() for name in OPERATORS}}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """The package with one change."""

    path: str
    """The changed file, relative to the root."""
    line: int
    operator: str
    occurrence: int
    """Number of the place among those of the file for this operator."""
    original: str = dataclasses.field(repr=False)
    """The text of the unchanged file."""

    @property
    def key(self) -> str:
        """Key under which the result is stored."""
        digest = hashlib.sha256(self.original.encode()).hexdigest()[:16]
        return f"{self.path}:{self.operator}:{self.occurrence}:{digest}"

    def code(self) -> str:
        """Return the text of the changed file."""
        code: str = mutate_code(self.original, operators()[self.operator], self.occurrence)
        return code

    def is_python(self) -> bool:
        """Return True if the changed file is valid; a ``*`` or ``/`` between parameters is not an operator."""
        try:
            ast.parse(self.code())
        except SyntaxError:
            return False
        return True

    def diff(self) -> str:
        """Return the changed lines, before and after."""
        lines = difflib.unified_diff(self.original.splitlines(), self.code().splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def places(path: Path) -> list[list[Mutant]]:
    """Return the mutants of each place of a file that can be changed."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    unchanged = list(left_alone(ast.parse(source)))
    found: dict[Position, list[Mutant]] = {}
    for name, operator in operators().items():
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(positions):
            if not any(first <= start < last for first, last in unchanged):
                mutant = Mutant(str(path.relative_to(ROOT)), start[0], name, occurrence, source)
                found.setdefault(start, []).append(mutant)
    return [found[start] for start in sorted(found)]


def left_alone(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yield begin and end, as (line, column), of code whose change would have no effect at run time."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.returns is not None:
                    yield extent(node.returns)
                if any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                    yield extent(node)
            case ast.arg(annotation=ast.expr() as annotation):
                yield extent(annotation)
            case ast.AnnAssign():
                yield extent(node.annotation)
                if "TypeAlias" in ast.unparse(node.annotation) and node.value is not None:
                    yield extent(node.value)
            case ast.ClassDef():
                yield from (extent(decorator) for decorator in node.decorator_list)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test) or "__main__" in ast.unparse(node.test):
                yield extent(node)
            case ast.keyword(arg="strict"):
                yield extent(node.value)
            case ast.Call() if ast.unparse(node.func) in ("cast", "typing.cast", "TypeVar"):
                yield extent(node)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and is_type_alias(statement.value):
            yield extent(statement)


def is_type_alias(value: ast.expr) -> bool:
    """Return True if a module's assignment names a type: ``Callable[..., Any]``, ``int | str``."""
    parts = list(ast.walk(value))
    return all(isinstance(part, OF_TYPES) for part in parts) and any(
        isinstance(part, ast.Subscript | ast.BinOp) for part in parts
    )


OF_TYPES = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.BinOp, ast.BitOr, ast.Load)


def extent(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
    """Return where a node begins and ends, as (line, column)."""
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def sources(room: str) -> list[Path]:
    """Return the files of a room, or of a module at the top such as ``units``."""
    single = PACKAGE / f"{room}.py"
    found = [single] if single.exists() else sorted((PACKAGE / room).rglob("*.py"))
    if not found:
        sys.exit(f"there is no room {room!r}: give a folder of dsexplore/, or a module at its top such as units")
    return found


def draw(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return mutants at places drawn by the seed, one per place, without those that are not valid Python."""
    generator = random.Random(seed)
    everywhere = [place for room in rooms for path in sources(room) for place in places(path)]
    chosen = generator.sample(everywhere, min(count, len(everywhere)))
    return [mutant for mutant in map(generator.choice, chosen) if mutant.is_python()]


def files_of(path: str, nearest_alone: bool) -> list[str]:
    """Return the test files of a module's room, nearest first; or only the nearest ones.

    The nearest ones are named like the module or import it. If there are none, they name one of its functions or
    classes, or else are in its folder.
    """
    parts = Path(path).with_suffix("").parts[1:]
    parts = parts[1:] if parts[0] == "_internal" else parts
    folder = ROOT / "tests" / parts[0] if len(parts) > 1 else ROOT / "tests"
    files = sorted(folder.rglob("test_*.py") if len(parts) > 1 else folder.glob("test_*.py"))
    name = parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    defined = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    names = [node.name for node in defined if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    imported = re.compile(rf"\b(?:{'.'.join(('dsexplore', '_internal', *parts))}|import .*\b{name})\b")
    named = re.compile(rf"\b(?:{'|'.join(names)})\b") if names else None
    kinds: tuple[Callable[[Path], Any], ...] = (
        lambda file: file.stem.startswith(f"test_{name.strip('_')}") or imported.search(texts[file]),
        lambda file: named is not None and named.search(texts[file]),
        lambda file: file.parent == ROOT.joinpath("tests", *parts[:-1]),
    )
    nearest = next((found for kind in kinds if (found := list(filter(kind, files)))), files)
    nearest.sort(key=lambda file: not file.stem.startswith(f"test_{name.strip('_')}"))
    others = [] if nearest_alone else [file for file in files if file not in nearest]
    return [str(file.relative_to(ROOT)) for file in [*nearest, *others]]
