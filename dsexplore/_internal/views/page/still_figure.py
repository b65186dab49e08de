"""Draws a plotly figure of points, lines, areas or horizontal bars as static SVG.

This second renderer exists because saved notebooks, GitHub and nbconvert run no JavaScript, and plotly's own export of
images needs a browser. It reads the traces with their vertical error bars (stacked areas on top of one another), the
title, the type, title, ticks and ``rangemode`` of both axes, and straight lines with their annotations. Plotly's texts
are HTML: they are unescaped first, then escaped again.

A picture is as wide as its page. Horizontal positions are percentages of the width between the axes, so letters and
marks keep their size. Labels are placed so that they do not overlap on the narrowest page.
"""

from __future__ import annotations

import html as entities
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import round_numbers
from dsexplore._internal.views.page.theme import GREY

NARROWEST = 288
"""Width, in pixels, of a picture in a window of 320."""
HEIGHT = 256
"""Length of the vertical axis, in pixels."""
_TOP, _BOTTOM, _RIGHT = 10, 20, 20
"""Space around the axes, in pixels."""
_LETTER, _LINE, _RANGE = 6.2, 13, 8
"""Width of a letter, vertical distance of labels, and width of an error bar, in pixels."""
_LONGEST_LABEL, _MOST_MARKS = 44, 8
"""Letters of a bar's label; marks of a line above which a narrow page shows only every third."""
_DASHES = {"dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4"}
_SYMBOLS = {
    "square": "M-3.5-3.5h7v7h-7z",
    "diamond": "M0-5L5 0L0 5L-5 0z",
    "triangle-up": "M0-5L5 4H-5z",
    "triangle-down": "M0 5L5-4H-5z",
    "x": "M-4-4L4 4M-4 4L4-4",
    "cross": "M0-5V5M-5 0H5",
}
_KEY = '<svg width="34" height="14" aria-hidden="true">'
_NOTHING = '<p class="dim">nothing to show</p>'
STYLE = """
.dsx .chart{max-width:720px;font-size:11px}
.dsx .chart p{text-align:center}
.dsx .chart p:first-child{text-align:left}
.dsx .still{display:block;width:100%;overflow:visible;font-family:var(--dsx-font)}
.dsx .still svg{overflow:visible}
.dsx .still text{fill:var(--dsx-fg);stroke:var(--dsx-bg);stroke-width:3px;paint-order:stroke}
.dsx .still path{vector-effect:non-scaling-stroke}
.dsx .still .grid{stroke:var(--dsx-line)}
.dsx .still .limit{stroke:var(--dsx-dim);stroke-dasharray:2 3}
.dsx .room{container-type:inline-size}
.dsx .still circle{stroke:var(--dsx-bg)}
@container (max-width:520px){.dsx .still :is(.odd,.many-marks>svg:not(:nth-last-child(3n+1))){display:none}}
.dsx .keys span{margin-right:14px;white-space:nowrap}
.dsx .keys svg{vertical-align:-3px;margin-right:4px}
.dsx .still-bars{display:grid;grid-template-columns:fit-content(45%) minmax(0,1fr) auto;gap:3px 8px;max-width:720px;
font-size:var(--dsx-small);overflow-wrap:anywhere}
.dsx .still-bars .bar span{forced-color-adjust:none;print-color-adjust:exact}
"""


def still_figure(figure: Any) -> str:
    """Return a plotly figure of lines, points, areas or horizontal stacked bars as static HTML."""
    traces = list(figure.data)
    body = _bars(figure, traces) if traces and traces[0].type == "bar" else _chart(figure, traces)
    title = _text(figure.layout.title.text)
    head = f"<p>{html.escape(title)}</p>" if title else ""
    return html.fragment(head + _keys(traces) + body, STYLE)


@dataclass(frozen=True)
class _Point:
    """A point of a trace: position, ends of its error bar (both ``y`` if it has none), tooltip, and text beside it."""

    x: float
    y: float
    low: float
    high: float
    tooltip: str
    label: str = ""


@dataclass(frozen=True)
class _Scale:
    """Mapping from the numbers of an axis to pixels, or to percent: ``low`` is at ``first``, ``high`` at ``last``."""

    low: float
    high: float
    first: float
    last: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a number."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = map(math.log10, (low, high, value))
        share = (value - low) / (high - low)
        return round(self.first + share * (self.last - self.first), 2)

    def ticks(self) -> list[float]:
        """Return about five round numbers within the scale."""
        if not self.is_log:
            return round_numbers(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(decades) <= 3 else (1,)
        every = math.ceil(len(decades) / 8)
        numbers = [factor * 10.0**decade for decade in decades[::every] for factor in factors]
        return [number for number in numbers if self.low * (1 - 1e-9) <= number <= self.high * (1 + 1e-9)]


def _scale(values: Sequence[float], axis: Any, first: float, last: float) -> _Scale:
    """Return the scale that contains all values, with a margin of about 4 % at each end."""
    low, high = min(values), max(values)
    if axis.type == "log":
        room = max((high / low) ** 0.04, 1.05)
        return _Scale(low / room, high * room, first, last, is_log=True)
    if axis.rangemode == "tozero":
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.04 * (high - low) or abs(high) or 1.0
    begins_at_zero = axis.rangemode == "tozero" and low == 0
    return _Scale(low if begins_at_zero else low - room, high + room, first, last)


def _chart(figure: Any, traces: Sequence[Any]) -> str:
    """Return an SVG of the traces' points and lines between axes."""
    x_axis, y_axis = figure.layout.xaxis, figure.layout.yaxis
    points = [list(_points(trace, x_axis.type == "log", y_axis.type == "log")) for trace in traces]
    floors = _stack(traces, points)
    limits = list(_limits(figure))
    all_points = [point for points_of_trace in points for point in points_of_trace]
    xs = [point.x for point in all_points] + [limit.at for limit in limits if limit.is_vertical]
    ys = [end for point in all_points for end in (point.low, point.high)]
    ys += [limit.at for limit in limits if not limit.is_vertical]
    if not xs or not ys:
        return _NOTHING
    y_scale = _scale(ys, y_axis, HEIGHT, 0)
    left = round(12 + _LETTER * max((len(text) for _, text in _ticks(y_scale, y_axis)), default=0))
    ends = _line_ends(traces, points)
    right = round(_RIGHT + (8 + _LETTER * max(len(point.label) for point in ends) if ends else 0))
    x_scale = _scale(xs, x_axis, 0, 100)
    drawn = _axes(x_scale, y_scale, x_axis, y_axis, NARROWEST - left - right)
    drawn += "".join(_limit_html(limit, x_scale, y_scale) for limit in limits)
    lines = ""
    for trace, points_of_trace, floor in zip(traces, points, floors, strict=True):
        outline = [*((point.x, point.y) for point in points_of_trace), *reversed(floor)]
        lines += _line(trace, [(x_scale.at(x), y_scale.at(y)) for x, y in outline])
    drawn += f'<svg viewBox="0 0 100 {HEIGHT}" width="100%" height="{HEIGHT}" preserveAspectRatio="none">{lines}</svg>'
    for trace, points_of_trace in zip(traces, points, strict=True):
        is_crowded = "lines" in (trace.mode or "lines") and len(points_of_trace) > _MOST_MARKS
        marks = "".join(_mark(trace, point, x_scale, y_scale) for point in points_of_trace)
        drawn += f'<g class="many-marks">{marks}</g>' if is_crowded else f"<g>{marks}</g>"
    labeled = [point for point in all_points if point.label]
    drawn += _labels(labeled, x_scale, y_scale, left=left, right=right, at_ends=bool(ends))
    titles = [html.escape(_text(axis.title.text)) for axis in (y_axis, x_axis)]
    svg = f'<svg class="still" height="{HEIGHT}" role="img" aria-label="{" by ".join(titles)}">{drawn}</svg>'
    room = f'<div class="room" style="padding:{_TOP}px {right}px {_BOTTOM}px {left}px">{svg}</div>'
    return f'<div class="chart"><p>{titles[0]}</p>{room}<p>{titles[1]}</p></div>'


def _line_ends(traces: Sequence[Any], points: list[list[_Point]]) -> list[_Point]:
    """Return the last points of the lines if these alone have labels, which are then right of the picture."""
    lines = [line for trace, line in zip(traces, points, strict=True) if "lines" in (trace.mode or "") and line]
    ends = [line[-1] for line in lines if line[-1].label and not any(point.label for point in line[:-1])]
    labels = sum(bool(point.label) for points_of_trace in points for point in points_of_trace)
    return ends if len(ends) == labels else []


def _labels(
    labeled: Sequence[_Point], x_scale: _Scale, y_scale: _Scale, *, left: float, right: float, at_ends: bool
) -> str:
    """Return the label of each point, moved down where it would cover another; a line joins distant ones to their mark.

    Labels are closest to one another on the narrowest page, so labels that do not overlap there overlap on no page.

    Args:
        labeled: points with labels.
        x_scale: scale of x, in percent.
        y_scale: scale of y, in pixels.
        left: pixels left of the axes.
        right: pixels right of the axes.
        at_ends: whether all labels are right of the picture; else each is on the side of its mark with more space.
    """
    drawn, occupied = "", list[tuple[float, float, float]]()
    room, between = HEIGHT - _LINE * len(labeled), NARROWEST - left - right
    for number, point in enumerate(sorted(labeled, key=lambda point: y_scale.at(point.y))):
        x, y = x_scale.at(point.x), y_scale.at(point.y)
        pixel, leftward = between * x / 100, not at_ends and x > 50
        longest = int((pixel + left if leftward else between - pixel + right) / _LETTER) - 1
        text = html.plain(point.label, longest=min(max(longest, 8), 30))
        wide = _LETTER * len(text)
        begin = pixel - 8 - wide if leftward else pixel + 8
        place = min(y, max(0, room + _LINE * number)) if at_ends else y
        while any(abs(place - row) < _LINE and begin < high and low < begin + wide for low, high, row in occupied):
            place += 1
        occupied.append((begin, begin + wide, place))
        beside = 'dx="-8" text-anchor="end"' if leftward else 'dx="8"'
        line = f'<path class="grid" d="M0 {y}L6 {place:.1f}"/>' if abs(place - y) > _LINE / 2 else ""
        drawn += f'<svg x="{x}%">{line}</svg>' if line else ""
        drawn += f'<text x="{x}%" {beside} y="{place + 4:.1f}">{html.escape(text)}</text>'
    return drawn


def _points(trace: Any, is_log_x: bool, is_log_y: bool) -> Iterator[_Point]:
    """Yield the points of a trace that its axes can show: finite, and positive on logarithmic axes."""
    above, below = trace.error_y.array, trace.error_y.arrayminus
    names = trace.customdata if trace.customdata is not None else ()
    texts = _values(trace.text) if "text" in (trace.mode or "") else ()
    for at, (x, y) in enumerate(zip(_values(trace.x), _values(trace.y), strict=False)):
        if x is None or y is None or (is_log_x and x <= 0) or (is_log_y and y <= 0):
            continue
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        high = y if above is None else y + above[at]
        low = y if below is None else y - below[at]
        name = names[at] if at < len(names) and isinstance(names[at], str) else _text(trace.name)
        tooltip = f"{name}: {x:.4g}, {y:.4g}" + (f" ({low:.4g} to {high:.4g})" if low < high else "")
        label = _text(texts[at]) if at < len(texts) else ""
        yield _Point(float(x), float(y), float(y if is_log_y and low <= 0 else low), float(high), tooltip, label)


def _stack(traces: Sequence[Any], points: list[list[_Point]]) -> list[list[tuple[float, float]]]:
    """Raise each stacked area of ``points`` onto the areas before it; return its lower edge, empty for other traces."""
    floors: list[list[tuple[float, float]]] = []
    reached: dict[str, list[float]] = {}
    for trace, points_of_trace in zip(traces, points, strict=True):
        below = reached.get(trace.stackgroup, [0.0] * len(points_of_trace)) if trace.stackgroup else []
        floors.append([(point.x, base) for point, base in zip(points_of_trace, below, strict=False)])
        if trace.stackgroup:
            points_of_trace[:] = [
                replace(point, y=point.y + base, low=point.low + base, high=point.high + base)
                for point, base in zip(points_of_trace, below, strict=True)
            ]
            reached[trace.stackgroup] = [point.y for point in points_of_trace]
    return floors


def _values(column: Any) -> Sequence[Any]:
    return () if column is None else column


def _mark(trace: Any, point: _Point, x_scale: _Scale, y_scale: _Scale) -> str:
    """Return the symbol of a point, drawn over its error bar."""
    y, top, low = y_scale.at(point.y), y_scale.at(point.high), y_scale.at(point.low)
    color = html.escape(_color(trace))
    box = f'x="{-_RANGE / 2:g}" y="{top:g}" width="{_RANGE}" height="{low - top:g}"'
    bar = f'<rect {box} fill="{color}"/>' if point.low < point.high else ""
    drawn = bar + _symbol(trace, 0, y, html.escape(point.tooltip, longest=0))
    return f'<svg x="{x_scale.at(point.x)}%">{drawn}</svg>' if drawn else ""


class _Limit(NamedTuple):
    """A straight line through the whole figure, at a position of one axis, with its annotation."""

    is_vertical: bool
    at: float
    text: str


def _limits(figure: Any) -> Iterator[_Limit]:
    """Yield the straight lines that cross the figure."""
    for number, shape in enumerate(figure.layout.shapes):
        notes = figure.layout.annotations
        text = _text(notes[number].text) if number < len(notes) else ""
        if shape.x0 == shape.x1:
            yield _Limit(True, float(shape.x0), text)
        elif shape.y0 == shape.y1:
            yield _Limit(False, float(shape.y0), text)


def _limit_html(limit: _Limit, x_scale: _Scale, y_scale: _Scale) -> str:
    """Return the line of a limit, with its annotation."""
    text = html.escape(limit.text)
    if limit.is_vertical:
        x = f"{x_scale.at(limit.at)}%"
        line = f'<line class="limit" x1="{x}" x2="{x}" y2="{HEIGHT}"/>'
        return f'{line}<text x="{x}" dx="-4" y="10" text-anchor="end">{text}</text>'
    y = y_scale.at(limit.at)
    line = f'<line class="limit" x2="100%" y1="{y}" y2="{y}"/>'
    return f'{line}<text x="100%" y="{y - 4}" text-anchor="end">{text}</text>'


def _axes(x_scale: _Scale, y_scale: _Scale, x_axis: Any, y_axis: Any, narrowest: float) -> str:
    """Return grid lines and numbers at the ticks of both axes; fewer if only ``narrowest`` pixels are between them."""
    below, drawn = _ticks(x_scale, x_axis), ""
    letters = 2 + max((len(text) for _, text in below), default=0)
    every = math.ceil(len(below) * letters * _LETTER / narrowest)
    for number, (tick, text) in enumerate(below):
        x, kind = f"{x_scale.at(tick)}%", ' class="odd"' if number % every else ""
        drawn += f'<line class="grid" x1="{x}" x2="{x}" y2="{HEIGHT}"/>'
        drawn += f'<text{kind} x="{x}" y="{HEIGHT + 14}" text-anchor="middle">{html.escape(text)}</text>'
    for tick, text in _ticks(y_scale, y_axis):
        y = y_scale.at(tick)
        drawn += f'<line class="grid" x2="100%" y1="{y}" y2="{y}"/>'
        drawn += f'<text x="-5" y="{y + 4}" text-anchor="end">{html.escape(text)}</text>'
    return drawn


def _ticks(scale: _Scale, axis: Any) -> list[tuple[float, str]]:
    """Return (number, text) of each tick: those that the axis sets, else round numbers."""
    if axis.tickvals is not None:
        return list(zip(axis.tickvals, map(_text, axis.ticktext), strict=True))
    return [(tick, _number(tick)) for tick in scale.ticks()]


def _line(trace: Any, places: Sequence[tuple[float, float]]) -> str:
    """Return the path of a line or of an area through these places; empty for a trace of points."""
    if "lines" not in (trace.mode or "lines") or len(places) < 2:
        return ""
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    if _is_area(trace):
        return f'<path d="{path}z" fill="{html.escape(_color(trace))}" fill-opacity="{trace.opacity or 1}"/>'
    return f'<path d="{path}" fill="none" stroke-width="1.6" {_stroke(trace)}/>'


def _is_area(trace: Any) -> bool:
    return trace.fill == "toself" or bool(trace.stackgroup)


def _stroke(trace: Any) -> str:
    dashes = _DASHES.get(trace.line.dash or "solid")
    return f'stroke="{html.escape(_color(trace))}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def _color(trace: Any) -> str:
    """Return the color of a trace: of its line, else of its markers."""
    line = trace.line.color if trace.type == "scatter" else None
    for color in (line, trace.marker.color):
        if isinstance(color, str):
            return color
    return GREY


def _symbol(trace: Any, x: float, y: float, title: str = "") -> str:
    """Return the marker of a trace at a position, with a tooltip; empty for a trace without markers."""
    if "markers" not in (trace.mode or "markers"):
        return ""
    color, symbol = html.escape(_color(trace)), trace.marker.symbol or "circle"
    tooltip = f"<title>{title}</title>" if title else ""
    if symbol not in _SYMBOLS:
        return f'<circle cx="{x}" cy="{y}" r="4.5" fill="{color}">{tooltip}</circle>'
    paint = f'stroke="{color}" stroke-width="2"' if symbol in ("x", "cross") else f'fill="{color}"'
    return f'<path d="{_SYMBOLS[symbol]}" transform="translate({x} {y})" {paint}>{tooltip}</path>'


def _keys(traces: Sequence[Any]) -> str:
    """Return the legend: a piece of each named trace next to its name; empty if it is not needed."""
    named = [trace for trace in traces if trace.name and trace.showlegend is not False and len(_values(trace.x))]
    if len(named) < 2 or all(trace.type == "scatter" and trace.name in _values(trace.text)[-1:] for trace in named):
        return ""
    keys = (f"<span>{_KEY}{_key(trace)}</svg>{html.escape(_text(trace.name))}</span>" for trace in named)
    return f'<p class="keys">{" ".join(keys)}</p>'


def _key(trace: Any) -> str:
    if trace.type == "bar":
        return f'<rect width="34" height="14" fill="{html.escape(_color(trace))}"/>'
    places = [(1, 2), (33, 2), (33, 12), (1, 12)] if _is_area(trace) else [(1, 7), (33, 7)]
    return _line(trace, places) + _symbol(trace, 17, 7)


def _bars(figure: Any, traces: Sequence[Any]) -> str:
    """Return horizontal bars, each with its name on the left, and its text or its sum on the right."""
    names = [_text(name) for name in traces[0].y]
    if not names:
        return _NOTHING
    sums = [sum(trace.x[at] for trace in traces) for at in range(len(names))]
    texts = [_text(text) for text in traces[0].text] if traces[0].text is not None else list(map(_number, sums))
    most, drawn = max(sums) or 1.0, ""
    for at, (name, text) in enumerate(zip(names, texts, strict=True)):
        parts = ""
        for trace in traces:
            color = trace.marker.color if isinstance(trace.marker.color, str) else trace.marker.color[at]
            tooltip = html.escape(f"{name}: {trace.x[at]:.4g}" + (f", {_text(trace.name)}" if trace.name else ""))
            look = f"width:{100 * trace.x[at] / most:.4g}%;background:{html.escape(color)}"
            parts += f'<span style="{look}" title="{tooltip}"></span>' if trace.x[at] else ""
        label = html.prose(html.plain(name, longest=_LONGEST_LABEL), longest=_LONGEST_LABEL)
        drawn += f'<span>{label}</span> <div class="bar">{parts}</div> <span>{html.escape(text)}</span> '
    title = f"{_text(figure.layout.xaxis.title.text)}; the longest bar has {_number(max(sums))}"
    return f'<div class="still-bars">{drawn}</div><p class="dim">{html.escape(title)}</p>'


def _number(value: float) -> str:
    """Return the text of a tick's number: ``"20"``, ``"0.5"``, and ``"1M"`` for a million."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def _text(text: str | None) -> str:
    """Return plotly's HTML text as plain text."""
    return entities.unescape(re.sub(r"<[^>]*>", " ", text or "")).strip()
