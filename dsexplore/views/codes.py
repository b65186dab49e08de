"""A trace's events as small integers, so that a filter over a million of them takes milliseconds.

Every facet is a column of codes and the labels they stand for; a filter is a conjunction of comparisons, and
what is left is added up in the `cells` of module, axis and phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from dsexplore.trace.model import Tables
from dsexplore.trace.select import modules_inside
from dsexplore.views.cells import Cells, Codes, Mask, Sizes, Sums, find_cells
from dsexplore.views.facets import Facet, facet, lines
from dsexplore.views.fold import Folding
from dsexplore.views.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree
from dsexplore.views.static_tree import SAME_COLLECTIVE
from dsexplore.views.tally import CAUSE, Grid, grid, largest_first, pattern_of

FACETS = ("phase", "op", "axis", "group", "step", "rank")
"""What the explorer can filter by, beside module and implicit."""


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
    def _trigger(self) -> Facet:
        return facet(self.tables.events["trigger"])

    @cached_property
    def _seq(self) -> Codes:
        return self.tables.events["seq"].to_numpy().astype(np.int64)

    @cached_property
    def _told(self) -> pl.DataFrame:
        """What a table of collectives tells of each event."""
        return self.tables.events.select(SAME_COLLECTIVE)

    @cached_property
    def kinds(self) -> Codes:
        """One small number per event; events with equal ones stand on one line of a table of collectives."""
        return lines(self.tables.events, SAME_COLLECTIVE)

    @cached_property
    def _causes(self) -> tuple[Codes, Codes, pl.DataFrame]:
        """Which events are implicit, the line of the table of causes that each is on, and those lines."""
        at = np.flatnonzero(self.implicit)
        placed = self.tables.events[at].with_columns(pattern_of(pl.col("trigger")).alias("module")).select(CAUSE)
        line = lines(placed, CAUSE)
        _, first = np.unique(line, return_index=True)
        return at, line, placed[first]

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
        _ = self._trigger, self._causes, self._seq, self._told, self.kinds, self.cells

    # Which events

    def mask(self, filters: Mapping[str, Any], implicit_only: bool = False) -> Mask:
        """Which events meet the filters: facet → a label or a list of labels."""
        mask = self.implicit.copy() if implicit_only else np.ones(len(self.owner), bool)
        for name, wanted in filters.items():
            facet = self.facets[name]
            values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
            codes = [code for code, label in enumerate(facet.labels) if label in values]
            mask &= facet.codes == codes[0] if len(codes) == 1 else np.isin(facet.codes, codes)
        return mask

    def in_module(self, pattern: str) -> Mask:
        """Events that a module's pattern takes in, as `Trace.where` does: by owner or by trigger."""
        owner, trigger = self.facets["owner"], self._trigger
        found = modules_inside({*owner.labels, *trigger.labels}, [pattern])
        of_owner, of_trigger = (np.array([n in found for n in f.labels], bool)[f.codes] for f in (owner, trigger))
        mask: Mask = of_owner | of_trigger
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
        names, of_row = self._places
        axes = self.facets["axis"].labels
        parts = [sums.cells.within(*span) for span in self.spans(rows)] if rows is not None else [slice(None)]
        shape = len(names), max(len(axes), 1)
        at = np.concatenate([of_row[sums.cells.owner[p]] * shape[1] + sums.cells.axis[p] for p in parts])
        count = np.bincount(at, np.concatenate([sums.counts[p] for p in parts]), minlength=1)
        total = np.bincount(at, np.concatenate([sums.bytes[p] for p in parts]), minlength=1)
        held = np.flatnonzero(count).tolist()
        return grid({(names[i // shape[1]], axes[i % shape[1]] or NO_AXIS): float(total[i]) for i in held})

    def causes(self, mask: Mask) -> pl.DataFrame:
        """The implicit redistributes in the mask, as `tally.implicit` lists them, and their ``line`` for `cause`."""
        at, line, rows = self._causes
        kept = mask[at]
        count = np.bincount(line[kept], minlength=len(rows))
        size = np.bincount(line[kept], self.sizes[at[kept]], minlength=len(rows)).astype(np.int64)
        held = np.flatnonzero(count)
        counted = {"count": count[held], "message_bytes": size[held], "line": held}
        return largest_first(rows[held].with_columns(pl.Series(name, values) for name, values in counted.items()))

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
        kinds = self.kinds.take(at)
        counts = np.bincount(kinds)
        first = np.zeros(len(counts), np.int64)
        first[kinds[::-1]] = at[::-1]
        held = np.flatnonzero(counts)
        order = np.lexsort((first[held], self._seq[first[held]]))[:most]
        shown = self._told[first[held][order]]
        return shown.with_columns(pl.Series("count", counts[held][order])), len(held)

    def columns(self, sums: Sums) -> Sizes:
        """(columns, modules): count, bytes, bytes per axis, bytes per phase, own bytes; see `titles`."""
        n, cells = len(self.tree), sums.cells
        axis_column = self.tree.columns_of(self.facets["axis"].labels)
        own = [
            sums.by(axis_column[cells.axis], n, len(self.tree.axes), sums.bytes),
            sums.by(cells.phase, n, len(self.facets["phase"].labels), sums.bytes),
        ]
        count = sums.by(np.zeros(1, np.int64), n, 1, sums.counts)
        total = own[0].sum(axis=1, keepdims=True)
        table = np.concatenate([count, total, *own, total], axis=1)
        below = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
        summed = below[self.tree.ends] - below[:-1]
        summed[:, -1] = table[:, -1]
        return np.ascontiguousarray(summed.T)

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
