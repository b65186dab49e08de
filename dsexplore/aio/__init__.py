"""Disk throughput: a DeepSpeed-compatible asynchronous I/O engine, and the sweep that finds its best setting.

The names below are imported when first used; torch only when a tensor is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsexplore.aio.aio_constants import (
    AIO,
    AIO_BLOCK_SIZE,
    AIO_BLOCK_SIZE_DEFAULT,
    AIO_FORMAT,
    AIO_INTRA_OP_PARALLELISM,
    AIO_INTRA_OP_PARALLELISM_DEFAULT,
    AIO_OVERLAP_EVENTS,
    AIO_OVERLAP_EVENTS_DEFAULT,
    AIO_QUEUE_DEPTH,
    AIO_QUEUE_DEPTH_DEFAULT,
    AIO_SINGLE_SUBMIT,
    AIO_SINGLE_SUBMIT_DEFAULT,
    AIO_THREAD_COUNT,
    AIO_THREAD_COUNT_DEFAULT,
    AIO_USE_GDS,
    AIO_USE_GDS_DEFAULT,
)

if TYPE_CHECKING:
    from dsexplore.aio.aio_config import AioConfig as AioConfig
    from dsexplore.aio.buffers import Buffer as Buffer
    from dsexplore.aio.handle import aio_handle as aio_handle
    from dsexplore.aio.handle import aio_read as aio_read
    from dsexplore.aio.handle import aio_write as aio_write
    from dsexplore.aio.result import SweepResult as SweepResult
    from dsexplore.aio.sweeping import sweep as sweep

_HOMES = {
    "AioConfig": "aio_config",
    "Buffer": "buffers",
    "SweepResult": "result",
    "aio_handle": "handle",
    "aio_read": "handle",
    "aio_write": "handle",
    "sweep": "sweeping",
}

__all__ = [
    "AIO",
    "AIO_BLOCK_SIZE",
    "AIO_BLOCK_SIZE_DEFAULT",
    "AIO_FORMAT",
    "AIO_INTRA_OP_PARALLELISM",
    "AIO_INTRA_OP_PARALLELISM_DEFAULT",
    "AIO_OVERLAP_EVENTS",
    "AIO_OVERLAP_EVENTS_DEFAULT",
    "AIO_QUEUE_DEPTH",
    "AIO_QUEUE_DEPTH_DEFAULT",
    "AIO_SINGLE_SUBMIT",
    "AIO_SINGLE_SUBMIT_DEFAULT",
    "AIO_THREAD_COUNT",
    "AIO_THREAD_COUNT_DEFAULT",
    "AIO_USE_GDS",
    "AIO_USE_GDS_DEFAULT",
    "AioConfig",
    "Buffer",
    "SweepResult",
    "aio_handle",
    "aio_read",
    "aio_write",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsexplore.aio' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"dsexplore.aio.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
