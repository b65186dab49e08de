"""Decide by category and name which events of a profile are read, and how much of each.

A profile has millions of events and few concern communication, so most of them are skipped without being parsed.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from dsexplore._internal.trace.importers.communication_kernels import is_communication

Event = dict[str, Any]

_RANGES = ("nn.Module: ", "autograd::engine::evaluate_function")
"""Start of the names of the most frequent CPU ranges: calls of modules, and autograd nodes."""
_OP_CATEGORIES = ("cpu_op", "Operator")
_NAMES = ("record_param_comms", "c10d::", "gloo:", "nccl:", "ProfilerStep#", "Optimizer.")
"""Start of the names of events that are read in any category: old files have steps among the ops."""
_BEGIN = re.compile(rb'\s*"[^"]*"(?:,\s*"cat":\s*"([^"]*)")?,\s*"name":\s*"((?:[^"\\]|\\.)*)"')
"""Matches the text of an event between ``"ph":`` and ``"pid"``, with category and name."""


class EventKind(Enum):
    """How events of one category and name are read."""

    SKIPPED = 0
    """Events that are not parsed."""
    EVENT = 1
    """Events that are parsed as a whole."""
    RANGE = 2
    """Events that are parsed only on threads that issue collectives."""
    KERNEL = 3
    """Events that are parsed as a whole if described as a collective; else only their device and time are."""
    LAUNCH = 4
    """Events that are parsed only if they launched a kernel that communicates."""


class EventKinds(dict[bytes, EventKind]):
    """{text of an event between ``"ph":`` and ``"pid"``: its kind}; each distinct text is examined once.

    A text that is not in the usual form, with a name as its second or third value, is of kind `EventKind.EVENT`.

    Attributes:
        categories: Categories of all events that were looked up.
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
    """Return the kind of an event. Ranges come first: `is_kept` is true of them too."""
    if name.startswith(_RANGES):
        return EventKind.RANGE
    if is_kept(category, name):
        return EventKind.EVENT
    if is_kernel(category):
        return EventKind.KERNEL
    return EventKind.LAUNCH if is_launch(category, name) else EventKind.SKIPPED


def is_launch(category: str, name: str) -> bool:
    """Return True if an event launches kernels: ``cudaLaunchKernelExC``, ``hipGraphLaunch``."""
    return category.lower().endswith(("runtime", "driver")) and "launch" in name.lower()


def is_kept(category: str, name: str) -> bool:
    """Return True if an event is about communication, or is a range of the program.

    `execution_trace` and `profiler_file` ask this of events that they have parsed.
    """
    if name.startswith((*_NAMES, *_RANGES)) or category.endswith("user_annotation"):
        return True
    return (is_kernel(category) and is_communication(name)) or (category in _OP_CATEGORIES and is_library_op(name))


def is_library_op(name: str) -> bool:
    """Return True if an op on the CPU communicates, or launches a kernel that does: ``vllm::all_reduce``."""
    return name.startswith("c10d::") or ("::" in name and not name.startswith(_RANGES) and is_communication(name))


def is_kernel(category: str) -> bool:
    """Return True if events of that category are kernels on a GPU."""
    return category.lower() == "kernel"
