"""Records I/O: the transfers of `dsexplore.aio`, and the waits of a program for its next batch of input.

Each has the phase, module and line in which it began, read off the stack as for collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from dsexplore._internal import io_accesses
from dsexplore._internal.capture.collectives.issued_collective import Origin
from dsexplore._internal.capture.content.recorded_tables import Columns
from dsexplore._internal.capture.stack.source_lines import source_texts
from dsexplore._internal.capture.timing.work_timing import Clock
from dsexplore._internal.io_accesses import IoOp
from dsexplore._internal.torch_internals.data_loading import NEXT_BATCH, dataset_name
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all


@dataclass(slots=True, eq=False)
class IoAccess:
    """One read, write or wait."""

    op: IoOp
    path: str
    """The file; for a wait for input, the name of the dataset."""
    nbytes: int | None
    """None for a wait."""
    origin: Origin
    now: Clock
    """The clock of `start` and `end`."""
    start: int
    """Nanoseconds since the epoch."""
    end: int | None = None
    """Nanoseconds since the epoch; None while it runs."""

    def ends(self) -> None:
        """Record that it ends now."""
        self.end = self.now()


def io_columns(accesses: Sequence[tuple[int, IoAccess]], rank: int, stack_depth: int) -> Columns:
    """Return {column of `schema.IO`: one value per access}.

    Args:
        accesses: (number of its step, access) pairs, in program order.
        rank: the rank that recorded them.
        stack_depth: the number of the user's lines to name.
    """
    listed = [access for _, access in accesses]
    origins = [access.origin for access in listed]
    return {
        "rank": [rank] * len(listed),
        "step": [step for step, _ in accesses],
        "seq": list(range(len(listed))),
        "op": [access.op for access in listed],
        "path": [access.path for access in listed],
        "bytes": [access.nbytes for access in listed],
        "phase": [origin.phase for origin in origins],
        "module": [origin.trigger.name if origin.trigger else "" for origin in origins],
        "source": source_texts([origin.sources[:stack_depth] for origin in origins]),
        "start": [access.start for access in listed],
        "end": [access.end for access in listed],
    }


def observe_input() -> Callable[[], None]:
    """Report each wait for the next batch of a ``torch.utils.data.DataLoader``; return a function that ends this."""
    patches = Patches()
    install_all(PATCHES, {"always"}, patches, Parts())
    return patches.undo


def _timed(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Wrap the ``__next__`` of a data loader's iterator to report how long it takes."""

    @wraps(original)
    def __next__(iterator: Any) -> Any:
        access = io_accesses.begins("input", dataset_name(iterator))
        try:
            return original(iterator)
        finally:
            if access is not None:
                access.ends()

    return __next__


PATCHES: tuple[Entry, ...] = (Patch(NEXT_BATCH, "a program waits in it for its next batch", _timed),)
"""Functions that are replaced while input is observed."""
