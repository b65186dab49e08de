"""Names as labels of plotly's figures.

Plotly reads a little HTML in labels, and names are data, so they are escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from dsexplore.views.page import html

_LONGEST_LABEL = 34


def label(name: object, longest: int = _LONGEST_LABEL) -> str:
    """A name escaped for plotly, and cut where it is long."""
    return html.escape(name, longest)


def unique(names: Iterable[str]) -> list[str]:
    """Labels cut to fit, escaped, and numbered where cutting made two alike (plotly joins equal categories)."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        short = label(_tail(name), 0)
        seen[short] = seen.get(short, 0) + 1
        found.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return found


def shared_prefix(names: list[str]) -> str:
    """The beginning that several dotted names share, with its last dot; the rest of no name begins with ``*``."""
    if len(names) < 2:
        return ""
    first, last = min(names).split("."), max(names).split(".")
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    shared = min(shared, *(name.count(".") for name in names))
    while shared and any(name.split(".")[shared] == "*" for name in names):
        shared -= 1
    return "".join(f"{part}." for part in first[:shared])


def _tail(name: str) -> str:
    """The end of a name, which says more of a module than its beginning; a wide character takes the room of two.

    Of a dotted name the end begins with a whole word, where one fits.
    """
    room = _LONGEST_LABEL
    for at in range(len(name) - 1, -1, -1):
        room -= 2 if unicodedata.east_asian_width(name[at]) in "WF" else 1
        if room < (1 if at else 0):
            return f"…{name[name.find('.', at) + 1 or at + 1 :]}"
    return name
