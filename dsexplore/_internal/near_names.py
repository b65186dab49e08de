"""Suggestions for misspelled names, for the end of an error message."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LIKE_ENOUGH = 0.5
"""Smallest ratio of `difflib` that counts as similar: that of ``pt`` and ``tp``."""
_MOST_LISTED = 12
"""Number of names that a message lists at most."""
_INVALID_VALUE = re.compile(
    r"argument (?:-\w/)?(?P<option>--[\w-]+): invalid (?P<kind>int|float|choice)(?: value)?: '(?P<value>.*?)'"
    r"(?: \(choose from (?P<choices>.*)\))?"
)
_EXAMPLES = {"int": ("a whole number", 8), "float": ("a number", 0.5)}
"""For a type that argparse names in an error: what it means in words, and an example."""
_RENAMED = {
    **dict.fromkeys(("cluster", "device", "gpu", "target", "machine"), "hardware"),
    **dict.fromkeys(("ranks", "nproc", "num_ranks", "size"), "world_size"),
    **dict.fromkeys(("every_layer", "in_full"), "skip_repeats"),
    **dict.fromkeys(("colors", "colour", "colours", "colour_by"), "color_by"),
    **dict.fromkeys(("repeats", "repeat"), "rounds"),
}
"""Names that people use for an argument, with its actual name, which is spelled differently."""


def argument_meant(given: str, candidates: Iterable[str]) -> str:
    """Return `` (did you mean 'hardware'?)`` for an unknown argument of a function; empty if none is similar.

    Args:
        given: name in the call.
        candidates: names of the function's arguments.

    Example:
        >>> argument_meant("gpu", ["world_size", "hardware"]), argument_meant("lane", ["lanes", "color_by"])
        (" (did you mean 'hardware'?)", " (did you mean 'lanes'?)")
    """
    candidates = list(candidates)
    renamed = _RENAMED.get(given)
    return f" (did you mean {renamed!r}?)" if renamed in candidates else did_you_mean(given, candidates)


def did_you_mean(given: object, candidates: Iterable[str]) -> str:
    """Return `` (did you mean 'tp'?)``; empty if no known name is similar."""
    near = nearest(given, candidates)
    return f" (did you mean {near!r}?)" if near is not None else ""


def nearest(given: object, candidates: Iterable[str]) -> str | None:
    """Return the known name most similar to a text, ignoring case; None if none is similar."""
    by_lower = {name.lower(): name for name in candidates if name}
    text = str(given).lower()
    same_letters = [name for name in by_lower if sorted(name) == sorted(text)]
    matches = same_letters or difflib.get_close_matches(text, by_lower, n=1, cutoff=_LIKE_ENOUGH)
    return by_lower[matches[0]] if matches else None


def options_meant(message: str, candidates: Iterable[str]) -> str:
    """Return a hint for the end of an argparse message: the option or the value that was meant; empty if unknown.

    Args:
        message: argparse's message about an unknown option, or about a wrong value of an option.
        candidates: existing options.
    """
    options = {option for option in candidates if option.startswith("--")}
    value = _INVALID_VALUE.search(message)
    if value is not None:
        if value["option"] not in options:
            return ""
        plural = value["option"] + "s"
        if plural in options and "," in value["value"]:
            return f" (did you mean {plural}?)"
        return _value_meant(**value.groupdict())
    words = (word.partition("=")[0].rstrip(":,") for word in message.split() if word.startswith("--"))
    names = [option.removeprefix("--") for option in options]
    unknown = next((word.removeprefix("--") for word in words if word not in options), "")
    renamed = _RENAMED.get(unknown.replace("-", "_"), "").replace("_", "-")
    meant = renamed if renamed in names else nearest(unknown, names)
    return f" (did you mean --{meant}?)" if meant is not None else ""


def _value_meant(option: str, kind: str, value: str, choices: str | None) -> str:
    """Return a hint for a wrong value of an option: an example of its type, or the choice that was meant."""
    if kind in _EXAMPLES:
        name, example = _EXAMPLES[kind]
        return f" (give {name}, such as {option} {example})"
    values = [choice.strip("' ") for choice in (choices or "").split(",")]
    return did_you_mean(value, values)


def listed(names: Iterable[str]) -> str:
    """Return ``dp, tp``; for more than `_MOST_LISTED` names, the first ones and the number of the others."""
    names = list(names)
    text = ", ".join(names[:_MOST_LISTED])
    more = len(names) - _MOST_LISTED
    return f"{text} and {more:,} more" if more > 0 else text
