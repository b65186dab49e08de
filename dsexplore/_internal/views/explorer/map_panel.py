"""The explorer's world map of the filtered events; a rank or a link of it can be selected as a filter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from dsexplore._internal.analysis.link_flows import FLOW, flows_over, flows_with
from dsexplore._internal.analysis.make_world_map import NO_TIMES, map_of
from dsexplore._internal.analysis.running_times import FlowSeconds, RunningTimes, measured_times
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.analysis.world_map import WorldMap
from dsexplore._internal.cost.step.predicted_map import times_of
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.units import format_ranges
from dsexplore._internal.views.explorer.selection import Pick
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.event_lines import EventLines, event_lines
from dsexplore._internal.views.trace.pivot import Codes, Mask
from dsexplore._internal.views.trace.pivot import Sizes as Bytes
from dsexplore._internal.views.world_map.world_map_figure import node_boxes
from dsexplore._internal.views.world_map.world_map_view import Look, map_html

PART = "map"
"""Key of this part in `Filters.picks`."""
BYTES, MEASURED, PREDICTED = "bytes", "measured", "predicted"
"""Quantities that can shade the map."""

_NO_SECONDS = (
    f'<p class="dim">The map cannot be shaded by seconds: {NO_TIMES}. For a trace with costs=True, '
    "explore(hardware=…) predicts them.</p>"
)


@dataclass(frozen=True)
class _LinkSums:
    """Events summed by (module, axis, phase) and link."""

    entry: Codes
    """(k,) index of the (module, axis, phase) in the pivot."""
    flow: Codes
    """(k,) index of the row in `MapPanel._flows`."""
    counts: Codes
    """(k,) number of events."""
    bytes: Bytes
    """(k,) bytes."""


class MapPanel:
    """The world map of a trace."""

    def __init__(self, codes: EventCodes, prediction: Prediction | None = None) -> None:
        self._codes = codes
        self._prediction = prediction
        self._shade = BYTES
        self._per_node = 8 if prediction is None else prediction.ranks_per_domain
        self._shown: WorldMap | None = None
        """Map that is drawn."""
        self._times: dict[str, RunningTimes | None] = {}
        """{shade: times}, for shades by seconds that were used."""
        self._tops: dict[str, float] = {}
        """{sizes or shade: value of the darkest shade}."""
        self._sums: dict[str, _LinkSums] = {}
        """{sizes: sums}, see `_link_sums`."""

    @cached_property
    def _in_steps(self) -> Mask:
        """(events,) mask of the events in steps."""
        return ~self._codes.outside_steps

    @cached_property
    def _flows(self) -> EventLines:
        """Events grouped by the links that they use, one row per group."""
        return event_lines(self._codes.tables.events, FLOW, FLOW)

    @cached_property
    def _named(self) -> pl.DataFrame:
        """Rows of `_flows`, with `NO_AXIS` in place of an empty axis."""
        axis = pl.when(pl.col("axis") == "").then(pl.lit(NO_AXIS)).otherwise("axis").alias("axis")
        return self._flows.rows.with_columns(axis)

    @cached_property
    def _named_rows(self) -> list[tuple[Any, ...]]:
        return self._named.rows()

    @cached_property
    def _steps(self) -> int:
        return max(1, len(np.unique(self._codes.facets["step"].codes[self._in_steps])))

    @cached_property
    def _senders(self) -> tuple[int, ...]:
        return tuple(sorted(self._codes.tables.events["rank"].unique().to_list()))

    @property
    def shades(self) -> list[list[str]]:
        """[value, text] of each quantity that can shade the map; only bytes if no times are known."""
        measured = [[MEASURED, "shade: seconds, measured"]] if measured_time.is_timed(self._codes.tables.events) else []
        predicted = [[PREDICTED, "shade: seconds, predicted"]] if self._prediction is not None else []
        return [[BYTES, "shade: bytes"], *measured, *predicted]

    def use(self, shade: str) -> None:
        """Set the quantity that shades the map from now on, one of `shades`.

        Raises:
            UsageError: No such shade, or no times are known for it.
        """
        shades = [value for value, _ in self.shades]
        if shade not in shades:
            raise UsageError(f"shade={shade!r}: the map of this trace is shaded by {', '.join(shades)}")
        self._shade = shade

    def _running(self, mask: Mask) -> FlowSeconds | None:
        """Return the seconds of the events in the mask; None if the map is shaded by bytes."""
        if self._shade == BYTES:
            return None
        if self._shade not in self._times:
            predicted = self._prediction if self._shade == PREDICTED else None
            self._times[self._shade] = times_of(predicted) if predicted else measured_times(self._codes.tables)
        times = self._times[self._shade]
        assert times is not None  # `shades` offers none without
        rows = np.flatnonzero(mask & self._in_steps)
        return FlowSeconds(self._codes.tables, times, flows=self._named, rows=rows, line=self._flows.line[rows])

    def _link_sums(self) -> _LinkSums | None:
        """Return the sums of the events in steps, in the bytes shown; None if there may be as many sums as events."""
        kind, pivot, flows = self._codes.kind_of_sizes, self._codes.total.pivot, len(self._flows.rows)
        if kind not in self._sums and len(pivot.owner) * flows <= len(self._codes):
            at = np.flatnonzero(self._in_steps)
            key, size = pivot.of_event[at] * flows + self._flows.line[at], self._codes.sizes[at]
            count = np.bincount(key)
            held = np.flatnonzero(count)
            entry, flow = np.divmod(held, flows)
            sums = np.bincount(key, size).astype(np.float64)
            self._sums[kind] = _LinkSums(entry, flow, count[held], sums[held])
        return self._sums.get(kind)

    def _sent(self, mask: Mask, whole: Mask | None) -> tuple[Codes, Codes]:
        """Return the number of events and the bytes per row of `_flows`; `world` describes the arguments."""
        added = None if whole is None else self._link_sums()
        if added is None or whole is None:
            return self._flows.totals(mask & self._in_steps, self._codes.sizes)
        kept, flows = whole.take(added.entry), len(self._flows.rows)
        at = slice(None) if kept.all() else np.flatnonzero(kept)
        count, size = (np.bincount(added.flow[at], values[at], flows) for values in (added.counts, added.bytes))
        return count.astype(np.int64), size.astype(np.int64)

    def world(self, mask: Mask, whole: Mask | None = None) -> WorldMap:
        """Return the map of some events.

        Args:
            mask: (events,) Mask of the events.
            whole: mask of (module, axis, phase) if the events are all events of these entries, see `PivotSums.whole`;
                else None. It saves about 3 ms if a quarter of 1,000,000 events is shown.
        """
        events, size = self._sent(mask, whole)
        sent = [(*self._named_rows[i], int(size[i]), int(events[i])) for i in np.flatnonzero(events).tolist()]
        made = map_of(self._codes.tables, sent, ranks_per_node=self._per_node, steps=self._steps, senders=self._senders)
        sizes: Sizes = "wire" if self._codes.kind_of_sizes == "wire" else "message"
        return replace(made, sizes=sizes, running=self._running(mask))

    def html(self, mask: Mask, axis: str | None, whole: Mask | None = None, pick: Pick | None = None) -> str:
        """Return the map as HTML with clickable ranks and links.

        Args:
            mask: (events,) Mask of the events.
            axis: axis whose groups are outlined; None for none.
            whole: mask of (module, axis, phase), see `world`.
            pick: ranks or link that are drawn as selected; None for none.
        """
        unit = self._codes.kind_of_sizes if self._shade == BYTES else self._shade
        if unit not in self._tops:
            self._tops[unit] = float(self.world(self._codes.every).to_shades().max(initial=0.0))
        world = replace(self.world(mask, whole), axis=axis)
        self._shown, links = world, [(level.axis, level.level) for level in world.levels]
        ranks, link = ((), None) if pick is None else (pick.ranks, pick.link)
        number = links.index(link) if link in links else -1
        look = Look(self._tops[unit], live=True, picked=ranks, link=number)
        why = _NO_SECONDS if len(self.shades) == 1 else ""
        return f'<div class="dsx">{map_html(world, look)}{why}</div>'

    def cell(self, place: str) -> tuple[int, ...]:
        """Return the ranks of a clicked cell: ``"3.5"`` is the sixth cell of the fourth drawn node."""
        node, _, number = place.partition(".")
        return node_boxes(self._shown)[int(node)].cells[int(number)].ranks if self._shown is not None else ()

    def link(self, number: int) -> tuple[str, str]:
        """Return (axis, level) of a clicked row of the table of links."""
        assert self._shown is not None
        row = self._shown.levels[number]
        return row.axis, row.level

    def with_ranks(self, ranks: tuple[int, ...]) -> Pick:
        """Pick the events in which one of ``ranks`` takes part together with a recorded rank.

        Raises:
            UsageError: A rank does not exist.
        """
        world = self._shown or self.world(self._codes.every)
        for rank in ranks:
            if not 0 <= rank < world.world_size:
                raise UsageError(f"talks_to({rank}): ranks are 0 to {world.world_size - 1}")
        flows = flows_with(self._codes.tables, self._flows.rows, ranks)
        name = f"ranks {format_ranges(ranks, 3)}" if len(ranks) > 1 else f"rank {ranks[0]}"
        return Pick(self._events_of(flows), f"{name} on the map", ranks=ranks)

    def over(self, axis: str, level: str) -> Pick:
        """Pick the events on an axis that go to any rank at this level of link."""
        flows = flows_over(self._codes.tables, self._flows.rows, ranks_per_node=self._per_node, axis=axis, level=level)
        return Pick(self._events_of(flows), f"{axis} {level} on the map", link=(axis, level))

    def _events_of(self, flows: pl.Series) -> Mask:
        """Return the (events,) mask of the events of some rows of `_flows`, given as a mask."""
        mask: Mask = flows.fill_null(False).to_numpy()[self._flows.line]
        return mask
