"""Answers the questions in the report of a run: what is sent, by which modules, at start-up, and the memory needed."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.traffic import listed, purposes_of, weighed, wire_text
from dsexplore._internal.trace.numbered_modules import place_of
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes, format_count, format_share

_MOST_PLACES = 5
"""Number of places in the model that an answer names."""
_MADE_BY = "made by: "
"""Begin of the note with the command that made the trace."""


def report(headline: Headline) -> list[tuple[str, str]]:
    """Return (question, answer) pairs about a trace with events.

    Bytes are wire bytes per rank; the answer says if they are per step.
    """
    tables = headline.tables
    made = "; ".join(note.removeprefix(_MADE_BY) for note in tables.info.notes if note.startswith(_MADE_BY))
    answers = [
        (
            "What does a step send?",
            next((sentence.text for sentence in headline.sentences if sentence.about == "axes"), "Nothing."),
        ),
        ("Which modules send it?", _modules(headline)),
        ("What does start-up alone send?", _start_up(headline)),
        ("What do forwards without gradients send?", _no_grad(headline)),
        ("What is sent between steps?", _between_steps_text(headline)),
        ("What do implicit redistributes send?", _implicit(headline)),
        ("What memory does a rank need?", memory(tables)),
        ("What made this report?", made),
    ]
    return [(question, answer) for question, answer in answers if answer]


def memory(tables: Tables) -> str:
    """Estimate the memory of the rank that holds most, from its parameters, and say what the estimate omits."""
    held = tables.parameters.filter(pl.col("shared_with") == "")
    if held.is_empty():
        return "No estimate: the trace holds no parameters, as no module of the program ran while it was recorded."
    trainable = pl.col("local_bytes").filter(pl.col("requires_grad")).sum().alias("gradients")
    ranks = (
        held.group_by("rank").agg(pl.col("local_bytes").sum().alias("parameters"), trainable).sort("parameters", "rank")
    )
    rank, parameters, gradients = ranks.row(-1)
    most = ", which holds most" if ranks["parameters"].n_unique() > 1 else ", as of the others" * (ranks.height > 1)
    holder = f"rank {rank}{most}"
    fsdp = pl.col("cause").str.starts_with("FSDP") & (pl.col("op") == "all_gather") & (pl.col("rank") == rank)
    sizes = tables.events.filter(fsdp)["message_bytes"].drop_nulls().to_list()
    whole = f", and {format_bytes(max(sizes))} for the largest group that FSDP gathers" if sizes else ""
    return (
        f"Parameters {format_bytes(parameters)} and gradients {format_bytes(gradients)} of {holder}{whole}. Optimizer "
        "state is not recorded: Adam and AdamW hold two tensors like each parameter, "
        f"{format_bytes(2 * gradients)}. Activations, buffers of collectives and what the allocator wastes are not in "
        "it."
    )


def _modules(headline: Headline) -> str:
    """List the places that send most, each with its share and purposes."""
    events = headline.step_events
    by_owner = events.group_by("owner", maintain_order=True).agg(weighed("wire_bytes"))
    places = (
        by_owner.with_columns(place_of(pl.col("owner")).alias("place"))
        .group_by("place")
        .agg(pl.col("wire_bytes").sum(), pl.len().alias("modules"), pl.col("owner"))
        .filter(pl.col("wire_bytes") > 0)
        .sort("wire_bytes", "place", descending=[True, False])
    )
    total = int(places["wire_bytes"].sum())
    parts = []
    for place, size, modules, owners in places.head(_MOST_PLACES).iter_rows():
        purposes = listed(purposes_of(events.filter(pl.col("owner").is_in(owners)), size))
        many = f" ×{modules:,}" if modules > 1 else ""
        size_text = format_bytes(size / headline.ranks / headline.steps)
        parts.append(f"{place}{many} {size_text} ({format_share(size, total)}: {purposes})")
    more = f"; {places.height - _MOST_PLACES:,} more" if places.height > _MOST_PLACES else ""
    return "; ".join(parts) + more + "." if parts else ""


def _start_up(headline: Headline) -> str:
    """Say what is sent before the first step, by cause."""
    events = headline.events_of("start-up")
    if events.is_empty():
        return "Nothing."
    parts = _largest(events, ("cause", "op"), headline.ranks, 4)
    named = [f"{op}{f' ({cause})' if cause else ''} {size}" for (cause, op), size in parts]
    return f"{wire_text(events, headline.ranks)} per rank, once: {listed(named)}."


def _no_grad(headline: Headline) -> str:
    """Say what forwards without gradients (evaluations, teachers, rollouts) send, by module; empty if nothing."""
    events = headline.events_of("no-grad forward")
    if events.is_empty():
        return ""
    placed = events.with_columns(place_of(pl.col("owner")).alias("place"))
    parts = [f"{place} {size}" for (place,), size in _largest(placed, ("place",), headline.ranks, _MOST_PLACES)]
    steps = events["step"].n_unique()
    where = f"in {format_count(steps, 'step')}"
    return f"{wire_text(events, headline.ranks)} per rank {where}, which no figure per step counts: {listed(parts)}."


def _between_steps_text(headline: Headline) -> str:
    """Say what is sent between steps, such as by state dicts, by source line; empty if there is nothing."""
    events = headline.events_of("between steps")
    if events.is_empty():
        return ""
    parts = [f"{line or 'no line'} {size}" for (line,), size in _largest(events, ("source",), headline.ranks, 4)]
    return f"{wire_text(events, headline.ranks)} per rank, which no figure per step counts: {listed(parts)}."


def _implicit(headline: Headline) -> str:
    """Say how much of a step is redistributes that the program did not ask for."""
    events = headline.step_events.filter(pl.col("implicit"))
    if events.is_empty():
        return "Nothing: every redistribute is one that the program asked for."
    share = headline.ranks * headline.steps
    counts = dict(events.group_by("cause").agg(pl.col("weight").sum()).iter_rows())
    parts = [
        f"{cause} ×{counts[cause] / share:,.3g}, {size}" for (cause,), size in _largest(events, ("cause",), share, 3)
    ]
    more = f" and {len(counts) - 3:,} more causes" if len(counts) > 3 else ""
    size = wire_text(events, share)
    return f"{sum(counts.values()) / share:,.3g} redistributes, {size} per rank and step: {'; '.join(parts)}{more}."


def _largest(events: pl.DataFrame, keys: Sequence[str], share: float, most: int) -> list[tuple[tuple[str, ...], str]]:
    """Return the largest senders by some columns.

    Args:
        events: events with the column ``weight``.
        keys: the columns.
        share: a divisor of the bytes, such as the number of ranks times that of steps.
        most: maximum number of senders.

    Returns:
        (values of the columns, wire bytes as text) pairs, the largest first.
    """
    parts = events.partition_by(*keys, as_dict=True, maintain_order=True)
    ranked = sorted(parts.items(), key=lambda item: (-item[1].select(weighed("wire_bytes")).item(), item[0]))
    return [(tuple(map(str, key)), wire_text(part, share)) for key, part in ranked[:most]]
