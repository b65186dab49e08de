"""Numbers that cannot be misread: every view says of what its bytes are the sum, and sums look unlike their parts.

Modules: ``views/trace/``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import pytest

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.trace.figures import FIGURES

ONE, MANY = "of rank 0 in one step", "summed over 4 ranks and 2 steps"


def page_of(trace: Trace) -> str:
    html: str = trace._repr_mimebundle_()["text/html"]
    return html


@pytest.mark.parametrize("kind", [kind for kind in FIGURES if kind != "bandwidth"])  # a median of rates
def test_every_figure_says_over_what_it_is_summed(traces: ModuleType, kind: str) -> None:
    one, many = (trace.figure(kind=kind).to_json() for trace in (traces.layered(4), traces.timed(4, 2)))
    if kind in ("ranks", "sankey"):
        assert "wire bytes from each recorded rank in one step, without start-up" in one
        assert "wire bytes from each recorded rank summed over its 2 steps, without start-up" in many
    else:
        assert ONE in one
        assert MANY in many


def test_page_and_explorer_say_over_what_they_are_summed(traces: ModuleType) -> None:
    one, many = traces.layered(4), traces.timed(4, 2)
    assert f"Sizes are wire bytes, the least that a rank must send, {ONE}" in page_of(one)
    assert f"Sizes are wire bytes, the least that a rank must send, {MANY}" in page_of(many)
    assert "on the wire per rank (mean of 4 ranks; 2 steady steps, equal)" in page_of(many)
    assert f" – {ONE}</span>" in one.explore().widget.status
    assert f" – {MANY}</span>" in many.explore().widget.status


def test_a_trace_without_events_is_of_the_rank_that_was_recorded(traces: ModuleType) -> None:
    tables = traces.layered(4).tables
    empty = Trace(replace(tables, events=tables.events.clear()))
    assert f" – {ONE}</span>" in empty.explore().widget.status


def test_a_folded_row_is_a_sum_and_its_tables_are_of_each(traces: ModuleType) -> None:
    html = page_of(traces.layered(8, odd=3))
    heads = re.findall(r"<th[^>]*>(count[^<]*)</th><th[^>]*>(bytes[^<]*)</th>", html)
    assert {("count, each", "bytes, each"), ("count", "bytes")} <= set(heads)
    assert "This is one of 7 equal modules, <bdi>Net.layers.0</bdi>; the row above shows the sum of all." in html
    assert "Σ 7" in html


def test_the_bar_of_a_row_is_its_share_of_the_whole_by_axis(traces: ModuleType) -> None:
    trace = traces.layered(8, odd=3)
    whole = trace.events["wire_bytes"].sum()
    bars = re.findall(r'<span class="thin">(.*?)</span>', page_of(trace))
    drawn = [[float(width) for width in re.findall(r"width:([\d.e+-]+)%", bar)] for bar in bars]
    totals = [trace.where(module=name).events for name in ("Net", "Net.layers")]
    for widths, events in zip(drawn[:2], totals, strict=True):
        shares = [100 * events.filter(axis=axis)["wire_bytes"].sum() / whole for axis in ("tp", "dp")]
        assert widths == pytest.approx(shares, rel=0.01)
    folded = [f"Net.layers.{i}" for i in range(8) if i != 3]
    events = trace.where(module=folded).events
    shares = [100 * events.filter(axis=axis)["wire_bytes"].sum() / whole for axis in ("tp", "dp")]
    assert any(widths == pytest.approx(shares, rel=0.01) for widths in drawn), "the sum of the layers, as its number"


def test_heatmaps_of_the_page_begin_at_nothing_and_have_a_bar(traces: ModuleType) -> None:
    """Two cells that hardly differ have hardly different shades, whatever their largest and least are."""
    events = [traces.event(f"m{i}", i, wire_bytes=size) for i, size in enumerate((220_000, 244_000))]
    html = page_of(Trace(Tables(traces.frame("events", events))))
    table = html[html.index("Bytes by module and axis") :]
    table = table[: table.index("</details>")]
    shades = [int(percent) for percent in re.findall(r"td style=\"[^\"]*?(\d+)%", table)]
    assert len(shades) == 2
    assert 0 <= max(shades) - min(shades) <= 5  # a tenth of the larger, as of the bytes
    assert min(shades) > 30
    assert '<p class="dim scale">0 <span>' in table
