"""`Displayable`: inherited by what shows itself in notebooks, as a page, as a figure, and as an explorer.

How an object looks is decided in ``dsexplore.views``, which imports the classes that it shows. This module is the one
door from the lower floors up to there: it asks for the view of an object's type when the object is shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsexplore.views.view import View


class Displayable:
    """Shows itself in notebooks, and writes itself to a file."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = _view(self)
        return {"text/plain": view.text(), "text/html": view.html()}

    def to_html(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write one self-contained HTML file and return its path; a trace's takes ``sizes="message"``."""
        target = Path(path)
        target.write_text(_view(self).page(**options), encoding="utf-8")
        return target

    def figure(self, **options: Any) -> Any:
        """A plotly ``Figure`` of this object; its notebook output has the static twin for readers without plotly."""
        return _view(self).figure_with_twin(**options)

    def explore(self, **options: Any) -> Any:
        """An interactive ipywidgets view of this object; show it as the last expression of a cell."""
        return _view(self).explore(**options)


def _view(shown: Displayable) -> View:
    from dsexplore.views import view_of  # views are loaded when something is shown

    return view_of(shown)
