"""Live views in notebooks: each follows its static twin, which alone is visible if no kernel answers.

A notebook is saved without the state of its widgets, so an explorer is two consecutive outputs: the static twin, then
the live view. One CSS rule, sent with each twin, hides one of them: the twin while the live view is drawn, which has
the class ``dsx-live``; otherwise the second output, in which JupyterLab reports a missing model. The rule applies only
to two neighboring outputs, so a notebook may have any number of views. It works in JupyterLab, Notebook 7 and Voilà;
elsewhere ``kernel_state.js`` hides the twin. Without widgets (nbconvert, GitHub) nothing is hidden. marimo saves no
outputs, and shows the live view alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
from IPython.display import HTML, display

from dsexplore._internal.display import Displayable
from dsexplore._internal.views.view import View

_OUTPUT, _TWIN = ".jp-OutputArea-child", ":has(>*>.dsx-twin)"
RULE = (
    f"{_OUTPUT}{_TWIN}:has(+{_OUTPUT} .dsx-live),"
    f"{_OUTPUT}{_TWIN}+{_OUTPUT}:has(>.lm-Panel.jp-OutputArea-output):not(:has(.dsx-live,.dsx-offer)){{display:none}}"
)
"""CSS that hides one of two neighboring outputs: a twin, or the output of its live view."""


def show_with_twin(live: Any, html: str, text: str) -> None:
    """Display a live view after its static twin, which is given as HTML and as text."""
    display({"text/html": f'<div class="dsx-twin"><style>{RULE}</style>{html}</div>', "text/plain": text}, raw=True)
    display(live)


class Offer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets ship no types
    """A button below a static view that replaces the view by its explorer; invisible where no kernel answers."""

    def __init__(self, explore: Callable[[], LiveView]) -> None:
        super().__init__(_dom_classes=("dsx-offer",))
        self._explore = explore
        button = ipywidgets.Button(
            description="Explore",
            tooltip="the interactive explorer in place of this view: search, timeline, map, findings",
        )
        button.on_click(self._open)
        self.children = [button]

    def __repr__(self) -> str:
        return ""

    def _open(self, button: ipywidgets.Button) -> None:
        button.disabled, button.description = True, "opening …"
        self.explorer = self._explore()
        self.children = [self.explorer.widget]


def show_with_offer(shown: Displayable) -> None:
    """Display an object's static view with a button below it that opens its explorer."""
    view = shown._repr_mimebundle_()
    show_with_twin(Offer(shown.explore), view["text/html"], view["text/plain"])


class LiveView:
    """An explorer made of one widget, displayed as the last expression of a cell."""

    widget: ipywidgets.DOMWidget

    def static_twin(self) -> tuple[str, str]:
        """Return the static view of the same object as (HTML, text)."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        show_with_twin(self.widget, *self.static_twin())

    def _display_(self) -> Any:
        """Return what marimo shows."""
        return self.widget


class LiveBox(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets ship no types
    """An explorer made of several widgets, stacked vertically."""

    def __init__(self, twin: View) -> None:
        super().__init__(_dom_classes=("dsx-live",))
        self._twin = twin

    def _ipython_display_(self) -> None:
        show_with_twin(_WithoutTwin(self), self._twin.html(), self._twin.text())

    def _display_(self) -> Any:
        """Return what marimo shows: the static view, because marimo cannot show a box of widgets."""
        return HTML(self._twin.html())


class _WithoutTwin:
    """Displays a box as ipywidgets do, whereas the box displays itself after its twin."""

    def __init__(self, box: LiveBox) -> None:
        self._repr_mimebundle_ = box._repr_mimebundle_
