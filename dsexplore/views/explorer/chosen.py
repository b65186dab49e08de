"""`Chosen`: the events selected by filters, tree and figure, and the texts that describe them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from dsexplore.analysis.parameter_history import ParameterHistory
from dsexplore.trace.unknown_sizes import format_sum
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.filters import Filters, Passed, choices, several
from dsexplore.views.explorer.module_rows import ModuleRows
from dsexplore.views.page import html
from dsexplore.views.trace.byte_sizes import WIRE, summed_over
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.pivot import Mask
from dsexplore.views.trace.sections import MOST_CAUSES, causes_part
from dsexplore.views.trace.tree_html import MOST_TABLE_ROWS, collectives_html, parameters_html


@dataclass
class Chosen:
    """The selection: events that pass the filters, narrowed to the selected module or the clicked mark."""

    codes: EventCodes
    rows: ModuleRows
    passed: Passed
    picked: Picked | None = None
    """The clicked mark, if one is selected instead of a row."""
    history: ParameterHistory | None = None
    """The parameter followed through a step, if any."""
    _last: tuple[Passed, list[int], Mask] | None = field(default=None, init=False, repr=False)
    """Cache of the last `inside`: (filters, rows, mask); all parts of the explorer ask for the same one."""

    def filter(self, filters: Filters) -> None:
        """Replace the filters and forget the clicked mark."""
        self.passed = Passed(self.codes, filters)
        self.picked = None

    def inside(self, rows: list[int]) -> Mask:
        """Return the mask of events that pass the filters inside the modules of ``rows``; in all modules if empty."""
        if not rows:
            return self.passed.mask
        if self._last is None or self._last[:2] != (self.passed, rows):
            self._last = self.passed, rows, self.passed.mask & self.codes.inside(rows)
        return self._last[2]

    def around(self, part: str, rows: list[int]) -> Mask:
        """Return the mask of events that a part shows: what was selected in the part itself does not filter it.

        Args:
            part: part of the explorer, a key of `Filters.picks`.
            rows: rows of modules; all modules if empty.
        """
        if part not in self.passed.filters.picks:
            return self.inside(rows)
        mask = self.passed.without(part)
        return mask & self.codes.inside(rows) if rows else mask

    def whole(self, rows: list[int]) -> Mask | None:
        """Return the mask of (module, axis, phase) that pass with all their events inside ``rows``.

        None if the filters cannot be expressed that way.
        """
        return self.passed.sums.whole_inside(self.codes.spans(rows))

    @property
    def mask(self) -> Mask:
        """Mask of the selected events."""
        return self.picked.mask if self.picked is not None else self.inside(self.rows.chosen)

    @property
    def title(self) -> str:
        """Name of the selected mark or row; empty if everything is selected."""
        return self.picked.title if self.picked is not None else self.rows.title

    @property
    def summary(self) -> str:
        """Size of the selection in words: ``25 of 400 collectives, 132 KiB on the wire``."""
        if self.picked is not None:
            count, size = int(self.picked.mask.sum()), int(self.codes.sizes[self.picked.mask].sum())
            unknown = 0 if self.codes.unsized is None else int(self.codes.unsized[self.picked.mask].sum())
        else:
            spans = self.codes.spans(self.rows.chosen) or [(0, len(self.codes.tree))]
            count, size = self.passed.sums.total(spans)
            unknown = 0 if self.passed.unknown is None else self.passed.unknown.total(spans)[1]
        kind = "on the wire" if self.codes.kind_of_sizes == WIRE else "in messages"
        return f"{count:,} of {len(self.codes):,} collectives, {format_sum(size, unknown)} {kind}"

    @cached_property
    def _summed_over(self) -> str:
        """Scope over which all sizes of the trace are summed, in words."""
        over = summed_over(self.codes.tables)
        return f"{over}, {self.codes.apart} included" if self.codes.apart else over

    @property
    def status(self) -> str:
        """Line above the tree: size of the selection, and the filters that no control shows."""
        place = f" in {html.name(self.title, 200)}" if self.title else ""
        over = f'<span class="dsx-dim"> – {self._summed_over}</span>'
        more = f"{self._filters_without_list()}{self._picks()}{self._unknown_module()}"
        return f"<span>{self.summary}{place}</span>{over}{more}"

    @property
    def details(self) -> str:
        """Tables below the tree: collectives with cause and source line, parameters, redistributes."""
        mask = self.mask
        body = self._collectives(mask) if self.title else ""
        body += causes_part(self.codes.causes(mask, MOST_CAUSES), not self.title, clickable=True)
        return f'<div class="dsx">{body}</div>' if body else ""

    def _filters_without_list(self) -> str:
        """Return the filters that the lists cannot show: several values, or a value that is not in the trace."""
        listed = choices(self.codes, self.passed.filters)
        named = [
            f"{name} {' or '.join(html.name(value, 40) for value in several(wanted)[:6])}"
            for name, wanted in self.passed.filters.facets.items()
            if name not in listed
        ]
        return f'<span class="dsx-dim"> – only {", ".join(named)}</span>' if named else ""

    def _picks(self) -> str:
        """Return the selections made in other parts, each with a button that drops it."""
        named = [(part, html.escape(pick.title, 120)) for part, pick in self.passed.filters.picks.items()]
        return "".join(
            f'<span class="dsx-dim"> – only {title}</span>'
            f'<button class="dsx-drop" data-drop="{part}" aria-label="drop: {title}">drop</button>'
            for part, title in named
        )

    def _unknown_module(self) -> str:
        if self.passed.is_known:
            return ""
        pattern = html.name(self.passed.filters.module, 80)
        return f'<span class="dsx-dim"> – no module is called {pattern}; * stands for any text, as in *.mlp</span>'

    def _collectives(self, mask: Mask) -> str:
        title = f"<p><b>{html.name(self.title, 400)}</b></p>"
        kinds, every = self.codes.collectives(mask, MOST_TABLE_ROWS)
        body = collectives_html(kinds, every, self.codes.column) if every else '<p class="dim">nothing sent</p>'
        if self.picked is not None:
            return title + body
        first, *others = self.rows.names
        parameters = self.codes.tables.parameters.filter(pl.col("module") == first)
        held = parameters_html(first, parameters, clickable=True)
        body = f'<p class="dim">All {len(others) + 1:,} together:</p>{body}' if others and every else body
        many = f"Each of the {len(others) + 1:,} holds this; named here: {html.name(first)}" if others and held else ""
        return title + body + (f'<p class="dim">{many}</p>' if many else "") + held
