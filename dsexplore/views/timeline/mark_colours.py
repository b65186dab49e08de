"""The colours of a timeline's marks: phases have their own, all else takes the theme's in turn."""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.views.page.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, phase_mark

_IN_TURN = ((BLUE, "#fff"), (ORANGE, "#000"), (GREEN, "#000"), (PURPLE, "#000"), (SKY, "#000"), (VERMILION, "#000"))
_OTHERS = (GREY, "#000")
"""From the seventh mark on: more than six colours are not told apart."""


@dataclass(frozen=True)
class Colour:
    """How one mark looks."""

    name: str
    letter: str
    """Stands on wide boxes and in the key, for who cannot tell colours apart."""
    fill: str
    ink: str


def colours_of(timeline: Timeline) -> list[Colour]:
    """One per mark, in the order of `Timeline.marks`."""
    if timeline.coloured_by == "phase":
        marks = [(name, phase_mark(name)) for name in timeline.marks]
        return [Colour(name, mark.letter, mark.colour, mark.ink) for name, mark in marks]
    return [
        Colour(name, str(number + 1), *(_IN_TURN[number] if number < len(_IN_TURN) else _OTHERS))
        for number, name in enumerate(timeline.marks)
    ]
