"""Finds the module call that made an autograd node, by the node's sequence number.

Autograd numbers the nodes that a thread creates, in order. `module_calls` notes the next number whenever a module's
call begins or ends. So the number of a node, looked up among these boundaries, gives the innermost call that ran when
the node was made. No tensor, graph or parameter is kept.
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

_MAX_BOUNDARIES = 1_000_000
"""Number of boundaries per thread at which the older half of them is dropped."""


class ModuleCall(NamedTuple):
    """One call of a module."""

    module: ModuleEntry | None = None
    """The module; None in `NO_CALL`."""
    called: int = 0
    """Identity of the object that was called: the module, or a wrapper around it."""
    frame: int = 0
    """Identity of the Python frame of the call; 0 if the call was not observed."""
    sources: Sources = ()
    """The user's line that made the call; empty if it is unknown."""
    input: int = 0
    """The number of the tensor that it was called with, see `Inputs`; 0 if it is unknown."""


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
    """The number of lines that were asked for."""


class _NumberedInput(NamedTuple):
    """A tensor that a module was called with."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    """The tensor's version counter at that call: in-place ops increment it."""
    number: int


class Inputs:
    """Numbers the tensors that modules are called with.

    Calls have the same number if they had the same tensor, and no in-place op changed it in between.
    """

    def __init__(self) -> None:
        self._numbered: dict[int, _NumberedInput] = {}
        """{identity of a tensor: its number}."""

    def number_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the number of a call's first argument; 0 if it is not a tensor."""
        tensor = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(tensor, torch.Tensor):
            return 0
        version = 0 if tensor.is_inference() else tensor._version
        earlier = self._numbered.get(id(tensor))
        if earlier is not None and earlier.tensor() is tensor and earlier.version == version:
            return earlier.number
        number = next(_input_numbers)
        self._numbered[id(tensor)] = _NumberedInput(weakref.ref(tensor), version, number)
        return number

    def forget(self) -> None:
        """Drop all tensors: no later call shares its number with an earlier one."""
        self._numbered.clear()


_input_numbers = itertools.count(1)


class ThreadCalls:
    """The module calls of one thread: the open ones, and the autograd node numbers at which each began and ended."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.open: list[ModuleCall] = []
        """The calls in progress, the innermost last."""
        self.boundaries = array("q")
        """Ascending node numbers at which a call began or ended. An array, as a list takes five times the memory and is
        slower to search."""
        self.modules: list[ModuleEntry | None] = []
        """The module of the innermost call from each of ``boundaries`` on. The three lists hold no `ModuleCall`, since
        Python's garbage collector would visit all of a model's many calls."""
        self.lines: list[Sources] = []
        """The user's line that made that call."""
        self.inputs_of_calls = array("q")
        """The number of that call's input."""
        self.inputs = Inputs()
        self.without_gradients = False
        """True if gradients were off when the outermost call in progress, or the latest one, began."""
        self.is_warm_up = False
        """True if a pipeline made that call to learn the shapes of a stage."""
        self.next_node = 0
        """The number of the next autograd node when that call began or ended. FSDP1 makes nodes in every forward."""
        self.with_gradients = 0
        """Number of outermost calls that began with gradients enabled."""
        self.backward: Backward | None = None
        """The last backward of this thread that communicated."""
        self._lock = threading.Lock()  # a device's thread may look calls up while this thread drops boundaries

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
        """Phase of collectives that the program issues outside module calls and backward.

        After a call without gradients it is that call's phase, until something differentiable is computed. So the
        metric of an evaluation belongs to the evaluation.
        """
        follows_call = self.without_gradients and not self.open and next_node_number() == self.next_node
        return "no-grad forward" if follows_call else "other"

    def begin_outermost(self) -> None:
        """Note whether gradients are enabled at the begin of an outermost call.

        The forward of an autograd function runs without gradients in training too, for example that of a reentrant
        checkpoint. A call inside it does not count as one without gradients.
        """
        self.without_gradients = not torch.is_grad_enabled() and not _is_inside_function()
        self.is_warm_up = is_warm_up()
        self.with_gradients += not self.without_gradients
        self.next_node = next_node_number()

    def end_outermost(self) -> None:
        """Note the number of the next autograd node at the end of an outermost call, and bound the boundaries."""
        self.next_node = next_node_number()
        self.inputs.forget()
        if len(self.boundaries) > _MAX_BOUNDARIES:
            with self._lock:
                half = _MAX_BOUNDARIES // 2
                del self.boundaries[:half], self.modules[:half], self.lines[:half], self.inputs_of_calls[:half]

    def assign_last_node(self, call: ModuleCall) -> None:
        """Assign the newest autograd node of this thread to `call`, whose begin was not observed."""
        newest = next_node_number() - 1
        if self.boundaries and newest < self.boundaries[-1]:
            return  # no node was made since the last boundary
        self.add_boundary(newest, call)
        self.add_boundary(newest + 1, self.open[-1] if self.open else NO_CALL)

    def add_boundary(self, number: int, innermost: ModuleCall) -> None:
        """Set the innermost call for autograd nodes from a number on."""
        try:
            self.modules.append(innermost.module)
            self.lines.append(innermost.sources)
            self.inputs_of_calls.append(innermost.input)
            self.boundaries.append(number)
        except BaseException:  # Ctrl-C between two of these lines
            count = len(self.boundaries)
            del self.modules[count:], self.lines[count:], self.inputs_of_calls[count:]
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
    """Gives each thread its own `ThreadCalls`, in ``calls``.

    Args:
        all_threads: the list that each new `ThreadCalls` is added to.
    """

    def __init__(self, all_threads: list[ThreadCalls]) -> None:
        self.calls = ThreadCalls()
        all_threads.append(self.calls)


def calls_of_forward(
    all_threads: Sequence[ThreadCalls], this_thread: ThreadCalls, waiting: Collection[int]
) -> ThreadCalls:
    """Return the calls of the thread whose forward made the autograd node that runs in this thread.

    Autograd runs CPU nodes in the thread that called backward, which mostly is the thread of the forward. It runs GPU
    nodes in a thread of their device, while the thread that called backward waits.

    Args:
        all_threads: the calls of all threads.
        this_thread: the calls of this thread.
        waiting: identifiers of the threads that wait for a backward; empty if this thread called backward itself.

    Returns:
        The calls of the only waiting thread with boundaries; if that is not unique, of this thread if it has
        boundaries, else of the only thread with boundaries. ``this_thread`` if none of these exists.
    """
    latest = {calls.thread: calls for calls in all_threads}  # a new thread may have the identifier of an ended one
    for candidates in ([latest[thread] for thread in waiting if thread in latest], [this_thread], all_threads):
        with_boundaries = [calls for calls in candidates if calls.boundaries]
        if len(with_boundaries) == 1:
            return with_boundaries[0]
    return this_thread
