"""Disk throughput: a DeepSpeed-compatible asynchronous I/O engine, a sweep of its settings, and what checkpoints take.

The names below are imported on first use; torch only if a tensor is involved.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsexplore._internal.aio.aio_constants import AIO as AIO
from dsexplore._internal.aio.aio_constants import AIO_BLOCK_SIZE as AIO_BLOCK_SIZE
from dsexplore._internal.aio.aio_constants import AIO_BLOCK_SIZE_DEFAULT as AIO_BLOCK_SIZE_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_FORMAT as AIO_FORMAT
from dsexplore._internal.aio.aio_constants import AIO_INTRA_OP_PARALLELISM as AIO_INTRA_OP_PARALLELISM
from dsexplore._internal.aio.aio_constants import AIO_INTRA_OP_PARALLELISM_DEFAULT as AIO_INTRA_OP_PARALLELISM_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_OVERLAP_EVENTS as AIO_OVERLAP_EVENTS
from dsexplore._internal.aio.aio_constants import AIO_OVERLAP_EVENTS_DEFAULT as AIO_OVERLAP_EVENTS_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_QUEUE_DEPTH as AIO_QUEUE_DEPTH
from dsexplore._internal.aio.aio_constants import AIO_QUEUE_DEPTH_DEFAULT as AIO_QUEUE_DEPTH_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_SINGLE_SUBMIT as AIO_SINGLE_SUBMIT
from dsexplore._internal.aio.aio_constants import AIO_SINGLE_SUBMIT_DEFAULT as AIO_SINGLE_SUBMIT_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_THREAD_COUNT as AIO_THREAD_COUNT
from dsexplore._internal.aio.aio_constants import AIO_THREAD_COUNT_DEFAULT as AIO_THREAD_COUNT_DEFAULT
from dsexplore._internal.aio.aio_constants import AIO_USE_GDS as AIO_USE_GDS
from dsexplore._internal.aio.aio_constants import AIO_USE_GDS_DEFAULT as AIO_USE_GDS_DEFAULT

if TYPE_CHECKING:
    from dsexplore._internal.aio.aio_config import AioConfig as AioConfig
    from dsexplore._internal.aio.buffers import Buffer as Buffer
    from dsexplore._internal.aio.checkpoints.checkpoint_rates import CheckpointRates as CheckpointRates
    from dsexplore._internal.aio.checkpoints.checkpoint_rates import checkpoint_rates as checkpoint_rates
    from dsexplore._internal.aio.checkpoints.direct_files import load_file as load_file
    from dsexplore._internal.aio.checkpoints.direct_files import save_file as save_file
    from dsexplore._internal.aio.checkpoints.loading import loading as loading
    from dsexplore._internal.aio.checkpoints.loading_result import LoadingResult as LoadingResult
    from dsexplore._internal.aio.checkpoints.predict_checkpoint import CheckpointCost as CheckpointCost
    from dsexplore._internal.aio.data_loaders.feeding import feeding as feeding
    from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult as FeedingResult
    from dsexplore._internal.aio.deepspeed_operator import aio_read as aio_read
    from dsexplore._internal.aio.deepspeed_operator import aio_write as aio_write
    from dsexplore._internal.aio.deepspeed_operator import install as install
    from dsexplore._internal.aio.deepspeed_operator import uninstall as uninstall
    from dsexplore._internal.aio.handle import aio_handle as aio_handle
    from dsexplore._internal.aio.offload import OffloadCost as OffloadCost
    from dsexplore._internal.aio.sustained import SustainedWrites as SustainedWrites
    from dsexplore._internal.aio.sustained import sustained_writes as sustained_writes
    from dsexplore._internal.aio.sweeps.result import SweepResult as SweepResult
    from dsexplore._internal.aio.sweeps.sweeping import sweep as sweep

_HOMES = {
    "AioConfig": "aio_config",
    "Buffer": "buffers",
    "CheckpointCost": "checkpoints.predict_checkpoint",
    "CheckpointRates": "checkpoints.checkpoint_rates",
    "FeedingResult": "data_loaders.feeding_result",
    "LoadingResult": "checkpoints.loading_result",
    "OffloadCost": "offload",
    "SustainedWrites": "sustained",
    "SweepResult": "sweeps.result",
    "aio_handle": "handle",
    "aio_read": "deepspeed_operator",
    "aio_write": "deepspeed_operator",
    "checkpoint_rates": "checkpoints.checkpoint_rates",
    "feeding": "data_loaders.feeding",
    "install": "deepspeed_operator",
    "load_file": "checkpoints.direct_files",
    "loading": "checkpoints.loading",
    "save_file": "checkpoints.direct_files",
    "sustained_writes": "sustained",
    "sweep": "sweeps.sweeping",
    "uninstall": "deepspeed_operator",
}

__all__ = [*_HOMES, *(name for name in dir() if name.startswith("AIO"))]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsexplore.aio' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"dsexplore._internal.aio.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
