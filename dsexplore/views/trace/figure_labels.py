"""Names as labels of plotly's figures.

Plotly interprets some HTML in labels, and names are data, so they are escaped.

Plotly reads a little HTML in labels, and names are data, so they are escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from dsexplore.views.page import html

_LONGEST_LABEL = 34


def label(name: object, longest: int = _LONGEST_LABEL) -> str:
    """Return a name escaped for plotly, shortened if it is long."""
    return html.escape(name, longest)


def unique(names: Iterable[str]) -> list[str]:
    """Return shortened, escaped labels, numbered where shortening made two equal (plotly joins equal categories)."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        short = label(_tail(name), 0)
        seen[short] = seen.get(short, 0) + 1
        found.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return found


def shared_prefix(names: list[str]) -> str:
    """Return the prefix that all dotted names share, with its last dot, such that no rest begins with ``*``."""
    if len(names) < 2:
        return ""
    first, last = min(names).split("."), max(names).split(".")
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    shared = min(shared, *(name.count(".") for name in names))
    while shared and any(name.split(".")[shared] == "*" for name in names):
        shared -= 1
    return "".join(f"{part}." for part in first[:shared])


def _tail(name: str) -> str:
    """Return the end of a name, which tells more about a module than its beginning; wide characters count as two.

    The end of a dotted name begins with a whole component, if one fits.

    Of a dotted name the end begins with a whole word, where one fits.
    """
    room = _LONGEST_LABEL
    for at in range(len(name) - 1, -1, -1):
        room -= 2 if unicodedata.east_asian_width(name[at]) in "WF" else 1
        if room < (1 if at else 0):
            return f"…{name[name.find('.', at) + 1 or at + 1 :]}"
    return name
