"""The theme, in one place: colors, fonts, the marks of phases, ops and memory, and the look of plotly's figures.

Light or dark follows the surroundings: JupyterLab's variables, else VS Code's, else the page's color scheme. Colors
stand for one thing each: a mesh axis has one by its name, bytes and time are shades of one hue, what is lost is in the
color of an alarm, and all else is muted. Color-blind readers can tell those side by side apart, which the tests
compute; letters say the same.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dsexplore._internal.trace.schema import NO_AXIS

ALARM = "#e01b3b"
"""What costs time that need not be spent: exposed communication, a late rank, a limit that is passed."""
SHADE = "#12707a"
"""The hue of bytes and time, from the paper's color at zero."""
GREY = "#6b6b6b"
WAITING = "#8a8a8a"
"""Time in which a rank, a stage or a stream waits, in every view."""
SERIES = ("#6364a1", "#94876b", "#776b73", "#758ca3", "#826358", "#b07d3d", "#2890ce", "#a05a33")
"""Muted colors of what has no color by its name: lines of ops and settings, phases, microbatches.

All stand out, by 3:1, on light and on dark lanes, so they are of nearly one lightness and differ in hue."""
INK = "#767676"
"""Color of text in figures, legible on white and on black."""
CLEAR = "rgba(0,0,0,0)"

VARIABLES = f"""
.dsx,.dsx-tree,.dsx-explorer,.dsx-plot,.dsx-timeline,.dsx-state{{
--dsx-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,CanvasText));
--dsx-bg:var(--jp-layout-color0,var(--vscode-editor-background,Canvas));
--dsx-line:color-mix(in srgb,var(--dsx-fg) 22%,transparent);
--dsx-dim:color-mix(in srgb,var(--dsx-fg) 68%,var(--dsx-bg));
--dsx-shade:color-mix(in srgb,var(--dsx-fg) 6%,transparent);
--dsx-link:var(--jp-content-link-color,var(--vscode-textLink-foreground,LinkText));
--dsx-focus:var(--jp-brand-color1,var(--vscode-focusBorder,{SHADE}));
--dsx-font:var(--jp-ui-font-family,var(--vscode-font-family,system-ui,sans-serif));
--dsx-mono:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,monospace));
--dsx-size:calc(var(--jp-content-font-size1,var(--dsx-page,14px))*13/14);
--dsx-small:calc(var(--dsx-size)*12/13);--dsx-tiny:calc(var(--dsx-size)*11/13)}}
:is(.dsx,.dsx-tree,.dsx-explorer) *{{box-sizing:border-box}}
:is(.dsx,.dsx-tree,.dsx-explorer) :focus-visible{{outline:2px solid var(--dsx-focus);outline-offset:-2px}}
"""
"""CSS of static views and widgets: the variables that their other rules use, and rules for all their elements.

Text is as large as JupyterLab's content, 13 pixels where JupyterLab sets 14; a standalone page uses the browser's size.
"""


@dataclass(frozen=True)
class Mark:
    """Letter and color of one phase, of one part of a rank's memory, or of a mesh axis."""

    letter: str
    color: str
    ink: str
    """Color of the letter."""

    @property
    def css(self) -> str:
        """CSS declarations that draw the mark."""
        return f"background:{self.color};color:{self.ink};forced-color-adjust:none;print-color-adjust:exact"


def ink(color: str) -> str:
    """Return black or white, whichever can be read better on a color of this module."""
    red, green, blue = ((int(color[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"


PHASES: dict[str, Mark] = {
    "start-up": Mark("S", SERIES[5], ink(SERIES[5])),
    "forward": Mark("F", SERIES[3], ink(SERIES[3])),
    "no-grad forward": Mark("N", SERIES[6], ink(SERIES[6])),
    "between steps": Mark("W", SERIES[1], ink(SERIES[1])),
    "backward": Mark("B", SERIES[0], ink(SERIES[0])),
    "recompute": Mark("R", SERIES[2], ink(SERIES[2])),
    "optimizer": Mark("O", SERIES[4], ink(SERIES[4])),
    "other": Mark("·", SERIES[7], ink(SERIES[7])),
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
_OF_OTHER_NAMES = (_OTHER, _REPLICAS, _CONTEXT, _PIPELINE, _EXPERT)
"""Colors of names that are not known: not those of data and tensor parallel axes, which stand beside them most."""
_HASH_SHIFT = 5
"""Lowest bits of a name's hash that are dropped: the others part the usual pairs, such as rows and columns."""
_NUMBERED = re.compile(r"\D*?_?(\d+)")


def axis_number(name: str) -> int:
    """Return the index into `AXES` of an axis, which depends on its name alone: ``dp_shard`` has that of ``dp``.

    Names that are not known share five colors.
    """
    words = name.lower().split("_")
    if "replicate" in words:
        return _REPLICAS
    for name_or_word in (name.lower(), words[0]):
        if name_or_word in _AXES_BY_NAME:
            return _AXES_BY_NAME[name_or_word]
    numbered = _NUMBERED.fullmatch(name)
    place = int(numbered[1]) if numbered else zlib.crc32(name.encode("utf-8", "replace")) >> _HASH_SHIFT
    return _OF_OTHER_NAMES[place % len(_OF_OTHER_NAMES)]


def axis_mark(name: str) -> Mark:
    """Return color and letters of a mesh axis: ``dp`` of ``dp``, ``ds`` of ``dp_shard``, ``d1`` of ``dim_1``."""
    words = [word for word in re.split(r"[^\w]|_", name) if word]
    both = (words[0], words[-1] if words[-1].isdigit() else words[1]) if len(words) > 1 else ()
    letters = "".join(word[0] for word in both) if both else name[:2]
    return Mark(letters if name not in ("", NO_AXIS) else "–", *AXES[axis_number(name)])


MEMORY: dict[str, Mark] = {
    "parameters": Mark("W", "#1d5053", "#fff"),
    "gradients": Mark("G", "#358d8d", "#000"),
    "optimizer": Mark("O", "#95b5af", "#000"),
    "activations": Mark("A", "#16744f", "#fff"),
    "buffers": Mark("C", "#52afc1", "#000"),
    "inputs": Mark("I", "#708c7a", "#000"),
}
"""Marks of the uses of a rank's memory, in shades of the hue of bytes."""


AXIS_STYLE = """
:is(.dsx,.dsx-tree) .thin{display:flex;height:9px;margin-top:5px;background:var(--dsx-shade)}
:is(.dsx,.dsx-tree) .thin i{min-width:1px}
""" + "".join(f":is(.dsx,.dsx-tree) .a{i}{{{Mark('', *colors).css}}}\n" for i, colors in enumerate(AXES))
"""CSS of the thin bars in the rows of a tree, and of the parts of every bar by axis."""


HEAT_STYLE = f":is(.dsx-grid,.dsx-scale){{--dsx-heat:{SHADE}}}\n"
"""CSS of the hue of a widget's heatmap, which is mixed with the page's color."""


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

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Dash styles of a figure's lines, in order of use."""

FIGURE: dict[str, Any] = {
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"color": INK, "size": 12},
    "modebar": {"bgcolor": CLEAR, "color": INK},
}
"""Layout that all figures share, as plotly's JSON: no background, legible ink."""
AXIS: dict[str, Any] = {
    "gridcolor": "rgba(128,128,128,0.25)",
    "zerolinecolor": "rgba(128,128,128,0.4)",
    "automargin": True,
}
"""Settings that all axes share: lines that are visible on white and on black, and space for the labels."""
LEGEND_ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def phase_mark(phase: str) -> Mark:
    """Return the mark of a phase; an unknown phase gets that of ``other``."""
    return PHASES.get(phase, PHASES["other"])


def op_mark(op: str) -> OpMark:
    """Return the mark of an op; all ops without their own mark share one."""
    return _OPS.get(op, OpMark(GREY, "cross"))


def heat(percent: int) -> str:
    """Return the CSS of a heatmap's cell, from 0 (the paper's) to 100."""
    return f"background:color-mix(in srgb,{SHADE} {percent}%,transparent)"


def color_scale(least: float = 0.04) -> list[list[Any]]:
    """Return plotly's color scale of bytes, times and rates; ``least``: opacity at its beginning."""
    return [[0.0, tint(SHADE, least)], [1.0, SHADE]]


def tint(color: str, share: float) -> str:
    """Return a color of this module with opacity ``share``, in plotly's notation."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def themed(figure: Any, **layout: Any) -> Any:
    """Apply this theme to a ``plotly.graph_objects.Figure`` and return it.

    Args:
        figure: the figure, which is changed in place.
        layout: further layout of this figure.
    """
    figure.update_layout(template="none", **FIGURE, **layout)
    figure.update_xaxes(**AXIS)
    return figure.update_yaxes(**AXIS)


def stacked_bars(names: list[str], series: Iterable[tuple[str, list[float], str]], title: str, left: int) -> Any:
    """Return a plotly figure of horizontal bars in seconds, from top to bottom.

    Args:
        names: of the bars.
        series: (name, seconds in each bar, color) of their parts, from left to right.
        title: of the axis.
        left: pixels that the names need.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, values, color in series:
        hover = f"%{{y}}<br>%{{x:.3g}} s {name}<extra></extra>"
        figure.add_bar(orientation="h", x=values, y=names, name=name, marker={"color": color}, hovertemplate=hover)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=title, rangemode="tozero")
    figure.update_layout(barmode="stack", legend=LEGEND_ABOVE, showlegend=True)
    return themed(figure, height=110 + 28 * len(names), margin={"l": left, "r": 40, "t": 50, "b": 50})
