"""The questions that the report of a run answers in words: what is sent, by which modules, at start-up, and memory."""

from __future__ import annotations

import polars as pl

from dsexplore.analysis.headline import Headline
from dsexplore.analysis.traffic_purposes import listed, purposes_of, weighed
from dsexplore.trace.numbered_modules import place_of
from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes, format_count, format_share

_MOST_PLACES = 5
_MADE_BY = "made by: "


def report(headline: Headline) -> list[tuple[str, str]]:
    """Return (question, answer) pairs about a trace with events.

    Bytes are wire bytes per rank, and per step where the answer says so.
    """
    tables = headline.tables
    made = "; ".join(note.removeprefix(_MADE_BY) for note in tables.info.notes if note.startswith(_MADE_BY))
    answers = [
        ("What does a step send?", next((one.text for one in headline.sentences if one.about == "axes"), "Nothing.")),
        ("Which modules send it?", _modules(headline)),
        ("What does start-up alone send?", _start_up(headline)),
        ("What do forwards without gradients send?", _no_grad(headline)),
        ("What is sent between steps?", _between(headline)),
        ("What do implicit redistributes send?", _implicit(headline)),
        ("What memory does a rank need?", memory(tables)),
        ("What made this report?", made),
    ]
    return [(question, answer) for question, answer in answers if answer]


def memory(tables: Tables) -> str:
    """Estimate the memory of the rank that holds most, from its parameters, and say what the estimate leaves out."""
    held = tables.parameters.filter(pl.col("shared_with") == "")
    if held.is_empty():
        return "No estimate: the trace holds no parameters, as no module of the program ran while it was recorded."
    learnt = pl.col("local_bytes").filter(pl.col("requires_grad")).sum().alias("gradients")
    ranks = (
        held.group_by("rank").agg(pl.col("local_bytes").sum().alias("parameters"), learnt).sort("parameters", "rank")
    )
    rank, parameters, gradients = ranks.row(-1)
    most = ", which holds most" if ranks["parameters"].n_unique() > 1 else ", as of the others" * (ranks.height > 1)
    holder = f"rank {rank}{most}"
    fsdp = pl.col("cause").str.starts_with("FSDP") & (pl.col("op") == "all_gather") & (pl.col("rank") == rank)
    sizes = tables.events.filter(fsdp)["message_bytes"].to_list()
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
        its = events.filter(pl.col("owner").is_in(owners))
        many = f" ×{modules:,}" if modules > 1 else ""
        size_text = format_bytes(size / headline.ranks / headline.steps)
        parts.append(f"{place}{many} {size_text} ({format_share(size, total)}: {listed(purposes_of(its, size))})")
    more = f"; {places.height - _MOST_PLACES:,} more" if places.height > _MOST_PLACES else ""
    return "; ".join(parts) + more + "." if parts else ""


def _start_up(headline: Headline) -> str:
    """Say what is sent before the first step, by cause."""
    events = headline.start_up_events
    if events.is_empty():
        return "Nothing."
    sums = events.group_by("cause", "op").agg(pl.len().alias("count"), weighed("wire_bytes"))
    ranked = sums.sort("wire_bytes", "cause", "op", descending=[True, False, False])
    parts = [
        f"{op}{f' ({cause})' if cause else ''} {format_bytes(size / headline.ranks)}"
        for cause, op, _, size in ranked.head(4).iter_rows()
    ]
    return f"{format_bytes(headline.start_up_bytes)} per rank, once: {listed(parts)}."


def _no_grad(headline: Headline) -> str:
    """Say what forwards without gradients (evaluations, teachers, rollouts) send, by module; empty if nothing."""
    events = headline.no_grad_events
    if events.is_empty():
        return ""
    placed = events.with_columns(place_of(pl.col("owner")).alias("place"))
    sums = placed.group_by("place").agg(weighed("wire_bytes")).sort("wire_bytes", "place", descending=[True, False])
    parts = [f"{place} {format_bytes(size / headline.ranks)}" for place, size in sums.head(_MOST_PLACES).iter_rows()]
    steps = events["step"].n_unique()
    where = f"in {format_count(steps, 'step')}"
    return f"{format_bytes(headline.no_grad_bytes)} per rank {where}, which no figure per step counts: {listed(parts)}."


def _between(headline: Headline) -> str:
    """Say what is sent between steps, such as by state dicts, by source line; empty if there is nothing."""
    events = headline.between_events
    if events.is_empty():
        return ""
    sums = events.group_by("source").agg(weighed("wire_bytes")).sort("wire_bytes", "source", descending=[True, False])
    parts = [f"{line or 'no line'} {format_bytes(size / headline.ranks)}" for line, size in sums.head(4).iter_rows()]
    return f"{format_bytes(headline.between_bytes)} per rank, which no figure per step counts: {listed(parts)}."


def _implicit(headline: Headline) -> str:
    """Say how much of a step is redistributes that the program did not ask for."""
    events = headline.step_events.filter(pl.col("implicit"))
    if events.is_empty():
        return "Nothing: every redistribute is one that the program asked for."
    share = headline.ranks * headline.steps
    sums = events.group_by("cause").agg(weighed("wire_bytes"), pl.col("weight").sum().alias("count"))
    parts = [
        f"{cause} ×{count / share:,.3g}, {format_bytes(size / share)}"
        for cause, size, count in sums.sort("wire_bytes", "cause", descending=[True, False]).head(3).iter_rows()
    ]
    more = f" and {sums.height - 3:,} more causes" if sums.height > 3 else ""
    size = format_bytes(int(sums["wire_bytes"].sum()) / share)
    return f"{int(sums['count'].sum()) / share:,.3g} redistributes, {size} per rank and step: {'; '.join(parts)}{more}."
