"""The explorer's filters: values to choose from, checks of arguments, and the events that pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl

from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import did_you_mean
from dsexplore._internal.trace.select import check_module, check_value
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_ranges
from dsexplore._internal.views.explorer.selection import Filters
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.event_codes import EventCodes, Matched
from dsexplore._internal.views.trace.pivot import Mask, PivotSums

FACETS = ("phase", "op", "axis", "group", "step", "rank")
"""Columns of events that the explorer filters by, besides module and implicit."""
_MOST_OPTIONS = 500


class FilteredEvents:
    """The events that pass some filters; each result is computed when first needed."""

    def __init__(self, codes: EventCodes, filters: Filters) -> None:
        self._codes = codes
        self.filters = filters
        self._last: tuple[list[int], Mask] | None = None
        """Arguments and result of the last call of `inside`, since all parts of the explorer ask for the same rows."""

    @cached_property
    def _matched(self) -> Matched | None:
        return self._codes.matched(self.filters.module) if self.filters.module else None

    @property
    def is_known(self) -> bool:
        """True if the module pattern is empty or matches a module."""
        return self._matched is None or bool(self._matched.owners.any() or self._matched.triggers.any())

    @cached_property
    def mask(self) -> Mask:
        """Mask of events that pass all filters."""
        return self.without("")

    def without(self, part: str) -> Mask:
        """Return the mask of events that pass every filter except the pick of ``part``.

        The part shows all of these, so that another pick is possible.
        """
        mask = self._unpicked
        for name, pick in self.filters.picks.items():
            mask = mask & pick.mask if name != part else mask
        return mask

    def inside(self, rows: list[int]) -> Mask:
        """Return the mask of events that pass the filters inside the modules of ``rows``; in all modules if empty."""
        if not rows:
            return self.mask
        if self._last is None or self._last[0] != rows:
            self._last = rows, self.mask & self._codes.inside(rows)
        return self._last[1]

    def around(self, part: str, rows: list[int]) -> Mask:
        """Return the mask of events that a part shows, which its own pick does not filter.

        Args:
            part: key of `Filters.picks`.
            rows: rows of modules; empty for all.
        """
        if part not in self.filters.picks:
            return self.inside(rows)
        mask = self.without(part)
        return mask & self._codes.inside(rows) if rows else mask

    def whole(self, rows: list[int]) -> Mask | None:
        """Return the mask of (module, axis, phase) that pass with all their events inside ``rows``.

        None if the filters cannot be expressed that way.
        """
        return self.sums.whole_inside(self._codes.spans(rows))

    @cached_property
    def _unpicked(self) -> Mask:
        """Mask of events that pass all filters except picks."""
        mask = self._codes.mask(self.filters.facets, self.filters.implicit)
        return mask if self._matched is None else mask & self._codes.in_modules(self._matched)

    @cached_property
    def sums(self) -> PivotSums:
        """Count and bytes of the passing events by module, axis and phase."""
        needs_events = self.filters.implicit or self.filters.picks  # filters by more than module, axis and phase
        sums = None if needs_events else self._codes.sums_of(self.filters.facets, self._matched)
        return self._codes.sums(self.mask) if sums is None else sums

    @cached_property
    def unknown(self) -> PivotSums | None:
        """Number of passing events of unknown size, as `PivotSums.bytes`; None if all sizes are known."""
        return self._codes.unknown(self.mask)

    @property
    def kinds(self) -> Mask | None:
        """Mask of the kinds of event (`EventCodes.kind`) that pass; None if some kinds pass only partly."""
        filters = self.filters
        by_event = filters.implicit or filters.picks or filters.module
        return None if by_event else self._codes.kinds_of(filters.facets)


def known_names(tables: Tables) -> Tables:
    """Return tables whose events hold each distinct name of a column once, which is all that `check_filters` needs."""
    columns = [tables.events[name].unique() for name in (*FACETS, "owner", "trigger")]
    longest = max(len(names) for names in columns)
    return replace(
        tables, events=pl.DataFrame([names.extend_constant(None, longest - len(names)) for names in columns])
    )


def check_filters(tables: Tables, module: str, facets: Mapping[str, Any]) -> None:
    """Raise if an argument of a filter does not occur in the trace.

    Args:
        tables: names of the trace, see `known_names`.
        module: shell pattern of module names.
        facets: {facet: a value or a list of values}.

    Raises:
        UsageError: There is no such facet, or a phase, op, axis, group or module does not occur in the trace.
    """
    check_module(tables, module, "filter")
    for name, wanted in facets.items():
        if name not in FACETS:
            names = ["module", "implicit", *FACETS]
            near = did_you_mean(name, names)
            raise UsageError(f"filter({name}=…): no such filter; filters are {', '.join(names)}{near}")
        for value in as_list(wanted):
            check_value(tables, name, value, "filter")


def menus(codes: EventCodes) -> list[list[object]]:
    """Return [facet, texts to choose from]; the first text is ``all``, the others are the facet's labels.

    A facet with only one value needs no menu.
    """
    ranks = _ranks_of_groups(codes)
    return [
        [name, ["all", *(_text(label, ranks.get(label, "") if name == "group" else "") for label in labels)]]
        for name in FACETS
        if len(labels := _labels(codes, name)) > 1
    ]


def menu_indices(codes: EventCodes, filters: Filters) -> dict[str, int]:
    """Return {facet: index of its text in the menu} for facets that are filtered by exactly one known label."""
    indices = {}
    for name, wanted in filters.facets.items():
        values, labels = as_list(wanted), _labels(codes, name)
        if len(values) == 1 and values[0] in labels:
            indices[name] = labels.index(values[0]) + 1
    return indices


def as_list(wanted: Any) -> list[Any]:
    """Return one value or several as a list."""
    return list(wanted) if isinstance(wanted, (list, tuple, set)) else [wanted]


def facets_at(codes: EventCodes, indices: Mapping[str, int]) -> dict[str, Any]:
    """Return {facet: label}, given the index of the selected text in each menu."""
    return {name: _labels(codes, name)[index - 1] for name, index in indices.items() if index}


def _labels(codes: EventCodes, name: str) -> list[Any]:
    """Return the labels of a facet that its menu offers."""
    return codes.facets[name].labels[:_MOST_OPTIONS]


def _ranks_of_groups(codes: EventCodes) -> dict[object, str]:
    """Return {group: its axis and ranks}, which are easier to recognize than the group's name."""
    texts: dict[object, str] = {}
    for group, axis, ranks in codes.tables.groups.select("group", "axis", "ranks").iter_rows():
        if ranks:
            of_axis = f"{html.plain(axis, longest=20)} " if axis else ""
            texts[group] = f"{of_axis}ranks {format_ranges(ranks, 3)}"
    return texts


def _text(label: object, more: str) -> str:
    """Return the text of a label in a menu; after ``more``, in brackets, if that is not empty."""
    name = html.plain("none" if label == "" else label, longest=40)
    return f"{more} ({name})" if more else name
