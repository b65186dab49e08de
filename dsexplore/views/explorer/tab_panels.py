"""The explorer's tabs that are HTML: findings, parameters and prediction; each is made when its tab is shown.

A table or picture is the one that the object shows by itself; what is added is the link from its rows to their events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from dsexplore.analysis.findings.finding import Findings
from dsexplore.analysis.step_timeline import Sizes
from dsexplore.cost.cluster import known_clusters
from dsexplore.cost.prediction import Prediction
from dsexplore.errors import UsageError
from dsexplore.trace.trace import Trace
from dsexplore.units import format_seconds
from dsexplore.views.cost.prediction_view import PredictionView
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.page import html
from dsexplore.views.parameter_history.parameter_history_view import history_html, shards_of
from dsexplore.views.sharding.sharding_view import ShardingView
from dsexplore.views.trace.byte_sizes import WIRE
from dsexplore.views.trace.headline_view import MOST_FINDINGS, findings_table
from dsexplore.views.trace.tree_html import parameters_html

FINDINGS, PARAMETERS, PREDICTION = "findings", "parameters", "prediction"
"""Keys of the tabs."""
_MOST_PARAMETERS = 12


@dataclass
class TabPanels:
    """HTML of the tabs.

    Args:
        chosen: the selection.
        findings: those of the trace.
        prediction: what was predicted for the explorer; None if nothing was.
    """

    chosen: Chosen
    findings: Findings
    prediction: Prediction | None = None
    hardware: str = ""
    """Cluster that is predicted for; the prediction's own, or ``h100``, if empty."""
    _made: dict[str, Prediction] = field(default_factory=dict, init=False)

    def html(self, tab: str) -> str:
        """Return what a tab shows for the selection."""
        return f'<div class="dsx">{_PANELS[tab](self)}</div>'

    def _findings(self) -> str:
        """Return the findings about the selection, whichever of them is selected; all if it has all events."""
        chosen = self.chosen
        mask = chosen.around(FINDINGS, chosen.rows.chosen) if chosen.picked is None else chosen.picked.mask
        shown = [i for i, finding in enumerate(self.findings) if finding.is_wrong or mask[finding.rows].any()]
        concerning = Findings(self.findings.tables, [self.findings[i] for i in shown])
        pick = chosen.passed.filters.picks.get(FINDINGS)
        selected = [pick is not None and set(np.flatnonzero(pick.mask)) == set(self.findings[i].rows) for i in shown]
        marks = [
            f' data-finding="{i}" tabindex="0" aria-selected="{str(now).lower()}"'
            for i, now in zip(shown[:MOST_FINDINGS], selected, strict=False)
        ]
        count = f"{len(shown):,} of {len(self.findings):,} findings concern what is selected"
        if len(shown) == len(self.findings):
            count = f"{len(shown):,} finding{'' if len(shown) == 1 else 's'}, largest saving first"
        note = f'<p><b>{count}</b> <span class="dim">a row selects its events; bytes are per rank and step</span></p>'
        return (note if len(self.findings) else "") + findings_table(concerning, attributes=marks)

    def _parameters(self) -> str:
        """Return the followed parameter with its shards, above the parameters of the selected modules."""
        chosen = self.chosen
        sizes: Sizes = "wire" if chosen.codes.kind_of_sizes == WIRE else "message"
        followed = ""
        if chosen.history is not None:
            plan = shards_of(chosen.history)
            shards = (
                ""
                if plan is None
                else (
                    '<p class="dim">A rank that is chosen here is picked on the map too.</p>'
                    f"{ShardingView(plan).picture()}"
                )
            )
            followed = f"<div>{history_html(replace(chosen.history, sizes=sizes))}{shards}</div>"
        parameters = chosen.codes.tables.parameters
        inside = {
            name for first, end in chosen.codes.spans(chosen.rows.chosen) for name in chosen.codes.tree.names[first:end]
        }
        if inside:
            parameters = parameters.filter(pl.col("module").is_in(list(inside)))
        largest = parameters.group_by("name", maintain_order=True).agg(pl.col("global_bytes").max())
        largest = largest.sort("global_bytes", descending=True, maintain_order=True).head(_MOST_PARAMETERS)
        shown = parameters.filter(pl.col("name").is_in(largest["name"].implode()))
        where = f" of {html.name(chosen.rows.title, 200)}" if inside else ""
        many = parameters["name"].n_unique()
        if not many:
            return followed or f'<p class="dim">No parameters{where} are recorded.</p>'
        count = f"The {len(largest)} largest of {many:,} parameters" if many > len(largest) else f"{many:,} parameters"
        hint = "“its step” shows where one lies and what is sent for it in a step"
        return (
            f'{followed}<p><b>{count}{where}</b> <span class="dim">{hint}</span></p>{parameters_html("", shown, True)}'
        )

    def _prediction(self) -> str:
        """Return the predicted step on a cluster, with the selected modules' share and the streams of one rank."""
        try:
            predicted = self._predicted()
        except UsageError as error:
            return f"<p>{html.prose(str(error), 600)}</p>"
        names = list(dict.fromkeys([predicted.cluster.name, *known_clusters()]))
        chosen = predicted.cluster.name
        options = "".join(
            f'<option value="{html.escape(name)}"{" selected" * (name == chosen)}>{html.escape(name)}</option>'
            for name in names
        )
        choice = f'<p><label>on <select data-hardware aria-label="hardware">{options}</select></label></p>'
        view = PredictionView(predicted)
        return f"{choice}{self._of_selection(predicted)}{view.html()}{view.still(None)}"

    def _predicted(self) -> Prediction:
        if not self.hardware and self.prediction is not None:
            return self.prediction
        name = self.hardware or "h100"
        if name not in self._made:
            self._made[name] = Trace(self.chosen.codes.tables).predict(name)
        return self._made[name]

    def _of_selection(self, predicted: Prediction) -> str:
        chosen = self.chosen
        if not chosen.rows.chosen:
            return ""
        tree = chosen.codes.tree
        inside = [name for first, end in chosen.codes.spans(chosen.rows.chosen) for name in tree.names[first:end]]
        rows = predicted.by_module().filter(pl.col("module").is_in(inside))
        compute, sent, exposed = (float(rows[name].sum()) for name in ("compute", "communication", "exposed"))
        return (
            f"<p><b>{html.name(chosen.rows.title, 200)}</b>: {format_seconds(compute)} of compute and "
            f"{format_seconds(sent)} of communication in a step, {format_seconds(exposed)} of it exposed.</p>"
        )


_PANELS: dict[str, Callable[[TabPanels], str]] = {
    FINDINGS: TabPanels._findings,
    PARAMETERS: TabPanels._parameters,
    PREDICTION: TabPanels._prediction,
}
