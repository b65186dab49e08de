"""`RankOutcome`: how a program or a cell ended on one rank, and the value that it returned."""

from __future__ import annotations

import pickle
import signal
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dsexplore._internal.worlds.real.messages import CellReport

Status = Literal["ok", "error", "died", "stuck"]
"""``ok``: finished; ``error``: raised; ``died``: ended without a result (a signal, ``os._exit``); ``stuck``: had not
finished when the run was over, and was ended."""


Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True)
class RankOutcome(Generic[Value]):
    """End of the program on one rank."""

    rank: int
    status: Status
    value: Value | None = None
    """The function's return value; for source text the ``repr`` of the last expression, "" where there is none."""
    error: str = ""
    """``"RuntimeError: …"``, or how the process ended."""
    traceback: str = ""
    output: str = ""
    """All that the rank wrote to stdout and stderr, C++ libraries included."""
    stack: str = ""
    """The stack of a stuck rank, innermost call first."""
    exit_code: int | None = None
    """Negative for a signal: −9 is SIGKILL."""
    line: int | None = None
    """For a cell, the line that raised."""
    shown: str = ""
    """For a cell, the ``repr`` of its last expression; empty if that is None."""
    was_stopped: bool = False
    """True if a stuck rank's process was stopped, as by SIGSTOP or a debugger."""


class ReprOnly:
    """A value that could not travel from its rank; shows as its ``repr`` did there."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def unpacked(report: CellReport) -> Any:
    """Return the value of a cell; a `ReprOnly` if it cannot be unpickled here."""
    if report.value is None:
        return ReprOnly(report.shown) if report.shown else None
    try:
        return pickle.loads(report.value)
    except Exception:  # a DTensor, say, whose mesh is not here
        return ReprOnly(report.shown)


def how_it_ended(exit_code: int) -> str:
    """Describe an exit code, which is negative for a signal: ``"killed by SIGKILL"``."""
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}, without a result"
