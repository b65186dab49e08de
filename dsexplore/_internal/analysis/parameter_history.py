"""`ParameterHistory` lists what happens to one parameter in a step, in order.

A trace has collectives, but not the computation between them. So "gathered" and "gradient reduced" are events, and the
other moments are inferred. A parameter that is gathered a second time was "freed" in between. A module that was called
has "used" its parameters in forward, and in backward before their gradients were reduced. If the kernels of an
optimizer were recorded (``costs=True``), it has "updated" the parameter at the end.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any, get_args

import polars as pl

from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_count

MOMENTS: dict[str, pl.DataType] = {
    "what": pl.String(),  # placed, gathered, freed, used, gradient reduced, updated
    "phase": pl.String(),
    "op": pl.String(),  # null for an inferred moment, as are the columns below
    "axis": pl.String(),
    "with_parameters": pl.Int64(),  # number of parameters in the message; null for a message without parameters
    "message_bytes": pl.Int64(),  # of the whole message
    "wire_bytes": pl.Int64(),
    "cause": pl.String(),
    "source": pl.String(),
    "row": pl.UInt32(),  # index in the trace's events
}
"""Columns of `ParameterHistory.to_frame`."""


@dataclass(frozen=True, eq=False)
class ParameterHistory(Result):
    """One parameter in one step of one rank. Shows itself as a picture of its shards and a list of moments."""

    _INTERNAL = frozenset({"sizes", "tables"})

    tables: Tables
    name: str
    parameter: dict[str, object]
    """The parameter's row of `Trace.parameters`."""
    unit: str
    """The module with which FSDP gathers and reduces it; empty without FSDP."""
    moments: pl.DataFrame
    """Columns: `MOMENTS`; in order."""
    sizes: Sizes = "wire"
    """The bytes that are shown."""

    def __repr__(self) -> str:
        return f"<ParameterHistory: {self.name}, {self.moments.height} moments in a step>"

    def verdict(self) -> str:
        """Return how much a step sends for the parameter, and with how many others it shares that."""
        sent = self.moments.filter(pl.col("op").fill_null("") != "")
        if sent.is_empty():
            return "Nothing is sent for it."
        sizes = sent[f"{self.sizes}_bytes"]
        size = format_sum(int(sizes.sum()), sizes.null_count())
        words = "on the wire" if self.sizes == "wire" else "in messages"
        together = int(sent["with_parameters"].max() or 1)  # type: ignore[arg-type]  # of integers
        shared = f", shared with up to {format_count(together - 1, 'other parameter')}" if together > 1 else ""
        return f"For this parameter a step sends {size} {words} in {format_count(sent.height, 'collective')}{shared}."

    def to_frame(self) -> pl.DataFrame:
        """Return the moments as a polars frame; columns: `MOMENTS`."""
        return self.moments

    @property
    def trace(self) -> Trace:
        """Events among the moments."""
        rows = self.moments["row"].drop_nulls().to_list()
        events = self.tables.events
        return Trace(replace(self.tables, events=events[rows] if rows else events.clear()))


def parameter_history(tables: Tables, parameter: str, sizes: Sizes = "wire") -> ParameterHistory:
    """Follow a parameter through the first step with a backward, on the first recorded rank.

    Args:
        tables: the trace.
        parameter: the parameter's name in ``trace.parameters["name"]``, or its end: ``layers.0.attention.wq.weight``.
        sizes: the kind of bytes, ``"wire"`` or ``"message"``.

    Raises:
        UsageError: there are no such sizes, no such parameter, or several whose names have this end.
    """
    if sizes not in get_args(Sizes):
        raise UsageError(f"parameter_history(sizes={sizes!r}): no such sizes; they are {', '.join(get_args(Sizes))}")
    row = _find(tables, parameter)
    events = tables.events.with_row_index("row").filter(pl.col("rank") == row["rank"])
    step = _step(events)
    events = events.filter((pl.col("step") == step) | (pl.col("phase") == "start-up")).sort("seq")
    units = events.filter(pl.col("cause").str.starts_with("FSDP"))["owner"].unique().to_list()
    unit = _unit(units, row["module"])
    modules = tables.parameters.filter(pl.col("rank") == row["rank"])["module"].to_list()
    held = sum(_unit(units, module) == unit for module in modules)
    moments: list[dict[str, Any]] = []
    for event in events.iter_rows(named=True):
        what = _what(event, row["module"], unit)
        if not what:
            continue
        transfers = [moment for moment in moments if moment["what"] in ("gathered", "gradient reduced")]
        if what == "gathered" and transfers and transfers[-1]["what"] == "gathered":
            moments.append(_inferred("freed", transfers[-1]["phase"]))
        moments.append(
            {
                "what": what,
                **{key: event[key] for key in ("phase", "op", "axis", "message_bytes", "wire_bytes", "cause", "row")},
                "with_parameters": held if what in ("gathered", "gradient reduced") and unit else None,
                "source": event["source"].partition(" ← ")[0],
            }
        )
    called = tables.modules.filter(pl.col("module") == row["module"])["calls"].sum() > 0
    computed = tables.kernels.filter((pl.col("rank") == row["rank"]) & (pl.col("step") == step))
    updated = bool(row["requires_grad"]) and "optimizer" in computed["phase"]
    _add_inferred(moments, called=called, updated=updated)
    return ParameterHistory(tables, row["name"], row, unit, pl.DataFrame(moments, schema=MOMENTS), sizes)


def _add_inferred(moments: list[dict[str, Any]], *, called: bool, updated: bool) -> None:
    """Insert the uses and the update for which nothing is sent.

    Args:
        moments: the moments in order, which are changed.
        called: whether the parameter's module was called.
        updated: whether the optimizer updated the parameter.
    """
    known = {(moment["what"], moment["phase"]) for moment in moments}
    if called and ("used", "forward") not in known:
        after = [
            index
            for index, moment in enumerate(moments)
            if moment["what"] == "freed" or moment["phase"] not in ("start-up", "forward")
        ]
        moments.insert(min(after, default=len(moments)), _inferred("used", "forward"))
    if ("used", "backward") not in known:
        reduced = next((index for index, moment in enumerate(moments) if moment["what"] == "gradient reduced"), None)
        if reduced is not None:
            moments.insert(reduced, _inferred("used", "backward"))
    if updated and ("updated", "optimizer") not in known:
        moments.append(_inferred("updated", "optimizer"))


def _inferred(what: str, phase: str) -> dict[str, Any]:
    """Return a moment in which nothing is sent."""
    return {"what": what, "phase": phase}


def _find(tables: Tables, name: str) -> dict[str, Any]:
    """Return the row of the parameter with this name, or whose name ends with it, on the first rank.

    Raises:
        UsageError: there is none, or several have this end.
    """
    parameters = tables.parameters
    names = parameters["name"].unique(maintain_order=True).to_list()
    fitting = [candidate for candidate in names if candidate == name] or [
        candidate for candidate in names if candidate.endswith(f".{name}")
    ]
    if len(fitting) != 1:
        if fitting:
            raise UsageError(f"parameter_history({name!r}): several end so: {', '.join(fitting[:4])}")
        ends = {candidate.partition(".")[2]: candidate for candidate in names}
        near = difflib.get_close_matches(name, [*names, *ends], 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "names are those of trace.parameters['name']"
        raise UsageError(f"parameter_history({name!r}): no such parameter: {hint}")
    return parameters.filter(pl.col("name") == fitting[0]).row(0, named=True)


def _step(events: pl.DataFrame) -> int:
    """Return the first step with a backward, else the first step."""
    with_backward = events.filter(pl.col("phase") == "backward")["step"]
    first = with_backward.min() if len(with_backward) else events["step"].min()
    return int(first) if first is not None else 0  # type: ignore[arg-type]  # of integers


def _unit(units: list[str], module: str) -> str:
    """Return the innermost FSDP unit that contains `module`; empty if none does."""
    return max((unit for unit in units if unit == module or module.startswith(f"{unit}.")), key=len, default="")


def _what(event: dict[str, Any], module: str, unit: str) -> str:
    """Return what an event does to a parameter, a word of the column ``what``; empty if it does not concern it.

    Args:
        event: a row of the trace's events.
        module: the parameter's module.
        unit: the parameter's FSDP unit; empty without FSDP.
    """
    op, cause, phase = event["op"], event["cause"], event["phase"]
    is_inside = module == event["owner"] or module.startswith(f"{event['owner']}.")
    if phase == "start-up":
        is_sent = is_inside if cause == "model broadcast" else module in (event["owner"], event["trigger"])
        return "placed" if is_sent else ""
    if cause.startswith("FSDP"):  # by owner, as FSDP prefetches a unit while another module runs
        what = "gathered" if op == "all_gather" else "gradient reduced"
        return what if event["owner"] == unit else ""
    if cause == "DDP gradient bucket" and is_inside:
        return "gradient reduced"
    if module not in (event["owner"], event["trigger"]):
        return ""
    return "updated" if phase == "optimizer" else "used"
