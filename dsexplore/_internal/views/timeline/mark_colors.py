"""The color and the letter of each kind of span in a timeline."""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore._internal.analysis.step_timeline import BLOCKED, DISK, WAITING, Timeline
from dsexplore._internal.views.page import html, theme
from dsexplore._internal.views.page.theme import GREY, SERIES, axis_mark, phase_mark

MOST_MARKS = 24
_IN_TURN = tuple((color, theme.text_color_on(color)) for color in SERIES[:6])
_OTHERS = (GREY, "#000")
"""Fill and text color from the seventh mark on, because nobody can distinguish more than six."""


@dataclass(frozen=True)
class Color:
    """Color and letter of one kind of span."""

    name: str
    letter: str
    """Letter on wide boxes and in the key, for readers who cannot distinguish colors."""
    fill: str
    text_color: str
    """Color of the letter."""

    @property
    def listed(self) -> list[str]:
        """[name, letter, fill, color of the letter], as the browser reads them."""
        return [html.plain(self.name, longest=36), self.letter, self.fill, self.text_color]


_GAPS = {WAITING: Color(WAITING, "–", theme.WAITING, "#000")}
_IO = {
    DISK: Color(DISK, "d", SERIES[6], theme.text_color_on(SERIES[6])),
    BLOCKED: Color(BLOCKED, "b", theme.ALARM, "#fff"),
}
WAITS = Color("waiting for a rank that comes later", "–", theme.WAITING, "#000")
"""Color of the part of a measured collective in which a rank waits."""
LATE = Color("late", "+", theme.ALARM, "#fff")
"""Color of the time by which a measured rank is late."""


def is_gap(color: Color) -> bool:
    """Return True if a color is that of waiting."""
    return color in _GAPS.values()


def key_order(colors: list[Color]) -> list[int]:
    """Return the indices of ``colors`` in the order of the key, with waiting last."""
    return sorted(range(len(colors)), key=lambda place: is_gap(colors[place]))


def colors_of(timeline: Timeline) -> list[Color]:
    """Return one color per mark, ordered as `Timeline.marks`; beyond `MOST_MARKS` the last stands for all others."""
    names = timeline.marks
    if len(names) > MOST_MARKS:
        names = (*names[: MOST_MARKS - 1], f"{len(names) - MOST_MARKS + 1:,} others")
    fixed = {**_GAPS, **_IO} if timeline.tables.io.height else _GAPS
    number = {name: i for i, name in enumerate(mark for mark in names if mark not in fixed)}
    return [fixed[name] if name in fixed else _color(timeline.color_by, name, number[name]) for name in names]


def _color(color_by: str, name: str, number: int) -> Color:
    """Return the color of a mark: that of its phase or axis, else the color of its ``number`` in the order of marks."""
    if color_by == "phase":
        mark = phase_mark(name)
        return Color(html.plain(name, longest=60), mark.letter, mark.color, mark.text_color)
    if color_by == "axis":
        mark = axis_mark(name)
        return Color(html.plain(name, longest=60), html.plain(mark.letter), mark.color, mark.text_color)
    fill, text_color = _IN_TURN[number] if number < len(_IN_TURN) else _OTHERS
    return Color(html.plain(name, longest=60), str(number + 1), fill, text_color)
