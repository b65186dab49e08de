"""Functions that a world replaces in torch accept every call that torch's own accept.

Modules: ``worlds/patch_table.py``, ``torch_internals/patches.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dsexplore._internal.torch_internals.patches import Patches
from dsexplore._internal.worlds.simulate import simulate

Change = tuple[str, Callable[..., Any], Callable[..., Any]]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[Change]:
    """Return all functions that a world replaces: name, torch's own, the world's."""
    made: list[Change] = []
    function, attribute = Patches.function, Patches.attribute

    def noted_function(patches: Patches, changed: Callable[..., Any], build: Callable[..., Any]) -> None:
        def noted(original: Callable[..., Any]) -> Callable[..., Any]:
            made.append((changed.__qualname__, original, build(original)))
            return made[-1][2]

        function(patches, changed, noted)

    def noted_attribute(patches: Patches, owner: Any, name: str, value: Any) -> None:
        if callable(value) and inspect.isroutine(original := getattr(owner, name, None)) and has_signature(original):
            made.append((f"{owner.__name__}.{name}", getattr(owner, name), value))
        attribute(patches, owner, name, value)

    monkeypatch.setattr(Patches, "function", noted_function)
    monkeypatch.setattr(Patches, "attribute", noted_attribute)
    with simulate(4, fake=True):
        pass
    return made


def has_signature(function: Callable[..., Any]) -> bool:
    """Return True if a function has a signature; functions of C++ have none."""
    try:
        inspect.signature(function)
    except ValueError:
        return False
    return True


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = [*inspect.signature(function).parameters.values()]
    return found[1:] if found and found[0].name in ("self", "cls") else found


def own(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the replacement itself, not that of the function that it wraps."""
    if isinstance(function, staticmethod):
        function = function.__func__
    return inspect.signature(function, follow_wrapped=False)


def test_every_replacement_takes_all_arguments_by_place_and_by_name(changes: list[Change]) -> None:
    assert len(changes) > 25
    for name, original, replacement in changes:
        takes = [each for each in parameters(original) if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        is_method = not {"self", "cls"}.isdisjoint(inspect.signature(original).parameters)
        first = () if not is_method or inspect.isclass(replacement) else (object(),)
        by_place = [object() for each in takes if each.kind is not each.KEYWORD_ONLY]
        only_by_name = {each.name: object() for each in takes if each.kind is each.KEYWORD_ONLY}
        by_name = {each.name: object() for each in takes if each.kind is not each.POSITIONAL_ONLY}
        try:
            own(replacement).bind(*first, *by_place, **only_by_name)
            if not any(each.kind is each.POSITIONAL_ONLY for each in takes):
                own(replacement).bind(*first, **by_name)
        except TypeError as error:
            pytest.fail(f"{name}{inspect.signature(original)} is replaced by {own(replacement)}: {error}")


def sent(tensor: int, *, tag: str = "none") -> tuple[int, str]:
    return tensor, tag


class TestReplacedFunction:
    """A function that `Patches.function` replaces keeps its source and signature, and is restored afterwards."""

    @staticmethod
    def looked_at() -> tuple[Any, ...]:
        return inspect.getsource(sent), inspect.signature(sent), inspect.unwrap(sent).__annotations__

    def test_source_and_signature_are_its_own(self) -> None:
        before, patches = self.looked_at(), Patches()
        patches.function(sent, lambda original: lambda *args, **kwargs: (*original(*args, **kwargs), "changed"))
        try:
            assert sent(1, tag="x") == (1, "x", "changed")
            assert self.looked_at() == before
        finally:
            patches.undo()
        assert sent(1) == (1, "none")
        assert vars(sent) == {}

    def test_twice_replaced(self) -> None:
        outer, inner = Patches(), Patches()
        outer.function(sent, lambda original: lambda *args: (*original(*args), "outer"))
        before = self.looked_at()
        try:
            with pytest.raises(AssertionError, match="sent is replaced already"):
                inner.function(sent, lambda original: lambda *args: (*original(*args), "inner"))
            assert sent(1) == (1, "none", "outer")
            assert self.looked_at() == before
        finally:
            inner.undo()
            outer.undo()
        assert sent(1) == (1, "none")
