"""The public errors, all exported by ``dsexplore``: each message says what is wrong, and what to do instead.

Only `RanksFailedError` is defined elsewhere, beside the run that it reports (`dsexplore.worlds.real.run_ranks`).
"""

from __future__ import annotations


class _ShownAsSentence:
    """An error of which IPython shows only the user's own frames and the message, not those of torch and dsexplore."""

    def _render_traceback_(self) -> list[str]:
        from dsexplore.tracebacks import lines_of_the_program

        assert isinstance(self, BaseException)
        return lines_of_the_program(self)


class UsageError(_ShownAsSentence, ValueError):
    """An argument, option or call that cannot be honored as given."""


class TraceFileError(_ShownAsSentence, ValueError):
    """A trace file that is truncated, foreign, or written by a newer version."""


class ClosedWorldError(_ShownAsSentence, RuntimeError):
    """A model or mesh of a simulated world is used after that world was closed."""


class ExpectationError(_ShownAsSentence, AssertionError):
    """The collectives of a block differ from those that ``expect_comms`` was given."""


class NotInitializedError(_ShownAsSentence, ValueError, AssertionError):
    """A call needs a process group, and there is none: a ValueError as in torch, an AssertionError as in DeepSpeed."""


class MismatchError(_ShownAsSentence, RuntimeError):
    """The ranks of a process group did not make the same collectives."""
