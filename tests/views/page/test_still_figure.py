"""Static SVG of plotly figures: where points and bars lie, what is written, and that names are data."""

from __future__ import annotations

import re
from itertools import pairwise

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.views.page.still_figure import HEIGHT, NARROWEST, still_figure


def circles(shown: str) -> list[tuple[float, float]]:
    """Return the centres of the circles in the chart itself: percent across, pixels down."""
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<svg x="([\d.]+)%">(?:<rect[^>]*>)?<circle cx="0" cy="(.*?)"', shown)
    ]


@given(
    st.lists(st.floats(1e-6, 1e9), min_size=2, max_size=8, unique=True),
    st.sampled_from(["log", "linear"]),
    st.sampled_from(["tozero", "normal"]),
)
def test_points_lie_inside_and_in_the_order_of_their_numbers(values: list[float], kind: str, mode: str) -> None:
    figure = go.Figure(go.Scatter(x=sorted(values), y=sorted(values), mode="markers"))
    figure.update_xaxes(type=kind, rangemode=mode).update_yaxes(type=kind, rangemode=mode)
    placed = circles(still_figure(figure))
    assert len(placed) == len(values)
    for (x, y), (right, above) in pairwise(placed):
        assert x <= right
        assert y >= above
    assert all(0 <= x <= 100 and 0 <= y <= HEIGHT for x, y in placed)


def test_equal_ratios_have_equal_lengths_on_a_logarithmic_axis() -> None:
    figure = go.Figure(go.Scatter(x=[1, 10, 100], y=[1, 2, 3], mode="markers"))
    figure.update_xaxes(type="log")
    one, two, three = (x for x, _ in circles(still_figure(figure)))
    assert two - one == pytest.approx(three - two, abs=0.2)


def test_what_an_axis_cannot_show_is_left_out() -> None:
    figure = go.Figure(go.Scatter(x=[0, 1, 2, 3], y=[1, 0, None, 5], mode="markers"))
    figure.update_xaxes(type="log").update_yaxes(type="log")
    assert len(circles(still_figure(figure))) == 1
    assert "nothing to show" in still_figure(go.Figure(go.Scatter(x=[], y=[])))
    assert "nothing to show" in still_figure(go.Figure())


def test_lines_have_a_key_their_dash_and_the_numbers_that_an_axis_names() -> None:
    figure = go.Figure()
    figure.add_scatter(x=[1, 2], y=[3, 4], name="read &lt;1&gt;", line={"color": "#0072b2", "dash": "dot"})
    figure.add_scatter(x=[1, 2], y=[4, 5], name="write", marker={"symbol": "x"})
    figure.update_xaxes(title="depth", tickvals=[1, 2], ticktext=["one", "two"]).update_yaxes(title="GB/s")
    figure.add_hline(4.5, annotation_text="the <b>limit</b>")
    shown = still_figure(figure)
    assert 'class="keys"' in shown
    assert shown.count("read &lt;1&gt;</span>") == 1
    assert 'stroke-dasharray="2 3"' in shown
    assert [word in shown for word in (">one<", ">two<", "GB/s by depth", "limit")] == [True] * 4
    assert "<b>" not in shown


def test_an_area_is_closed_and_has_no_points() -> None:
    figure = go.Figure()
    figure.add_scatter(
        x=[1, 2, 2, 1],
        y=[3, 4, 2, 1],
        fill="toself",
        mode="lines",
        line={"color": "#767676"},
        opacity=0.25,
        name="range",
    )
    figure.add_scatter(x=[1, 2], y=[2, 3], name="measured", mode="markers")
    shown = still_figure(figure)
    chart = shown[shown.index('class="still"') :]
    (area,) = re.findall(r'<path d="(M[^"]*z)" fill="#767676" fill-opacity="0.25"/>', chart)
    assert area.count("L") == 3
    assert len(circles(shown)) == 2
    assert shown.count("<span>") == 2  # a key for each


def test_stacked_areas_lie_one_on_the_other() -> None:
    figure = go.Figure()
    for name, values in (("parameters", [1, 1]), ("gradients", [0, 3])):
        figure.add_scatter(x=[0, 1], y=values, name=name, mode="lines", stackgroup="uses", line={"color": "#0072b2"})
    figure.update_yaxes(rangemode="tozero")
    shown = still_figure(figure)
    chart = shown[shown.index('class="still"') :]
    lower, upper = (
        [tuple(map(float, place.split())) for place in area.split("L")]
        for area in re.findall(r'<path d="M([^"]*)z" fill="#0072b2"', chart)
    )
    zero, one, four = lower[2][1], lower[0][1], upper[1][1]
    assert [y for _, y in lower] == [one, one, zero, zero]
    assert [y for _, y in upper] == [one, four, one, one]
    assert zero - four == pytest.approx(4 * (zero - one), abs=0.3)
    assert circles(shown) == []


@pytest.mark.parametrize("kind", ["linear", "log"])
def test_error_bars_reach_from_the_least_to_the_most_and_lie_inside(kind: str) -> None:
    error = {"type": "data", "symmetric": False, "array": [50, 10], "arrayminus": [5, 30]}
    figure = go.Figure(go.Scatter(x=[1, 2], y=[10, 20], error_y=error, mode="markers", customdata=["dp=8", "<tp=8>"]))
    figure.update_yaxes(type=kind)
    shown = still_figure(figure)
    boxes = [
        tuple(map(float, box))
        for box in re.findall(
            r'<svg x="([\d.]+)%"><rect x="(-[\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', shown
        )
    ]
    bars = [(x + left + width / 2, top + height, top) for x, left, top, width, height in boxes]
    assert len(bars) == 2
    for (x, low, high), (at, middle) in zip(bars, circles(shown), strict=True):
        assert x == pytest.approx(at)
        assert 0 < high < middle <= low <= HEIGHT
    assert bars[1][1] == pytest.approx(circles(shown)[1][1]) or kind == "linear"  # log: none for −10
    assert "dp=8: 1, 10 (5 to 60)" in shown
    assert "&lt;tp=8&gt;: 2, 20" in shown


def test_a_trace_without_points_has_no_key() -> None:
    figure = go.Figure()
    figure.add_scatter(x=[1], y=[1], name="fits", mode="markers")
    figure.add_scatter(x=[], y=[], name="does not fit", mode="markers")
    assert "does not fit" not in still_figure(figure)


def test_bars_follow_one_another_and_are_as_long_as_their_numbers() -> None:
    figure = go.Figure()
    for name, values in (("a", [4, 1]), ("b", [2, 0])):
        figure.add_bar(orientation="h", x=values, y=["rank 3", "<script>"], name=name, marker={"color": "#0072b2"})
    figure.update_xaxes(title="ms")
    shown = still_figure(figure)
    four, two, one = map(float, re.findall(r'<span style="width:([\d.]+)%', shown))
    assert four == pytest.approx(2 * two, abs=0.02)
    assert four == pytest.approx(4 * one, abs=0.02)
    assert four + two == pytest.approx(100, abs=0.02)
    assert "ms; the longest bar has 6" in shown
    assert "<script>" not in shown


def test_texts_stand_beside_their_points_and_inside() -> None:
    figure = go.Figure(go.Scatter(x=[0, 10], y=[1, 2], mode="markers+text", text=["<b>dp=2</b>", "dp=4,tp=2"]))
    texts = re.findall(
        r'<text x="([\d.]+)%" dx="-?8"( text-anchor="end")? y="[\d.]+">(dp[^<]*)</text>', still_figure(figure)
    )
    assert {(bool(anchor), text) for _, anchor, text in texts} == {(False, "dp=2"), (True, "dp=4,tp=2")}
    assert all(0 <= float(x) <= 100 for x, _, _ in texts)


def test_a_label_is_no_longer_than_the_narrowest_page_has_room_for() -> None:
    figure = go.Figure(go.Scatter(x=[0, 5, 10], y=[1, 2, 3], mode="markers+text", text=["l" * 40] * 3))
    shown = re.findall(r">(l+…l+)<", still_figure(figure))
    assert [8 <= len(text) < NARROWEST / 8 for text in shown] == [True] * 3
    assert len(shown[1]) < len(shown[0])


def places_of(figure: go.Figure) -> list[tuple[float, float]]:
    """Return where the texts that begin with a letter and a number stand."""
    found = re.findall(
        r'<text x="([\d.]+)%" dx="-?8"(?: text-anchor="end")? y="([\d.]+)">[a-z]\d</text>', still_figure(figure)
    )
    return [(float(x), float(y)) for x, y in found]


def test_labels_of_marks_at_one_place_stand_below_one_another() -> None:
    names = [f"m{i}" for i in range(5)]
    (xs, ys) = zip(
        *places_of(go.Figure(go.Scatter(x=[0] * 5, y=[1] * 5, mode="markers+text", text=names))), strict=True
    )
    assert len(set(xs)) == 1
    assert all(after - before >= 12 for before, after in pairwise(ys))


def test_nine_lines_have_their_names_at_their_ends_and_no_legend() -> None:
    lines = [
        go.Scatter(x=[1, 2], y=[0, i / 100], mode="lines+markers+text", text=["", f"o{i}"], name=f"o{i}")
        for i in range(9)
    ]
    figure = go.Figure(lines)
    (xs, ys) = zip(*places_of(figure), strict=True)
    assert len(set(xs)) == 1
    assert all(after - before >= 12 for before, after in pairwise(ys))
    assert max(ys) < HEIGHT + 5
    assert 'class="keys"' not in still_figure(figure)
