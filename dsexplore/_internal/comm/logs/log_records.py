"""The lines of the log, made of what the recorder wrote of each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Issued, Label
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.labels import current
from dsexplore._internal.capture.stack.source_lines import source_texts
from dsexplore._internal.comm.logs.issuing_layer import OWN
from dsexplore._internal.comm.spellings import Spelling

MOST_CALLS = 300_000
"""Number of collectives that a log keeps individually, some 270 bytes each."""
_DROPPED_AT_ONCE = 1024
_dropping = threading.Lock()

SWITCHED_OFF = "switched_off:"
OWN_OP = "dsexplore.comm."


class LoggedCall(Label):
    """One call through this package, or all calls of one kind that bypassed it.

    Args:
        spelling: the function that was called.
        name: the name it is logged under.
        is_wanted: True if it is to be logged.
        ends_with_call: see `Label`.
        layer: the layer that was called: this package, ``deepspeed.comm`` or ``torch.distributed``.
        reduction: ``SUM``, ``MAX``, …; empty for an op without one.
    """

    __slots__ = (
        "has_usual_name",
        "is_printed",
        "is_wanted",
        "layer",
        "members",
        "name",
        "ops",
        "reduction",
        "spelling",
    )

    def __init__(
        self,
        spelling: Spelling,
        name: str,
        is_wanted: bool,
        ends_with_call: bool,
        layer: str = OWN,
        reduction: str = "",
    ) -> None:
        super().__init__(ends_with_call)
        self.layer = layer
        self.reduction = reduction
        self.spelling = spelling
        self.name = name
        self.has_usual_name = name in (spelling.name, spelling.op)
        """True if the call is logged under the name of its function or of its op."""
        self.is_wanted = is_wanted
        self.is_printed = False
        self.members: Sequence[LoggedCall | None] = ()
        """The calls that torch launched as one collective, in the order of its messages; None for one made
        elsewhere."""
        self.ops: Collection[str] | None = None
        """The plain ops that are to be logged, of those it issues; None for all."""

    @property
    def is_plain(self) -> bool:
        """True if the call makes one line under its name, for a single collective that is logged as a whole."""
        return self.ops is None and not (self.members or self.spelling.is_object or self.spelling.is_custom)

    def parts(self) -> list[LoggedCall]:
        """Return a label for each collective that the call issued."""
        parts = [
            LoggedCall(self.spelling, self.name, self.is_wanted, self.ends_with_call, self.layer, self.reduction)
            for _ in self.issued
        ]
        for part, issued in zip(parts, self.issued, strict=True):
            part.issued = [issued]
        return parts


@dataclass(eq=False)
class LogRecording(Recording):
    """A recording of the collectives that are to be logged; it keeps the last `most`.

    Collectives issued by functions of this package are labeled; any other was issued through ``deepspeed.comm`` or by
    torch.
    """

    most: int = MOST_CALLS
    """Number of collectives to keep individually; earlier ones are dropped."""
    forget: Callable[[Sequence[Issued], Sequence[Issued]], None] = lambda _over, _running: None
    """Called with the collectives that are dropped, and those among the oldest that are kept."""
    label_of: Callable[[Issued], LoggedCall | None] = lambda _issued: None
    """Returns the label of a collective without one, while its op runs; None if it is not to be logged."""

    def add(self, issued: Issued) -> None:
        """Append a collective that has been issued, if it is to be logged."""
        if issued.label is None:
            issued.label = self.label_of(issued)
        call = issued.label
        if not isinstance(call, LoggedCall) or not call.is_wanted:
            return
        if call.ops is not None and issued.messages[0][0] not in call.ops:
            return
        if call.spelling.is_custom and is_collective(issued):
            return  # the call is one line, which `CommsLogger.begin_custom` adds, and not what it issues
        self.issued.append(issued)
        if len(self.issued) >= self.most + _DROPPED_AT_ONCE:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest collectives that have completed; those still running are kept."""
        with _dropping:
            oldest = self.issued[:_DROPPED_AT_ONCE]
            if len(self.issued) < self.most + _DROPPED_AT_ONCE:
                return  # another thread has dropped them meanwhile
            running = [call for call in oldest if not call.is_over]
            kept = set(running)
            self.issued[: len(oldest)] = running
            self.forget([call for call in oldest if call not in kept], running)


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what the current thread issues inside the block out of the log: the log's own traffic."""
    outer, current.label = current.label, Label(ends_with_call=False)
    try:
        yield
    finally:
        current.label = outer


def is_collective(issued: Issued) -> bool:
    """Return True if torch issued a collective; otherwise the log describes a call that issued none, by its name."""
    return bool(issued.raw_op) and not issued.raw_op.startswith(OWN_OP)


class Record(NamedTuple):
    """One line of the log: a message that a call sent."""

    issued: Issued
    call: LoggedCall
    message: Message
    share: float = 1.0
    """The message's share of the collective's time, if calls were launched as one."""

    @property
    def op(self) -> str:
        """Plain op, such as ``all_gather``; ``switched_off:<op>``; the name of a user's function."""
        return self.message[0]

    @property
    def name(self) -> str:
        """Name that the call is logged under."""
        return f"{SWITCHED_OFF}{self.call.name}" if self.switched_off else self.call.name

    @property
    def layer(self) -> str:
        """Layer that was called: ``dsexplore.comm``, ``deepspeed.comm`` or ``torch.distributed``."""
        return self.call.layer

    @property
    def reduction(self) -> str:
        """``SUM``, ``MAX``, …; empty for an op without one, and where C++ code issued it."""
        return self.call.reduction

    @property
    def bytes(self) -> int:
        """Message bytes."""
        return self.message[1]

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the tensor that the message bytes count."""
        return self.message[2]

    @property
    def shape(self) -> Sequence[int]:
        """Shape of the tensor that the message bytes count."""
        return self.message[3]

    @property
    def group(self) -> Group:
        """Process group."""
        assert self.issued.group is not None
        return self.issued.group

    @property
    def batch(self) -> int | None:
        """Number shared by calls that were launched as one; None outside a batch."""
        return self.issued.batch

    @property
    def phase(self) -> str:
        """``backward``, ``forward``, …: see `trace.schema.Phase`."""
        return self.issued.origin.phase

    @property
    def is_async(self) -> bool:
        """True if the caller got a handle."""
        return self.issued.is_async

    @property
    def is_object(self) -> bool:
        """True if Python objects were sent."""
        return self.call.spelling.is_object

    @property
    def failed(self) -> bool:
        """True if the call or its handle raised."""
        return bool(self.issued.failure)

    @property
    def switched_off(self) -> bool:
        """True if a switch suppressed the call."""
        return self.op.startswith(SWITCHED_OFF)

    @property
    def cause(self) -> str:
        """Failure, switch that was off, or reason why it was issued, if known to the recorder."""
        return self.issued.cause_text

    @property
    def source(self) -> str:
        """``"train.py:12"`` of the call in the user's code, as in a trace."""
        return source_texts([self.issued.origin.sources[:1]])[0]

    @property
    def times(self) -> tuple[int, int] | None:
        """Start and end in nanoseconds, if both were measured and the op succeeded.

        None if its end is unknown: nobody waited in a call of this package and the work has no future (gloo's send,
        recv and reduce_scatter).
        """
        issued = self.issued
        if issued.span is not None and issued.span.is_over:
            issued.read_clock()
        if issued.failure or issued.start is None or issued.end is None or issued.ends_at_return:
            return None
        return issued.start, max(issued.end, issued.start + 1)

    @property
    def seconds(self) -> float | None:
        """Duration in seconds, for a member of a batch its share; above zero, so that rates exist. None if unknown."""
        times = self.times
        return None if times is None else (times[1] - times[0]) / 1e9 * (self.share or 1e-9)


def records_of(recorded: Iterable[Issued]) -> Iterator[Record]:
    """Yield the log's records of collectives, in the order of issue: one for each message."""
    for issued in recorded:
        call = issued.label
        assert isinstance(call, LoggedCall)
        is_object = call.spelling.is_object
        if not is_object and not call.members and len(issued.messages) == 1:
            yield Record(issued, call, issued.messages[0])
        elif is_object and is_collective(issued):
            if issued is call.issued[0]:
                together = joined_collectives(call)
                yield Record(together, call, together.messages[0])
        elif call.members:
            yield from _members(issued, call.members)
        else:
            yield from _members(issued, [call] * len(issued.messages))


def _members(issued: Issued, calls: Sequence[LoggedCall | None]) -> Iterator[Record]:
    total = sum(message[1] for message in issued.messages)
    for message, member in zip(issued.messages, calls, strict=False):
        if member is not None and member.is_wanted:
            share = message[1] / total if total else 1 / len(issued.messages)
            yield Record(issued, member, message, share)


def joined_collectives(call: LoggedCall) -> Issued:
    """Return one event for all collectives of an object call: from the first start to the last end, with all bytes."""
    for issued in call.issued:
        issued.read_clock()
    together: Issued = copy(call.issued[-1])
    together.start = call.issued[0].start
    size = sum(message[1] for issued in call.issued for message in issued.messages)
    together.messages = [(call.spelling.op, size, torch.uint8, ())]
    return together


def recorded_of(issued: Iterable[Issued]) -> Iterator[Issued]:
    """Yield the log's collectives as a recording has them, one for each line, under the names they are logged under."""
    for collective in issued:
        call = collective.label
        assert isinstance(call, LoggedCall)
        if len(collective.messages) == 1 and call.has_usual_name and not call.members and not call.spelling.is_object:
            yield collective
        else:
            yield from map(as_recorded, records_of([collective]))


def as_recorded(record: Record) -> Issued:
    """Return the collective of a line as a recording has it, with the line's name in its cause."""
    issued, call = record.issued, record.call
    name = "" if call.has_usual_name or issued.failure else call.name
    if not name and len(issued.messages) == 1:
        return issued
    recorded = copy(issued)
    recorded.messages = [record.message]
    if name:
        cause = issued.origin.cause
        recorded.origin = issued.origin._replace(cause=f"{name}: {cause}" if cause else name)
    return recorded
