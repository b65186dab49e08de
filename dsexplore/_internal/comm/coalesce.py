"""Launch several collectives as one: torch's coalescing manager, with this package's log and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as td

from dsexplore._internal.capture.collectives.issued_collective import Issued, current
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.comm.faults import explain
from dsexplore._internal.comm.handles import CopyBack, Handle, copy_back
from dsexplore._internal.comm.logs.log_records import LoggedCall
from dsexplore._internal.comm.logs.logger import comms_logger
from dsexplore._internal.comm.spellings import Spelling
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.torch_internals import process_groups

BATCH = Spelling("coalesced calls", "coalesced calls", process_groups.coalescing_manager)
_open: dict[Any, Batch] = {}
"""{group: the batch for which it collects calls}."""


class _DeferredCall(NamedTuple):
    """A call that torch launches only at the end of the block."""

    call: LoggedCall
    args: Sequence[object]


class Batch:
    """The calls of one coalesced launch.

    Args:
        collected: torch's list of the calls that it will launch as one collective.
    """

    def __init__(self, collected: Sequence[object] = ()) -> None:
        self.collected = collected
        self.issued: list[Issued] = []
        """Collectives that torch issued immediately, for a backend with its own coalescing."""
        self.deferred: dict[int, _DeferredCall] = {}
        """{position in `collected`: call} of the logged calls that torch will launch as one collective."""
        self.copies: list[CopyBack] = []
        self.works: list[td.Work] = []

    def add(self, call: LoggedCall | None, args: Sequence[object], copies: Sequence[CopyBack]) -> None:
        """Add a call that was made inside the block."""
        if call is not None and call.issued:
            self.issued += call.issued
        elif call is not None:
            self.deferred[len(self.collected) - 1] = _DeferredCall(call, args)
        self.copies.extend(copies)

    def label(self, is_async: bool) -> LoggedCall:
        """Return the label of the one collective that torch launches at the end."""
        members = [
            self.deferred[position].call if position in self.deferred else None
            for position in range(len(self.collected))
        ]
        is_wanted = any(member is not None and member.is_wanted for member in members)
        label = LoggedCall(BATCH, BATCH.name, is_wanted, ends_with_call=not is_async)
        label.members = members
        return label

    def fail(self, error: Exception, group: td.ProcessGroup) -> None:
        """Log the calls of a block that raised before torch launched them."""
        for deferred in self.deferred.values():
            comms_logger.fail(deferred.call, error, deferred.args, group)

    def append(self, work: td.Work | None = None) -> None:
        """Add a handle that `wait` waits for; torch's manager has this method too."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for all calls of the batch."""
        for work in self.works:
            work.wait()


def open_batch(group: Any) -> Batch | None:
    """Return the batch that calls on this group currently belong to; None outside a coalescing block."""
    collecting = process_groups.collected_calls()
    if not collecting or group not in collecting:
        return None
    return _open.get(group) or Batch()


@names_arguments
@contextmanager
def coalescing_manager(
    group: td.ProcessGroup | None = None,
    device: torch.device | None = None,
    async_ops: bool = False,
    call: str = "coalesced calls",
) -> Iterator[Batch]:
    """Launch the all_reduces, all_gathers or reduce_scatters of the block as one collective.

    Args:
        group: the process group of all calls; None for the world.
        device: device of the tensors, for a backend that coalesces calls itself (NCCL); None if torch does (gloo).
        async_ops: leave the block without waiting; ``wait()`` of the yielded batch waits for all calls.
        call: name of the call in errors and in the log.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     with dist.coalescing_manager():
        ...         dist.all_reduce(torch.ones(8))
        ...         dist.all_reduce(torch.ones(8))
    """
    live: Any = td.group.WORLD if group is None else group
    outer = current.label
    batch = Batch()
    label = LoggedCall(BATCH, call, is_wanted=False, ends_with_call=True)
    try:
        with process_groups.coalescing_manager(live, device, async_ops) as manager:
            batch = _open[live] = Batch(process_groups.collected_calls()[live])
            yield batch
            label = batch.label(async_ops)
            current.label = label if comms_logger.is_on else outer
    except Exception as error:
        if not label.issued:
            batch.fail(error, live)
        label.issued += batch.issued
        comms_logger.fail(label, error)
        explain(error, call, group)
        raise
    finally:
        current.label = outer
        _open.pop(live, None)
        # After an exception, torch keeps the block's list, and would never launch the next calls on the group.
        process_groups.collected_calls().pop(live, None)
    if batch.issued:
        in_use().number_batch(batch.issued)
        label.issued += batch.issued
    if manager.works:
        handle = Handle(manager.works[-1], call, group=group, call=label, copies=batch.copies)
        batch.works.extend([*manager.works[:-1], handle])
    else:
        comms_logger.end(label)
        copy_back(batch.copies)


@names_arguments
def get_coalescing_manager(
    group: td.ProcessGroup | None, device: object, reqs: object, async_op: bool
) -> AbstractContextManager[Batch]:
    """Return `coalescing_manager` with DeepSpeed's parameters; `device` and `reqs` are ignored."""
    return coalescing_manager(group, async_ops=async_op)
