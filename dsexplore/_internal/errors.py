"""The public errors, all exported by ``dsexplore``. Each says what is wrong and what to do, and links to its page.

Only `RanksFailedError` is defined elsewhere, beside the run that it reports (`worlds.real.run_ranks`).
"""

from __future__ import annotations

SITE = "https://dsexplore.readthedocs.io"
"""Address of the published ``docs/``, as in `pyproject.toml`."""


def page_of(error: type[BaseException]) -> str:
    """Return the address of the section on a class of errors."""
    return f"{SITE}/page/errors.html#{error.__name__.lower()}"


def full_message(error: BaseException) -> str:
    """Return the message of an error and its notes, for errors that are shown without a traceback."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


class Documented(Exception):
    """An error that is shown with the address of its page.

    The address is a note, which Python, IPython and pytest print below the message; ``str(error)`` does not include it.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.add_note(page_of(type(self)))


class _ShownAsSentence(Documented):
    """An error that IPython shows with the user's frames and the message, without frames of torch and dsexplore."""

    def _render_traceback_(self) -> list[str]:
        from dsexplore._internal.tracebacks import lines_of_the_program

        return lines_of_the_program(self)


class UsageError(_ShownAsSentence, ValueError):
    """An argument, an option or a call is not valid."""


class TraceFileError(_ShownAsSentence, ValueError):
    """A trace file is truncated, has another format, or was written by a newer version."""


class ClosedWorldError(_ShownAsSentence, RuntimeError):
    """A model or mesh of a simulated world is used after that world was closed."""


class ExpectationError(_ShownAsSentence, AssertionError):
    """The collectives of a block differ from those that ``expect_comms`` was given."""


class NotInitializedError(_ShownAsSentence, ValueError, AssertionError):
    """A call needs an initialized process group: a ValueError as in torch, an AssertionError as in DeepSpeed."""


class MismatchError(_ShownAsSentence, RuntimeError):
    """The ranks of a process group did not make the same collectives."""
