"""Signatures of public functions: for ``?`` and Tab completion, and to suggest a name for a misspelled argument."""

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
    """The default of an argument that changes nothing if omitted."""

    def __repr__(self) -> str:
        return "…"


LEFT_OUT: Any = _LeftOut()


def with_options(options: Iterable[str | Parameter]) -> Callable[[Function], Function]:
    """Show keyword arguments in a function's signature in place of its ``**``.

    Args:
        options: names of optional arguments, or parameters of another function.
    """

    def shown(function: Function) -> Function:
        parameters = signature(function).parameters.values()
        kept = [parameter for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
        names = {parameter.name for parameter in kept}
        more = [_keyword(option) for option in options]
        its = Signature([*kept, *(option for option in more if option.name not in names)])
        function.__signature__ = its  # type: ignore[attr-defined]  # read by inspect.signature
        return function

    return shown


class UnknownArgumentError(UsageError, TypeError):
    """A keyword argument that a function does not take; a TypeError, as Python raises."""


def names_arguments(function: Function) -> Function:
    """Decorate a public function to suggest the right name if a call misspells an argument.

    Correct calls cost one more frame.
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
    """Raise if a function was called with a keyword argument that it does not take.

    Args:
        function: what was called.
        arguments: positional arguments; the first of a method is its object, whose class is named.
        options: names of the keyword arguments.

    Raises:
        UnknownArgumentError: naming the argument that was meant, and those that the function takes.
    """
    parameters = signature(function).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    names = [name for name in names if name not in ("self", "cls")]
    for given in options:
        if given not in names:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            name = function.__qualname__.removesuffix(".__init__")
            if name.endswith(f".{function.__name__}") and next(iter(parameters)) == "self":
                name = f"{type(arguments[0]).__name__}.{function.__name__}"  # not the base class that defines it
            near = argument_meant(given, names)
            raise UnknownArgumentError(f"{name}() has no argument {given!r}{near}; {takes}") from None


def _keyword(option: str | Parameter) -> Parameter:
    if isinstance(option, Parameter):
        return option.replace(kind=Parameter.KEYWORD_ONLY)
    return Parameter(option, Parameter.KEYWORD_ONLY, default=LEFT_OUT)
