"""Widgets: plain JavaScript and CSS next to their Python, without a build step or downloads."""

from __future__ import annotations

from pathlib import Path

from dsexplore._internal.views.page.style import VARIABLES

_HERE = Path(__file__).parent


def script(*names: str, render: str) -> str:
    """Return several files joined into one ES module, because a widget has one module and may not fetch others.

    ``kernel_state.js`` and ``keys.js``, which watch the kernel and the keyboard, are always included.

    Args:
        names: files, each after those that it uses; their top-level names must differ.
        render: JavaScript expression, in terms of these files, of the function that draws the widget.
    """
    return "\n".join(
        [*(_source(name) for name in ("kernel_state.js", "keys.js", *names)), f"export default {{ render: {render} }};"]
    )


def style(*names: str) -> str:
    """Return several CSS files joined into one, after the theme."""
    return "\n".join([VARIABLES, *(_source(name) for name in ("kernel_state.css", *names))])


def _source(name: str) -> str:
    """Return the text of a file in this folder."""
    return (_HERE / name).read_text("utf-8")
