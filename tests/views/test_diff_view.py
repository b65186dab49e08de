"""The diff of two traces as a tree of what changed."""

from __future__ import annotations

import re
from types import ModuleType

from dsexplore.trace.model import Trace


def text_of(shown: object) -> str:
    bundle = shown._repr_mimebundle_()  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bundle["text/html"].split("</style>")[1]))


def test_what_is_added_and_what_is_gone(traces: ModuleType) -> None:
    before, after = traces.layered(8), traces.layered(8, odd=3)
    assert "24 → 25 collectives (+1), +4 KiB" in text_of(before.diff(after))
    assert re.search(
        r"Net\.layers\.\* \+ all_gather tp forward 0 → 1 \+1", text_of(before.diff(after)).replace(".*.up", ".*")
    )
    assert "1 → 0 -1" in text_of(after.diff(before))


def test_equal_changes_of_layers_are_one_line(traces: ModuleType) -> None:
    trace = traces.layered(8)
    told = text_of(trace.diff(trace.where(axis="tp")))
    assert "Net.layers.* ×8 (0–7) − all_gather dp forward 8 → 0 -8 64 KiB → 0 B −64 KiB" in told
    assert told.count("all_gather") == 1


def test_nothing_changed(traces: ModuleType) -> None:
    trace = traces.layered(3)
    assert "Both communicate the same" in text_of(trace.diff(trace))
    assert "0 → 0 collectives" in text_of(Trace().diff(Trace()))


def test_text_is_short_and_signed(traces: ModuleType) -> None:
    trace = traces.layered(8)
    lines = trace.diff(trace.where(axis="tp"))._repr_mimebundle_()["text/plain"].splitlines()
    assert lines == [
        "TraceDiff: 24 → 16 collectives (-8), −64 KiB in messages",
        "  all_gather       dp                -8  −64 KiB",
    ]
