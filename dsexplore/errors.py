"""The errors that users meet, all handed on by ``dsexplore``: each message says what is wrong, and what to do instead.

`RanksFailedError` alone stands elsewhere, beside the run that it reports (`dsexplore.worlds.real.run_ranks`).
"""


class UsageError(ValueError):
    """An argument, option or call that cannot be honoured as given."""


class TraceFileError(ValueError):
    """A trace file that is truncated, foreign, or written by a newer version."""


class ClosedWorldError(RuntimeError):
    """A model or mesh of a simulated world is used after that world was closed."""


class ExpectationError(AssertionError):
    """The collectives of a block differ from those that ``expect_comms`` was given."""


class NotInitialisedError(ValueError, AssertionError):
    """A call needs a process group, and there is none: a ValueError as in torch, an AssertionError as in DeepSpeed."""


class MismatchError(RuntimeError):
    """The ranks of a process group did not make the same collectives."""
