"""`Origins` turns the reading of a stack into the origin of a collective, which a recording can keep."""

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
"""Number of different origins that are shared; a program with more creates code as it runs."""
_AT_ONCE = 64
"""Number of collectives whose origins are shared together, which uses the processor's caches better than one by one."""


class Origins:
    """Makes the origin of a collective from the reading of its stack.

    Args:
        modules: the modules met so far; a module whose call was not observed is added.
        groups: the groups met so far; the mesh of a redistribute is added.
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
            reading: the reading of the stack.
            stage: the module of the pipeline stage that sends or receives; None if there is none.
            shape: shape of the tensor that is sent.
        """
        modules, cause, redistribute = self._modules, reading.cause, None
        before, after = reading.before, reading.after
        if before is not None and after is not None:
            self._groups.add_mesh(before.mesh)
            reason = reading.redistribute_reason
            redistribute = Redistribute(reason, before=before.placements, after=after.placements)
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
        """Return the origin of collectives that are issued inside a frame, with at most `depth` of the user's lines."""
        return self.of(read_stack(depth, frame, self._modules))

    def _find_owner(self, reading: StackReading) -> ModuleEntry | None:
        """Return the module that the stack shows as the owner; None if it shows none.

        ``replicate`` wraps a bare list of parameters in DDP: the owner is then the module that it was applied to.
        """
        owner = reading.owner
        if isinstance(owner, DistributedDataParallel) and isinstance(getattr(owner, "module", None), nn.ParameterList):
            return self._modules.enclosing(reading.thread_calls.current, is_replicated)
        return self._modules.find(owner) if owner is not None else None

    def _owner_of_bucket(self, reading: StackReading, trigger: ModuleEntry | None, elements: int) -> ModuleEntry | None:
        """Return the module that reduces gradients of several parameters at once; None if only one's are sent.

        Args:
            reading: the reading of the stack, in backward.
            trigger: the module of the parameter whose gradient was computed last.
            elements: the number of elements that are sent.
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
        """Share the origin of a collective together with those of the next ones, see `share`."""
        self._waiting.append(issued)
        if len(self._waiting) >= _AT_ONCE:
            self.share()

    def share(self) -> None:
        """Replace equal origins of all waiting collectives by one object, so that tables are made of few origins."""
        waiting, self._waiting = self._waiting, []
        for collective in waiting:
            collective.origin = self._shared(collective.origin)

    def _shared(self, origin: Origin) -> Origin:
        """Return the shared object for an origin."""
        if len(self._by_content) >= _CACHE_SIZE:
            self._forget()
        phase, trigger, owner, sources, cause, redistribute, is_implicit, is_object = origin
        if redistribute is not None:
            redistribute = self._redistributes.setdefault(redistribute, redistribute)
        sources = self._shared_sources(sources)
        # By identity, as hashing placements is slow.
        content = phase, id(trigger), id(owner), id(sources), cause, id(redistribute), is_implicit, is_object
        shared = self._by_content.get(content)
        if shared is None:
            shared = self._by_content[content] = origin._replace(sources=sources, redistribute=redistribute)
        return shared

    def _shared_sources(self, sources: Sources) -> Sources:
        """Return the shared tuple for lines."""
        lines: tuple[int, ...] = ()  # by identity, as the hash of a code object reads all of its bytecode
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
        """Return the module whose call was not observed, as it is compiled or began before the recording."""
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
