"""`SelectedEvents`: the events of the explorer's selection, and the texts that describe them."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.views.explorer.filters import FilteredEvents, as_list, menu_indices
from dsexplore._internal.views.explorer.module_rows import ModuleRows
from dsexplore._internal.views.explorer.selection import Selection
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.byte_sizes import WIRE, summed_over
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.pivot import Mask
from dsexplore._internal.views.trace.sections import MOST_CAUSES, causes_part
from dsexplore._internal.views.trace.tree_html import MOST_TABLE_ROWS, collectives_html, parameters_html


class SelectedEvents:
    """The events of a selection.

    Args:
        codes: events of the trace.
        tree: rows of the module tree.
        selection: selected row, mark and filters.
        filtered: events that pass the selection's filters, if they were computed before; else None.
    """

    def __init__(
        self, codes: EventCodes, tree: ModuleRows, selection: Selection, filtered: FilteredEvents | None = None
    ) -> None:
        self.codes, self.selection = codes, selection
        self.filtered = FilteredEvents(codes, selection.filters) if filtered is None else filtered
        self.rows = tree.members(selection.row, selection.folding)
        """Rows of all modules that the selected row stands for; empty if no row is selected."""
        self.module_title = tree.title(selection.row, selection.folding)
        """Name of the selected row; empty if none is selected."""

    @property
    def mask(self) -> Mask:
        """Mask of the selected events."""
        mark = self.selection.mark
        return mark.mask if mark is not None else self.filtered.inside(self.rows)

    @property
    def title(self) -> str:
        """Name of the selected mark or row; empty if everything is selected."""
        mark = self.selection.mark
        return mark.title if mark is not None else self.module_title

    @property
    def module_names(self) -> list[str]:
        """Names of the modules that the selected row stands for, and of all modules inside them."""
        tree = self.codes.tree
        return [name for first, end in self.codes.spans(self.rows) for name in tree.names[first:end]]

    @property
    def summary(self) -> str:
        """Size of the selection as text: ``25 of 400 collectives, 132 KiB on the wire``."""
        if self.selection.mark is not None:
            mask = self.selection.mark.mask
            count, size = int(mask.sum()), int(self.codes.sizes[mask].sum())
            unknown = 0 if self.codes.unsized is None else int(self.codes.unsized[mask].sum())
        else:
            spans = self.codes.spans(self.rows) or [(0, len(self.codes.tree))]
            count, size = self.filtered.sums.total(spans)
            unknown = 0 if self.filtered.unknown is None else self.filtered.unknown.total(spans)[1]
        kind = "on the wire" if self.codes.kind_of_sizes == WIRE else "in messages"
        return f"{count:,} of {len(self.codes):,} collectives, {format_sum(size, unknown)} {kind}"

    @cached_property
    def _summed_over(self) -> str:
        """What the sizes are summed over: ``of rank 0 in one step, start-up included``."""
        over = summed_over(self.codes.tables)
        return f"{over}, {self.codes.apart} included" if self.codes.apart else over

    @property
    def status(self) -> str:
        """Line above the tree: size of the selection, and the filters that no control shows."""
        place = f" in {html.name(self.title, longest=200)}" if self.title else ""
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
        """Return the filters that the menus cannot show: several values, or a value that is not in the trace."""
        listed = menu_indices(self.codes, self.selection.filters)
        named = [
            f"{name} {' or '.join(html.name(value, longest=40) for value in as_list(wanted)[:6])}"
            for name, wanted in self.selection.filters.facets.items()
            if name not in listed
        ]
        return f'<span class="dsx-dim"> – only {", ".join(named)}</span>' if named else ""

    def _picks(self) -> str:
        """Return the selections made in other parts, each with a button that drops it."""
        named = [(part, html.escape(pick.title, longest=120)) for part, pick in self.selection.filters.picks.items()]
        return "".join(
            f'<span class="dsx-dim"> – only {title}</span>'
            f'<button class="dsx-drop" data-drop="{part}" aria-label="drop: {title}">drop</button>'
            for part, title in named
        )

    def _unknown_module(self) -> str:
        """Return a note if the pattern of module names matches no module."""
        if self.filtered.is_known:
            return ""
        pattern = html.name(self.selection.filters.module, longest=80)
        return f'<span class="dsx-dim"> – no module is called {pattern}; * matches any text, as in *.mlp</span>'

    def _collectives(self, mask: Mask) -> str:
        """Return the collectives of the selection, and the parameters of the selected module."""
        title = f"<p><b>{html.name(self.title, longest=400)}</b></p>"
        kinds, every = self.codes.collectives(mask, MOST_TABLE_ROWS)
        body = collectives_html(kinds, every, self.codes.column) if every else '<p class="dim">nothing sent</p>'
        if self.selection.mark is not None:
            return title + body
        first, *others = (self.codes.tree.names[row] for row in self.rows)
        parameters = self.codes.tables.parameters.filter(pl.col("module") == first)
        held = parameters_html(first, parameters, clickable=True)
        body = f'<p class="dim">All {len(others) + 1:,} together:</p>{body}' if others and every else body
        note = f"These are the parameters of {html.name(first)}, one of {len(others) + 1:,} equal modules."
        return title + body + (html.note(note) if others and held else "") + held
