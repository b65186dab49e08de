"""The functions of DeepSpeed's operator ``async_io`` besides its handle, and `install`, which replaces the operator.

DeepSpeed's swappers create their handles with the module that ``AsyncIOBuilder().load()`` returns, so `install`
replaces that method: nothing is compiled, a trace sees each read, write and wait, and lost bytes raise errors. Handles
that were created before stay DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any, cast

from dsexplore._internal.aio.handle import File, aio_handle
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments


@names_arguments
def aio_read(
    buffer: object,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Fill `buffer` from the start of a file, without keeping a handle; return 0 when done.

    Raises:
        OSError: the file cannot be read, or ends too early (ENODATA).

    Examples:
        >>> _ = Path("tensor.bin").write_bytes(bytes(4096))
        >>> tensor = torch.ones(4096, dtype=torch.uint8)
        >>> aio_read(tensor, "tensor.bin", 1 << 20, 32, False, True, True)
        0
        >>> int(tensor.sum())
        0
    """
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.read(buffer, filename, validate)


@names_arguments
def aio_write(
    buffer: object,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Write `buffer` to the start of a file, without keeping a handle; return 0 when done.

    Raises:
        OSError: the file cannot be written; ENOSPC when the disk is full.

    Examples:
        >>> tensor = torch.arange(4096, dtype=torch.uint8)
        >>> aio_write(tensor, "tensor.bin", 1 << 20, 32, False, True, True)
        0
        >>> Path("tensor.bin").stat().st_size
        4096
    """
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.write(buffer, filename, validate)


_OURS = {"aio_handle": aio_handle, "aio_read": aio_read, "aio_write": aio_write}
_NAME = "async_io"
"""Name of the operator in DeepSpeed's builder; derived builders, such as that of GPUDirect Storage, have others."""


class ReplacedOperator(AbstractContextManager["ReplacedOperator"]):
    """The replacement of DeepSpeed's operator, until the end of a ``with`` block or `uninstall`."""

    def __init__(self, builder: type) -> None:
        self._builder = cast("Any", builder)
        self._original = vars(builder).get("load")
        """DeepSpeed's method if the class itself defines it; None if it inherits the method."""
        original = self._builder.load

        def load(self: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the operator with this package's functions."""
            if getattr(self, "NAME", _NAME) != _NAME:
                return original(self, *args, **kwargs)
            return _Operator(lambda: original(self, *args, **kwargs))

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
    """The operator's module with this package's functions; other names compile and load DeepSpeed's.

    Args:
        compiled: returns DeepSpeed's compiled module.
    """

    def __init__(self, compiled: Callable[[], Any]) -> None:
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
        A context manager that restores DeepSpeed's operator at the end of its block, as `uninstall` does.

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
    """Undo `install`; without effect if nothing is installed. Handles that were created meanwhile stay.

    Examples:
        >>> dsexplore.aio.uninstall()
    """
    global _installed
    if _installed is not None:
        _installed.close()
        _installed = None
