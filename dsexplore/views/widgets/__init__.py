"""Widgets: plain JavaScript and CSS beside their Python, no build step, nothing fetched from a network."""

from __future__ import annotations

from pathlib import Path

from dsexplore.views.page.theme import VARIABLES

_HERE = Path(__file__).parent


def script(*names: str, render: str) -> str:
    """Several files as one ES module, because a widget has one and may fetch none.

    What watches the kernel and the keys is in all of them.

    Args:
        names: the files, in the order they need one another; their top-level names must differ.
        render: what draws the widget: a function among them, or an expression of them.
    """
    return "\n".join(
        [*(_source(name) for name in ("kernel_state.js", "keys.js", *names)), f"export default {{ render: {render} }};"]
    )


def style(*names: str) -> str:
    """Several CSS files as one, after the theme."""
    return "\n".join([VARIABLES, *(_source(name) for name in ("kernel_state.css", *names))])


def _source(name: str) -> str:
    """The text of a file beside this one."""
    return (_HERE / name).read_text("utf-8")
