"""Tracebacks without the frames that say nothing to the user."""

import traceback
from types import CodeType

from dsexplore.tracebacks import frames_where, is_not_hidden


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
