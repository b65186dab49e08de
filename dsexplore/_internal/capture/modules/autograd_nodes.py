"""The module call that made each autograd node, thread by thread.

Autograd gives each node that a forward creates the next number of its thread. `module_calls` notes the number that is
next whenever a module's call begins or ends. So the number of a node, looked up among these boundaries, gives the
innermost call that ran when the node was made. No tensor, no graph and no parameter is touched or kept.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.stack.frame_kinds import is_warm_up
from dsexplore._internal.capture.stack.source_lines import Sources
from dsexplore._internal.torch_internals.autograd import next_node_number
from dsexplore._internal.trace.schema import Phase

_KEPT_BOUNDARIES = 1_000_000


class ModuleCall(NamedTuple):
    """One call of a module."""

    module: ModuleEntry | None = None
    """None stands for no call."""
    called: int = 0
    """Identity of the object that was called: the module, or a wrapper around it."""
    frame: int = 0
    """Identity of the Python frame of the call; 0 where the call was not observed."""
    sources: Sources = ()
    """The user's line that made the call; empty where it is not known."""
    input: int = 0
    """The number of the tensor that it was called with, see `Inputs`; 0 where that is not known."""


NO_CALL = ModuleCall()


@dataclass(frozen=True, slots=True)
class Backward:
    """One run of autograd's engine."""

    number: int
    """Autograd's number of the graph task."""
    makes_graph: bool
    """True if it is itself differentiable (``create_graph``): then its operations make new autograd nodes."""
    sources: Sources
    """The user's lines that called it, at most ``depth``."""
    depth: int
    """Number of lines that were looked for."""


class Inputs:
    """Numbers the tensors that modules are called with: calls with the same tensor, unchanged, have the same number."""

    def __init__(self) -> None:
        self._last_seen: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}

    def number_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the number of a call's first argument; 0 if it is not a tensor."""
        tensor = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(tensor, torch.Tensor):
            return 0
        version = 0 if tensor.is_inference() else tensor._version
        reference, last_version, number = self._last_seen.get(id(tensor), (None, 0, 0))
        if reference is None or reference() is not tensor or version != last_version:
            number = next(_numbers_of_inputs)
            self._last_seen[id(tensor)] = weakref.ref(tensor), version, number
        return number

    def forget(self) -> None:
        """Drop all tensors: no later call shares its input with an earlier one."""
        self._last_seen.clear()


_numbers_of_inputs = itertools.count(1)


class ThreadCalls:
    """The module calls of one thread: the open ones, and the autograd node numbers at which each began and ended."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.open: list[ModuleCall] = []
        """The calls in progress, the innermost last."""
        self.boundaries = array("q")
        """Ascending node numbers at which a call began or ended. A list of as many takes five times the memory, and a
        search among its numbers, which lie anywhere, touches more of it."""
        self.modules: list[ModuleEntry | None] = []
        """By position in ``boundaries``: the module of the innermost call from that number on. No `ModuleCall`, as
        Python's garbage collector has to look at each of a model's many calls then."""
        self.lines: list[Sources] = []
        """By position in ``boundaries``: the user's line that made that call."""
        self.inputs_of_calls = array("q")
        """By position in ``boundaries``: the number of that call's input."""
        self.inputs = Inputs()
        self.without_gradients = False
        """True if gradients were off when the outermost call in progress, or the latest one, began."""
        self.is_warm_up = False
        """True if a pipeline made that call to learn the shapes of a stage."""
        self.next_node = 0
        """The number of the next autograd node when that call began, or ended: FSDP1 makes some in any forward."""
        self.with_gradients = 0
        """Number of outermost calls that began with gradients enabled."""
        self.backward: Backward | None = None
        """The last backward of this thread that communicated."""
        self._lock = threading.Lock()  # a device's thread looks calls up while the thread of the forward trims

    @property
    def current(self) -> ModuleEntry | None:
        """Module being called."""
        return self.open[-1].module if self.open else None

    @property
    def forward(self) -> Phase:
        """Phase of the current forward: start-up for the warm-up of a pipeline."""
        if self.open and self.is_warm_up:
            return "start-up"
        return "no-grad forward" if self.open and self.without_gradients else "forward"

    @property
    def outside(self) -> Phase:
        """Phase of what the program itself sends outside module calls and backward.

        After a call without gradients, and until something differentiable is computed, it is that call's phase, as for
        the metric of an evaluation.
        """
        is_behind = self.without_gradients and not self.open and next_node_number() == self.next_node
        return "no-grad forward" if is_behind else "other"

    def begin_outermost(self) -> None:
        """Note whether gradients are enabled at the begin of an outermost call.

        The forward of an autograd function, as of a reentrant checkpoint, runs without gradients in any training, so it
        is not counted as a forward without gradients.
        """
        self.without_gradients = not torch.is_grad_enabled() and not _is_inside_function()
        self.is_warm_up = is_warm_up()
        self.with_gradients += not self.without_gradients
        self.next_node = next_node_number()

    def end_outermost(self) -> None:
        """Note the number of the next autograd node at the end of an outermost call.

        The older half of the boundaries is dropped once there are more than a million.
        """
        self.next_node = next_node_number()
        self.inputs.forget()
        if len(self.boundaries) > _KEPT_BOUNDARIES:
            with self._lock:
                half = _KEPT_BOUNDARIES // 2
                del self.boundaries[:half], self.modules[:half], self.lines[:half], self.inputs_of_calls[:half]

    def assign_last_node(self, call: ModuleCall) -> None:
        """Assign the newest autograd node of this thread to `call`, whose begin was not observed."""
        made = next_node_number() - 1
        if self.boundaries and made < self.boundaries[-1]:
            return  # no node was made since the last boundary
        self.add_boundary(made, call)
        self.add_boundary(made + 1, self.open[-1] if self.open else NO_CALL)

    def add_boundary(self, number: int, innermost: ModuleCall) -> None:
        """Set the innermost call for autograd nodes from this number on: it has begun, or an inner one has ended."""
        try:
            self.modules.append(innermost.module)
            self.lines.append(innermost.sources)
            self.inputs_of_calls.append(innermost.input)
            self.boundaries.append(number)
        except BaseException:  # Ctrl-C in between
            kept = len(self.boundaries)
            del self.modules[kept:], self.lines[kept:], self.inputs_of_calls[kept:]
            raise

    def call_of(self, number: int) -> ModuleCall:
        """Return the innermost module call that made the autograd node of this number; `NO_CALL` for none."""
        with self._lock:
            position = bisect_right(self.boundaries, number) - 1
            if position < 0:
                return NO_CALL
            sources, number = self.lines[position], self.inputs_of_calls[position]
            return ModuleCall(self.modules[position], sources=sources, input=number)


def _is_inside_function() -> bool:
    """Return True if the ``forward(ctx, …)`` of a `torch.autograd.Function` is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_forward = frame.f_code.co_name == "forward" and frame.f_code.co_argcount > 0
        if is_forward and isinstance(frame.f_locals.get(frame.f_code.co_varnames[0]), FunctionCtx):
            return True
        frame = frame.f_back
    return False


class OwnCalls(threading.local):
    """Gives each thread, in ``calls``, a `ThreadCalls` of its own.

    Args:
        everyone: the list that each new `ThreadCalls` is added to.
    """

    def __init__(self, everyone: list[ThreadCalls]) -> None:
        self.calls = ThreadCalls()
        everyone.append(self.calls)


def calls_of_forward(
    everyone: Sequence[ThreadCalls], this_thread: ThreadCalls, waiting: Collection[int]
) -> ThreadCalls:
    """Return the calls of the thread whose forward made the autograd node that runs in this thread.

    Autograd runs the nodes of the CPU in the thread that called backward, which is mostly the thread of the forward.
    The nodes of a GPU run in a thread of that device, while the thread that called backward waits.

    Args:
        everyone: the calls of all threads.
        this_thread: the calls of this thread.
        waiting: threads that wait for a backward; empty if this thread called backward itself.

    Returns:
        the first candidate that is unique: the only one with boundaries among the waiting threads, then this thread,
        then all threads. ``own`` if there is none.
    """
    latest = {calls.thread: calls for calls in everyone}  # an ended thread's number is given to a new one
    for candidates in ([latest[thread] for thread in waiting if thread in latest], [this_thread], everyone):
        with_boundaries = [calls for calls in candidates if calls.boundaries]
        if len(with_boundaries) == 1:
            return with_boundaries[0]
    return this_thread
