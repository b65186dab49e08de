"""Colours that colour-blind readers can tell apart (Okabe and Ito), each with a letter and a hatch beside it."""

from __future__ import annotations

from dataclasses import dataclass

BLUE, ORANGE, PURPLE, GREEN = "#0072b2", "#e69f00", "#cc79a7", "#009e73"
SKY, VERMILION, YELLOW, GREY = "#56b4e9", "#d55e00", "#f0e442", "#8a8a8a"


@dataclass(frozen=True)
class Mark:
    """How one kind of thing is drawn."""

    letter: str
    colour: str
    ink: str
    """Colour of the letter on it."""
    hatch: str
    """CSS gradient laid over the colour; empty for none."""
    pattern: str
    """The same hatch in plotly's words."""


def _stripes(angle: int, gap: int = 6) -> str:
    return f"repeating-linear-gradient({angle}deg,#0004 0 1px,transparent 1px {gap}px)"


PHASES: dict[str, Mark] = {
    "forward": Mark("F", BLUE, "#fff", "", ""),
    "backward": Mark("B", ORANGE, "#000", _stripes(45), "/"),
    "recompute": Mark("R", PURPLE, "#000", _stripes(-45), "\\"),
    "optimizer": Mark("O", GREEN, "#000", _stripes(0, 4), "-"),
    "other": Mark("·", GREY, "#000", _stripes(90, 4), "|"),
}

OPS: dict[str, tuple[str, str]] = {
    # op: colour, plotly marker symbol
    "all_reduce": (BLUE, "circle"),
    "all_gather": (ORANGE, "triangle-up"),
    "reduce_scatter": (GREEN, "triangle-down"),
    "all_to_all": (VERMILION, "x"),
    "broadcast": (SKY, "diamond"),
    "reduce": (PURPLE, "square"),
}
OTHER_OP = (GREY, "cross")


def phase_mark(phase: str) -> Mark:
    """The mark of a phase; an unknown one looks like ``other``."""
    return PHASES.get(phase, PHASES["other"])
