"""The view of a `ParameterHistory`: a picture of the parameter's shards, and what is sent for it, in order."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.analysis.parameter_history import ParameterHistory
from dsexplore._internal.placement_text import readable
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.sharding.plan import sharding
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.sharding.sharding_view import ShardingView
from dsexplore._internal.views.view import View

_NOTE = (
    "Compute is not recorded, so moments without an op are inferred: the parameter is used when its module runs, freed "
    "before it is gathered again, and, with costs=True, updated when kernels of an optimizer run. "
    "Bytes are {} of one rank in one step."
)


class ParameterHistoryView(View):
    """The view of a `ParameterHistory`."""

    title = "A parameter in a step"

    def __init__(self, history: ParameterHistory) -> None:
        self._history = history

    def text(self) -> str:
        """Return how the parameter is sharded, and a line per moment of the step."""
        moments = [f"  {line}" for line in moment_lines(self._history)]
        return "\n".join(
            [_where(self._history), f"  {self._history.verdict()}", *moments, f"  ({_note(self._history)})"]
        )

    def html(self) -> str:
        """Return the moments as a table, with the picture of the shards below it."""
        plan = shards_of(self._history)
        shards = ShardingView(plan).picture() if plan is not None else ""
        return html.fragment(history_html(self._history)) + shards

    def explore(self) -> Any:
        """Return the explorer of the trace with the parameter selected; ``.selection`` is what is sent for it."""
        explorer = Trace(self._history.tables).explore(sizes=self._history.sizes, tab="parameters")
        explorer.parameter(self._history.name)
        return explorer


def history_html(history: ParameterHistory) -> str:
    """Return how a parameter is sharded, and a table of its moments, as HTML inside a `html.fragment`."""
    sizes = f"{history.sizes}_bytes"
    columns = (
        Column("", lambda moment: str(moment["number"])),
        text("what", lambda moment: moment["what"]),
        text("phase", lambda moment: html.escape(moment["phase"])),
        text("op", lambda moment: html.name(moment["op"] or "–", longest=40)),
        text("axis", lambda moment: html.name(moment["axis"] or "–", longest=40)),
        Column(f"{history.sizes} bytes", lambda moment: "–" if moment[sizes] is None else format_bytes(moment[sizes])),
        prose("why", lambda moment: html.parted(_why(moment) or "–", longest=90)),
        prose("source", lambda moment: html.parted(moment["source"] or "–", longest=90)),
    )
    moments = history.moments.with_row_index("number", 1)
    drawn = table(columns, moments.iter_rows(named=True)) if len(history.trace) else ""
    head = f"<p>{html.prose(_where(history), longest=400)}</p>{html.verdict(history.verdict())}"
    return f"{head}{drawn}{html.notes([_note(history)])}"


def _note(history: ParameterHistory) -> str:
    """Return the note on what was inferred, and on the kind of bytes."""
    return _NOTE.format("those on the wire" if history.sizes == "wire" else "those of whole messages")


def shards_of(history: ParameterHistory) -> Sharding | None:
    """Return the sharding of the parameter, or None for a plain tensor, which every rank holds whole."""
    row: dict[str, Any] = history.parameter
    if not row["mesh"]:
        return None
    short_name = history.name.rpartition(".")[2]
    return sharding({short_name: (tuple(row["global_shape"]), row["placements"])}, mesh=row["mesh"], dtype=row["dtype"])


def _where(history: ParameterHistory) -> str:
    """Return shape, dtype, placements and bytes of the parameter, in one line."""
    row: dict[str, Any] = history.parameter
    shape = " × ".join(str(length) for length in row["global_shape"]) or "one number"
    held = f"{format_bytes(row['local_bytes'])} of {format_bytes(row['global_bytes'])} on each rank"
    how = f"{readable(row['placements'])} on {row['mesh']}" if row["mesh"] else "a plain tensor, whole on each rank"
    unit = f"; FSDP gathers it with {history.unit}" if history.unit else ""
    return html.plain(f"{history.name}: {shape}, {row['dtype']}, {how}: {held}{unit}", longest=400)


def moment_lines(history: ParameterHistory) -> list[str]:
    """Return a line per moment: ``2. gathered in forward: all_gather over dp, 12 MiB (FSDP pre_forward), a.py:3``."""
    lines = []
    for number, moment in enumerate(history.moments.iter_rows(named=True), 1):
        text = f"{number}. {moment['what']} in {moment['phase']}"
        if moment["op"]:
            axis = f" over {moment['axis']}" if moment["axis"] else ""
            why = f" ({_why(moment)})" if _why(moment) else ""
            text += f": {moment['op']}{axis}, {format_bytes(moment[f'{history.sizes}_bytes'])}{why}"
        source = f", {moment['source']}" if moment["source"] else ""
        lines.append(html.plain(text + source, longest=240))
    return lines


def _why(moment: dict[str, Any]) -> str:
    """Return the cause of a collective, and how many parameters it is for: ``DDP bucket, 12 parameters together``."""
    count = moment["with_parameters"]
    parameters = f"{count:,} parameters together" if count and count > 1 else ""
    return ", ".join(filter(None, (moment["cause"], parameters)))
