"""What can draw itself, without knowing how: the one door from the lower floors up to ``views``.

A class that people look at inherits `Displayable`. Its methods ask for the `View` of its type only when
called; `dsexplore.views` registers one for each type. So tables and traces never import a renderer.
"""

from __future__ import annotations

import os
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any


class View:
    """How one object is shown. Subclasses live in ``dsexplore.views``, one file each."""

    title: str = "dsexplore"

    def text(self) -> str:
        """A short, deterministic ``text/plain``."""
        raise NotImplementedError

    def html(self) -> str:
        """A static HTML fragment: complete without JavaScript, kernel or network; all names escaped."""
        raise NotImplementedError

    def page(self) -> str:
        """One self-contained HTML document around `html`."""
        from dsexplore.views.html import page  # the renderer's own floor: reached only when drawing

        return page(self.title, self.html())

    def figure(self, **options: Any) -> Any:
        """A ``plotly.graph_objects.Figure``."""
        raise TypeError(f"{self.title} has no figure: show the object itself, or write it with to_html(path)")

    def still(self, **options: Any) -> str:
        """What stands in for the figure of these options where nothing runs: static HTML."""
        return self.html()

    def explore(self, **options: Any) -> Any:
        """An ipywidgets application."""
        raise TypeError(f"{self.title} has no explorer: show the object itself, or write it with to_html(path)")


@singledispatch
def view_of(shown: object) -> View:
    """The `View` of an object; ``dsexplore.views`` registers one per type.

    Raises:
        TypeError: nothing is registered for that type.
    """
    raise TypeError(f"no view is registered for {type(shown).__name__}")


def _view(shown: object) -> View:
    import_module("dsexplore.views")
    return view_of(shown)


class Displayable:
    """Shows itself in notebooks, and writes itself to a file."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = _view(self)
        return {"text/plain": view.text(), "text/html": view.html()}

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file and return its path."""
        target = Path(path)
        target.write_text(_view(self).page(), encoding="utf-8")
        return target

    def figure(self, **options: Any) -> Any:
        """A plotly ``Figure`` of this object; its notebook output has the static twin for readers without plotly."""
        from dsexplore.views.twin import with_twin  # the renderer's own floor: reached only when drawing

        view = _view(self)
        return with_twin(view.figure(**options), view.still(**options))

    def explore(self, **options: Any) -> Any:
        """An interactive ipywidgets view of this object; show it as the last expression of a cell."""
        return _view(self).explore(**options)
