"""The public errors, all exported by ``dsexplore``: each says what is wrong and what to do, and where to read more.

Only `RanksFailedError` is defined elsewhere, with the run that it reports (`worlds.real.run_ranks`).
"""

from __future__ import annotations

SITE = "https://dsexplore.readthedocs.io"
"""Where the site of ``docs/`` is published; `pyproject.toml` names the same address."""


def page_of(error: type[BaseException]) -> str:
    """Return the address of what the site says about a class of errors."""
    return f"{SITE}/page/errors.html#{error.__name__.lower()}"


def full_message(error: BaseException) -> str:
    """Return the message of an error and its notes, as a traceback ends: for errors that are shown without one."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


class Documented(Exception):
    """An error that ends with the address of its page, wherever it is shown.

    The address is a note, which Python, IPython and pytest print below the message: ``str(error)`` is the message.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.add_note(page_of(type(self)))


class _ShownAsSentence(Documented):
    """An error that IPython shows with the user's own frames and the message alone, without torch's and dsexplore's."""

    def _render_traceback_(self) -> list[str]:
        from dsexplore._internal.tracebacks import lines_of_the_program

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
