"""``expect_comms`` asserts which collectives a block issues; on failure, its error says which ones it issued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import ExpectationError, UsageError
from dsexplore._internal.near_names import argument_meant
from dsexplore._internal.signatures import names_arguments, with_options
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.trace.select import select
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes

_SIZES = {"count": "count", "bytes": "message_bytes", "wire_bytes": "wire_bytes"}
"""Key of an expectation → the column of the events whose total it is compared with; ``count`` is their number."""

Wanted = int | Mapping[str, Any] | Sequence[Mapping[str, Any]]


@names_arguments
@with_options(OPS)
@contextmanager
def expect_comms(*, no_implicit_redistribute: bool = False, stack_depth: int = 1, **ops: Wanted) -> Iterator[Trace]:
    """Record the block, and fail unless it communicates exactly what is expected. Works as a decorator too.

    .. code-block:: python

        with expect_comms(all_reduce=2, all_gather=dict(count=4, bytes=1 << 20, axis="tp")) as trace:
            model(x)

    Args:
        no_implicit_redistribute: fail on a DTensor redistribute that the program did not ask for.
        stack_depth: frames of the program to show per collective.
        **ops: {plain name of a collective: number of calls, or a dict}. A dict has a ``count``, the totals ``bytes``
            and ``wire_bytes`` of message and wire bytes, or several of these. It may also have ``module`` and columns
            of the events: then it applies only to events that `Trace.where` selects by them. A list of such dicts
            expects all of them. Collectives that are not named must not occur.

    Yields:
        the `Trace`; nothing is checked if the block raises.

    Raises:
        UsageError: an argument is no known collective, or a dict has an unknown key or a bad value.
        ExpectationError: the block's collectives are not those expected. The text has a table of both, and the source
            lines of the unexpected ones.

    Examples:
        >>> with dsexplore.simulate(4), dsexplore.expect_comms(all_reduce={"count": 1, "bytes": 1024}):
        ...     dist.all_reduce(torch.ones(256))
    """
    expectations = [expectation for op, wanted in ops.items() for expectation in _parse(op, wanted)]
    with record(stack_depth=stack_depth) as trace:
        yield trace
    _check(trace.events, expectations, no_implicit_redistribute)


@dataclass(frozen=True)
class _Expectation:
    """The expected amount of an op, over the events that meet the conditions."""

    op: str
    sizes: dict[str, int]
    """{key of `_SIZES`: expected total}; empty if any number above 0 will do."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Trace.where` that select the events."""

    def wanted(self) -> str:
        """Format the expected sizes and conditions: ``"2 · axis=tp"``."""
        return " · ".join([*_sizes_text(self.sizes), *(f"{name}={value}" for name, value in self.conditions.items())])


@dataclass(frozen=True)
class _ExpectedRow:
    """One line of the table of expected against seen."""

    op: str
    wanted: str
    seen: str
    agrees: bool


def _parse(op: str, wanted: Wanted) -> list[_Expectation]:
    """Return the expectations that an argument of `expect_comms` stands for.

    Raises:
        UsageError: the op, a key or a value is none that `expect_comms` knows.
    """
    if op not in OPS and ":" not in op:
        near = argument_meant(op, ("no_implicit_redistribute", "stack_depth", *OPS))
        raise UsageError(f"expect_comms({op}=…): no such op{near}; they are {', '.join(OPS)}")
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return [_Expectation(op, {"count": _size(op, "count", wanted)})]
    if isinstance(wanted, Mapping):
        sizes = {key: _size(op, key, wanted[key]) for key in wanted if key in _SIZES}
        conditions = {key: wanted[key] for key in wanted if key not in _SIZES}
        for key in conditions:
            if key == "op" or (key != "module" and key not in schema.EVENTS):
                fields = ", ".join([*_SIZES, "module", *(name for name in schema.EVENTS if name != "op")])
                raise UsageError(f"expect_comms({op}=dict({key}=…)): no such key; they are {fields}")
        select(Tables(), conditions)  # refuses bad values before the block runs
        return [_Expectation(op, sizes, conditions)]
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return [expectation for item in wanted for expectation in _parse(op, item)]
    raise UsageError(f"expect_comms({op}={wanted!r}): give a count, a dict such as dict(count=2, axis='tp'), or a list")


def _size(op: str, key: str, value: Any) -> int:
    """Return an expected total; raise UsageError if it is not a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"expect_comms: {key} of {op} is {value!r}: give a whole number, 0 or more")
    return value


def _check(events: pl.DataFrame, expectations: Sequence[_Expectation], no_implicit: bool) -> None:
    """Raise ExpectationError unless the events are exactly those expected.

    Args:
        events: all events of the block.
        expectations: what is expected of them; an event that matches none is unexpected.
        no_implicit: whether implicit redistributes are unexpected too.
    """
    events = events.with_row_index("_row")
    rows: list[_ExpectedRow] = []
    matched: set[int] = set()
    suspects: set[int] = set()
    for expected in expectations:
        matching = _matching(events, expected)
        row = _compared(expected, matching)
        rows.append(row)
        matched.update(matching["_row"])
        if not row.agrees:
            suspects.update(matching["_row"])
    unexpected = events.filter(~pl.col("_row").is_in(sorted(matched)))
    counts = unexpected.group_by("op", maintain_order=True).len()
    rows += [_ExpectedRow(op, "none", str(count), agrees=False) for op, count in counts.iter_rows()]
    suspects.update(unexpected["_row"])
    implicit = events.filter(pl.col("implicit"))
    if no_implicit and not implicit.is_empty():
        rows.append(_ExpectedRow("implicit redistribute", "none", str(implicit.height), agrees=False))
        suspects.update(implicit["_row"])
    if not all(row.agrees for row in rows):
        raise ExpectationError(_message(rows, events.filter(pl.col("_row").is_in(sorted(suspects)))))


def _compared(expected: _Expectation, matching: pl.DataFrame) -> _ExpectedRow:
    """Compare one expectation with the events; one without a size expects at least one event."""
    seen = {key: _total(matching, column) for key, column in _SIZES.items() if key in (expected.sizes or {"count"})}
    agrees = seen == expected.sizes if expected.sizes else not matching.is_empty()
    return _ExpectedRow(expected.op, expected.wanted() or "some", " · ".join(_sizes_text(seen)), agrees)


def _matching(events: pl.DataFrame, expected: _Expectation) -> pl.DataFrame:
    chosen = select(Tables(events=events), expected.conditions)
    return chosen.events.filter(pl.col("op") == expected.op)


def _total(events: pl.DataFrame, column: str) -> int:
    return events.height if column == "count" else int(events[column].sum())


def _sizes_text(sizes: Mapping[str, int]) -> list[str]:
    """Format totals by their keys in `_SIZES`: ``["2", "bytes 1,024 (1 KiB)"]``."""
    return [str(size) if key == "count" else f"{key} {size:,} ({format_bytes(size)})" for key, size in sizes.items()]


def _message(rows: Sequence[_ExpectedRow], suspects: pl.DataFrame) -> str:
    """Return the error's text: the table of expected against seen, and the source lines of the suspects."""
    table = [("", "op", "expected", "seen")]
    table += [("" if row.agrees else "✗", row.op, row.wanted, row.seen) for row in rows]
    lines = ["the block's collectives are not those expected:", "", *_aligned(table)]
    if not suspects.is_empty():
        lines += ["", "where they were issued:", *_aligned(_places(suspects))]
    return "\n".join(lines)


def _places(events: pl.DataFrame) -> list[tuple[str, ...]]:
    """Return one line per op and place in the program, in order of first appearance."""
    keys = ["op", "source", "phase", "owner", "axis", "cause", "implicit"]
    grouped = events.group_by(keys, maintain_order=True).agg(pl.len(), pl.col("message_bytes").sum())
    return [
        (
            f"{row['len']} ×",
            row["op"],
            row["source"] or "(no frame of the program)",
            format_bytes(row["message_bytes"]),
            row["phase"],
            f"axis {row['axis']}" if row["axis"] else "",
            row["owner"],
            f"{row['cause']} (implicit)" if row["implicit"] else row["cause"],
        )
        for row in grouped.iter_rows(named=True)
    ]


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Return one line per row, its cells padded to the widths of their columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
