"""Signatures of functions that pass keyword arguments on, so that ``?`` lists these and Tab completes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

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
        own = signature(function).parameters.values()
        kept = [each for each in own if each.kind is not Parameter.VAR_KEYWORD]
        names = {each.name for each in kept}
        more = [_keyword(option) for option in options]
        its = Signature([*kept, *(each for each in more if each.name not in names)])
        function.__signature__ = its  # type: ignore[attr-defined]  # read by inspect.signature
        return function

    return shown


def _keyword(option: str | Parameter) -> Parameter:
    if isinstance(option, Parameter):
        return option.replace(kind=Parameter.KEYWORD_ONLY)
    return Parameter(option, Parameter.KEYWORD_ONLY, default=LEFT_OUT)
