"""The colors of all views, and the marks of mesh axes, phases, ops and memory.

A color means the same in every view: a mesh axis has a color by its name, bytes and time are shades of one hue, lost
time has the color of an alarm, and everything else is muted. The tests compute that color-blind readers can tell
neighboring colors apart; letters repeat what colors say.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from dsexplore._internal.trace.schema import NO_AXIS

ALARM = "#e01b3b"
"""Color of lost time (exposed communication, a late rank) and of exceeded limits."""
SHADE = "#12707a"
"""Darkest shade of bytes and time; zero has the color of the page."""
GREY = "#6b6b6b"
WAITING = "#8a8a8a"
"""Color of the time in which a rank, a stage or a stream waits."""
SERIES = ("#6364a1", "#94876b", "#776b73", "#758ca3", "#826358", "#b07d3d", "#2890ce", "#a05a33")
"""Muted colors for what has no color by its name: lines of ops and settings, phases, microbatches.

Their contrast to light and to dark lanes is at least 3:1, so they differ in hue and hardly in lightness."""
FIGURE_TEXT = "#767676"
"""Color of text in figures, legible on white and on black."""


@dataclass(frozen=True)
class Mark:
    """Letter and color of a phase, of a use of memory, or of a mesh axis."""

    letter: str
    color: str
    text_color: str
    """Color of the letter."""

    @property
    def css(self) -> str:
        """CSS declarations that draw the mark."""
        return f"background:{self.color};color:{self.text_color};forced-color-adjust:none;print-color-adjust:exact"


def text_color_on(color: str) -> str:
    """Return black or white, whichever is easier to read on a color of this module."""
    red, green, blue = ((int(color[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"


def _phase(letter: str, color: str) -> Mark:
    return Mark(letter, color, text_color_on(color))


PHASES: dict[str, Mark] = {
    "start-up": _phase("S", SERIES[5]),
    "forward": _phase("F", SERIES[3]),
    "no-grad forward": _phase("N", SERIES[6]),
    "between steps": _phase("W", SERIES[1]),
    "backward": _phase("B", SERIES[0]),
    "recompute": _phase("R", SERIES[2]),
    "optimizer": _phase("O", SERIES[4]),
    "other": _phase("·", SERIES[7]),
}

_DATA, _REPLICAS, _TENSOR, _CONTEXT, _PIPELINE, _EXPERT, _WORLD, _OTHER = range(8)
AXES: tuple[tuple[str, str], ...] = (
    ("#356892", "#fff"),
    ("#258aff", "#000"),
    ("#e47817", "#000"),
    ("#5a4af6", "#fff"),
    ("#18996d", "#000"),
    ("#c578b4", "#000"),
    (GREY, "#fff"),
    ("#6f6000", "#fff"),
)
"""(color, color of a letter on it) of mesh axes, indexed by `axis_number`."""
_AXES_BY_NAME = {
    **dict.fromkeys(("dp", "fsdp", "data", "shard", "hsdp"), _DATA),
    **dict.fromkeys(("replicate", "replicas", "ddp"), _REPLICAS),
    **dict.fromkeys(("tp", "sp", "model", "mp", "tensor"), _TENSOR),
    **dict.fromkeys(("cp", "context", "ring", "ulysses"), _CONTEXT),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), _PIPELINE),
    **dict.fromkeys(("ep", "etp", "expert", "experts"), _EXPERT),
    **dict.fromkeys(("", "world", NO_AXIS, "other axes"), _WORLD),
}
_FOR_OTHER_NAMES = (_OTHER, _REPLICAS, _CONTEXT, _PIPELINE, _EXPERT)
"""Colors of axes with other names: not those of the data and tensor parallel axes, which are often beside them."""
_HASH_SHIFT = 5
"""Number of low bits of a name's hash that are ignored, so that common pairs (rows, columns) get different colors."""
_NUMBERED = re.compile(r"\D*?_?(\d+)")


def axis_number(name: str) -> int:
    """Return the index into `AXES` of an axis, which depends on its name alone: ``dp_shard`` has that of ``dp``.

    Names that are not in the table share five colors.
    """
    words = name.lower().split("_")
    if "replicate" in words:
        return _REPLICAS
    for name_or_word in (name.lower(), words[0]):
        if name_or_word in _AXES_BY_NAME:
            return _AXES_BY_NAME[name_or_word]
    numbered = _NUMBERED.fullmatch(name)
    number = int(numbered[1]) if numbered else zlib.crc32(name.encode("utf-8", "replace")) >> _HASH_SHIFT
    return _FOR_OTHER_NAMES[number % len(_FOR_OTHER_NAMES)]


def axis_mark(name: str) -> Mark:
    """Return color and letters of a mesh axis: ``dp`` for ``dp``, ``ds`` for ``dp_shard``, ``d1`` for ``dim_1``."""
    words = [word for word in re.split(r"[^\w]|_", name) if word]
    if name in ("", NO_AXIS):
        letters = "–"
    elif len(words) > 1:
        second = words[-1] if words[-1].isdigit() else words[1]
        letters = words[0][0] + second[0]
    else:
        letters = name[:2]
    return Mark(letters, *AXES[axis_number(name)])


MEMORY: dict[str, Mark] = {
    "parameters": Mark("W", "#1d5053", "#fff"),
    "gradients": Mark("G", "#358d8d", "#000"),
    "optimizer": Mark("O", "#95b5af", "#000"),
    "activations": Mark("A", "#16744f", "#fff"),
    "buffers": Mark("C", "#52afc1", "#000"),
    "inputs": Mark("I", "#708c7a", "#000"),
}
"""{use of a rank's memory: its mark}, in shades of the hue of bytes."""


@dataclass(frozen=True)
class OpMark:
    """Color and marker of one op, as plotly names them."""

    color: str
    symbol: str


_OPS = {
    "all_reduce": OpMark(SERIES[0], "circle"),
    "all_gather": OpMark(SERIES[1], "triangle-up"),
    "reduce_scatter": OpMark(SERIES[2], "triangle-down"),
    "all_to_all": OpMark(SERIES[3], "x"),
    "broadcast": OpMark(SERIES[4], "diamond"),
    "reduce": OpMark(SERIES[5], "square"),
    "gather": OpMark(SERIES[6], "triangle-up"),
    "scatter": OpMark(SERIES[7], "triangle-down"),
}


def phase_mark(phase: str) -> Mark:
    """Return the mark of a phase; an unknown phase gets that of ``other``."""
    return PHASES.get(phase, PHASES["other"])


def op_mark(op: str) -> OpMark:
    """Return the mark of an op; all ops without their own mark share one."""
    return _OPS.get(op, OpMark(GREY, "cross"))


def tint(color: str, share: float) -> str:
    """Return a color of this module with opacity ``share``, in plotly's notation."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"
