"""A plotly figure whose output in a notebook also contains a static view, so that it is never blank.

JupyterLab and VS Code show the figure, by plotly's MIME type. GitHub, nbconvert and a page without network show the
static twin; the notebook contains no copy of plotly's script.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import display

_BY_MIME_TYPE = "plotly_mimetype"
"""Name of plotly's renderer that leaves the drawing to the frontend."""


class TwinFigure(go.Figure):  # type: ignore[misc]  # plotly ships no types
    """A figure with the static HTML that replaces it where plotly cannot run."""

    _twin = ""

    def _repr_mimebundle_(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        if not _drawn_by_frontend():
            of_renderers: dict[str, Any] = super()._repr_mimebundle_(*arguments, **options)
            return of_renderers
        bundle: dict[str, Any] = pio.renderers[_BY_MIME_TYPE].to_mimebundle(self.to_dict())
        return {**bundle, "text/html": self._twin}

    def _ipython_display_(self) -> None:
        if _drawn_by_frontend():
            display(self._repr_mimebundle_(), raw=True)
        else:
            super()._ipython_display_()


def _drawn_by_frontend() -> bool:
    """Return True if plotly's default renderers include `_BY_MIME_TYPE`, as in a notebook without other settings."""
    return _BY_MIME_TYPE in (pio.renderers.default or "").split("+")


def with_twin(figure: go.Figure, twin: str) -> TwinFigure:
    """Return a copy of the figure whose notebook output also contains the static HTML ``twin``."""
    copied = TwinFigure(figure)
    copied._twin = twin
    return copied
