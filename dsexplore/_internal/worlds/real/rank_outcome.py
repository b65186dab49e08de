"""`RankOutcome`: how a program or a cell ended on one rank, and the value that it returned."""

from __future__ import annotations

import pickle
import signal
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dsexplore._internal.worlds.real.messages import CellReport

Status = Literal["ok", "error", "died", "stuck"]
"""``ok``: finished; ``error``: raised; ``died``: ended without a result (by a signal, or ``os._exit``); ``stuck``: had
not finished at the end of the run, and was ended."""


Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True)
class RankOutcome(Generic[Value]):
    """How a program or a cell ended on one rank."""

    rank: int
    status: Status
    value: Value | None = None
    """Return value of the function; for source text, the ``repr`` of the last expression, "" without one."""
    error: str = ""
    """Type and message of the exception, ``"RuntimeError: …"``, or how the process ended."""
    traceback: str = ""
    output: str = ""
    """Output to stdout and stderr, including that of C++ libraries."""
    stack: str = ""
    """Stack of a stuck rank, innermost call first."""
    exit_code: int | None = None
    """Exit code of the process; negative for a signal: −9 is SIGKILL. None while the process runs."""
    line: int | None = None
    """Line of a cell that raised; None for a program, or without an error."""
    shown: str = ""
    """The ``repr`` of a cell's last expression; empty for None, and for a program."""
    was_stopped: bool = False
    """True if the process of a stuck rank was stopped, by SIGSTOP or a debugger."""


class ReprOnly:
    """Stands for a value that could not be sent from its rank; it has the same ``repr``."""

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
    except Exception:  # a DTensor, for example: its mesh exists on the ranks only
        return ReprOnly(report.shown)


def how_it_ended(exit_code: int) -> str:
    """Describe an exit code, which is negative for a signal: ``"killed by SIGKILL"``."""
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}, without a result"
