"""Processes: the functions that start them, and what torch loads and keeps in one."""

from __future__ import annotations

import sys
from typing import Any

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal

START_PROCESSES = TorchName("torch.multiprocessing.spawn:start_processes")
"""The function by which ``torch.multiprocessing.spawn`` starts ranks."""
NEXT_BATCH = TorchName("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__")
"""The method that gives the batches of each ``DataLoader``, with workers and without."""
START_PROCESS = TorchName("multiprocessing.process:BaseProcess.start")

PRELOADED = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.distributed.fake_pg",
    "torch._dynamo",
    "torch.profiler._cupti_monitor",  # FSDP2's first forward imports it
)
"""The modules of torch that most programs of several ranks import."""

NOT_PRELOADED = ("torch.cuda", "torch._inductor", "torch.testing", "torch.utils.tensorboard")
"""Modules of torch that may look for a GPU when they are imported, or that few programs need."""


def clear_compilers_lookups() -> None:
    """Empty the compiler's cache of the functions that it knows, where it is loaded.

    Each ``init_process_group`` does so too, and a process forked from this one would copy the memory that it frees.
    """
    if "torch._dynamo" in sys.modules:
        internal("torch._dynamo.trace_rules:clear_lru_cache", otherwise=int)()


def has_cuda_context(device: int) -> bool:
    """Return True if this process itself holds a CUDA context on a GPU; a build without CUDA has none."""
    asked: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return asked is not None and bool(asked(device))


def dataset_name(iterator: Any) -> str:
    """Return the class of the data set that an iterator of a ``DataLoader`` reads; empty where it does not say."""
    dataset = getattr(iterator, "_dataset", None)
    return "" if dataset is None else type(dataset).__name__
