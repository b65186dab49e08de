"""Bytes between ranks as a matrix and as a Sankey diagram, and the ranks that each mark stands for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page.theme import SHADE, tint
from dsexplore._internal.views.trace.byte_sizes import column_of
from dsexplore._internal.views.trace.figure_spec import EMPTY, Spec, heatmap_spec
from dsexplore._internal.views.trace.rank_flows import Flows, Route, between_ranks, ranks_text

_MOST_SENDERS, _MOST_TARGETS = 8, 10
"""Maximal numbers of labels that fit one above the other in a Sankey's height."""
_OTHERS = "to all others"
"""Label of the receivers beyond the limit."""


def rank_matrix(tables: Tables, sizes: str) -> Spec:
    """Return a matrix of bytes from recorded ranks to their peers."""
    grid = between_ranks(tables, column=column_of(sizes)).grid()
    return heatmap_spec(grid, "rank_peer", grid.rows, [f"to rank {column}" for column in grid.columns])


def sankey(tables: Tables, sizes: str) -> Spec:
    """Return a Sankey diagram of the bytes from recorded ranks to their peers; peers that get the same are joined."""
    return Sankey.of(tables, sizes).spec()


@dataclass(frozen=True)
class FlowLink:
    """The bytes from a sender to the ranks of a target."""

    sender: int
    """Index of the sender."""
    target: str
    """Key of `Sankey.targets`."""
    total: int
    """Bytes to all ranks of the target."""


@dataclass(frozen=True)
class Sankey:
    """A Sankey diagram: links from senders to targets, each of which joins some entries of the receivers."""

    flows: Flows

    @classmethod
    def of(cls, tables: Tables, sizes: str) -> Sankey:
        """Build the diagram of a trace."""
        return cls(between_ranks(tables, _MOST_SENDERS, None, column_of(sizes)))

    @cached_property
    def targets(self) -> dict[str, list[int]]:
        """{label: indices of `Flows.receivers`}; beyond the limit, those that get least share one label."""
        totals = self._totals.sum(axis=0)
        ranked = sorted(range(len(totals)), key=lambda entry: -totals[entry])
        named = ranked if len(ranked) <= _MOST_TARGETS else ranked[: _MOST_TARGETS - 1]
        targets: dict[str, list[int]] = {}
        for entry, ranks in enumerate(self.flows.receivers):
            targets.setdefault(f"to {ranks_text(ranks)}" if entry in named else _OTHERS, []).append(entry)
        return targets

    @cached_property
    def links(self) -> list[FlowLink]:
        """Links with bytes, by sender and target."""
        return [
            FlowLink(sender, target, total)
            for sender, row in enumerate(self._totals)
            for target, entries in self.targets.items()
            if (total := int(row[entries].sum()))
        ]

    @property
    def _totals(self) -> npt.NDArray[np.float64]:
        """(senders, receivers) bytes, summed over the ranks of each entry of receivers."""
        return self.flows.bytes * [len(ranks) for ranks in self.flows.receivers]

    def spec(self) -> Spec:
        """Return the diagram as plotly's JSON."""
        flows, targets = self.flows, list(self.targets)
        if not targets:
            return EMPTY
        names = [*(f"rank {rank}" for rank in flows.senders), *targets]
        trace = {
            "type": "sankey",
            "arrangement": "fixed",  # nodes that can be dragged take no click
            "node": {"label": names, "color": SHADE, "pad": 24},
            "link": {
                "source": [link.sender for link in self.links],
                "target": [len(flows.senders) + targets.index(link.target) for link in self.links],
                "value": [link.total for link in self.links],
                "label": [self._amount(link) for link in self.links],
                "color": tint(SHADE, 0.3),
                "hovertemplate": "%{source.label} %{target.label}: %{label}<extra></extra>",
            },
            "meta": {"kind": "flow"},
        }
        layout: Spec = {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
        if flows.hidden:
            more = f"{flows.hidden:,} more recorded ranks are not drawn"
            note = {"text": more, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1.09}
            layout["annotations"] = [note]
        return {"data": [trace], "layout": layout}

    def _amount(self, link: FlowLink) -> str:
        """Return the bytes of a link, and what each rank of its target gets if that is the same for all."""
        entries = self.targets[link.target]
        receivers = sum(len(self.flows.receivers[entry]) for entry in entries)
        amounts = {float(self.flows.bytes[link.sender, entry]) for entry in entries}
        if receivers == 1 or len(amounts) > 1:
            return format_bytes(link.total)
        return f"{format_bytes(amounts.pop())} to each of {receivers:,}, {format_bytes(link.total)} in total"

    def route(self, number: int) -> Route | None:
        """Return the ranks of a link or node, nodes numbered after links; None if there is no such mark."""
        links, senders = self._links_at(number), self.flows.senders
        if not links:
            return None
        entries = {entry for link in links for entry in self.targets[link.target]}
        receivers = [rank for entry in entries for rank in self.flows.receivers[entry]]
        return Route(sorted({senders[link.sender] for link in links}), sorted(receivers))

    def _links_at(self, number: int) -> list[FlowLink]:
        """Return the link with this number, or the links of a node; nodes follow links: senders, then targets."""
        if number < len(self.links):
            return [self.links[number]] if number >= 0 else []
        node, targets = number - len(self.links), list(self.targets)
        if node < len(self.flows.senders):
            return [link for link in self.links if link.sender == node]
        target = node - len(self.flows.senders)
        return [link for link in self.links if target < len(targets) and link.target == targets[target]]
