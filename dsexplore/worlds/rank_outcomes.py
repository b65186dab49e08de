"""What became of a run on local ranks, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "error", "died", "stuck"]
"""``ok``: finished; ``error``: raised; ``died``: ended without a word (a signal, ``os._exit``); ``stuck``: had
not finished when the run was over, and was ended."""

Reason = Literal["done", "failed", "timeout"]


@dataclass(frozen=True)
class RankOutcome:
    """What became of one rank."""

    rank: int
    status: Status
    value: Any = None
    """What the function returned; for source text the ``repr`` of the last expression, "" where there is none."""
    error: str = ""
    """``"RuntimeError: …"``, or how the process ended."""
    traceback: str = ""
    output: str = ""
    """All that the rank wrote to stdout and stderr, C++ libraries included."""
    stack: str = ""
    """Where a stuck rank was, innermost call first."""
    exit_code: int | None = None
    """Negative for a signal: −9 is SIGKILL."""


@dataclass(frozen=True)
class RanksRun:
    """One run of a program on all ranks."""

    outcomes: tuple[RankOutcome, ...]
    seconds: float
    reason: Reason
    first_failure: int | None = None
    """The rank that failed first; the others often fail because of it."""

    @property
    def ok(self) -> bool:
        """Whether every rank finished."""
        return all(outcome.status == "ok" for outcome in self.outcomes)

    @property
    def values(self) -> list[Any]:
        """What each rank returned, by rank.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        self.check()
        return [outcome.value for outcome in self.outcomes]

    def check(self) -> RanksRun:
        """This run, if every rank finished.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        if not self.ok:
            raise RanksFailedError(self)
        return self


class RanksFailedError(RuntimeError):
    """A rank raised, died or hung; the message has the traceback of the first, and one line for each."""

    def __init__(self, run: RanksRun) -> None:
        self.run = run
        lines = [f"{len(run.outcomes)} local ranks: {_REASONS[run.reason]} after {run.seconds:.1f} s"]
        lines += [f"  rank {o.rank}: {o.status}{': ' if o.error else ''}{_first_line(o.error)}" for o in run.outcomes]
        first = run.outcomes[run.first_failure if run.first_failure is not None else _first_stuck(run)]
        details = first.traceback or first.stack
        lines += [f"rank {first.rank}:", details.rstrip()] if details else []
        super().__init__("\n".join(lines))


_REASONS: dict[Reason, str] = {"done": "ended", "failed": "one failed", "timeout": "time ran out"}


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _first_stuck(run: RanksRun) -> int:
    return next((o.rank for o in run.outcomes if o.status != "ok"), 0)
