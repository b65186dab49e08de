"""Signatures of public functions, for ``?`` and Tab completion, and suggestions for misspelled arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import Any, TypeVar, cast

from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import argument_meant

Function = TypeVar("Function", bound=Callable[..., Any])


class _LeftOut:
    """Default of optional arguments in a shown signature."""

    def __repr__(self) -> str:
        return "…"


LEFT_OUT: Any = _LeftOut()
"""Default of an argument that changes nothing if it is omitted; shown as ``…``."""


def with_options(options: Iterable[str | Parameter]) -> Callable[[Function], Function]:
    """Return a decorator that shows keyword arguments in a function's signature in place of its ``**``.

    Args:
        options: names of optional arguments, or parameters of another function.
    """

    def decorate(function: Function) -> Function:
        parameters = signature(function).parameters.values()
        named = [parameter for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
        names = {parameter.name for parameter in named}
        keywords = [_keyword(option) for option in options]
        shown = Signature([*named, *(keyword for keyword in keywords if keyword.name not in names)])
        function.__signature__ = shown  # type: ignore[attr-defined]  # inspect.signature reads it
        return function

    return decorate


class UnknownArgumentError(UsageError, TypeError):
    """A call has a keyword argument that the function does not take; also a TypeError, as in Python."""


def names_arguments(function: Function) -> Function:
    """Decorate a public function to suggest the right name when a call misspells an argument.

    A correct call costs one more Python frame.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError:
            refuse_unknown(function, arguments, options)
            raise

    return cast("Function", call)


def names_arguments_of_methods(cls: type) -> None:
    """Apply `names_arguments` to the public methods that a class defines."""
    for name, value in list(vars(cls).items()):
        kind = type(value)
        if name.startswith("_") and name != "__init__":
            continue
        if kind is FunctionType:
            setattr(cls, name, names_arguments(value))
        elif kind in (classmethod, staticmethod):
            setattr(cls, name, kind(names_arguments(value.__func__)))


def refuse_unknown(function: Callable[..., Any], arguments: Sequence[Any], options: Iterable[str]) -> None:
    """Raise an error if a call has a keyword argument that the function does not take.

    Args:
        function: the called function.
        arguments: positional arguments of the call; for a method, the first one is its object.
        options: names of the keyword arguments.

    Raises:
        UnknownArgumentError: an argument is unknown; the message suggests a name, and lists the arguments.
    """
    parameters = signature(function).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    keyword_kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = [name for name, parameter in parameters.items() if parameter.kind in keyword_kinds]
    names = [name for name in named if name not in ("self", "cls")]
    unknown = next((option for option in options if option not in names), None)
    if unknown is None:
        return
    takes = f"it takes {', '.join(names)}" if names else "it takes none"
    name = function.__qualname__.removesuffix(".__init__")
    if name.endswith(f".{function.__name__}") and next(iter(parameters)) == "self":
        name = f"{type(arguments[0]).__name__}.{function.__name__}"  # the object's class, not the one that defines it
    near = argument_meant(unknown, names)
    raise UnknownArgumentError(f"{name}() has no argument {unknown!r}{near}; {takes}") from None


def _keyword(option: str | Parameter) -> Parameter:
    if isinstance(option, Parameter):
        return option.replace(kind=Parameter.KEYWORD_ONLY)
    return Parameter(option, Parameter.KEYWORD_ONLY, default=LEFT_OUT)
