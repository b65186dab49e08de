"""Which module's call an autograd node was made in, thread by thread.

Autograd numbers its nodes as the forward creates them, in each thread anew: the number of a node, looked up among
those at which modules' calls began and ended, gives the call that made it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING

from torch._C._autograd import _get_sequence_nr

from dsexplore.capture.source_lines import Sources

if TYPE_CHECKING:
    from dsexplore.capture.issued import Issued
    from dsexplore.capture.modules import Module

_KEPT_BOUNDARIES = 1_000_000

Call = tuple["Module", int, int, CodeType | None, int]
"""A module's call: with the identities of the object called (a module, or a wrapper around it) and of the call's frame,
and the `Source` that made it; no code where that is not known."""
NoCall = tuple[None, int, int, None, int]

NOWHERE: NoCall = (None, 0, 0, None, 0)


def site(call: Call | NoCall) -> Sources:
    """What made a call, if it is known."""
    return ((call[3], call[4]),) if call[3] is not None else ()


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward that runs."""

    number: int
    makes_graph: bool
    """Whether it is itself differentiable: its operations leave nodes behind."""
    sources: Sources
    """The user's lines that called it."""
    depth: int
    """How many lines were asked for."""


class Boundaries:
    """Of one thread: the modules being called, and where in autograd's numbering each began and ended."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stack: list[Call] = []
        self.numbers: list[int] = []
        self.calls: list[Call | NoCall] = []
        """By position in ``numbers``: the innermost call from there on."""
        self.asking: list[Issued] = []
        """Collectives of backward, issued by nodes whose calls are among these: looked up when a table is made."""
        self.backward: Backward | None = None
        """The last one that communicated."""
        self._lock = threading.RLock()  # tables are made in other threads too

    @property
    def top(self) -> Module | None:
        """The module being called."""
        return self.stack[-1][0] if self.stack else None

    def trim(self) -> None:
        """Forget the older half of very many."""
        if len(self.numbers) > _KEPT_BOUNDARIES:
            with self._lock:
                self.answer()
                half = _KEPT_BOUNDARIES // 2
                del self.numbers[:half], self.calls[:half]

    def unwind(self, identity: int) -> None:
        """End the calls inside that object's, and that one; nothing where it is not being called."""
        stack = self.stack
        if any(call[1] == identity for call in stack):
            while stack.pop()[1] != identity:
                pass

    def note(self, call: Call) -> None:
        """The autograd node made last came of that call, which no hook saw."""
        made = _get_sequence_nr() - 1
        if self.numbers and made < self.numbers[-1]:
            return  # none was made since the last boundary
        self.numbers += made, made + 1
        self.calls += call, self.stack[-1] if self.stack else NOWHERE

    def ask(self, issued: Issued, number: int) -> None:
        """Have that collective told, in `answer`, which call made the autograd node of that number, which issued it."""
        issued.node = number
        self.asking.append(issued)

    def answer(self) -> None:
        """Tell the collectives that asked which call made the node that issued them."""
        with self._lock:
            count = len(self.asking)  # the thread itself may go on asking
            for issued in self.asking[:count]:
                issued.answer(self.at(issued.node))
            del self.asking[:count]

    def at(self, number: int) -> Call | NoCall:
        """The call that made the autograd node of that number."""
        position = bisect_right(self.numbers, number) - 1
        return self.calls[position] if position >= 0 else NOWHERE


class PerThread(threading.local):
    """The boundaries of the thread that looks."""

    def __init__(self, everyone: list[Boundaries]) -> None:
        self.mine = Boundaries()
        everyone.append(self.mine)


def of_forward(everyone: Sequence[Boundaries], mine: Boundaries, waiting: Collection[int]) -> Boundaries:
    """The boundaries of the thread whose forward made the node that runs in this thread.

    Autograd runs nodes of the CPU in the thread that called backward, which is mostly that of the forward. Nodes of a
    GPU run in a thread of the device, while the thread that called backward waits.

    Args:
        everyone: of all threads.
        mine: of this thread.
        waiting: threads that wait for a backward; empty where this thread called it itself.
    """
    latest = {b.thread: b for b in everyone}  # an ended thread's number is given to a new one
    for found in ([latest[thread] for thread in waiting if thread in latest], [mine], everyone):
        numbered = [b for b in found if b.numbers]
        if len(numbered) == 1:
            return numbered[0]
    return mine
