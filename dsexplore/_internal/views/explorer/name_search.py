"""The explorer's search: modules, parameters, source lines and values of filters whose names contain a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dsexplore._internal.views.explorer.filters import menus
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.event_codes import EventCodes

MODULE, PARAMETER, SOURCE = "module", "parameter", "source"
"""Kinds of what can be found, besides the facets of `filters.FACETS`."""
MOST = 12
"""Names offered at most."""


@dataclass(frozen=True)
class Hit:
    """Something that the search finds."""

    kind: str
    """A facet, `MODULE`, `PARAMETER` or `SOURCE`."""
    name: str
    text: str
    """The name as it is shown and searched; of a group with its axis and ranks."""
    index: int = 0
    """Of a facet's value: its place in the list that filters by it."""


class NameSearch:
    """Finds names in a trace."""

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes

    def complete(self, text: str) -> list[Hit]:
        """Return at most `MOST` hits whose names contain all words of a text, the shortest names first.

        Worked example: ``"step 1"`` finds the step, because the kind belongs to the text; ``"layers up"`` finds
        ``Net.layers.0.up``.
        """
        words = text.lower().split()
        matches = [number for number, name in enumerate(self._lowered) if all(word in name for word in words)]
        return [self._hits[number] for number in sorted(matches, key=lambda number: self._rank(number, text.lower()))][
            :MOST
        ]

    def exact(self, text: str) -> Hit | None:
        """Return what has this name and is no module: a value of a filter, else a parameter or a source line."""
        return next((hit for hit in self._others if text in (hit.name, f"{hit.kind} {hit.name}")), None)

    def hit(self, kind: str, name: str) -> Hit | None:
        """Return the hit of this kind and name."""
        return next((hit for hit in self._hits if hit.kind == kind and hit.name == name), None)

    def _rank(self, number: int, text: str) -> tuple[bool, bool, int, int]:
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
        """What is no module: few names, so that looking for one of them need not wait for all modules."""
        return list(self._no_modules())

    def _no_modules(self) -> Iterator[Hit]:
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
