"""How the recording of a rank ended, as text: the values of `TraceInfo.ends`.

A text says what happened, followed by the line of the program where it did: ``raised ValueError (bad sample 17) at
train.py:5``. A rank whose block was still running when its file was written, because it waited or was killed by its
launcher, has `RUNNING`, which does not say how its program ended. That a process was killed or stopped, or ended
without saving, is what other ranks of its host saw; see `trace.call_journal`.
"""

from __future__ import annotations

RUNNING = "running"
ENDED_EARLY = "the recording ended early, with "
"""Start of the note on a recording ended by an exception or Ctrl-C; the name of the exception follows."""
ENDED_BLOCK = "ended its block"
KILLED = "was killed by "
"""Start of the text for a process that a signal ended; the signal's name follows."""
STOPPED = "was stopped (by SIGSTOP or a debugger)"
WITHOUT_SAVING = "without saving its trace"
"""Part of the text for a process that is gone, with its exit code."""
UNSAVED = "ended without saving its trace (by os._exit, or by a signal such as SIGKILL)"
"""Text for a process that is gone without anybody having seen how it ended."""
_LONGEST = 200
"""Number of characters of an error's text that are kept."""


def raised(kind: str, text: str, line: str) -> str:
    """Return the text for a recording ended by an exception.

    Args:
        kind: name of the exception's class.
        text: message of the exception; only its first `_LONGEST` characters are shown.
        line: line that raised it, ``"train.py:5"``; empty if unknown.
    """
    message = " ".join(text.split())
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}…"
    return _add_line(f"raised {kind} ({message})" if message else f"raised {kind}", line)


def stopped_by_exit(code: object, line: str) -> str:
    """Return the text for a recording ended by ``sys.exit``."""
    return _add_line(f"ended with exit code {code or 0}", line)


def interrupted(line: str) -> str:
    """Return the text for a recording ended by Ctrl-C."""
    return _add_line("was interrupted", line)


def _add_line(what: str, line: str) -> str:
    return f"{what} at {line}" if line else what
