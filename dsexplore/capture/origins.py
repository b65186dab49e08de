"""`Origins`: the part of a stack reading that a recording keeps, with the modules of the program in it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture.autograd_nodes import ModuleCall
from dsexplore.capture.groups import Groups
from dsexplore.capture.issued_collective import Origin, Redistribute
from dsexplore.capture.module_entry import ModuleEntry
from dsexplore.capture.modules import Modules
from dsexplore.capture.source_lines import Sources
from dsexplore.capture.stack_reading import DDP_BUCKET, DDP_UNUSED, StackReading
from dsexplore.trace.schema import Phase

_MOST_KNOWN = 10_000


class Origins:
    """Makes the origin of a collective of what its stack shows.

    Args:
        modules: those met so far; a module whose call was not observed is added.
        groups: those met so far; the mesh of a redistribute is added.
    """

    def __init__(self, modules: Modules, groups: Groups) -> None:
        self._modules, self._groups = modules, groups
        self._known: dict[tuple[Any, ...], Origin] = {}

    def of(self, reading: StackReading, stage: nn.Module | None = None) -> Origin:
        """The part of a stack reading that a recording keeps.

        Args:
            reading: of the stack.
            stage: the pipeline stage that sends or receives, if it is known.
        """
        modules, cause = self._modules, reading.cause
        owner = modules.find(reading.owner) if reading.owner is not None else None
        trigger = reading.call.module
        if trigger is None:
            trigger = modules.find(stage) if stage is not None else self._called_unobserved(reading)
        elif reading.backward is not None and reading.backward.makes_graph:
            modules.assign_last_node(reading.call)
        if owner is None and cause in (DDP_BUCKET, DDP_UNUSED):
            owner = modules.root_of_type(DistributedDataParallel)
        elif not cause and reading.before is None and _is_called(reading, DistributedDataParallel):
            cause = "DDP buffers and bucket order"
        return self._shared(reading, trigger, owner or trigger, cause)

    def of_lines(self, lines: Sources, phase: Phase) -> Origin:
        """The origin of a collective of which the user's lines are all that is known.

        Args:
            lines: innermost first.
            phase: of the program.
        """
        key = _key_of(lines, phase)
        known = self._known.get(key)
        return self._share(key, Origin(phase, None, None, lines)) if known is None else known

    def _shared(
        self, reading: StackReading, trigger: ModuleEntry | None, owner: ModuleEntry | None, cause: str
    ) -> Origin:
        """The same origin for all collectives that are alike: a program issues few kinds, each in every step."""
        phase, lines, before, after = reading.phase, reading.sources, reading.before, reading.after
        mesh, reason, change = None, "", None
        if before is not None and after is not None:
            mesh, reason, change = before.mesh, reading.redistribute_reason, (before.placements, after.placements)
            self._groups.add_mesh(mesh)
        is_implicit, is_object = reading.is_implicit, reading.is_object
        key = _key_of(lines, phase, id(trigger), id(owner), cause, id(mesh), reason, is_implicit, is_object)
        known = self._known.get(key)
        if known is not None and (change is None or known.redistribute == (reason, *change)):
            return known
        redistribute = Redistribute(reason, *change) if change is not None else None
        return self._share(key, Origin(phase, trigger, owner, lines, cause, redistribute, is_implicit, is_object))

    def _share(self, key: tuple[Any, ...], origin: Origin) -> Origin:
        if len(self._known) >= _MOST_KNOWN:  # a program that makes code as it runs
            self._known.clear()
        self._known[key] = origin
        return origin

    def release(self) -> None:
        """Drop all references to origins, and to the program's code in them."""
        self._known.clear()

    def _called_unobserved(self, reading: StackReading) -> ModuleEntry | None:
        """The module being called, where the call was not observed: compiled, or begun before the recording."""
        module = reading.module
        if module is None:
            return None
        trigger = self._modules.find(module)
        if trigger.calls == 0:
            self._modules.assign_last_node(ModuleCall(trigger, sources=reading.sources[:1]))
        return trigger


def _key_of(lines: Sources, *rest: Any) -> tuple[Any, ...]:
    """A key for what is known of origins with these lines: hashing a code object would read all of its bytecode."""
    for code, offset in lines:  # the origin keeps the code, and with it the code's identity
        rest += id(code), offset
    return rest


def _is_called(reading: StackReading, kind: type[nn.Module]) -> bool:
    """Whether a module of that type is the innermost one being called."""
    entry = reading.call.module if reading.called is not None else None
    return isinstance(entry.reference() if entry is not None else reading.module, kind)
