"""A figure's output has its static twin, and no script."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import dsexplore
from dsexplore._internal.views.trace.figures import FIGURES
from dsexplore._internal.views.trace.sections import OF_FIGURE

PLOTLY = "application/vnd.plotly.v1+json"


@pytest.fixture(params=["plotly_mimetype", "plotly_mimetype+notebook"])
def renderer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the renderers that are the default in JupyterLab and VS Code."""
    monkeypatch.setattr(pio.renderers, "default", request.param)
    return str(request.param)


def test_every_figure_of_a_trace_has_a_twin(traces: ModuleType, renderer: str) -> None:
    assert set(FIGURES) == set(OF_FIGURE)
    trace = traces.layered(4, odd=1)
    for kind in FIGURES:
        figure = trace.figure(kind=kind)
        assert isinstance(figure, go.Figure)
        bundle = figure._repr_mimebundle_()
        assert set(bundle) == {PLOTLY, "text/html"}
        assert "<script" not in bundle["text/html"]
        assert "<b>Trace</b>" in bundle["text/html"]
    assert "48 KiB" not in trace.figure(kind="sizes")._repr_mimebundle_()["text/html"]
    assert "Net.<wbr>layers.*.<wbr>up" in trace.figure(kind="modules")._repr_mimebundle_()["text/html"]


def test_a_sharding_s_figure_has_its_view(renderer: str) -> None:
    shown = dsexplore.sharding({"w": ((8, 8), "S(0)")}, mesh="dp=2")
    assert shown.figure()._repr_mimebundle_()["text/html"] == shown._repr_mimebundle_()["text/html"]


def test_a_figure_is_shown_once_with_both(traces: ModuleType, renderer: str, plain_shell: InteractiveShell) -> None:
    with capture_output() as captured:
        plain_shell.displayhook(traces.layered(2).figure())
    (shown,) = captured.outputs
    assert {PLOTLY, "text/html"} <= set(shown.data)


def test_another_renderer_is_left_alone(traces: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pio.renderers, "default", "json")
    bundle: dict[str, Any] = traces.layered(2).figure()._repr_mimebundle_()
    assert set(bundle) == {"application/json"}
