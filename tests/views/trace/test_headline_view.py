"""The headline as a view: its colors are those of the tree beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page.html import prose
from dsexplore._internal.views.page.theme import axis_number


def test_an_axis_has_one_color_in_the_bar_and_in_the_tree(traces: ModuleType) -> None:
    """Start-up sends most on tp, the steps on dp: both order the axes by the steps."""
    tables = traces.layered(4).tables
    rows = [
        traces.event("Net", 0, phase="start-up", axis="tp", wire_bytes=10**9),
        traces.event("Net", 1, axis="tp", wire_bytes=1000),
        traces.event("Net", 2, axis="dp", wire_bytes=3000),
    ]
    html = Trace(replace(tables, events=traces.frame("events", rows)))._repr_mimebundle_()["text/html"]
    words = re.findall(r'<span class="key (a\d)">(\w+)</span>', html)
    assert words == [("a0", "dp"), ("a2", "tp")]
    row = re.search(r'<span class="thin">(.*?)</span>', html)
    assert row is not None
    assert re.findall(r'class="(a\d)" style="width:(\d+)%"', row[1]) == [("a0", "75"), ("a2", "25")]


def test_no_line_ends_before_a_percent_sign() -> None:
    assert prose("spares 8 MiB (50 %) <b>", longest=100) == "spares 8 MiB (50\N{NO-BREAK SPACE}%) &lt;b&gt;"


def test_many_axes_share_a_color(traces: ModuleType) -> None:
    trace = traces.of_names([f"n{i}" for i in range(9)])
    for html in (trace._repr_mimebundle_()["text/html"], trace.headline()._repr_mimebundle_()["text/html"]):
        words = re.findall(r'<span class="key (a\d)">([\w]+)</span>(?: <bdi>([\w ]+)</bdi>)? (\d+) KiB', html)
        named = [(f"a{axis_number(f'n{i}')}", f"n{i}", "", "6") for i in range(5)]
        assert words == [*named, ("a6", "oa", "other axes", "24")]
