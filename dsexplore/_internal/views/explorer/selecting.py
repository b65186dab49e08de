"""`Selecting`: the ways to select events in the explorer; each makes a new selection and draws it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.parameter_history import parameter_history
from dsexplore._internal.views.explorer.drawing import Drawing
from dsexplore._internal.views.explorer.filters import FilteredEvents, facets_at, menu_indices
from dsexplore._internal.views.explorer.name_search import MODULE, PARAMETER, SOURCE, Hit, NameSearch
from dsexplore._internal.views.explorer.selection import Filters, Pick, Selection
from dsexplore._internal.views.explorer.tab_panels import FINDINGS, PARAMETERS
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.event_codes import EventCodes

SENTENCE = "sentence"
"""Key of the headline's sentences in `Filters.picks`."""


@dataclass
class Selecting:
    """The ways to select events: filters, rows, marks, findings, sentences of the headline, and names."""

    codes: EventCodes
    headline: Headline
    search: NameSearch
    drawing: Drawing

    @property
    def present(self) -> Selection:
        """What is selected now."""
        return self.drawing.selection

    def row(self, row: int) -> None:
        """Select a row of the tree, or none if negative; a row inside a fold unfolds the tree."""
        folding = self.present.folding and self.drawing.tree.shown(row, True) == row
        self.drawing.show(replace(self.present, row=row, folding=folding, mark=None))

    def fold(self, folding: bool) -> None:
        """Show repeated modules as one row, or one by one, which changes the modules of the selected row."""
        if self.present.row >= 0:
            self.drawing.show(replace(self.present, folding=folding, mark=None))
        else:
            self.drawing.show(replace(self.present, folding=folding), keep_figure=True)

    def again(self, selection: Selection) -> None:
        """Select an earlier selection again, and show its filters in the controls."""
        self._fill_controls(selection.filters)
        self.drawing.show(selection)

    def filters(self, filters: Filters) -> None:
        """Replace all filters and picks, and show the new filters in the controls."""
        self._fill_controls(filters)
        self.drawing.show(replace(self.present, filters=filters, mark=None))

    def controls(self) -> None:
        """Apply the filters of the widget's controls, and keep the picks."""
        page = self.drawing.widget
        facets, picks = facets_at(self.codes, page.chosen), self.present.filters.picks
        filters = Filters(facets, page.pattern.strip(), page.implicit, picks)
        self.drawing.show(replace(self.present, filters=filters, mark=None))

    def sizes(self, sizes: str) -> None:
        """Show ``"wire"`` or ``"message"`` bytes in all parts."""
        self.codes.use(sizes)
        self.drawing.lanes.use(sizes)
        self.drawing.everything(replace(self.present, mark=None))

    def pick(self, part: str, pick: Pick | None) -> None:
        """Replace the pick of a part; None clears it."""
        before = self.present.filters
        kept = {name: other for name, other in before.picks.items() if name != part}
        filters = replace(before, picks=kept if pick is None else {**kept, part: pick})
        self.drawing.show(replace(self.present, filters=filters, mark=None))

    def parameter(self, name: str) -> None:
        """Follow a parameter through a step, in its tab.

        It is followed in all modules, because the FSDP unit that gathers it may be an ancestor of its module.

        Raises:
            UsageError: No parameter has this name or ends with it, or several end with it.
        """
        self.drawing.quietly(tab=PARAMETERS)
        history = parameter_history(self.codes.tables, name)
        rows, title = history.moments["row"].drop_nulls().to_list(), f"what is sent for {history.name} in a step"
        picks = {**self.present.filters.picks, PARAMETER: Pick.of_rows(len(self.codes), rows, title, history)}
        self.drawing.show(replace(self.present, filters=replace(self.present.filters, picks=picks), row=-1, mark=None))

    def named(self, text: str) -> None:
        """Select by name, see `Explorer.search`."""
        exact = self.search.exact(text) if text else None
        is_complete = not text or FilteredEvents(self.codes, Filters(module=text)).is_known
        hits = self.search.complete(text) if exact is None and not is_complete else []
        if exact is not None or hits:
            self.hit(exact or hits[0])
        else:
            self.drawing.widget.pattern = text

    def hit(self, hit: Hit) -> None:
        """Select a hit of the search."""
        if hit.kind == MODULE:
            row = self.drawing.tree.row(hit.name)
            assert row is not None, hit
            self.row(row)
        elif hit.kind == PARAMETER:
            self.parameter(hit.name)
        elif hit.kind == SOURCE:
            title = html.plain(hit.text, longest=80)
            self.pick(SOURCE, Pick(self.codes.facets["source"].test(hit.name), f"line {title}"))
        else:
            self.drawing.widget.chosen = {**self.drawing.widget.chosen, hit.kind: hit.index}

    def box(self, number: int) -> None:
        """Select the events of a box of the timeline."""
        events = self.drawing.lanes.state.picked(number)
        if events is not None:
            self.mark(Pick(*events))

    def mark(self, mark: Pick) -> None:
        """Select the events of a mark and the module that sent most of them; the figure stays as it is."""
        row = self.drawing.tree.shown(self.codes.largest_owner(mark.mask), self.present.folding)
        self.drawing.show(replace(self.present, row=row, mark=mark), keep_figure=True)

    def finding(self, number: int) -> None:
        """Show only the events of a finding; replaces all filters."""
        finding = self.headline.findings[number]
        if len(finding.rows):
            title = f"finding {number + 1}: {html.plain(finding.module, longest=80)}"
            self._only(FINDINGS, Pick.of_rows(len(self.codes), finding.rows, title))

    def sentence(self, number: int) -> None:
        """Show only the events that a sentence of the headline refers to; replaces all filters."""
        if not 0 <= number < len(self.headline.sentences):
            return
        sentence = self.headline.sentences[number]
        pick = Pick.of_rows(len(self.codes), sentence.rows, f"sentence {number + 1} of the headline")
        self._only(SENTENCE, pick)
        mark = Pick(pick.mask, f"“{sentence.text}”")
        if sentence.module:
            self.mark(mark)
        else:
            self.drawing.show(replace(self.present, mark=mark), keep_figure=True)

    def everything(self) -> None:
        """Select all events."""
        self._fill_controls(Filters())
        self.drawing.show(Selection(folding=self.present.folding))

    def _only(self, part: str, pick: Pick) -> None:
        """Show one pick of all modules, without any other filter."""
        filters = Filters(picks={part: pick})
        self._fill_controls(filters)
        self.drawing.show(Selection(filters, folding=self.present.folding))

    def _fill_controls(self, filters: Filters) -> None:
        indices = menu_indices(self.codes, filters)
        self.drawing.quietly(chosen=indices, pattern=filters.module, implicit=filters.implicit)
