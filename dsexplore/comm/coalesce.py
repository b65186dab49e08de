"""Several collectives launched as one: torch's coalescing manager, with the log and errors of this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as td
from torch.distributed import distributed_c10d as c10d

from dsexplore.comm.faults import explain
from dsexplore.comm.handles import CopyBack, Handle, fail, finish
from dsexplore.comm.logger import comms_logger
from dsexplore.comm.records import Record

_open: dict[Any, Batch] = {}
"""The batch that each group is collecting calls for."""


class Batch:
    """The calls of one coalesced launch."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.copies: list[CopyBack] = []
        self.works: list[Any] = []

    def add(self, records: Sequence[Record], copies: Sequence[CopyBack]) -> None:
        """Take in a call that torch has noted, and will launch with the others."""
        self.records.extend(records)
        self.copies.extend(copies)

    def append(self, work: Any = None) -> None:
        """Take in a handle, as torch's manager lets callers do."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for all calls of the batch."""
        for work in self.works:
            work.wait()


def open_batch(group: Any) -> Batch | None:
    """The batch that calls on this group belong to now."""
    collecting = c10d._world.pg_coalesce_state
    if not collecting or group not in collecting:
        return None
    return _open.get(group) or Batch()


@contextmanager
def coalescing_manager(
    group: Any = None, device: torch.device | None = None, async_ops: bool = False, call: str = "coalesced calls"
) -> Iterator[Batch]:
    """Launch the all_reduces, all_gathers or reduce_scatters of the block as one.

    Args:
        group: the process group of all of them; None for the world.
        device: for backends that coalesce by their own means (NCCL); None where torch fuses the calls (gloo).
        async_ops: return from the block at once; ``wait()`` of what it yields waits for all.
        call: what errors and the log call it.
    """
    live: Any = td.group.WORLD if group is None else group
    batch = _open[live] = Batch()
    try:
        with c10d._coalescing_manager(live, device, async_ops) as manager:
            yield batch
            comms_logger.start_batch(batch.records, async_ops)
    except Exception as error:
        fail(batch.records, error)
        explain(error, call, group)
        raise
    finally:
        del _open[live]
        # torch leaves the list of an interrupted block behind, and would swallow the next calls on the group.
        c10d._world.pg_coalesce_state.pop(live, None)
    if manager.works:
        handle = Handle(manager.works[-1], call, group, batch.records, batch.copies)
        batch.works.extend([*manager.works[:-1], handle])
    else:
        finish(batch.records, batch.copies)
