"""A trace's events as small integers, so that a filter over a million of them takes milliseconds.

Every facet is a column of codes and the labels they stand for; a filter is a conjunction of comparisons, and
what is left is added up in the `cells` of module, axis and phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from dsexplore.trace.select import modules_inside
from dsexplore.trace.trace import Tables
from dsexplore.views.trace.facets import Facet, facet, lines
from dsexplore.views.trace.folding import Folding
from dsexplore.views.trace.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree
from dsexplore.views.trace.pivot import Cells, Codes, Mask, Sizes, Sums, find_cells
from dsexplore.views.trace.tally import CAUSE, Grid, grid, pattern_of
from dsexplore.views.trace.tree_html import SAME_COLLECTIVE

FACETS = ("phase", "op", "axis", "group", "step", "rank")
"""What the explorer can filter by, beside module and implicit."""


@dataclass(frozen=True)
class Matched:
    """What a module's pattern takes in."""

    owners: Mask
    """(modules,) by row in the tree."""
    triggers: Mask
    """Of those that triggered what another module owns."""


@dataclass(frozen=True)
class Causes:
    """Lines of the table of implicit redistributes."""

    shown: pl.DataFrame
    """The first of them: columns `CAUSE`, count, message_bytes, and ``line`` for `EventCodes.cause`."""
    lines: int
    """How many there are."""
    events: int
    """How many events they stand for."""


class EventCodes:
    """The events of a trace, ready to be filtered and totalled by module."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.facets = {name: facet(tables.events[name]) for name in (*FACETS, "owner")}
        self.tree: ModuleTree = module_tree(tables, self.facets)
        self.implicit = tables.events["implicit"].fill_null(False).to_numpy()
        self.sizes = tables.events["message_bytes"].to_numpy().astype(np.float64)
        self.owner = self.tree.rows_of(self.facets["owner"])

    @cached_property
    def cells(self) -> Cells:
        """Where events can fall: module, axis, phase."""
        axis, phase = self.facets["axis"], self.facets["phase"]
        return find_cells(self.owner, (axis.codes, len(axis.labels)), (phase.codes, len(phase.labels)), len(self.tree))

    @cached_property
    def _places(self) -> tuple[list[str], Codes]:
        """The places in the model, numbered siblings together, and the place of each module."""
        names = pl.DataFrame({"name": pl.Series(self.tree.names, dtype=pl.String)})
        places = facet(names.select(pattern_of(pl.col("name")).alias("place"))["place"])
        return places.labels, places.codes.astype(np.int64)

    @cached_property
    def _place_of(self) -> Codes:
        """The place and axis of each cell, as one number."""
        return self._places[1][self.cells.owner] * len(self.facets["axis"].labels) + self.cells.axis

    @cached_property
    def _apart(self) -> tuple[Codes, Facet]:
        """The events that their owner did not trigger, and what did."""
        events = self.tables.events
        at = np.flatnonzero((events["trigger"] != events["owner"]).to_numpy())
        return at, facet(events["trigger"][at])

    @cached_property
    def total(self) -> Sums:
        """Count and bytes of all events by cell."""
        return self.sums(self.mask({}))

    @cached_property
    def _seq(self) -> Codes:
        return self.tables.events["seq"].to_numpy().astype(np.int64)

    @cached_property
    def kinds(self) -> Codes:
        """One small number per event; events with equal ones stand on one line of a table of collectives."""
        return lines(self.tables.events, SAME_COLLECTIVE)

    @cached_property
    def _counted(self) -> tuple[Codes, Codes]:
        """How many events are of each kind, and the first of them."""
        return _count(self.kinds, np.arange(len(self.kinds)))

    @cached_property
    def _told(self) -> pl.DataFrame:
        """What a table of collectives tells of each kind."""
        return self.tables.events.select(SAME_COLLECTIVE)[self._counted[1]]

    @cached_property
    def _causes(self) -> tuple[Codes, Codes, pl.DataFrame]:
        """Which events are implicit, the line of the table of causes that each is on, and those lines in order."""
        at = np.flatnonzero(self.implicit)
        placed = self.tables.events[at].with_columns(pattern_of(pl.col("trigger")).alias("module")).select(CAUSE)
        line = lines(placed, CAUSE)
        _, first = np.unique(line, return_index=True)
        rows = placed[first].with_row_index("line").sort(CAUSE)
        place = np.zeros(len(rows), np.int64)
        place[rows["line"].to_numpy()] = np.arange(len(rows))
        return at, place[line], rows.drop("line")

    @cached_property
    def folding(self) -> Folding:
        """Which modules are the same."""
        return Folding(self.tree, self.tables)

    @cached_property
    def folds(self) -> list[tuple[int, ...]]:
        """Rows that are shown as one, parents before children."""
        folding = self.folding
        groups = [
            folding.roots(),
            *(folding.children(row) for row in range(len(self.tree)) if self.tree.ends[row] > row + 1),
        ]
        return [fold.rows for group in groups for fold in group if len(fold.rows) > 1]

    @cached_property
    def fold_of(self) -> dict[int, tuple[int, ...]]:
        """First row of a fold → all its rows."""
        return {rows[0]: rows for rows in self.folds}

    def prepare(self) -> None:
        """Find now what the first choice would wait for."""
        _ = self._apart, self._place_of, self._in_columns, self._causes, self._seq, self._told, self.cells, self.total

    # Which events

    def mask(self, filters: Mapping[str, Any], implicit_only: bool = False) -> Mask:
        """Which events meet the filters: facet → a label or a list of labels."""
        mask = self.implicit.copy() if implicit_only else np.ones(len(self.owner), bool)
        for name, wanted in filters.items():
            mask &= self.facets[name].test(self.facets[name].codes, wanted)
        return mask

    def matched(self, pattern: str) -> Matched:
        """What a module's pattern takes in, as `Trace.where` does: by owner or by trigger."""
        triggers = self._apart[1].labels
        found = modules_inside((*self.tree.names, *triggers), [pattern])
        rows, others = (np.fromiter((n in found for n in names), bool) for names in (self.tree.names, triggers))
        return Matched(rows, others)

    def in_modules(self, matched: Matched) -> Mask:
        """The events of these modules."""
        mask: Mask = matched.owners[self.owner]
        at, trigger = self._apart
        mask[at] |= matched.triggers[trigger.codes]
        return mask

    def in_cells(self, filters: Mapping[str, Any], matched: Matched | None) -> Mask | None:
        """The cells whose events meet the filters; None where it takes more than module, axis and phase to tell."""
        told = {"axis": self.cells.axis, "phase": self.cells.phase}
        if not told.keys() >= filters.keys() or (matched is not None and len(self._apart[0])):
            return None
        mask = np.ones(len(self.cells), bool) if matched is None else matched.owners[self.cells.owner]
        for name, wanted in filters.items():
            mask &= self.facets[name].test(told[name], wanted)
        return mask

    def spans(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """The rows of some modules and of all below them, as ``[first, end)``."""
        return [(row, int(self.tree.ends[row])) for row in rows]

    def inside(self, rows: Sequence[int]) -> Mask:
        """Events owned by these rows or by rows below them."""
        chosen = np.zeros(len(self.tree) + 1, bool)
        for row, end in self.spans(rows):
            chosen[row:end] = True
        mask: Mask = chosen[self.owner]
        return mask

    def at_place(self, place: str | None, axis: str | None, others: tuple[set[str], set[str]]) -> Mask:
        """Events of a place in the model on an axis; None is every one but the ``others``."""
        places, of_row = self._places
        axes = self.facets["axis"]
        in_place = np.array([p == place if place is not None else p not in others[0] for p in places], bool)
        names = [label or NO_AXIS for label in axes.labels]
        on_axis = np.array([a == axis if axis is not None else a not in others[1] for a in names], bool)
        mask: Mask = in_place[of_row][self.owner] & on_axis[axes.codes]
        return mask

    def largest_owner(self, mask: Mask) -> int:
        """The row of the module that sent most bytes of some events."""
        return int(np.bincount(self.owner[mask], self.sizes[mask], minlength=1).argmax())

    # What they add up to

    def sums(self, mask: Mask) -> Sums:
        """Count and bytes of some events by cell."""
        return self.cells.sums(mask, self.sizes)

    def places(self, sums: Sums, rows: Sequence[int] | None = None) -> Grid:
        """Message bytes by place in the model and axis, of some modules or of all."""
        names, axes = self._places[0], self.facets["axis"].labels
        parts = [sums.cells.within(*span) for span in self.spans(rows)] if rows is not None else [slice(None)]
        at, counts, sizes = (np.concatenate([v[p] for p in parts]) for v in (self._place_of, sums.counts, sums.bytes))
        count, total = np.bincount(at, counts, minlength=1), np.bincount(at, sizes, minlength=1)
        held = np.flatnonzero(count).tolist()
        return grid({(names[i // len(axes)], axes[i % len(axes)] or NO_AXIS): float(total[i]) for i in held})

    def causes(self, mask: Mask, most: int) -> Causes:
        """The implicit redistributes in the mask, as `tally.implicit` lists them."""
        at, line, rows = self._causes
        kept = mask[at]
        count = np.bincount(line[kept], minlength=len(rows))
        size = np.bincount(line[kept], self.sizes[at[kept]], minlength=len(rows)).astype(np.int64)
        held = np.flatnonzero(count)
        shown = held[np.lexsort((held, -count[held], -size[held]))[:most]]
        counted = {"count": count[shown], "message_bytes": size[shown], "line": shown}
        told = rows[shown].with_columns(pl.Series(name, values) for name, values in counted.items())
        return Causes(told, len(held), int(kept.sum()))

    def cause(self, line: int) -> tuple[Mask, str]:
        """The events on a line of the table of causes, and what it is called."""
        at, line_of, rows = self._causes
        mask = np.zeros(len(self.owner), bool)
        mask[at[line_of == line]] = True
        module, cause, op = (rows[name][line] for name in ("module", "cause", "op"))
        return mask, f"{cause or op} in {module}"

    def collectives(self, mask: Mask, most: int) -> tuple[pl.DataFrame, int]:
        """The first kinds of collective in the mask, with their ``count``, and how many kinds there are."""
        at = np.flatnonzero(mask)
        counts, first = self._counted if len(at) == len(mask) else _count(self.kinds.take(at), at)
        held = np.flatnonzero(counts)
        order = held[np.lexsort((first[held], self._seq[first[held]]))[:most]]
        return self._told[order].with_columns(pl.Series("count", counts[order])), len(held)

    @cached_property
    def _in_columns(self) -> tuple[Codes, Codes]:
        """The place of each cell in a table of (axis, module), and in one of (phase, module)."""
        n, cells = len(self.tree), self.cells
        axis_column = self.tree.columns_of(self.facets["axis"].labels)[cells.axis]
        return axis_column * n + cells.owner, cells.phase * n + cells.owner

    def columns(self, sums: Sums) -> Sizes:
        """(columns, modules): count, bytes, bytes per axis, bytes per phase, own bytes; see `titles`."""
        n = len(self.tree)
        if not n:
            return np.zeros((len(self.titles), 0))
        axis, phase = self._in_columns
        per_axis = np.bincount(axis, sums.bytes, len(self.tree.axes) * n).reshape(-1, n)
        per_phase = np.bincount(phase, sums.bytes, len(self.facets["phase"].labels) * n).reshape(-1, n)
        count = np.bincount(sums.cells.owner, sums.counts, n)
        own = per_axis.sum(axis=0)
        below = np.zeros((2 + len(per_axis) + len(per_phase), n + 1))
        np.cumsum(np.vstack([count, own, per_axis, per_phase]), axis=1, out=below[:, 1:])
        return np.vstack([below[:, self.tree.ends] - below[:, :-1], own])

    @property
    def titles(self) -> list[tuple[str, str]]:
        """(title, unit) of each column of `columns`."""
        phases = [(str(phase), "bytes") for phase in self.facets["phase"].labels]
        axes = [(axis if axis in (NO_AXIS, OTHER_AXES) else f"on {axis}", "bytes") for axis in self.tree.axes]
        return [("count", "count"), ("bytes", "bytes"), *axes, *phases, ("own", "bytes")]

    # Folded rows

    def fold(self, columns: Sizes) -> Sizes:
        """The same columns with each fold's sum on its first row and on the rows below that."""
        folded = columns.copy()
        for rows in reversed(self.folds):
            length = int(self.tree.ends[rows[0]]) - rows[0]
            folded[:, rows[0] : rows[0] + length] = sum(folded[:, row : row + length] for row in rows)
        return folded

    def members(self, row: int) -> list[int]:
        """All rows that a row of the folded tree stands for."""
        found, ancestor = [row], row
        while ancestor >= 0:
            rows = self.fold_of.get(ancestor, (ancestor,))
            found = [member - ancestor + other for member in found for other in rows]
            ancestor = int(self.tree.parents[ancestor])
        return sorted(found)


def _count(kinds: Codes, at: Codes) -> tuple[Codes, Codes]:
    """How many events are of each kind, and the first of them; ``at``: their indices, ascending."""
    counts = np.bincount(kinds)
    first = np.zeros(len(counts), np.int64)
    first[kinds[::-1]] = at[::-1]
    return counts, first
