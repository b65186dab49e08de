"""`Displayable`: the base class of objects that display themselves in notebooks; `Result`: one with a conclusion.

The views of objects are in ``views``, which imports the classes that it shows. Lower floors reach them only through
this module, which looks up the view of an object's class when the object is shown. `Displayable.figure` and similar
methods have the options, the signature and the documentation of that view: ``trace.figure?`` lists the options, and Tab
completes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, update_wrapper
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from dsexplore._internal.signatures import names_arguments_of_methods, refuse_unknown

if TYPE_CHECKING:
    import polars
    from plotly.graph_objects import Figure

    from dsexplore._internal.views.view import View
    from dsexplore._internal.views.widgets.live import LiveBox, LiveView

Returned = TypeVar("Returned", covariant=True)


class OptionsOfView(Generic[Returned]):
    """A method that accepts the options of a method of the object's view, with its signature and documentation.

    Args:
        of_view: name of the view's method.
        method: function that is called with the object, its own arguments, and the options as keywords.
    """

    def __init__(self, of_view: str, method: Callable[..., Returned]) -> None:
        self._of_view = of_view
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, shown: object | None, owner: type) -> Callable[..., Returned]:
        bound = _add_options_of_view(self.method, self._of_view, owner)
        return bound if shown is None else MethodType(bound, shown)


def _options_of_view(of_view: str) -> Callable[[Callable[..., Returned]], OptionsOfView[Returned]]:
    return lambda method: OptionsOfView(of_view, method)


@cache
def _add_options_of_view(method: Callable[..., Returned], of_view: str, kind: type) -> Callable[..., Returned]:
    """Return a method with the options of a view in its signature; unchanged if the class has no view.

    Args:
        method: method of `Displayable`.
        of_view: name of the view's method whose options it accepts.
        kind: class of the object.
    """
    from dsexplore._internal.views import view_class

    view = view_class(kind)
    if view is None:
        return method
    view_method = getattr(view, of_view)
    parameters = [
        parameter for parameter in signature(method).parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD
    ]
    options = list(signature(view_method).parameters.values())[1:]  # without self
    names = [parameter.name for parameter in (*parameters, *options)][1:]

    def call(self: Displayable, *args: Any, **kwargs: Any) -> Returned:
        if len(args) > len(names):
            raise TypeError(f"{method.__name__}() takes {len(names)} arguments at most, not {len(args)}")
        refuse_unknown(call, (self, *args), kwargs)
        return method(self, **dict(zip(names, args, strict=False)), **kwargs)

    update_wrapper(call, method)
    call.__signature__ = Signature([*parameters, *options])  # type: ignore[attr-defined]  # inspect.signature reads it
    call.__doc__ = "\n\n".join(text for text in (getdoc(method), getdoc(view_method)) if text)
    return call


class Displayable:
    """An object that displays itself in notebooks, and can be written to an HTML file."""

    _INTERNAL: ClassVar[frozenset[str]] = frozenset()
    """Attributes for other modules of the package, which Tab completion omits."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names_arguments_of_methods(cls)

    def __dir__(self) -> list[str]:
        """Return the names for users, without `_INTERNAL`."""
        return sorted({*super().__dir__()} - self._INTERNAL)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = _view(self)
        return {"text/plain": view.text(), "text/html": view.html()}

    @_options_of_view("page")
    def to_html(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write one self-contained HTML file and return its path."""
        target = Path(path)
        view: Any = _view(self)
        target.write_text(view.page(**options), encoding="utf-8")
        return target

    @_options_of_view("figure")
    def figure(self, **options: Any) -> Figure:
        """Return a plotly ``Figure``; its notebook output includes a static picture for readers without plotly."""
        figure: Figure = _view(self).figure_with_twin(**options)
        return figure

    @_options_of_view("explore")
    def explore(self, **options: Any) -> LiveView | LiveBox:
        """Return an interactive view of this object; show it as the last expression of a cell."""
        view: Any = _view(self)
        explorer: LiveView | LiveBox = view.explore(**options)
        return explorer


class Result(Displayable):
    """Conclusion of an analysis or a measurement. Its numbers are fields with units."""

    def verdict(self) -> str:
        """Return the conclusion in one sentence."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """Return the verdict, its reasons, its limits, and suggested changes, one sentence each."""
        return [self.verdict()]

    def to_frame(self) -> polars.DataFrame:
        """Return the result as a table."""
        raise NotImplementedError


def plain_text(shown: Displayable) -> str:
    """Return the text of an object for a terminal, without creating its HTML."""
    return _view(shown).text()


def _view(shown: Displayable) -> View:
    from dsexplore._internal.views import view_of  # views are imported when an object is shown

    return view_of(shown)
