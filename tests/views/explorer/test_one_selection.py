"""One selection in all tabs: search, back and forward, and the line of Python that finds the same events.

Modules: ``views/explorer/``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.explorer import TABS
from tests.analysis import planted
from tests.views.explorer.test_selection import PICKS, fsdp


def send(explorer: Any, **message: Any) -> None:
    """Send what the browser sends."""
    explorer.widget._handle_custom_msg(message, [])


def found_by_line(explorer: Any, trace: Trace) -> Any:
    """Return the events that the line of Python finds."""
    assert explorer.line
    return eval(explorer.line, {"trace": trace}).events


@pytest.mark.parametrize("part", PICKS)
def test_the_line_of_a_pick_finds_its_events(traces: ModuleType, part: str) -> None:
    trace = fsdp(traces)
    figure, pick, expected = PICKS[part]
    explorer = trace.explore(figure=figure, tab="map" if part.startswith("map") else "timeline")
    assert explorer.line == "trace"
    pick(explorer)
    assert explorer.widget.line == explorer.line
    assert found_by_line(explorer, trace).equals(expected(trace))


ACTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a facet": (lambda e: e.filter(phase="backward"), 'trace.where(phase="backward")'),
    "several values": (
        lambda e: e.filter(op=["all_gather", "reduce_scatter"], rank=0),
        'trace.where(op=["all_gather", "reduce_scatter"], rank=0)',
    ),
    "a pattern": (
        lambda e: e.filter(module="layers.*.up", implicit=True),
        'trace.where(module="layers.*.up", implicit=True)',
    ),
    "a module": (lambda e: e.select("Net.layers.3"), 'trace.where(module="Net.layers.3")'),
    "a row of seven layers": (
        lambda e: e.select("Net.layers.0.up"),
        f"trace.where(owner=[{', '.join(f'{chr(34)}Net.layers.{i}.up{chr(34)}' for i in (0, 1, 2, 4, 5, 6, 7))}])",
    ),
    "a range": (lambda e: e.between(3, 6), "trace.where(row=range(3, 6))"),
    "a range of one phase": (
        lambda e: (e.filter(phase="forward"), e.between(3, 6)),
        'trace.where(row=range(3, 6), phase="forward")',
    ),
    "a rank that is filtered and picked": (
        lambda e: (e.filter(axis="dp"), e.talks_to(4)),
        'trace.where(row=range(17, 25), axis="dp")',
    ),
    "all of it": (lambda e: e.select("Net"), "trace"),
}


@pytest.mark.parametrize("name", ACTS)
def test_the_line_says_what_is_selected_and_finds_it(trace: Trace, name: str) -> None:
    act, line = ACTS[name]
    explorer = trace.explore()
    act(explorer)
    assert found_by_line(explorer, trace).equals(explorer.selection.events)
    if "rank that is filtered" not in name:
        assert explorer.line == line


@pytest.mark.parametrize("seed", range(12))
def test_any_pick_has_a_line_that_finds_it(traces: ModuleType, seed: int) -> None:
    """Marks of all figures, on a trace of four ranks, on top of a random filter."""
    trace, rng = traces.timed(4, 2), np.random.default_rng(seed)
    explorer = trace.explore(figure="ops" if seed % 2 else "ranks")
    explorer.filter(phase=str(rng.choice(["forward", "backward"])))
    if seed % 3 == 0:
        explorer.talks_to(int(rng.integers(4)))
    if seed % 4 == 1:
        explorer.between(*sorted(rng.uniform(0, 0.003, 2).tolist()))
    if seed % 5 == 2:
        explorer.select("Transformer.decoder.layers.0")
    if seed % 2:
        send(explorer, type="pick", box=int(rng.integers(8)))
    assert found_by_line(explorer, trace).equals(explorer.selection.events)


def test_a_module_whose_collectives_others_trigger_is_named_as_owner(traces: ModuleType) -> None:
    modules = [traces.module("Net"), traces.module("Net.a", "Net"), traces.module("Net.b", "Net")]
    events = [traces.event("Net.a", 0), {**traces.event("Net.b", 1), "trigger": "Net.a"}]
    tables = dsexplore._internal.trace.tables.Tables(
        events=traces.frame("events", events), modules=traces.frame("modules", modules)
    )
    trace = Trace(tables)
    explorer = trace.explore()
    explorer.select("Net.a")
    assert explorer.line == 'trace.where(owner="Net.a")'
    assert found_by_line(explorer, trace)["seq"].to_list() == [0]


@pytest.mark.parametrize("name", ["a[0]", "what?", "x*", 'quote"', "back\\slash", "اسم\u202e", "a\nb"])
def test_names_with_signs_of_patterns_are_found_as_they_are(traces: ModuleType, name: str) -> None:
    trace = traces.of_names([name, "a0", "whats", "xy"])
    explorer = trace.explore()
    explorer.select(name)
    assert found_by_line(explorer, trace).equals(explorer.selection.events)
    assert "\u202e" not in explorer.line


def test_the_line_calls_the_trace_by_its_name_in_the_notebook(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"other": Trace(), "_trace": trace}
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: SimpleNamespace(user_ns=variables))
    assert trace.explore().line == "_trace"
    variables["mine"] = trace
    assert trace.explore().line == "mine"


class TestSearch:
    def test_it_offers_names_of_all_kinds_the_shortest_first(self, trace: Trace) -> None:
        explorer = trace.explore()
        send(explorer, type="complete", text="layers.3")
        kinds = [(kind, name) for kind, _, name in explorer.widget.hits]
        assert kinds[0] == ("module", "Net.layers.3")
        assert ("parameter", "Net.layers.3.up.weight") in kinds
        for text, first in (
            ("gath", ("op", "all_gather")),
            ("axis d", ("axis", "dp")),
            ("backw", ("phase", "backward")),
        ):
            send(explorer, type="complete", text=text)
            assert tuple(explorer.widget.hits[0][::2]) == first
        send(explorer, type="complete", text="no such thing")
        assert explorer.widget.hits == []

    @pytest.mark.parametrize(
        ("text", "conditions"),
        [
            ("layers.*.up", {"module": "layers.*.up"}),
            ("layers.3", {"module": "layers.3"}),
            ("all_gather", {"op": "all_gather"}),
            ("axis dp", {"axis": "dp"}),
            ("backward", {"phase": "backward"}),
            ("ayers.3.u", {"owner": "Net.layers.3.up"}),
        ],
    )
    def test_what_is_typed_is_selected(self, trace: Trace, text: str, conditions: dict[str, Any]) -> None:
        explorer = trace.explore()
        send(explorer, type="search", text=text)
        assert explorer.selection.events.equals(trace.where(**conditions).events)

    def test_a_parameter_and_a_source_line(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.search("Net.layers.3.up.weight")
        assert explorer.widget.tab == "parameters"
        assert "what is sent for Net.layers.3.up.weight" in explorer.widget.status
        explorer.filter()
        line = trace.events["source"].unique().to_list()[0]
        explorer.search(line)
        assert explorer.selection.events.equals(trace.where(source=line).events)

    def test_what_was_chosen_of_the_list_is_selected_and_nothing_is_a_pattern_of_all(self, trace: Trace) -> None:
        explorer = trace.explore()
        send(explorer, type="found", kind="module", name="Net.layers.3")
        assert explorer.selection.events.equals(trace.where(owner=["Net.layers.3", "Net.layers.3.*"]).events)
        send(explorer, type="found", kind="module", name="none of them")
        explorer.select(None)
        explorer.search("nothing is called so")
        assert "no module is called" in explorer.widget.status
        explorer.search("")
        assert len(explorer.selection) == len(trace)


class TestBackAndForward:
    def test_each_selection_is_returned_to(self, trace: Trace) -> None:
        explorer = trace.explore(figure="ops")
        acts: list[Callable[[], object]] = [
            lambda: explorer.filter(phase="backward"),
            lambda: explorer.select("Net.layers.3"),
            lambda: explorer.between(0, 20),
            lambda: explorer.talks_to(4),
            lambda: explorer.parameter("Net.layers.0.up.weight"),
            lambda: explorer.filter(),
            lambda: send(explorer, type="click", kind="op_phase", customdata=["reduce_scatter", "backward"], index=[0]),
        ]
        seen = [(explorer.widget.status, explorer.widget.details, explorer.line, explorer.widget.chosen)]
        for number, act in enumerate(acts, 1):
            act()
            assert explorer.widget.visits == [number, 0]
            seen.append((explorer.widget.status, explorer.widget.details, explorer.line, explorer.widget.chosen))
        for number in reversed(range(len(acts))):
            send(explorer, type="go", by=-1)
            assert (explorer.widget.status, explorer.widget.details, explorer.line, explorer.widget.chosen) == seen[
                number
            ]
            assert explorer.widget.visits == [number, len(acts) - number]
        explorer.back()
        assert explorer.widget.visits == [0, len(acts)]
        for number in range(1, len(acts) + 1):
            explorer.forward()
            assert (explorer.widget.status, explorer.widget.details, explorer.line, explorer.widget.chosen) == seen[
                number
            ]

    def test_another_selection_forgets_what_was_ahead_and_the_same_is_no_visit(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.filter(phase="backward")
        explorer.filter(phase="forward")
        explorer.back()
        explorer.select("Net.layers.3")
        assert explorer.widget.visits == [2, 0]
        explorer.widget.kind, explorer.widget.tab = "ops", "map"
        explorer.select("Net.layers.3")
        assert explorer.widget.visits == [2, 0]

    def test_the_range_and_the_rank_are_marked_again(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.between(3, 6)
        brush = explorer.widget.brushed["brush"]
        explorer.filter()
        assert explorer.widget.brushed["brush"] == []
        explorer.back()
        assert explorer.widget.brushed["brush"] == brush


class TestTabs:
    def test_each_is_made_when_it_is_shown_and_follows_the_selection(self, traces: ModuleType) -> None:
        with dsexplore.commtrace(world_size=4) as trace:
            planted.implicit_redistributes(True)
            planted.repeated_collectives(True)
        explorer = trace.explore()
        assert explorer.widget.panel == ""
        explorer.widget.tab = "findings"
        many = len(trace.findings())
        assert f"<b>{many} findings" in explorer.widget.panel
        send(explorer, type="finding", index=1)
        assert explorer.selection.events.equals(trace.findings().trace(1).events)
        assert explorer.widget.panel.count('aria-selected="true"') == 1
        assert "only finding 2:" in explorer.widget.status
        assert found_by_line(explorer, trace).equals(explorer.selection.events)
        explorer.filter(op=trace.findings()[0].op)
        explorer.widget.tab = "timeline"
        assert len(explorer.widget.timeline["boxes"]["begin"]) > 0

    def test_parameters_are_those_of_the_selected_modules(self, trace: Trace) -> None:
        explorer = trace.explore(tab="parameters")
        assert explorer.widget.panel.count("data-parameter=") == 12
        explorer.select("Net.layers.3.up")
        assert explorer.widget.panel.count("data-parameter=") == 1
        send(explorer, type="parameter", name="Net.layers.3.up.weight")
        assert "data-parameter" in explorer.widget.panel
        assert "Net.layers.3.up.weight: " in explorer.widget.panel.replace("<wbr>", "")

    def test_a_trace_without_costs_says_how_to_get_a_prediction(self, trace: Trace) -> None:
        assert "costs=True" in trace.explore(tab="prediction").widget.panel

    def test_a_step_is_predicted_on_the_hardware_that_is_chosen(self) -> None:
        import torch

        with dsexplore.commtrace(mesh="dp=4", costs=True) as trace:
            model = torch.nn.Sequential(torch.nn.Linear(64, 64))
            model(torch.ones(2, 64)).sum().backward()
            torch.distributed.all_reduce(model[0].weight.grad)
            trace.step()
        explorer = trace.explore(tab="prediction")
        assert '<option value="dgx-h100" selected>' in explorer.widget.panel
        before = explorer.widget.panel
        send(explorer, type="hardware", name="dgx-a100")
        assert '<option value="dgx-a100" selected>' in explorer.widget.panel
        assert explorer.widget.panel != before
        explorer.select("Sequential.0")
        assert "of compute and" in explorer.widget.panel

    def test_a_tab_that_is_none_is_refused(self, trace: Trace) -> None:
        with pytest.raises(UsageError, match=r"explore\(tab='timelin'\): no such tab; tabs are .*did you mean"):
            trace.explore(tab="timelin")
        with pytest.raises(UsageError, match="no such tab"):
            trace.explore().widget.tab = "other"
        assert [tab for tab, _ in trace.explore().widget.tabs] == list(TABS)
