"""Static views as GitHub shows them, without style, classes and SVG: columns stay apart, no CSS is read as text.

Modules: ``views/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import dsexplore
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from tests.cost.step.test_predicted_timeline import pipeline
from tests.views import traces

DROPPED = ("style", "script", "svg", "title")
"""Elements that GitHub removes with their content."""
INLINE = ("span", "b", "i", "s", "a", "button", "label", "small")
"""Elements that a browser without our style sets beside one another in a line."""


class Sanitized(HTMLParser):
    """Collects the text of a page without style, scripts and drawings, and words that run together in a line."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.faults = "", list[str]()
        self._dropped, self._crossed = 0, False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._dropped += tag in DROPPED
        self._cross(tag)

    def handle_endtag(self, tag: str) -> None:
        self._dropped -= tag in DROPPED
        self._cross(tag)

    def _cross(self, tag: str) -> None:
        if tag in INLINE:
            self._crossed = True
        elif tag not in ("bdi", "wbr", "sub", "code"):
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if self._dropped:
            return
        if self._crossed and re.search(r"\w\Z", self.text) and re.match(r"\w", data):
            self.faults.append(f"{self.text[-20:]}|{data[:20]}")
        self.text, self._crossed = self.text + data, False


def log() -> Any:
    """Return the HTML of a log of two calls."""
    kept = CommsLogger(CommsLoggerConfig(enabled=True), epoch=0)
    for op in ("all_reduce", "all_gather"):
        kept.append(op, op, latency=4.0, msg_size=8_000_000, group_size=8)
    return kept.summary()


def alone() -> Any:
    """Return the HTML of a trace of a model that sends nothing."""
    with dsexplore.simulate(2), dsexplore.commtrace(costs=True) as trace:
        nn.Linear(4, 4)(torch.ones(2, 4))
    return trace


VIEWS: dict[str, Callable[[], Any]] = {
    "trace": lambda: traces.layered(6, odd=1),
    "timeline": lambda: traces.layered(6, odd=1).timeline(),
    "stages": lambda: pipeline().timeline(lanes="stage"),
    "ranks of a pipeline": lambda: pipeline().timeline(),
    "predicted": lambda: alone().predict("dgx-h100"),
    "world map": lambda: traces.layered(6).world_map(ranks_per_node=4),
    "diff": lambda: traces.layered(6).diff(traces.layered(6, odd=1)),
    "headline of a diff": lambda: traces.layered(6).diff(traces.layered(6, odd=1)).headline(),
    "findings": lambda: traces.layered(6, odd=1).findings(),
    "sharding": lambda: dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2"),
    "redistribution": lambda: dsexplore.sharding((16, 8), "S(0), R", "dp=2,tp=4").redistribute("R, S(1)"),
    "measured": lambda: traces.timed(3),
    "log": log,
    "nothing sent": alone,
}


@pytest.mark.parametrize("name", VIEWS)
def test_columns_and_labels_stay_apart_without_style(name: str) -> None:
    shown = Sanitized(VIEWS[name]()._repr_mimebundle_()["text/html"])
    assert shown.faults == []
    assert len(shown.text.split()) > 3
    assert not re.search(r"[{};]\s*\n?\s*[.:@][\w-]+|\w\{[\w-]+:", shown.text)  # a rule of CSS


def test_what_runs_together_is_found() -> None:
    assert Sanitized("<i><b>F0</b></i><i><b>B0</b></i>").faults == ["F0|B0"]
    assert Sanitized("<i><b>F0</b></i> <i><b>B0</b></i>").faults == []
