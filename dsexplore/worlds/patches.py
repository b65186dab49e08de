"""Changes to torch that last as long as a world is open, and are undone in reverse order.

`Patches.attribute` replaces what an object holds under a name. A function which a user imported by name
(``from torch.distributed import init_process_group``) before the world was opened is not reached so;
`Patches.function` does: it exchanges the function's code, so every reference to it follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FunctionType
from typing import Any

_replacements: dict[str, Callable[..., Any]] = {}


class Patches:
    """A set of changes; `undo` takes all of them back, whatever happens in between."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to a value; an attribute that was only inherited is removed again."""
        missing = object()
        own = vars(owner).get(name, missing)
        setattr(owner, name, value)
        if own is missing:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, own)

    def inherited(self, owner: type, name: str) -> None:
        """Make a class have what its base classes hold under a name, in place of its own."""
        own = vars(owner)[name]
        delattr(owner, name)
        self._stack.callback(setattr, owner, name, own)

    def item(self, mapping: dict[str, Any], key: str, value: Any) -> None:
        """Set ``mapping[key]`` of a key that is there already."""
        self._stack.callback(mapping.__setitem__, key, mapping[key])
        mapping[key] = value

    def function(self, function: Callable[..., Any], build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Make every reference to a function call ``build(original)`` instead.

        Args:
            function: a Python function, decorated with `functools.wraps` or plain.
            build: gets a callable that does what the function did, and returns what it shall do now.
        """
        inner = inspect.unwrap(function, stop=_is_replaced)
        assert isinstance(inner, FunctionType), f"{function} is no Python function"
        assert not _is_replaced(inner), f"{inner.__qualname__} is replaced already"
        assert not inner.__code__.co_freevars, f"{inner.__qualname__} closes over variables"
        key = f"{inner.__module__}.{inner.__qualname__}"
        original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
        original.__kwdefaults__ = inner.__kwdefaults__
        original.__annotations__ = inner.__annotations__
        _replacements[key] = build(original)
        self._stack.callback(_restore, inner, original, key)
        # Defaults belong to the old signature: they must be gone before the new code can be called.
        inner.__defaults__ = inner.__kwdefaults__ = None
        inner.__code__ = _jump_to(key).__code__
        # Where `inspect` finds source and signature, of which TorchScript compiles what a program imports meanwhile.
        inner.__wrapped__ = original  # type: ignore[attr-defined] # functions have any attribute

    def callback(self, function: Callable[..., Any], *args: Any) -> None:
        """Call that when the changes are undone."""
        self._stack.callback(function, *args)

    def undo(self) -> None:
        """Take everything back; a second call does nothing."""
        self._stack.close()


def _jump_to(key: str) -> FunctionType:
    """A function without free variables that hands its arguments on to the replacement of that name."""
    scope: dict[str, Any] = {}
    exec(
        f"def jump(*args, **kwargs):\n"
        f"    from {__name__} import _replacements\n"
        f"    return _replacements[{key!r}](*args, **kwargs)\n",
        scope,
    )
    jump = scope["jump"]
    assert isinstance(jump, FunctionType)
    return jump


def _is_replaced(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and is_jump(code)


def is_jump(code: CodeType) -> bool:
    """Whether code is that which `Patches.function` gives a function, to call what replaces it."""
    return (code.co_filename, code.co_name) == ("<string>", "jump")


def _restore(function: FunctionType, original: FunctionType, key: str) -> None:
    function.__code__ = original.__code__
    function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    vars(function).pop("__wrapped__", None)  # Ctrl-C may have come before it was set
    _replacements.pop(key, None)
