"""The functions that start processes, the modules of torch to preload in them, and the state of torch in a process."""

from __future__ import annotations

import sys
from typing import Any

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal

START_PROCESSES = TorchName("torch.multiprocessing.spawn:start_processes")
"""The function by which ``torch.multiprocessing.spawn`` starts ranks."""
START_PROCESS = TorchName("multiprocessing.process:BaseProcess.start")
"""The method of Python that starts any other process of a program, such as a worker of a ``DataLoader``."""

PRELOADED = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.distributed.fake_pg",
    "torch._dynamo",
    "torch.profiler._cupti_monitor",  # FSDP2's first forward imports it
)
"""Modules of torch that most programs with several ranks import."""

NOT_PRELOADED = ("torch.cuda", "torch._inductor", "torch.testing", "torch.utils.tensorboard")
"""Modules of torch that may look for a GPU when they are imported, or that few programs need."""


def clear_compiler_cache() -> None:
    """Clear the compiler's cache of functions that it knows, if the compiler is loaded.

    Each ``init_process_group`` clears it too. In a forked process, that would copy the memory that the fork shares.
    """
    if "torch._dynamo" in sys.modules:
        internal("torch._dynamo.trace_rules:clear_lru_cache", otherwise=lambda: None)()


def has_cuda_context(device: int) -> bool:
    """Return True if this process itself has a CUDA context on a GPU; False in a build without CUDA."""
    has_context: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return has_context is not None and bool(has_context(device))
