"""Replace DeepSpeed's ``aio_handle`` by this package's, for a job that keeps states on a disk.

DeepSpeed's swappers make their handles of what ``AsyncIOBuilder().load()`` returns, so that is what is replaced:
nothing is compiled, a trace sees each read, write and wait, and lost bytes are errors. Handles made before stay
DeepSpeed's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any, cast

from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.single_transfers import aio_read, aio_write
from dsexplore._internal.errors import UsageError

_OURS = {"aio_handle": aio_handle, "aio_read": aio_read, "aio_write": aio_write}
_NAME = "async_io"
"""Name of the operator in DeepSpeed's builder; derived builders, such as GPUDirect Storage's, have another."""


class ReplacedOperator(AbstractContextManager["ReplacedOperator"]):
    """The replacement of DeepSpeed's operator, until the end of a ``with`` block or `uninstall`."""

    def __init__(self, builder: type) -> None:
        self._builder = cast("Any", builder)
        self._original = vars(builder).get("load")
        """DeepSpeed's method if the class itself has it, as opposed to a base."""
        theirs = self._builder.load

        def load(self: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the operator with this package's functions."""
            if getattr(self, "NAME", _NAME) != _NAME:
                return theirs(self, *args, **kwargs)
            return _Operator(lambda: theirs(self, *args, **kwargs))

        self._builder.load = load

    def close(self) -> None:
        """Restore DeepSpeed's own method."""
        if self._original is None:
            del self._builder.load
        else:
            self._builder.load = self._original

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        uninstall()


class _Operator(ModuleType):
    """DeepSpeed's compiled module with this package's handle; compiled only if something else of it is asked for."""

    def __init__(self, compiled: Any) -> None:
        super().__init__(_NAME)
        self.__dict__.update(_OURS)
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled(), name)


_installed: ReplacedOperator | None = None


def install() -> ReplacedOperator:
    """Replace DeepSpeed's ``aio_handle``, so that a trace sees what ZeRO-Infinity moves to and from a disk.

    Call it before ``deepspeed.initialize``. A second call changes nothing::

        dsexplore.aio.install()
        engine, *_ = deepspeed.initialize(model=model, config=config)
        with dsexplore.commtrace() as trace:
            ...
        trace.io_waits()

    Returns:
        a context manager that undoes it at the end of its block, as does `uninstall`.

    Raises:
        UsageError: DeepSpeed is not installed.

    Examples:
        >>> from contextlib import suppress
        >>> with suppress(dsexplore.UsageError), dsexplore.aio.install():  # where DeepSpeed is installed
        ...     pass  # handles that DeepSpeed makes in this block are ours
    """
    global _installed
    if _installed is None:
        try:
            from deepspeed.ops.op_builder import AsyncIOBuilder
        except ImportError as error:
            raise UsageError(f"there is no DeepSpeed whose aio_handle could be replaced: {error}") from None
        _installed = ReplacedOperator(AsyncIOBuilder)
    return _installed


def uninstall() -> None:
    """Undo `install`; without effect if nothing is installed. Handles that were made meanwhile stay.

    Examples:
        >>> dsexplore.aio.uninstall()
    """
    global _installed
    if _installed is not None:
        _installed.close()
        _installed = None
