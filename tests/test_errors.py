"""Each public error ends with the address of its section, which has cause and remedy.

Modules: ``dsexplore/_internal/errors.py``.
"""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.cli import main
from dsexplore._internal.errors import SITE, Documented, UsageError, full_message, page_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ERRORS = [
    value
    for value in (getattr(dsexplore, name) for name in dsexplore.__all__)
    if isinstance(value, type) and issubclass(value, BaseException)
]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("error", ERRORS)
def test_what_is_shown_of_an_error_ends_in_the_address_of_its_section(error: type[Documented]) -> None:
    made = error("the axis dq is unknown") if error is not dsexplore.RanksFailedError else error(None, "a rank died")
    shown = "".join(traceback.format_exception_only(made))
    assert shown.endswith(f"{made}\n{page_of(error)}\n")
    assert full_message(made) == f"{made}\n{page_of(error)}"
    assert page_of(error).partition("#")[2] == error.__name__.lower()
    assert error.__name__ in SECTIONS


@pytest.mark.parametrize("error", ERRORS)
def test_a_section_says_cause_and_remedy(error: type[Documented]) -> None:
    text = SECTIONS[error.__name__]
    assert "remedy" in text.lower()
    base = next(each for each in error.__mro__ if each.__module__ == "builtins" and each.__name__ != "Exception")
    assert f"`{base.__name__}`" in text


def test_the_page_has_no_error_that_is_not_public() -> None:
    assert {name for name in SECTIONS if name.endswith("Error")} == {error.__name__ for error in ERRORS}


def test_the_beginnings_that_the_page_quotes_are_in_the_sources() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dsexplore").rglob("*.py"))
    rows = re.findall(r"^\| (`.*?`) \|", SECTIONS["UsageError"] + SECTIONS["RanksFailedError"], re.MULTILINE)
    quoted = [part.strip() for row in rows for text in re.findall(r"`(.*?)`", row) for part in text.split("…")]
    assert len(rows) > 6
    assert [part for part in quoted if part not in sources] == []


def test_an_address_is_there_once_however_an_error_travels() -> None:
    made = UsageError("give 8")
    for other in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert full_message(other) == full_message(made)


def test_commands_end_in_the_address_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{SITE}/page/errors.html#")
