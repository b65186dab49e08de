"""`SavedJson`: results that are saved as JSON, with the name and the version of their format."""

from __future__ import annotations

import json
import os
import reprlib
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from dsexplore._internal.errors import UsageError
from dsexplore._internal.output import writing
from dsexplore._internal.signatures import names_arguments

T = TypeVar("T")
_MOST = 1 << 62
"""Largest number in a saved result; no valid number is larger, negative or infinite."""


def value_of(kind: type[T], value: object, where: str) -> T:
    """Convert a JSON value to a type: a number, a text, a tuple, list or dict of these, or a dataclass of these.

    Args:
        kind: type, in the form of an annotation.
        value: JSON value, from `json.loads`.
        where: name of the value, for errors.

    Raises:
        ValueError: the value has another type; the message names it: ``points[3].calls is -1, and must be a whole
            number``.

    Examples:
        >>> value_of(tuple[int, ...], [1, 2], "sizes")
        (1, 2)
        >>> value_of(tuple[int, ...], [1, "2"], "sizes")
        Traceback (most recent call last):
        ValueError: sizes[1] is '2', and must be a whole number of 0 or more
    """
    return cast("T", _value_of(kind, value, where))


def _value_of(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value as `value_of`, without static types."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_of(kind, value, where)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _value_of(inner, value, where)
    if origin in (tuple, list) and isinstance(value, (tuple, list)):
        return origin(_value_of(arguments[0], element, f"{where}[{at}]") for at, element in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _value_of(arguments[1], element, f"{where}[{key!r}]") for key, element in value.items()}
    if origin is Literal and value in arguments:
        return value
    if kind in (bool, str) and type(value) is kind:
        return value
    if kind in (int, float) and type(value) in (int, kind) and 0 <= value <= _MOST:
        return value
    expected = _WORDS.get(origin or kind) or f"one of {', '.join(map(repr, arguments))}"
    raise ValueError(f"{where} is {reprlib.repr(value)}, and must be {expected}")


_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    dict: "an object",
    float: "a number of 0 or more",
    int: "a whole number of 0 or more",
    list: "a list",
    str: "a text",
    tuple: "a list",
}


def _dataclass_of(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON object to a dataclass, whose fields it names; fields with a default may be missing."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {reprlib.repr(value)}, and must be an object")
    hints, by_name = get_type_hints(kind), {field.name: field for field in fields(kind)}
    for name in value.keys() - by_name.keys():
        raise ValueError(f"{where}.{name} is not known: {', '.join(by_name)} are")
    for name, field in by_name.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{name} is missing")
    values = {name: _value_of(hints[name], element, f"{where}.{name}") for name, element in value.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """Format of the files of one kind of result."""

    name: str
    """Name of the format, the value of the key ``format`` in a file."""
    version: int
    """Version that is written, and the newest that can be read."""
    kind: str
    """Word for the file in errors, ``"sweep"``."""
    writer: str
    """Method that writes such files, for errors."""

    def header(self) -> dict[str, object]:
        """Return the first two items of a file."""
        return {"format": self.name, "version": self.version}

    def check(self, loaded: object, name: str) -> None:
        """Check the format and the version of a file.

        Args:
            loaded: content of the file.
            name: name of the file, for the error.

        Raises:
            UsageError: the file has another format, or a newer version of it.
        """
        if not isinstance(loaded, dict) or loaded.get("format") != self.name:
            raise UsageError(f"{name} is not a saved {self.kind}: write one with {self.writer}")
        version = loaded.get("version", 0)
        if not isinstance(version, int):
            raise UsageError(f"{name} is a damaged {self.kind}: its version is {version!r}")
        if version > self.version:
            raise UsageError(f"{name} was saved by a newer dsexplore (version {version}): update dsexplore")


class SavedJson:
    """A result that can be saved as a JSON file; subclasses define `to_json`, `_read` and `FORMAT`."""

    FORMAT: ClassVar[SavedFormat]

    def to_json(self) -> dict[str, object]:
        """Return the result as plain JSON values; `from_json` reads them back."""
        raise NotImplementedError

    @classmethod
    @names_arguments
    def from_json(cls, loaded: object, name: str = "this value") -> Self:
        """Create a result from the JSON values that `to_json` returned.

        Args:
            loaded: the JSON values.
            name: name of the file that contains them, for errors.

        Raises:
            UsageError: the values are another kind of result, are damaged, or were written by a newer version.
        """
        cls.FORMAT.check(loaded, name)
        try:
            values: Any = loaded
            return cls._read(values, name)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
            reason = str(error) if isinstance(error, ValueError) else repr(error)
            raise UsageError(f"{name} is a damaged {cls.FORMAT.kind}: {reason}") from error

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        """Create a result from JSON values; raise ValueError, KeyError or TypeError if they are damaged."""
        raise NotImplementedError

    @names_arguments
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to a JSON file, and return the path."""
        with writing(path) as unfinished:
            unfinished.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        return Path(path)

    @classmethod
    @names_arguments
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved result.

        Raises:
            OSError: the file cannot be read.
            UsageError: the file is of another kind, is damaged, or was written by a newer version.
        """
        name = os.fspath(path)
        try:
            loaded = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is not a saved {cls.FORMAT.kind}: {error}") from error
        return cls.from_json(loaded, name)
