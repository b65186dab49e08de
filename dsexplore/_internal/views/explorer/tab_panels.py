"""The explorer's tabs of HTML: findings, parameters and prediction, each made while it is visible.

The tables and pictures are those of the objects' own views, with links from their rows to the events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from dsexplore._internal.analysis.findings.finding import Findings
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.cost.cluster import known_clusters
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_count, format_seconds
from dsexplore._internal.views.cost.prediction_view import PredictionView
from dsexplore._internal.views.explorer.name_search import PARAMETER
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Pick
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sharding.sharding_view import ShardingView
from dsexplore._internal.views.trace.byte_sizes import WIRE
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.headline_view import MOST_FINDINGS, findings_table
from dsexplore._internal.views.trace.parameter_history_view import history_html, shards_of
from dsexplore._internal.views.trace.tree_html import parameters_html

FINDINGS, PARAMETERS, PREDICTION = "findings", "parameters", "prediction"
"""Keys of the tabs."""
_MOST_PARAMETERS = 12


@dataclass
class TabPanels:
    """HTML of the tabs."""

    codes: EventCodes
    findings: Findings
    prediction: Prediction | None = None
    """Prediction for the hardware that the explorer was opened with; None for none."""
    hardware: str = ""
    """Cluster chosen in the tab; if empty, that of ``prediction``, else ``h100``."""
    _made: dict[str, Prediction] = field(default_factory=dict, init=False)

    def html(self, tab: str, selected: SelectedEvents) -> str:
        """Return the HTML of a tab for the selection."""
        return f'<div class="dsx">{_PANELS[tab](self, selected)}</div>'

    def _findings(self, selected: SelectedEvents) -> str:
        """Return the findings about the selected events; a selected finding does not hide the others."""
        mark, filtered = selected.selection.mark, selected.filtered
        mask = filtered.around(FINDINGS, selected.rows) if mark is None else mark.mask
        shown = [i for i, finding in enumerate(self.findings) if finding.is_wrong or mask[finding.rows].any()]
        shown_findings = Findings(self.findings.tables, [self.findings[i] for i in shown])
        pick = selected.selection.filters.picks.get(FINDINGS)
        picked = [pick is not None and set(np.flatnonzero(pick.mask)) == set(self.findings[i].rows) for i in shown]
        marks = [
            f' data-finding="{i}" tabindex="0" aria-selected="{str(now).lower()}"'
            for i, now in zip(shown[:MOST_FINDINGS], picked, strict=False)
        ]
        count = f"{len(shown):,} of {len(self.findings):,} findings are about the selection"
        if len(shown) == len(self.findings):
            count = f"{format_count(len(shown), 'finding')}, largest saving first"
        note = f'<p><b>{count}</b> <span class="dim">a row selects its events; bytes are per rank and step</span></p>'
        return (note if len(self.findings) else "") + findings_table(shown_findings, attributes=marks)

    def _parameters(self, selected: SelectedEvents) -> str:
        """Return the followed parameter with its shards, above the parameters of the selected modules."""
        followed = self._followed(selected.selection.filters.picks.get(PARAMETER))
        parameters = self.codes.tables.parameters
        inside = set(selected.module_names)
        if inside:
            parameters = parameters.filter(pl.col("module").is_in(list(inside)))
        largest = parameters.group_by("name", maintain_order=True).agg(pl.col("global_bytes").max())
        largest = largest.sort("global_bytes", descending=True, maintain_order=True).head(_MOST_PARAMETERS)
        shown = parameters.filter(pl.col("name").is_in(largest["name"].implode()))
        where = f" of {html.name(selected.module_title, longest=200)}" if inside else ""
        total = parameters["name"].n_unique()
        if not total:
            return followed or f'<p class="dim">No parameters{where} are recorded.</p>'
        count = format_count(total, "parameter")
        if total > len(largest):
            count = f"The {len(largest)} largest of {total:,} parameters"
        hint = "“its step” shows how a parameter is sharded, and what is sent for it in a step"
        rows = parameters_html("", shown, clickable=True)
        return f'{followed}<p><b>{count}{where}</b> <span class="dim">{hint}</span></p>{rows}'

    def _followed(self, pick: Pick | None) -> str:
        """Return the history of the picked parameter, with its shards; empty if none is picked."""
        if pick is None or pick.history is None:
            return ""
        sizes: Sizes = "wire" if self.codes.kind_of_sizes == WIRE else "message"
        plan, shards = shards_of(pick.history), ""
        if plan is not None:
            hint = '<p class="dim">A rank that is chosen here is picked on the map too.</p>'
            shards = f"{hint}{ShardingView(plan).picture()}"
        return f"<div>{history_html(replace(pick.history, sizes=sizes))}{shards}</div>"

    def _prediction(self, selected: SelectedEvents) -> str:
        """Return the predicted step on the chosen cluster, with the seconds of the selected modules."""
        try:
            predicted = self._predicted()
        except UsageError as error:
            return f"<p>{html.prose(str(error), longest=600)}</p>"
        present = predicted.cluster.name
        names = list(dict.fromkeys([present, *known_clusters()]))
        options = "".join(
            f'<option value="{html.escape(name)}"{" selected" if name == present else ""}>{html.escape(name)}</option>'
            for name in names
        )
        choice = f'<p><label>on <select data-hardware aria-label="hardware">{options}</select></label></p>'
        view = PredictionView(predicted)
        return f"{choice}{_of_modules(predicted, selected)}{view.html()}{view.still(None)}"

    def _predicted(self) -> Prediction:
        if not self.hardware and self.prediction is not None:
            return self.prediction
        name = self.hardware or "h100"
        if name not in self._made:
            self._made[name] = Trace(self.codes.tables).predict(name)
        return self._made[name]


def _of_modules(predicted: Prediction, selected: SelectedEvents) -> str:
    """Return the predicted seconds of the selected modules; empty if no row is selected."""
    if not selected.rows:
        return ""
    rows = predicted.by_module().filter(pl.col("module").is_in(selected.module_names))
    compute, sent, exposed = (float(rows[name].sum()) for name in ("compute", "communication", "exposed"))
    return (
        f"<p><b>{html.name(selected.module_title, longest=200)}</b>: {format_seconds(compute)} of compute and "
        f"{format_seconds(sent)} of communication in a step, {format_seconds(exposed)} of it exposed.</p>"
    )


_PANELS: dict[str, Callable[[TabPanels, SelectedEvents], str]] = {
    FINDINGS: TabPanels._findings,
    PARAMETERS: TabPanels._parameters,
    PREDICTION: TabPanels._prediction,
}
