"""Tests mirror the package: a test file has the name of what it tests, or its docstring lists the modules.

Modules: none of the package.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dsexplore" / "_internal"


def has_its_name(test: Path) -> bool:
    """Return True if a module or a folder of the package, at the same place, has the name of a test file."""
    place = PACKAGE / test.relative_to(TESTS).parent / test.stem.removeprefix("test_")
    return place.with_suffix(".py").exists() or place.is_dir()


@pytest.mark.parametrize("test", sorted(TESTS.rglob("test_*.py")), ids=lambda test: str(test.relative_to(TESTS)))
def test_a_test_file_says_which_modules_it_tests(test: Path) -> None:
    docstring = ast.get_docstring(ast.parse(test.read_text(encoding="utf-8"))) or ""
    line = re.search(r"^Modules: (.+)\.$", docstring, re.MULTILINE)
    assert line or has_its_name(test), f"{test} has no module's name: add a line 'Modules: ``room/module.py``.'"
    if line and line[1] != "none of the package":
        for module in line[1].split(", "):
            path = module.strip("`").removeprefix("dsexplore/").removeprefix("_internal/")
            assert (PACKAGE / path).exists() or (PACKAGE.parent / path).exists(), (
                f"{test} tests {module}, which is not there"
            )
