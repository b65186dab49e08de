"""Docstrings: functions begin with a verb, properties with a noun, arguments in lower case.

Modules: none of the package.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dsexplore"
ARTICLES = {"The", "A", "An"}
NO_VERBS = ARTICLES | {"All", "Any", "Each", "Every", "If", "It", "Its", "None", "One", "What", "Whatever", "When"}
NO_VERBS |= {"Where", "Whether", "Which", "Who", "Whose", "Called", "Returns", "True", "False"}


@cache
def described() -> list[tuple[str, bool, str]]:
    """Return place, whether it is a property, and first line of each function's docstring."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                lines.append((f"{path.relative_to(PACKAGE)}: {node.name}", is_property, text.splitlines()[0]))
    return lines


def test_functions_begin_with_a_verb() -> None:
    functions = [(place, line) for place, is_property, line in described() if not is_property]
    assert len(functions) > 2000
    assert not [(place, line) for place, line in functions if line.split()[0] in NO_VERBS or not line[0].isupper()]


def test_properties_begin_with_a_noun_without_an_article() -> None:
    properties = [(place, line) for place, is_property, line in described() if is_property]
    assert len(properties) > 200
    assert not [(place, line) for place, line in properties if line.split()[0] in ARTICLES | {"Return", "Whether"}]


def test_arguments_begin_in_lower_case() -> None:
    arguments = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                _, _, text = (ast.get_docstring(node) or "").partition("\nArgs:\n")
                section = re.split(r"^\S", text, maxsplit=1, flags=re.MULTILINE)[0]
                words = re.findall(r"^    \*{0,2}\w+(?:, \w+)*: (\w+)", section, flags=re.MULTILINE)
                arguments += [(f"{path.relative_to(PACKAGE)}: {node.name}", word) for word in words]
    assert len(arguments) > 1000
    names = {"True", "False", "None", "Python", "B"}
    assert not [(place, word) for place, word in arguments if word.istitle() and word not in names]
