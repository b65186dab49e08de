"""Tracebacks omit frames that do not help the user."""

import traceback
from types import CodeType

import pytest
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

from dsexplore._internal.errors import ClosedWorldError, UsageError, page_of
from dsexplore._internal.tracebacks import frames_where, is_not_hidden, lines_of_the_program


def fails() -> None:
    raise ValueError("inside")


def hides() -> None:
    __tracebackhide__ = True
    fails()


def error_of_both() -> ValueError:
    try:
        hides()
    except ValueError as error:
        return error
    raise AssertionError("nothing was raised")


def names(error: ValueError) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_hidden_functions_are_left_out() -> None:
    error = error_of_both()
    assert names(error) == ["error_of_both", "hides", "fails"]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
    error.__traceback__ = frames_where(error.__traceback__, is_not_hidden)
    assert names(error) == ["error_of_both", "fails"]
    assert [frame.lineno for frame in traceback.extract_tb(error.__traceback__)] == [lines[0], lines[2]]


def test_nothing_is_left_where_no_frame_is_to_be_shown() -> None:
    def none_of_them(_code: CodeType) -> bool:
        return False

    assert frames_where(error_of_both().__traceback__, none_of_them) is None
    assert frames_where(None, is_not_hidden) is None


def raised(error: Exception) -> Exception:
    """Return an error with the frames of torch's call of a model's forward."""
    module = nn.Linear(1, 1)

    def refuse() -> None:
        raise error

    module.forward = refuse
    with pytest.raises(type(error)):
        module()
    return error


def test_of_an_error_of_ours_ipython_shows_the_users_frames_and_the_sentence(plain_shell: InteractiveShell) -> None:
    text = "\n".join(raised(ClosedWorldError("the world is closed"))._render_traceback_())
    assert "module()" in text
    assert text.endswith(f"ClosedWorldError: the world is closed\n{page_of(ClosedWorldError)}")
    assert "torch" not in text


def test_outside_ipython_the_sentence_alone_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    shown = raised(UsageError("give 8"))._render_traceback_()
    assert shown == ["dsexplore._internal.errors.UsageError: give 8", page_of(UsageError)]


def test_of_an_error_that_is_raised_again_the_first_is_shown(plain_shell: InteractiveShell) -> None:
    first, again = raised(ClosedWorldError("closed")), ClosedWorldError("closed")
    again.__context__ = first
    assert lines_of_the_program(again) == lines_of_the_program(first)
    other = ClosedWorldError("another world")
    other.__context__ = first
    assert any(line.endswith("another world") for line in lines_of_the_program(other))
