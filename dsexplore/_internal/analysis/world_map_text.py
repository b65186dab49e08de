"""A world map in words: what goes over links inside a node and between nodes, in a sentence and by axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from dsexplore._internal.analysis.link_flows import BETWEEN, INSIDE
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.unknown_sizes import what_is_unknown
from dsexplore._internal.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from dsexplore._internal.analysis.world_map import WorldMap

_NOTHING = "Nothing was sent after start-up: there is no link to draw."


class LinkRow(NamedTuple):
    """What collectives of one axis send over links of one level, or of both levels."""

    axis: str
    links: str
    peers: int
    """Number of ranks sent to."""
    value: float
    """Bytes or seconds per rank and step, as the map shows."""


def verdict(world: WorldMap) -> str:
    """Return what goes over links inside a node and between nodes, summed over all axes."""
    if not world.received:
        unknown = unknown_bytes(world)
        return f"No link is drawn: {unknown}." if unknown else _NOTHING
    values = world.most if world.running is None else world.most_seconds
    inside, between = (
        f"{at_most(world) if values[level] else ''}{value_text(world, values[level])}" for level in (INSIDE, BETWEEN)
    )
    near, far = world.named(INSIDE), world.named(BETWEEN)
    if world.running is None:
        return f"Per rank and step {inside} stay {near}, {between} go {far}."
    waiting = ", waits for late ranks not counted" if world.running.times.source == "measured" else ""
    if inside == between:
        rows = link_rows(world)
        all_cross = 2 * len(merged(rows)) == len(rows)
        over = f"; all of them go over links {far}" if all_cross else f", as much {near} as {far}"
        return f"Collectives take {inside} of a rank's step{waiting}{over}."
    return f"Per rank and step collectives run {inside} over links {near}, {between} {far}{waiting}."


def lines(world: WorldMap) -> list[str]:
    """Return the verdict, a line per axis and level of link, and what is unknown or how seconds are counted."""
    unknown = unknown_bytes(world) if world.received else ""
    more = [f"More may be sent: {unknown}."] if unknown else []
    if world.running is not None:
        more.append(about_seconds(world))
    return [verdict(world), *_level_lines(world), *more]


def _level_lines(world: WorldMap) -> list[str]:
    most = "" if world.is_even else "at most "
    kind = "on the wire" if world.sizes == "wire" else "in messages"
    rows = [
        f"{level.axis}, {world.named(level.level)}: {most}{format_bytes(level.bytes)} {kind} "
        f"to {format_count(level.peers, 'other rank')}"
        for level in world.levels
    ]
    if world.running is None:
        return rows
    seconds = "at most " if len(world.senders) > 1 else ""
    return [f"{row}, {seconds}{format_seconds(level.seconds)}" for row, level in zip(rows, world.levels, strict=True)]


def about_seconds(world: WorldMap) -> str:
    """Return sentences on what the seconds count, and whether they are measured or predicted."""
    assert world.running is not None
    times = world.running.times
    alone = (
        " Of a collective that one rank alone recorded, waiting for the others is part of what was measured."
        if times.source == "measured" and len(world.senders) < world.world_size
        else ""
    )
    return (
        f"Seconds: {times.words}, in which collectives ran that the rank takes part in with a recorded one; what runs "
        "at the same time counts once, and start-up is left out. A collective has one duration, the least over its "
        f"recorded ranks: the rest is waiting, and is not counted.{alone} Links have no times of their own: theirs are "
        "those of the collectives that go over them."
    )


def link_rows(world: WorldMap) -> list[LinkRow]:
    """Return a row per axis and level of link, the axis with most bytes first."""
    return [
        LinkRow(
            level.axis,
            world.named(level.level),
            level.peers,
            level.bytes if world.running is None else level.seconds,
        )
        for level in world.levels
    ]


def merged(rows: list[LinkRow]) -> list[LinkRow]:
    """Return one row for both levels of an axis if its collectives all go over links of both."""
    result: list[LinkRow] = []
    for row in rows:
        if result and (result[-1].axis, result[-1].value) == (row.axis, row.value):
            before = result.pop()
            result.append(LinkRow(row.axis, f"{before.links} and {row.links}", before.peers + row.peers, row.value))
        else:
            result.append(row)
    return result


def at_most(world: WorldMap) -> str:
    """Return ``"at most "`` if the numbers are those of the busiest rank, ``""`` if all recorded ranks send as much."""
    even = world.is_even if world.running is None else len(world.senders) < 2
    return "" if even else "at most "


def unknown_bytes(world: WorldMap) -> str:
    """Return half a sentence on bytes after start-up that are not known; empty if all are, or time is shown."""
    sizes = f"{world.sizes}_bytes"
    if world.running is not None or not world.tables.events[sizes].null_count():
        return ""
    events = in_steps(world.tables.events)
    return what_is_unknown(events.filter(pl.col(sizes).is_null()), events.height)


def value_text(world: WorldMap, value: float) -> str:
    """Return a value of the map as text: bytes, or seconds if the map is shaded by seconds."""
    return format_bytes(value) if world.running is None else format_seconds(value)
