"""The theme, in one place: colors, fonts, the marks of phases, ops and memory, and the look of plotly's figures.

Light or dark follows the surroundings: JupyterLab's variables, else VS Code's, else the page's color scheme. Colors
are those of Okabe and Ito, which color-blind readers can distinguish; each has a letter or a hatch too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLUE, ORANGE, PURPLE, GREEN = "#0072b2", "#e69f00", "#cc79a7", "#009e73"
SKY, VERMILION, GREY, BROWN = "#56b4e9", "#d55e00", "#6b6b6b", "#883322"
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
--dsx-focus:var(--jp-brand-color1,var(--vscode-focusBorder,{BLUE}));
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
    """Letter, color and hatch of one phase, or of one part of a rank's memory."""

    letter: str
    color: str
    ink: str
    """Color of the letter."""
    hatch: str
    """CSS gradient laid over the color; empty for none."""
    pattern: str
    """Plotly's name of the same hatch."""

    @property
    def css(self) -> str:
        """CSS declarations that draw the mark."""
        background = f"{self.hatch + ',' if self.hatch else ''}{self.color}"
        return f"background:{background};color:{self.ink};forced-color-adjust:none"


def _stripes(angle: int, gap: int = 6, ink: str = "#0004") -> str:
    return f"repeating-linear-gradient({angle}deg,{ink} 0 1px,transparent 1px {gap}px)"


PHASES: dict[str, Mark] = {
    "start-up": Mark("S", SKY, "#000", f"{_stripes(45)},{_stripes(-45)}", "x"),
    "forward": Mark("F", BLUE, "#fff", "", ""),
    "no-grad forward": Mark("N", VERMILION, "#000", _stripes(90, 9), "+"),
    "between steps": Mark("W", BROWN, "#fff", _stripes(90, 4), "."),
    "backward": Mark("B", ORANGE, "#000", _stripes(45), "/"),
    "recompute": Mark("R", PURPLE, "#000", _stripes(-45), "\\"),
    "optimizer": Mark("O", GREEN, "#000", _stripes(0, 4), "-"),
    "other": Mark("·", GREY, "#fff", _stripes(90, 4), "|"),
}

AXES: tuple[Mark, ...] = (
    Mark("1", BLUE, "#fff", "", ""),
    Mark("2", ORANGE, "#000", _stripes(45), "/"),
    Mark("3", GREEN, "#000", _stripes(0, 4), "-"),
    Mark("4", PURPLE, "#000", _stripes(-45), "\\"),
    Mark("5", VERMILION, "#000", _stripes(90, 4), "|"),
    Mark("6", SKY, "#000", f"{_stripes(45)},{_stripes(-45)}", "x"),
)
"""Marks of mesh axes, ordered by the axes' bytes; the last one is shared by all further axes."""

MEMORY: dict[str, Mark] = {
    "parameters": Mark("W", BLUE, "#fff", "", ""),
    "gradients": Mark("G", ORANGE, "#000", _stripes(45, ink="#0005"), "/"),
    "optimizer": Mark("O", GREEN, "#000", _stripes(0, 4, "#0005"), "-"),
}
"""Marks of the parts of a rank's memory."""


AXIS_STYLE = """
:is(.dsx,.dsx-tree) .thin{display:flex;height:9px;margin-top:5px;background:var(--dsx-shade)}
:is(.dsx,.dsx-tree) .thin i{min-width:1px}
""" + "".join(f":is(.dsx,.dsx-tree) .a{i}{{{mark.css}}}\n" for i, mark in enumerate(AXES))
"""CSS of the thin bars in the rows of a tree, and of the parts of every bar by axis."""


@dataclass(frozen=True)
class OpMark:
    """Color, marker and hatch of one op, as plotly names them."""

    color: str
    symbol: str
    pattern: str


_OPS = {
    "all_reduce": OpMark(BLUE, "circle", ""),
    "all_gather": OpMark(ORANGE, "triangle-up", "/"),
    "reduce_scatter": OpMark(GREEN, "triangle-down", "\\"),
    "all_to_all": OpMark(VERMILION, "x", "x"),
    "broadcast": OpMark(SKY, "diamond", "."),
    "reduce": OpMark(PURPLE, "square", "|"),
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
    return _OPS.get(op, OpMark(GREY, "cross", "x"))


def heat(percent: int) -> str:
    """Return the CSS of a heatmap's cell, from 0 (no color) to 100 (all blue)."""
    return f"background:color-mix(in srgb,{BLUE} {percent}%,transparent)"


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
