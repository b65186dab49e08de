"""Figures of wire bytes between recorded ranks and their peers: a matrix, and a Sankey diagram."""

from __future__ import annotations

import numpy as np

from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes
from dsexplore.views.page.theme import BLUE, SKY, tint
from dsexplore.views.trace import tally
from dsexplore.views.trace.figure_spec import EMPTY, Spec, heatmap_spec
from dsexplore.views.trace.folding import ranges

_MOST_SENDERS, _MOST_TARGETS = 8, 10
"""Labels of a Sankey that stand one below the other in its height."""


def peers(tables: Tables, size: str = "wire_bytes", top: float = 0.0) -> Spec:
    """Matrix of bytes from recorded ranks to their peers."""
    grid = tally.between_ranks(tables, size=size).grid()
    return heatmap_spec(grid, "rank_peer", grid.rows, [f"to rank {column}" for column in grid.columns], top)


def sankey(tables: Tables, size: str = "wire_bytes") -> Spec:
    """All bytes flowing from recorded ranks to their peers: ranks that get the same are one target."""
    found = tally.between_ranks(tables, _MOST_SENDERS, None, size)
    if not found.receivers:
        return EMPTY
    totals = found.bytes * [len(ranks) for ranks in found.receivers]
    target_of = _targets(found.receivers, totals.sum(axis=0).tolist())
    targets = list(dict.fromkeys(target_of))
    joined = np.stack([totals[:, [t == target for t in target_of]].sum(axis=1) for target in targets], axis=1)
    links = [(i, j, int(v)) for i, row in enumerate(joined.tolist()) for j, v in enumerate(row) if v]
    names = [*(f"rank {rank}" for rank in found.senders), *targets]
    link = {
        "source": [i for i, _, _ in links],
        "target": [len(found.senders) + j for _, j, _ in links],
        "value": [v for _, _, v in links],
        "label": [_amount(v, found, i, targets[j], target_of) for i, j, v in links],
        "color": tint(SKY, 0.4),
        "hovertemplate": "%{source.label} %{target.label}: %{label}<extra></extra>",
    }
    more = f"{found.hidden:,} more recorded ranks are not drawn" if found.hidden else ""
    note = {"text": more, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1.09}
    return {
        "data": [{"type": "sankey", "node": {"label": names, "color": BLUE, "pad": 24}, "link": link}],
        "layout": {
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            **({"annotations": [note]} if more else {}),
        },
    }


def _amount(total: int, found: tally.Flows, sender: int, target: str, target_of: list[str]) -> str:
    """The sum of a link, and what each rank of its target gets where that is the same for all."""
    columns = [j for j, name in enumerate(target_of) if name == target]
    many = sum(len(found.receivers[j]) for j in columns)
    each = {float(found.bytes[sender, j]) for j in columns}
    if many == 1 or len(each) > 1:
        return format_bytes(total)
    return f"{format_bytes(each.pop())} to each of {many:,}, {format_bytes(total)} in sum"


def _targets(receivers: list[list[int]], totals: list[float]) -> list[str]:
    """The name of each target; those that get least share one where there are too many to distinguish."""
    large = sorted(range(len(totals)), key=lambda j: (-totals[j], j))
    large = large if len(large) <= _MOST_TARGETS else large[: _MOST_TARGETS - 1]
    called = (f"to rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, 4)}" for ranks in receivers)
    return [name if j in large else "to all others" for j, name in enumerate(called)]
