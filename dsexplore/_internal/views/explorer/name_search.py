"""The explorer's search: modules, parameters, source lines and values of filters whose names contain a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dsexplore._internal.views.explorer.filters import menus
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.event_codes import EventCodes

MODULE, PARAMETER, SOURCE = "module", "parameter", "source"
"""Kinds of hits, besides the facets of `filters.FACETS`."""
MOST = 12
"""Maximal number of names that are offered."""


@dataclass(frozen=True)
class Hit:
    """A name that the search finds."""

    kind: str
    """A facet, `MODULE`, `PARAMETER` or `SOURCE`."""
    name: str
    text: str
    """The name as it is shown and searched; a group's has its axis and ranks too."""
    index: int = 0
    """Index of a facet's value in the menu that filters by it."""


class NameSearch:
    """Finds names in a trace."""

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes

    def complete(self, text: str) -> list[Hit]:
        """Return at most `MOST` hits whose kinds and names contain all words of a text, the best first.

        For example, ``"step 1"`` finds that step, and ``"layers up"`` finds ``Net.layers.0.up``.
        """
        lowered = text.lower()
        words = lowered.split()
        matches = [number for number, name in enumerate(self._lowered) if all(word in name for word in words)]
        best = sorted(matches, key=lambda number: self._order(number, lowered))[:MOST]
        return [self._hits[number] for number in best]

    def exact(self, text: str) -> Hit | None:
        """Return the hit with exactly this name that is not a module; None if there is none."""
        return next((hit for hit in self._others if text in (hit.name, f"{hit.kind} {hit.name}")), None)

    def hit(self, kind: str, name: str) -> Hit | None:
        """Return the hit of this kind and name; None if there is none."""
        return next((hit for hit in self._hits if hit.kind == kind and hit.name == name), None)

    def _order(self, number: int, text: str) -> tuple[bool, bool, int, int]:
        """Return the sort key of a hit: modules first, then names that begin with the text, then short names."""
        hit = self._hits[number]
        name = hit.text.lower()
        last = name.rpartition(".")[2]
        return hit.kind in (PARAMETER, SOURCE), not (last.startswith(text) or name.startswith(text)), len(name), number

    @cached_property
    def _hits(self) -> list[Hit]:
        return [
            *self._others,
            *(Hit(MODULE, name, html.plain(name, longest=200)) for name in self._codes.tree.names if name),
        ]

    @cached_property
    def _lowered(self) -> list[str]:
        return [f"{hit.kind} {hit.text}".lower() for hit in self._hits]

    @cached_property
    def _others(self) -> list[Hit]:
        """Hits that are not modules. They are few, so that `exact` does not need to wait for all modules."""
        return list(self._find_others())

    def _find_others(self) -> Iterator[Hit]:
        """Yield the values of filters, then parameters, then source lines."""
        codes = self._codes
        for facet, texts in menus(codes):
            assert isinstance(facet, str)
            assert isinstance(texts, list)
            for index, text in enumerate(texts[1:], 1):
                yield Hit(facet, str(codes.facets[facet].labels[index - 1]), text, index)
        for name in codes.tables.parameters["name"].unique(maintain_order=True):
            yield Hit(PARAMETER, name, html.plain(name, longest=200))
        for name in codes.facets["source"].labels:
            if name:
                yield Hit(SOURCE, name, html.plain(name.partition(" ← ")[0], longest=200))
