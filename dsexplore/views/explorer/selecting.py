"""`Selecting`: changes the explorer's selection, and draws what depends on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsexplore.analysis.headline import Headline
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.drawing import Drawing
from dsexplore.views.explorer.filters import Filters, Passed, choices, chosen
from dsexplore.views.explorer.name_search import MODULE, SOURCE, Hit, NameSearch
from dsexplore.views.explorer.picks import PARAMETER, SENTENCE, Picks
from dsexplore.views.explorer.tab_panels import FINDINGS, PARAMETERS
from dsexplore.views.page import html
from dsexplore.views.trace.event_codes import EventCodes


@dataclass
class Selecting:
    """The ways to select events: filters, rows, marks, findings, sentences of the headline, and names."""

    codes: EventCodes
    headline: Headline
    chosen: Chosen
    picks: Picks
    search: NameSearch
    drawing: Drawing

    def module(self, row: int) -> None:
        """Select a row of the tree, or none if negative."""
        if row >= 0 and self.drawing.rows.shown(row) != row:
            self.drawing.widget.folding = False
        self.drawing.widget.selected = row

    def begin(self, filters: Filters) -> None:
        """Replace all filters and selections, and show the new filters in the controls."""
        self.picks.forget()
        self.drawing.quietly(chosen=choices(self.codes, filters), pattern=filters.module, implicit=filters.implicit)
        self.filters(filters)

    def filters(self, filters: Filters) -> None:
        """Replace the filters."""
        self.chosen.filter(filters)
        self.drawing.everything()

    def of_controls(self) -> None:
        """Filter as the widget's controls say, and as the selections in other parts."""
        page = self.drawing.widget
        picks = self.chosen.passed.filters.picks
        self.filters(Filters(chosen(self.codes, page.chosen), page.pattern.strip(), page.implicit, picks))

    def pick(self, part: str, selection: Picked | None) -> None:
        """Replace the selection made in ``part``; None clears it.

        A parameter is followed in all modules, because the FSDP unit that gathers it may be an ancestor of its
        module.
        """
        if part == PARAMETER and selection is not None:
            self.drawing.quietly(selected=-1)
            self.chosen.picked = None
        before = self.chosen.passed.filters
        kept = {name: pick for name, pick in before.picks.items() if name != part}
        self.filters(replace(before, picks=kept if selection is None else {**kept, part: selection}))

    def parameter(self, name: str) -> None:
        """Follow a parameter through a step, in its tab."""
        self.drawing.quietly(tab=PARAMETERS)
        self.pick(*self.picks.parameter(name))

    def named(self, text: str) -> None:
        """Select what has this name, else the first name that contains it; see `Explorer.search`."""
        exact = self.search.exact(text) if text else None
        is_complete = not text or Passed(self.codes, Filters(module=text)).is_known
        hits = self.search.complete(text) if exact is None and not is_complete else []
        if exact is not None or hits:
            self.hit(exact or hits[0])
        else:
            self.drawing.widget.pattern = text

    def hit(self, hit: Hit) -> None:
        """Select what the search has found."""
        if hit.kind == MODULE:
            row = self.drawing.rows.row(hit.name)
            assert row is not None, hit
            self.module(row)
        elif hit.kind == PARAMETER:
            self.parameter(hit.name)
        elif hit.kind == SOURCE:
            title = html.plain(hit.text, 80)
            self.pick(SOURCE, Picked(self.codes.facets["source"].test(hit.name), f"line {title}"))
        else:
            self.drawing.widget.chosen = {**self.drawing.widget.chosen, hit.kind: hit.index}

    def box(self, number: int) -> None:
        """Select the events of a box of the timeline."""
        selection = self.drawing.lanes.state.picked(number)
        if selection is not None:
            self.mark(Picked(*selection))

    def mark(self, picked: Picked, select: bool = True) -> None:
        """Select some events: select the module that sent most of them, and list them."""
        if select:
            self.drawing.quietly(selected=self.drawing.rows.shown(self.codes.largest_owner(picked.mask)))
        self.chosen.picked = picked
        self.drawing.describe()

    def finding(self, number: int) -> None:
        """Show only the events of a finding; replaces all filters."""
        finding = self.headline.findings[number]
        if len(finding.rows):
            self.drawing.quietly(selected=-1)
            title = f"finding {number + 1}: {html.plain(finding.module, 80)}"
            self.begin(Filters(picks={FINDINGS: Picked.of_rows(len(self.codes), finding.rows, title)}))

    def sentence(self, number: int) -> None:
        """Show only the events that a sentence of the headline refers to; replaces all filters."""
        if not 0 <= number < len(self.headline.sentences):
            return
        sentence = self.headline.sentences[number]
        self.drawing.quietly(selected=-1)
        pick = Picked.of_rows(len(self.codes), sentence.rows, f"sentence {number + 1} of the headline")
        self.begin(Filters(picks={SENTENCE: pick}))
        self.mark(Picked(pick.mask, f"“{sentence.text}”"), select=bool(sentence.module))
