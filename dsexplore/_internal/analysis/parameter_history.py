"""`ParameterHistory`: where one parameter lies, and what is sent for it in a step, in order.

A trace has collectives, and not the computation between them. So "gathered", "gradient reduced" and the like are
events, and the rest is concluded: what is gathered a second time in a step was "freed" after the first; a module that
was called has "used" its parameters in forward, and before their gradients in backward; and where the kernels of an
optimizer were recorded (``costs=True``), they have "updated" it after all.
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
    "op": pl.String(),  # null of what is concluded
    "axis": pl.String(),
    "with_parameters": pl.Int64(),  # of how many parameters the message is made; null where it is no parameter
    "message_bytes": pl.Int64(),  # of the whole message; null of what is concluded
    "wire_bytes": pl.Int64(),
    "cause": pl.String(),
    "source": pl.String(),
    "row": pl.UInt32(),  # of the trace's events; null of what is concluded
}


@dataclass(frozen=True, eq=False)
class ParameterHistory(Result):
    """One parameter in one step, as one rank sees it. Shows itself as a picture of its shards and a list of moments."""

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
    """Follow a parameter through the first step that is recorded whole, on the first recorded rank.

    Args:
        tables: the trace.
        parameter: its name in ``trace.parameters["name"]``, or its end: ``layers.0.attention.wq.weight``.
        sizes: which bytes are shown, wire or message.

    Raises:
        UsageError: no such sizes or parameter, or several that end so.
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
        before = next(
            (moment for moment in reversed(moments) if moment["what"] in ("gathered", "gradient reduced")), None
        )
        if what == "gathered" and before is not None and before["what"] == "gathered":
            moments.append(_silent("freed", before["phase"]))
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
    _conclude(moments, called, updated)
    return ParameterHistory(tables, row["name"], row, unit, pl.DataFrame(moments, schema=MOMENTS), sizes)


def _conclude(moments: list[dict[str, Any]], called: bool, updated: bool) -> None:
    """Insert the uses and the update for which nothing is sent.

    Args:
        moments: in order.
        called: whether the parameter's module ran.
        updated: whether the optimizer did.
    """
    named = {(moment["what"], moment["phase"]) for moment in moments}
    if called and ("used", "forward") not in named:
        ends = (moment["what"] == "freed" or moment["phase"] not in ("start-up", "forward") for moment in moments)
        moments.insert(next((i for i, end in enumerate(ends) if end), len(moments)), _silent("used", "forward"))
    if ("used", "backward") not in named:
        reduced = next((i for i, moment in enumerate(moments) if moment["what"] == "gradient reduced"), None)
        if reduced is not None:
            moments.insert(reduced, _silent("used", "backward"))
    if updated and ("updated", "optimizer") not in named:
        moments.append(_silent("updated", "optimizer"))


def _silent(what: str, phase: str) -> dict[str, Any]:
    """Return a moment in which nothing is sent."""
    return {"what": what, "phase": phase}


def _find(tables: Tables, name: str) -> dict[str, Any]:
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
    """Return what an event does to the parameter, as in `MOMENTS`; empty if it does not concern it."""
    op, cause, phase = event["op"], event["cause"], event["phase"]
    is_inside = module == event["owner"] or module.startswith(f"{event['owner']}.")
    if phase == "start-up":
        is_sent = is_inside if cause == "model broadcast" else module in (event["owner"], event["trigger"])
        return "placed" if is_sent else ""
    if cause.startswith("FSDP"):  # also of other modules, which FSDP gathers ahead while this one runs
        what = "gathered" if op == "all_gather" else "gradient reduced"
        return what if event["owner"] == unit else ""
    if cause == "DDP gradient bucket" and is_inside:
        return "gradient reduced"
    if module not in (event["owner"], event["trigger"]):
        return ""
    return "updated" if phase == "optimizer" else "used"
