"""The known name that is most like a misspelt one, for the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKE_ENOUGH = 0.5
"""Of `difflib`'s ratio: ``pt`` and ``tp`` have half their letters in the same order."""
_MOST_LISTED = 12


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """`` (did you mean 'tp'?)``; empty where no known name is like the given one."""
    found = nearest(given, known)
    return f" (did you mean {found!r}?)" if found is not None else ""


def nearest(given: object, known: Iterable[str]) -> str | None:
    """The known name that is most like a text, upper and lower case taken as one; None where none is like it."""
    by_lower = {name.lower(): name for name in known if name}
    text = str(given).lower()
    same_letters = [name for name in by_lower if sorted(name) == sorted(text)]
    found = same_letters or difflib.get_close_matches(text, by_lower, 1, _LIKE_ENOUGH)
    return by_lower[found[0]] if found else None


def options_meant(message: str, known: Iterable[str]) -> str:
    """Of the unknown options that argparse's message names, what the first was meant to be; else empty."""
    options = {option.removeprefix("--") for option in known if option.startswith("--")}
    words = (word.partition("=")[0].removeprefix("--") for word in message.split() if word.startswith("--"))
    found = next((nearest(word, options) for word in words if word not in options), None)
    return f" (did you mean --{found}?)" if found is not None else ""


def listed(names: Iterable[str]) -> str:
    """``dp, tp``; of many names the first, and how many more there are."""
    every = list(names)
    more = len(every) - _MOST_LISTED
    return ", ".join(every[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
