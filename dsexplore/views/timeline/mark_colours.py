"""The colours of a timeline's marks: phases have their own, all else takes the theme's in turn."""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore.analysis.step_timeline import WAITING, WARM_UP, Timeline
from dsexplore.views.page import html
from dsexplore.views.page.theme import AXES, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, phase_mark, tint

MOST_MARKS = 24
_IN_TURN = ((BLUE, "#fff"), (ORANGE, "#000"), (GREEN, "#000"), (PURPLE, "#000"), (SKY, "#000"), (VERMILION, "#000"))
_PALE = "#949494"
_OTHERS = (GREY, "#000")
"""The colour from the seventh mark on: nobody can tell more than six apart."""


@dataclass(frozen=True)
class Colour:
    """The colour and the letter of one kind of span."""

    name: str
    letter: str
    """The letter on wide boxes and in the key, for readers who cannot tell colours apart."""
    fill: str
    ink: str


_GAPS = {WAITING: Colour(WAITING, "–", _PALE, "#000"), WARM_UP: Colour(WARM_UP, "↑", tint(SKY, 0.25), "currentColor")}


def is_gap(colour: Colour) -> bool:
    """Whether a colour is that of a pipeline's bubble or of its warm-up."""
    return colour in _GAPS.values()


def key_order(colours: list[Colour]) -> list[int]:
    """The places of colours in the order in which a key lists them: a pipeline's gaps behind its microbatches."""
    return sorted(range(len(colours)), key=lambda place: is_gap(colours[place]))


def colours_of(timeline: Timeline) -> list[Colour]:
    """One per mark, in the order of `Timeline.marks`; beyond `MOST_MARKS` the last stands for all others."""
    names = timeline.marks
    if len(names) > MOST_MARKS:
        names = (*names[: MOST_MARKS - 1], f"{len(names) - MOST_MARKS + 1:,} others")
    place = {name: number for number, name in enumerate(name for name in names if name not in _GAPS)}
    return [_GAPS[name] if name in _GAPS else _colour(timeline.coloured_by, name, place[name]) for name in names]


def _colour(kind: str, name: str, number: int) -> Colour:
    if kind == "phase":
        mark = phase_mark(name)
        return Colour(html.plain(name, 60), mark.letter, mark.colour, mark.ink)
    if kind == "axis":
        mark = AXES[min(number, len(AXES) - 1)]
        return Colour(html.plain(name, 60), str(number + 1), mark.colour, mark.ink)
    if kind == "microbatch":  # its number stands on each box
        return Colour(name, name.rpartition(" ")[2], *_IN_TURN[number % len(_IN_TURN)])
    return Colour(html.plain(name, 60), str(number + 1), *(_IN_TURN[number] if number < len(_IN_TURN) else _OTHERS))
