"""The view of findings.

Modules: ``views/trace/headline_view.py``.
"""

from __future__ import annotations

from types import ModuleType


def test_names_are_data(traces: ModuleType) -> None:
    name = "<script>alert(1)</script>"
    found = traces.of_names([name]).findings()
    assert [one.rule for one in found] == ["implicit_redistributes"]
    shown = found._repr_mimebundle_()
    assert "&lt;script&gt;" in shown["text/html"]
    assert "<script>" not in shown["text/html"]


def test_names_are_broken_behind_their_dots_and_slashes(traces: ModuleType) -> None:
    shown = traces.of_names(["Net.layers.0"]).findings()._repr_mimebundle_()
    assert "<bdi>Net.<wbr>layers.0</bdi>" in shown["text/html"]
    assert "Net.layers.0" in shown["text/plain"]


def test_many_findings_are_cut(traces: ModuleType) -> None:
    found = traces.of_names([f"M{i}" for i in range(45)]).findings()
    assert len(found) == 45
    shown = found._repr_mimebundle_()
    assert shown["text/plain"].endswith("… and 15 more")
    assert "… and 15 more" in shown["text/html"]
