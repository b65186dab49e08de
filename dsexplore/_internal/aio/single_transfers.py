"""DeepSpeed's ``aio_read`` and ``aio_write``: one transfer, with a handle that lives as long as it."""

from __future__ import annotations

from dsexplore._internal.aio.handle import File, aio_handle
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
