"""`Chosen`: the events that filters, the tree and the figure single out, and the texts that describe them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from dsexplore.analysis.parameter_day import ParameterDay
from dsexplore.analysis.step_timeline import Sizes
from dsexplore.units import format_bytes
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.filters import Filters, Passed, choices, several
from dsexplore.views.explorer.module_rows import ModuleRows
from dsexplore.views.page import html
from dsexplore.views.parameter_day.parameter_day_view import day_html, shards_of
from dsexplore.views.sharding.sharding_view import ShardingView
from dsexplore.views.trace.byte_sizes import WIRE, summed_over
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.pivot import Mask
from dsexplore.views.trace.sections import MOST_CAUSES, causes_part
from dsexplore.views.trace.tree_html import MOST_TABLE_ROWS, collectives_html, parameters_html


@dataclass
class Chosen:
    """The events that the filters let through, and of these the selected module's or the clicked mark's."""

    codes: EventCodes
    rows: ModuleRows
    passed: Passed
    picked: Picked | None = None
    """The clicked mark, where that is chosen and not a row."""
    day: ParameterDay | None = None
    """The parameter that is followed through a step."""
    _last: tuple[Passed, list[int], Mask] | None = field(default=None, init=False, repr=False)
    """The filters, the rows, and the events inside them that were last asked for: every part asks for the same."""

    def filter(self, filters: Filters) -> None:
        """Choose what passes these filters; a mark that was clicked is forgotten."""
        self.passed = Passed(self.codes, filters)
        self.picked = None

    def inside(self, rows: list[int]) -> Mask:
        """The events that pass, inside some modules; all that pass where ``rows`` is empty."""
        if not rows:
            return self.passed.mask
        if self._last is None or self._last[:2] != (self.passed, rows):
            self._last = self.passed, rows, self.passed.mask & self.codes.inside(rows)
        return self._last[2]

    def around(self, part: str, rows: list[int]) -> Mask:
        """The events of some modules that the part of the explorer shows: what is picked in it is no filter of its own.

        Args:
            part: of the explorer.
            rows: of the modules; all where there are none.
        """
        if part not in self.passed.filters.picks:
            return self.inside(rows)
        mask = self.passed.without(part)
        return mask & self.codes.inside(rows) if rows else mask

    def whole(self, rows: list[int]) -> Mask | None:
        """The (module, axis, phase) whose events pass, inside some modules; None where it takes more to tell them."""
        return self.passed.sums.whole_inside(self.codes.spans(rows))

    @property
    def mask(self) -> Mask:
        """The chosen events."""
        return self.picked.mask if self.picked is not None else self.inside(self.rows.chosen)

    @property
    def title(self) -> str:
        """The name of the mark or row that is chosen; empty for everything."""
        return self.picked.title if self.picked is not None else self.rows.title

    @property
    def summary(self) -> str:
        """How much is chosen, in words: ``25 of 400 collectives, 132 KiB on the wire``."""
        if self.picked is not None:
            count, size = int(self.picked.mask.sum()), int(self.codes.sizes[self.picked.mask].sum())
        else:
            spans = self.codes.spans(self.rows.chosen) or [(0, len(self.codes.tree))]
            count, size = self.passed.sums.total(spans)
        kind = "on the wire" if self.codes.kind_of_sizes == WIRE else "in messages"
        return f"{count:,} of {len(self.codes):,} collectives, {format_bytes(size)} {kind}"

    @cached_property
    def _over(self) -> str:
        """Over what all sizes of the trace are summed."""
        over = summed_over(self.codes.tables)
        return f"{over}, {self.codes.apart} included" if self.codes.apart else over

    @property
    def status(self) -> str:
        """The line above the tree: how much is chosen, and the filters that no control shows."""
        place = f" in {html.name(self.title, 200)}" if self.title else ""
        over = f'<span class="dsx-dim"> – {self._over}</span>'
        more = f"{self._filters_without_list()}{self._picks()}{self._unknown_module()}"
        return f"<span>{self.summary}{place}</span>{over}{more}"

    @property
    def details(self) -> str:
        """The tables below: collectives with cause and source line, parameters, redistributes."""
        mask = self.mask
        sizes: Sizes = "wire" if self.codes.kind_of_sizes == WIRE else "message"
        body = "" if self.day is None else f"<div>{day_html(replace(self.day, sizes=sizes))}{self._shards}</div>"
        body += self._collectives(mask) if self.title else ""
        body += causes_part(self.codes.causes(mask, MOST_CAUSES), not self.title, clickable=True)
        return f'<div class="dsx">{body}</div>' if body else ""

    @property
    def _shards(self) -> str:
        """The picture of the followed parameter's shards; empty of a plain tensor, which every rank holds whole."""
        plan = None if self.day is None else shards_of(self.day)
        if plan is None:
            return ""
        picture = ShardingView(plan, self.codes.tree.axes).html()
        return f'<p class="dim">A rank that is chosen here is picked on the map too.</p>{picture}'

    def _filters_without_list(self) -> str:
        """The filters that the lists cannot show: by several values, or by one that the trace does not hold."""
        listed = choices(self.codes, self.passed.filters)
        named = [
            f"{name} {' or '.join(html.name(value, 40) for value in several(wanted)[:6])}"
            for name, wanted in self.passed.filters.facets.items()
            if name not in listed
        ]
        return f'<span class="dsx-dim"> – only {", ".join(named)}</span>' if named else ""

    def _picks(self) -> str:
        """The picks of other parts, each with a button that drops it."""
        named = [(part, html.escape(one.title, 120)) for part, one in self.passed.filters.picks.items()]
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
        own = self.codes.tables.parameters.filter(pl.col("module") == first)
        held = parameters_html(first, own, clickable=True)
        body = f'<p class="dim">All {len(others) + 1:,} together:</p>{body}' if others and every else body
        many = f"Each of the {len(others) + 1:,} holds this; named here: {html.name(first)}" if others and held else ""
        return title + body + (f'<p class="dim">{many}</p>' if many else "") + held
