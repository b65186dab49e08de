"""Marks of the drawings at rest: what colour says, something else says too."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from dsexplore.views.page.theme import PHASES
from dsexplore.views.trace import drawings
from dsexplore.views.trace.lanes import lanes as lanes_of
from dsexplore.views.trace.lanes import phase_runs


@pytest.mark.parametrize(
    ("phase", "stripe"),
    [
        ("start-up", "M0 12l1-12M0 0l1 12"),
        ("forward", None),
        ("backward", "M0 12l1-12"),
        ("recompute", "M0 0l1 12"),
        ("optimizer", "M0 6h1"),
        ("other", "M0.5 12v-12"),
    ],
)
def test_a_mark_in_a_lane_has_the_hatch_of_its_phase(traces: ModuleType, phase: str, stripe: str | None) -> None:
    lanes = lanes_of(traces.frame("events", [traces.event("Net", 0, phase=phase)]))
    page = drawings.phase_strip(lanes) + drawings.lanes_html(lanes)
    assert f'<path class="q{list(PHASES).index(phase)}" d="M0 0h1v12h-1z"/>' in page
    assert re.findall('<path class="h" d="(.*?)"/>', page) == ([stripe] if stripe else [])
    assert f">{PHASES[phase].letter}</span>" in page


def test_runs_of_a_phase_cover_all_bins(traces: ModuleType) -> None:
    phases = ["forward"] * 3 + ["backward"] * 2 + ["forward"]
    events = [traces.event("Net", 2 * i, phase=phase) for i, phase in enumerate(phases)]
    runs = phase_runs(lanes_of(traces.frame("events", events)))
    assert runs == [("forward", 0, 6), ("backward", 6, 10), ("forward", 10, 11)]
