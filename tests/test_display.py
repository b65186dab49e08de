"""What a terminal shows of an object."""

import pytest

from dsexplore.display import plain_text
from dsexplore.trace.trace import Trace
from dsexplore.views.trace.trace_view import TraceView


def test_a_terminal_shows_the_text_of_a_notebook_and_makes_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    text = trace._repr_mimebundle_()["text/plain"]
    monkeypatch.setattr(TraceView, "html", None)
    assert plain_text(trace) == text
