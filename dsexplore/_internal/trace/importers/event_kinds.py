"""Which events of a profile are about communication, by their category and name, and how each is read."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from dsexplore._internal.trace.importers.communication_kernels import is_communication

Event = dict[str, Any]

_RANGES = ("nn.Module: ", "autograd::engine::evaluate_function")
"""Start of the names of the most frequent CPU ranges."""
_OP_CATEGORIES = ("cpu_op", "Operator")
_NAMES = (
    *("record_param_comms", "c10d::", "gloo:", "nccl:"),
    *("ProfilerStep#", "Optimizer."),  # whatever their category: old files have them among the ops
)
_BEGIN = re.compile(rb'\s*"[^"]*"(?:,\s*"cat":\s*"([^"]*)")?,\s*"name":\s*"((?:[^"\\]|\\.)*)"')


class EventKind(Enum):
    """Way to read events of one category and name."""

    NOTHING = 0
    EVENT = 1
    RANGE = 2
    KERNEL = 3
    """A collective if it is described as one, else a compute kernel."""
    LAUNCH = 4


class EventKinds(dict[bytes, EventKind]):
    """The kind of each event, by the text before its ``pid``, which is category and name as torch writes them.

    Few of these texts differ, and each is examined once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.categories: set[str] = set()

    def __missing__(self, begin: bytes) -> EventKind:
        match = _BEGIN.match(begin)
        kind = EventKind.EVENT
        if match:
            category = (match[1] or b"").decode(errors="replace")
            self.categories.add(category)
            kind = _kind_of(category, match[2].decode(errors="replace"))
        self[begin] = kind
        return kind


def _kind_of(category: str, name: str) -> EventKind:
    if name.startswith(_RANGES):
        return EventKind.RANGE
    if is_kept(category, name):
        return EventKind.EVENT
    if is_kernel(category):
        return EventKind.KERNEL
    return EventKind.LAUNCH if is_launch(category, name) else EventKind.NOTHING


def is_launch(category: str, name: str) -> bool:
    """Return True if events of that category and name launch kernels: ``cudaLaunchKernelExC``, ``hipGraphLaunch``."""
    return category.lower().endswith(("runtime", "driver")) and "launch" in name.lower()


def is_kept(category: str, name: str) -> bool:
    """Return True if an event of that category and name is about communication, or is a range of the program."""
    if name.startswith((*_NAMES, *_RANGES)) or category.endswith("user_annotation"):
        return True
    return (is_kernel(category) and is_communication(name)) or (category in _OP_CATEGORIES and is_library_op(name))


def is_library_op(name: str) -> bool:
    """Return True if an op on the CPU communicates, or stands for the kernels of a library that do.

    Such are ``c10d::allreduce_``, ``symm_mem::multimem_all_reduce_`` and ``vllm::all_reduce``.
    """
    return name.startswith("c10d::") or ("::" in name and not name.startswith(_RANGES) and is_communication(name))


def is_kernel(category: str) -> bool:
    """Return True if events of that category ran on a GPU."""
    return category.lower() == "kernel"
