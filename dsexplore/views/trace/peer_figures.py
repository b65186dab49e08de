"""Figures of wire bytes between recorded ranks and their peers: a matrix, and a Sankey diagram; whose a mark is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes
from dsexplore.views.page.theme import BLUE, SKY, tint
from dsexplore.views.trace import tally
from dsexplore.views.trace.figure_spec import EMPTY, Spec, heatmap_spec
from dsexplore.views.trace.folding import ranges

_MOST_SENDERS, _MOST_TARGETS = 8, 10
"""Labels of a Sankey that stand one below the other in its height."""


@dataclass(frozen=True)
class Ends:
    """The ranks between which the bytes of a mark go."""

    senders: list[int]
    receivers: list[int]

    @property
    def title(self) -> str:
        """Senders and receivers in words: ``rank 0 to ranks 4–7``."""
        senders, receivers = (
            f"rank{'s' if len(held) > 1 else ''} {ranges(held, 4)}" for held in (self.senders, self.receivers)
        )
        return f"{senders} to {receivers}"


@dataclass(frozen=True)
class _Joined:
    """Flows with the receivers that a Sankey draws as one target."""

    found: tally.Flows

    @cached_property
    def totals(self) -> tally.Bytes:
        """(senders, receivers) to all ranks of an entry together."""
        return self.found.bytes * [len(ranks) for ranks in self.found.receivers]

    @cached_property
    def target_of(self) -> list[str]:
        """(receivers,) the name of the target of each."""
        return _targets(self.found.receivers, self.totals.sum(axis=0).tolist())

    @cached_property
    def targets(self) -> list[str]:
        """The names of the targets, in order."""
        return list(dict.fromkeys(self.target_of))

    @cached_property
    def links(self) -> list[tuple[int, int, int]]:
        """(sender, target, bytes) of each link."""
        columns = [[j for j, name in enumerate(self.target_of) if name == target] for target in self.targets]
        joined = [[int(row[held].sum()) for held in columns] for row in self.totals]
        return [(i, j, value) for i, row in enumerate(joined) for j, value in enumerate(row) if value]

    def receivers_of(self, target: int) -> list[int]:
        """The ranks that a target stands for."""
        name = self.targets[target]
        held = (ranks for ranks, own in zip(self.found.receivers, self.target_of, strict=True) if own == name)
        return sorted(rank for ranks in held for rank in ranks)


def peers(tables: Tables, size: str = "wire_bytes", top: float = 0.0) -> Spec:
    """Matrix of bytes from recorded ranks to their peers."""
    grid = tally.between_ranks(tables, size=size).grid()
    return heatmap_spec(grid, "rank_peer", grid.rows, [f"to rank {column}" for column in grid.columns], top)


def sankey(tables: Tables, size: str = "wire_bytes") -> Spec:
    """All bytes flowing from recorded ranks to their peers: ranks that get the same are one target."""
    found = tally.between_ranks(tables, _MOST_SENDERS, None, size)
    if not found.receivers:
        return EMPTY
    drawn = _Joined(found)
    links, targets, target_of = drawn.links, drawn.targets, drawn.target_of
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
        "data": [
            {
                "type": "sankey",
                "arrangement": "fixed",  # nodes that can be dragged take no click
                "node": {"label": names, "color": BLUE, "pad": 24},
                "link": link,
                "meta": {"kind": "flow"},
            }
        ],
        "layout": {
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            **({"annotations": [note]} if more else {}),
        },
    }


def cell_ends(tables: Tables, row: int, column: int, size: str = "wire_bytes") -> Ends | None:
    """The ranks of a cell of `peers`; None where there is no such cell."""
    found = tally.between_ranks(tables, size=size)
    if not (0 <= row < len(found.senders) and 0 <= column < len(found.receivers)):
        return None
    return Ends([found.senders[row]], found.receivers[column])


def flow_ends(tables: Tables, number: int, size: str = "wire_bytes") -> Ends | None:
    """The ranks of a link of `sankey`, or of a node, whose numbers follow those of the links; None for no such mark."""
    drawn = _Joined(tally.between_ranks(tables, _MOST_SENDERS, None, size))
    links, senders = drawn.links, drawn.found.senders
    if 0 <= number < len(links):
        return Ends([senders[links[number][0]]], drawn.receivers_of(links[number][1]))
    node = number - len(links)
    if 0 <= node < len(senders):
        sent = [j for i, j, _ in links if i == node]
        return Ends([senders[node]], sorted({rank for j in sent for rank in drawn.receivers_of(j)}))
    target = node - len(senders)
    if 0 <= target < len(drawn.targets):
        return Ends([senders[i] for i, j, _ in links if j == target], drawn.receivers_of(target))
    return None


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
