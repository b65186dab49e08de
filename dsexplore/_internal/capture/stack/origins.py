"""`Origins`: the part of a stack reading that a recording keeps, with the modules of the program in it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.capture.collectives.groups import Groups
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin, Redistribute
from dsexplore._internal.capture.modules.autograd_nodes import ModuleCall
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack.future_callbacks import with_callback
from dsexplore._internal.capture.stack.source_lines import Sources
from dsexplore._internal.capture.stack.stack_reading import DDP_BUCKET, DDP_UNUSED, StackReading, read_stack
from dsexplore._internal.torch_internals.autograd import AccumulateGrad, current_node
from dsexplore._internal.torch_internals.ddp import is_replicated

_CACHE_SIZE = 10_000
_AT_ONCE = 64
"""How many collectives wait until their origins are shared. What is read for that has left the processor's caches
between two collectives of a program; for many at a time it is read once."""


class Origins:
    """Makes the origin of a collective of what its stack shows.

    Args:
        modules: those met so far; a module whose call was not observed is added.
        groups: those met so far; the mesh of a redistribute is added.
    """

    def __init__(self, modules: Modules, groups: Groups) -> None:
        self._modules, self._groups = modules, groups
        self._by_content: dict[tuple[Any, ...], Origin] = {}
        self._redistributes: dict[Redistribute, Redistribute] = {}
        self._sources: dict[tuple[int, ...], Sources] = {}
        self._waiting: list[Issued] = []
        """The collectives with an origin that is not shared yet."""

    def of(self, reading: StackReading, stage: nn.Module | None = None, shape: Sequence[int] = ()) -> Origin:
        """Return the part of a stack reading that a recording keeps.

        Args:
            reading: of the stack.
            stage: the pipeline stage that sends or receives, if known.
            shape: of the tensor that is sent.
        """
        modules, cause, redistribute = self._modules, reading.cause, None
        before, after = reading.before, reading.after
        if before is not None and after is not None:
            self._groups.add_mesh(before.mesh)
            redistribute = Redistribute(reading.redistribute_reason, before.placements, after.placements)
        owner = self._find_owner(reading)
        trigger = reading.call.module
        if trigger is None:
            trigger = modules.find(stage) if stage is not None else self._called_unobserved(reading)
        elif reading.backward is not None and reading.backward.makes_graph:
            modules.assign_last_node(reading.call)
        if owner is None and cause in (DDP_BUCKET, DDP_UNUSED):
            owner = modules.enclosing(trigger, is_replicated) or self._owner_of_bucket(reading, trigger, prod(shape))
        elif owner is None and not (cause or redistribute) and reading.phase == "backward":
            owner = self._owner_of_bucket(reading, trigger, prod(shape))
        elif not (cause or redistribute) and _is_called(reading, DistributedDataParallel):
            cause = "DDP buffers"
        origin = Origin(
            reading.phase,
            trigger,
            owner=owner or trigger,
            sources=reading.sources,
            cause=cause,
            redistribute=redistribute,
            is_implicit=reading.is_implicit,
            is_object=reading.is_object,
        )
        return with_callback(origin, reading.depth)

    def here(self, depth: int, frame: FrameType) -> Origin:
        """Return the origin of what is issued inside of a frame, with so many of the user's lines."""
        return self.of(read_stack(depth, frame, self._modules))

    def _find_owner(self, reading: StackReading) -> ModuleEntry | None:
        """Return the module that the stack names as the owner; None if it names none.

        ``replicate`` makes a DDP of bare parameters: the module that it was applied to stands for that.
        """
        owner = reading.owner
        if isinstance(owner, DistributedDataParallel) and isinstance(getattr(owner, "module", None), nn.ParameterList):
            return self._modules.enclosing(reading.thread_calls.current, is_replicated)
        return self._modules.find(owner) if owner is not None else None

    def _owner_of_bucket(self, reading: StackReading, trigger: ModuleEntry | None, elements: int) -> ModuleEntry | None:
        """Return the module that reduces gradients of several parameters at once; None where one parameter's are sent.

        Args:
            reading: in backward.
            trigger: the module of the parameter whose gradient came last.
            elements: how many are sent.
        """
        node = current_node()
        if node is not None and not isinstance(node, AccumulateGrad):
            return None
        if node is not None and elements <= node.variable.numel():
            return None
        if reading.hooked is not None:
            return self._modules.find(reading.hooked)
        return trigger.root if trigger is not None else None

    def share_soon(self, issued: Issued) -> None:
        """Share the origin of a collective with the next ones, as `share` does."""
        self._waiting.append(issued)
        if len(self._waiting) >= _AT_ONCE:
            self.share()

    def share(self) -> None:
        """Replace equal origins of all waiting collectives by one object."""
        waiting, self._waiting = self._waiting, []
        for collective in waiting:
            collective.origin = self._shared(collective.origin)

    def _shared(self, origin: Origin) -> Origin:
        """Return one shared origin for all equal ones: a program issues few kinds, each in every step."""
        if len(self._by_content) >= _CACHE_SIZE:  # a program that makes code as it runs
            self._forget()
        phase, trigger, owner, sources, cause, redistribute, is_implicit, is_object = origin
        if redistribute is not None:
            redistribute = self._redistributes.setdefault(redistribute, redistribute)
        sources = self._shared_sources(sources)
        # Quickly hashed: hashing placements calls Python.
        content = phase, id(trigger), id(owner), id(sources), cause, id(redistribute), is_implicit, is_object
        shared = self._by_content.get(content)
        if shared is None:
            shared = Origin(phase, trigger, owner, sources, cause, redistribute, is_implicit, is_object)
            self._by_content[content] = shared
        return shared

    def _shared_sources(self, sources: Sources) -> Sources:
        """Return one shared tuple for equal lines."""
        lines: tuple[int, ...] = ()  # quickly hashed: hashing a code object reads all of its bytecode
        for code, offset in sources:
            lines += id(code), offset
        return self._sources.setdefault(lines, sources)

    def release(self) -> None:
        """Drop all references to origins, and to the program's code in them."""
        self._waiting.clear()
        self._forget()

    def _forget(self) -> None:
        self._by_content.clear()
        self._redistributes.clear()
        self._sources.clear()

    def _called_unobserved(self, reading: StackReading) -> ModuleEntry | None:
        """Return the module of an unobserved call: compiled, or begun before the recording."""
        module = reading.module
        if module is None:
            return None
        trigger = self._modules.find(module)
        if trigger.calls == 0:
            self._modules.assign_last_node(ModuleCall(trigger, sources=reading.sources[:1]))
        return trigger


def _is_called(reading: StackReading, kind: type[nn.Module]) -> bool:
    """Return True if the innermost module call is of a module of this type."""
    entry = reading.call.module if reading.called is not None else None
    return isinstance(entry.reference() if entry is not None else reading.module, kind)
