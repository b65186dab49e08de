"""The lines of the log: a `Record` for each message of the collectives that the recorder has seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Issued, Label, current
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.stack.source_lines import source_texts
from dsexplore._internal.comm.logs.issuing_layer import OWN
from dsexplore._internal.comm.spellings import Spelling

MOST_CALLS = 300_000
"""Number of collectives that a log keeps individually; each takes some 270 bytes."""
_DROPPED_AT_ONCE = 1024
_dropping = threading.Lock()

SWITCHED_OFF = "switched_off:"
OWN_OP = "dsexplore.comm."


class LoggedCall(Label):
    """Label of one call of this package, or of all equal calls of another layer.

    Args:
        spelling: the function that was called.
        name: the name it is logged under.
        is_wanted: True if it is to be logged.
        ends_with_call: True if its collectives have completed when the call returns; see `Label`.
        layer: the layer that was called: ``dsexplore.comm``, ``deepspeed.comm`` or ``torch.distributed``.
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
        """Calls that torch launched as one collective, in the order of its messages; None for a call of another
        layer."""
        self.ops: Collection[str] | None = None
        """Plain ops to log, of those that the call issues; None for all."""

    @property
    def is_plain(self) -> bool:
        """True if the call is one line under its name, for a single collective."""
        return self.ops is None and not (self.members or self.spelling.is_object or self.spelling.is_custom)

    def parts(self) -> list[LoggedCall]:
        """Return a label for each collective that the call issued."""
        parts = []
        for issued in self.issued:
            part = LoggedCall(
                self.spelling,
                self.name,
                is_wanted=self.is_wanted,
                ends_with_call=self.ends_with_call,
                layer=self.layer,
                reduction=self.reduction,
            )
            part.issued = [issued]
            parts.append(part)
        return parts


@dataclass(eq=False)
class LogRecording(Recording):
    """A recording of the collectives to log; it keeps the last `most`.

    Collectives that were issued by functions of this package have a label; those of ``deepspeed.comm`` and of torch get
    one here.
    """

    most: int = MOST_CALLS
    """Number of collectives to keep individually; earlier ones are dropped."""
    forget: Callable[[Sequence[Issued], Sequence[Issued]], None] = lambda _dropped, _unfinished: None
    """Called with the collectives that are dropped, and with older ones that are kept as they have not completed."""
    label_of: Callable[[Issued], LoggedCall | None] = lambda _issued: None
    """Called with a collective without a label, while its op runs; returns the label, None to not log it."""

    def add(self, issued: Issued) -> None:
        """Append an issued collective if it is to be logged."""
        if issued.label is None:
            issued.label = self.label_of(issued)
        call = issued.label
        if not isinstance(call, LoggedCall) or not call.is_wanted:
            return
        if call.ops is not None and issued.messages[0].op not in call.ops:
            return
        if call.spelling.is_custom and is_collective(issued):
            return  # `CommsLogger.begin_custom` has added the line of the call
        self.issued.append(issued)
        if len(self.issued) >= self.most + _DROPPED_AT_ONCE:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest collectives; those of them that still run are kept."""
        with _dropping:
            oldest = self.issued[:_DROPPED_AT_ONCE]
            if len(self.issued) < self.most + _DROPPED_AT_ONCE:
                return  # another thread has dropped them meanwhile
            running = [issued for issued in oldest if not issued.is_over]
            dropped = set(oldest).difference(running)
            self.issued[: len(oldest)] = running
            self.forget([issued for issued in oldest if issued in dropped], running)


@contextmanager
def unlogged() -> Iterator[None]:
    """Do not log collectives that the current thread issues inside the block; the log's own traffic needs this."""
    outer, current.label = current.label, Label(ends_with_call=False)
    try:
        yield
    finally:
        current.label = outer


def is_collective(issued: Issued) -> bool:
    """Return True if torch issued this collective; False if it describes a call that issued none."""
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
        """Plain op, such as ``all_gather``; ``switched_off:<op>`` or the name of a user's function."""
        return self.message.op

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
        """``SUM``, ``MAX``, …; empty for an op without one, or if C++ code issued it."""
        return self.call.reduction

    @property
    def bytes(self) -> int:
        """Message bytes."""
        return self.message.nbytes

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the tensor that the message bytes count."""
        return self.message.dtype

    @property
    def shape(self) -> Sequence[int]:
        """Shape of the tensor that the message bytes count."""
        return self.message.shape

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
        """Error, switch that was off, or part of torch that issued the collective; empty if unknown."""
        return self.issued.cause_text

    @property
    def source(self) -> str:
        """``"train.py:12"`` of the call in the user's code, as in a trace."""
        return source_texts([self.issued.origin.sources[:1]])[0]

    @property
    def times(self) -> tuple[int, int] | None:
        """Start and end in nanoseconds; None if the op failed, or if its end is unknown.

        The end is unknown if no call of this package waited, and the work has no future (gloo's send, recv and
        reduce_scatter).
        """
        issued = self.issued
        if issued.span is not None and issued.span.is_over:
            issued.read_clock()
        if issued.failure or issued.start is None or issued.end is None or issued.ends_at_return:
            return None
        return issued.start, max(issued.end, issued.start + 1)

    @property
    def seconds(self) -> float | None:
        """Duration in seconds, above zero so that rates exist; for a member of a batch its share. None if unknown."""
        times = self.times
        return None if times is None else (times[1] - times[0]) / 1e9 * (self.share or 1e-9)


def records_of(recorded: Iterable[Issued]) -> Iterator[Record]:
    """Yield the lines of logged collectives, in the order of issue: one per message."""
    for issued in recorded:
        call = issued.label
        assert isinstance(call, LoggedCall)
        is_object = call.spelling.is_object
        if not is_object and not call.members and len(issued.messages) == 1:
            yield Record(issued, call, issued.messages[0])
        elif is_object and is_collective(issued):
            if issued is call.issued[0]:
                joined = joined_collectives(call)
                yield Record(joined, call, joined.messages[0])
        elif call.members:
            yield from _members(issued, call.members)
        else:
            yield from _members(issued, [call] * len(issued.messages))


def _members(issued: Issued, calls: Sequence[LoggedCall | None]) -> Iterator[Record]:
    """Yield a line for each message of a coalesced collective that is to be logged, with its share of the time."""
    total = sum(message.nbytes for message in issued.messages)
    for message, member in zip(issued.messages, calls, strict=False):
        if member is not None and member.is_wanted:
            share = message.nbytes / total if total else 1 / len(issued.messages)
            yield Record(issued, call=member, message=message, share=share)


def joined_collectives(call: LoggedCall) -> Issued:
    """Return one event for all collectives of an object call: from the first start to the last end, with all bytes."""
    for issued in call.issued:
        issued.read_clock()
    joined: Issued = copy(call.issued[-1])
    joined.start = call.issued[0].start
    size = sum(message.nbytes for issued in call.issued for message in issued.messages)
    joined.messages = [Message(call.spelling.op, nbytes=size, dtype=torch.uint8, shape=())]
    return joined


def trace_collectives(issued: Iterable[Issued]) -> Iterator[Issued]:
    """Yield the collectives of a trace of the log: one per line, with the name that it is logged under."""
    for collective in issued:
        call = collective.label
        assert isinstance(call, LoggedCall)
        if len(collective.messages) == 1 and call.has_usual_name and not call.members and not call.spelling.is_object:
            yield collective
        else:
            yield from map(_trace_collective, records_of([collective]))


def _trace_collective(record: Record) -> Issued:
    """Return a collective with the message of one line; a name other than the usual one is added to its cause."""
    issued, call = record.issued, record.call
    name = "" if call.has_usual_name or issued.failure else call.name
    if not name and len(issued.messages) == 1:
        return issued
    collective = copy(issued)
    collective.messages = [record.message]
    if name:
        cause = issued.origin.cause
        collective.origin = issued.origin._replace(cause=f"{name}: {cause}" if cause else name)
    return collective
