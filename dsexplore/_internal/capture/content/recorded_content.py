"""Turns a recording into plain numbers and texts: the names of modules, causes and lines are formed here.

`recorded_tables` makes tables of them, in this process or in another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from dsexplore._internal.capture.collectives.groups import Group, own_rank, size_of
from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.capture.collectives.peers import Parties
from dsexplore._internal.capture.content.collective_kinds import CollectiveKind, CollectiveKinds
from dsexplore._internal.capture.content.io_recording import io_columns
from dsexplore._internal.capture.content.recorded_steps import Steps, step_numbers
from dsexplore._internal.capture.content.recorded_tables import Columns, EventColumns, Recorded
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.parameters import ParameterRecord
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack.source_lines import source_texts
from dsexplore._internal.trace.collectives import wire_bytes
from dsexplore._internal.trace.process_states import host_clock
from dsexplore._internal.trace.tables import TraceInfo

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
V = TypeVar("V")


def content_of(
    recording: Recording,
    steps: Sequence[int],
    issued: Sequence[Issued],
    groups: Sequence[Group],
    modules: Modules,
    *,
    waits: bool = True,
) -> Recorded:
    """Return the content of a recording, with the info of its trace.

    Args:
        recording: the recording, closed or still open.
        steps: the number of collectives issued by the end of each step.
        issued: its collectives in program order.
        groups: the groups that the recorder knows now. The collectives of a recording that was opened again may have
            older ones.
        modules: the modules that the recording has met.
        waits: see `Issued.read_clock`.
    """
    forwards = recording.calls.forwards(len(issued), ends=recording.is_complete) if not recording.trains else []
    steps = steps or forwards
    is_fixed = recording.steps_are_marked or recording.kernels is not None  # kernels have got their steps already
    placed = Steps(steps, recording.calls, issued, are_marked=is_fixed, are_forwards=steps is forwards)
    issued = placed.issued
    kinds = CollectiveKinds(issued, waits=waits)
    ranks = _ranks(kind.issued for kind in kinds.kinds)
    rank = ranks[0] if ranks else 0
    used = {id(kind.issued.group): kind.issued.group for kind in kinds.kinds if kind.issued.group is not None}
    names = {group.name for group in groups}
    older = {group.name: group for group in used.values() if group.name not in names}
    groups = [*groups, *older.values()]
    return Recorded(
        events=event_columns(kinds, steps, recording.stack_depth, placed.numbers),
        costs=_cost_tables(recording, issued, rank),
        numerics=recording.numerics.columns(rank) if recording.numerics is not None else {},
        io=io_columns(recording.io, rank, recording.stack_depth) if recording.io else {},
        parameters=parameter_columns(modules.parameters(), rank),
        modules=module_columns(modules.in_order(), recording.earlier_calls),
        groups=group_rows(group for group in groups if id(group) in used),
        info=_info(recording, len(issued), len(steps), ranks, groups),
        steps=len(recording.steps) if recording.ends_with_step else None,
        trains=recording.trains,
    )


def _info(recording: Recording, count: int, steps: int, ranks: Sequence[int], groups: Sequence[Group]) -> TraceInfo:
    """Return the `TraceInfo` of a recording.

    Args:
        recording: the recording.
        count: the number of its collectives.
        steps: the number of steps that have ended.
        ranks: the ranks that issued its collectives.
        groups: the groups that it has met.
    """
    kernels = recording.kernels
    simulated = recording.simulated or any(group.backend == "fake" for group in groups)
    clock = "" if simulated else host_clock()
    return TraceInfo(
        world_size=world_size_of(groups),
        ranks=tuple(ranks),
        mesh=recording.mesh or _mesh_of(groups),
        simulated=simulated,
        target=recording.target,
        clocks=(clock,) * len(ranks) if clock else (),
        ends=(recording.end,) * len(ranks) if recording.end else (),
        began=(recording.began,) * len(ranks) if recording.began else (),
        attempt=recording.attempt,
        whole_steps=steps,
        schedule=kernels.schedule if kernels else "",
        torch_version=torch.__version__,
        notes=(*recording.notes, *recording.further_notes(count)),
    )


def _cost_tables(recording: Recording, issued: Sequence[Issued], rank: int) -> dict[str, pl.DataFrame]:
    """Return {name: table} of kernels, memory and values that differ between ranks; empty without costs."""
    if recording.kernels is None:
        return {}
    from dsexplore._internal.capture.kernels.kernel_tables import (
        differing_table,
        kernels_table,
        memory_table,
    )  # loads torch's FLOP formulas

    return {
        "kernels": kernels_table(recording.kernels, issued, rank),
        "memory": memory_table(recording.kernels, issued, rank),
        "differing": differing_table(recording.kernels, rank),
    }


def _ranks(issued: Iterable[Issued]) -> list[int]:
    """Return the ranks that issued these collectives; if there are none, this process's rank."""
    ranks = sorted({collective.rank for collective in issued})
    if ranks:
        return ranks
    if dist.is_initialized():
        return [own_rank()]
    # A launcher gives the rank of a process that has no process group yet, or has destroyed it.
    return [int(os.environ["RANK"])] if "RANK" in os.environ else []


def _mesh_of(groups: Sequence[Group]) -> str:
    """Return the first mesh with named axes, or else the first mesh; empty if there is none.

    torch creates a mesh of the world without names itself, for example for its random numbers.
    """
    meshes = [group.mesh for group in groups if group.mesh]
    named = [mesh for mesh in meshes if not mesh.startswith("dim_0=")]
    return next(iter(named or meshes), "")


def world_size_of(groups: Sequence[Group]) -> int:
    """Return the size of the default group; without one, the launcher's world size or the size of the largest group,
    whichever is larger.
    """
    if dist.is_initialized():
        return dist.get_world_size()
    return max([int(os.environ.get("WORLD_SIZE", "1")), *(group.size for group in groups)])


def event_columns(
    kinds: CollectiveKinds, steps: Sequence[int], stack_depth: int, numbers: Sequence[int] | None = None
) -> EventColumns:
    """Return the events of collectives.

    Args:
        kinds: the collectives.
        steps: the number of collectives issued by the end of each step.
        stack_depth: the number of the user's lines to name per event.
        numbers: the step of each collective; None to derive it from `steps`.
    """
    messages, collectives = kinds.rows()
    columns: Columns = {
        **kinds.columns,
        "step": list(step_numbers(steps, len(kinds.numbers)) if numbers is None else numbers),
    }
    return EventColumns(
        of_kinds=_kind_columns(kinds.kinds),
        messages=messages,
        of_origins=_origin_columns(kinds.origins, stack_depth),
        origins=np.array(kinds.origin_numbers, np.int64),
        of_collectives=columns,
        collectives=collectives,
    )


class _PlacedMessage(NamedTuple):
    """A message, and the collective that sends it."""

    issued: Issued
    position: int
    """Index of the message in `Issued.messages`."""

    @property
    def message(self) -> Message:
        """Message at this position."""
        return self.issued.messages[self.position]

    @property
    def parties(self) -> Parties:
        """Peers, root and split sizes of the collective; without any if every rank takes the same part."""
        return self.issued.parties or Parties()

    @property
    def peer(self) -> int | None:
        """Global rank that the message is sent to or received from; None for a collective of the whole group."""
        peers = self.parties.peers
        return _global_rank(self.issued, peers[self.position]) if self.position < len(peers) else None

    @property
    def axis(self) -> str:
        """Axis of the collective's group; if it has none, the axis between the two ranks of the message."""
        group = self.issued.group
        if group is None:
            return ""
        if group.axis:
            return group.axis
        return group.axis_of_peer.get(self.peer, "") if self.peer is not None else ""


def _kind_columns(kinds: Sequence[CollectiveKind]) -> Columns:
    """Return {column of `schema.EVENTS` that the events of a kind share: one value per message of each kind}."""
    placed = [_PlacedMessage(kind.issued, index) for kind in kinds for index in range(len(kind.issued.messages))]
    collectives, messages = [place.issued for place in placed], [place.message for place in placed]
    parties = [place.parties for place in placed]
    groups = [collective.group for collective in collectives]
    sizes = [size_of(group) for group in groups]
    sent = zip(messages, sizes, strict=True)
    return {
        "rank": [collective.rank for collective in collectives],
        "op": [message.op for message in messages],
        "raw_op": [collective.raw_op for collective in collectives],
        "axis": [place.axis for place in placed],
        "group": [group.name if group else "" for group in groups],
        "group_size": sizes,
        "message_bytes": [message.nbytes for message in messages],
        "wire_bytes": [wire_bytes(message.op, message.nbytes, size) for message, size in sent],
        "dtype": _map_repeated(messages, _dtype),
        "shape": _map_repeated(messages, lambda message: tuple(map(int, message.shape))),
        "is_async": [collective.is_async for collective in collectives],
        "state": [kind.state for kind in kinds for _ in kind.issued.messages],
        "peer": [place.peer for place in placed],
        "root": [_global_rank(place.issued, place.parties.root) for place in placed],
        "send_splits": [role.send_splits for role in parties],
        "recv_splits": [role.recv_splits for role in parties],
    }


def _origin_columns(collectives: Sequence[Issued], stack_depth: int) -> Columns:
    """Return {column of `schema.EVENTS` that the collectives of an origin share: one value per origin}.

    Args:
        collectives: one collective of each origin.
        stack_depth: the number of the user's lines to name.
    """
    origins = [collective.origin for collective in collectives]
    triggers, owners = [origin.trigger for origin in origins], [origin.owner for origin in origins]
    names = {module: module.name if module else "" for module in {*triggers, *owners}}
    causes = _map_repeated(
        origins, lambda origin: origin.cause_text, key=lambda origin: (origin.cause, id(origin.redistribute))
    )
    return {
        "phase": [origin.phase for origin in origins],
        "trigger": [names[trigger] for trigger in triggers],
        "owner": [names[owner] for owner in owners],
        "implicit": [origin.is_implicit for origin in origins],
        "cause": [collective.failure or cause for collective, cause in zip(collectives, causes, strict=True)],
        "source": source_texts([origin.sources[:stack_depth] for origin in origins]),
        "is_object": [origin.is_object for origin in origins],
    }


def event_rows(issued: Issued, stack_depth: int) -> list[dict[str, Any]]:
    """Return one row per event of a collective, with the columns of `schema.EVENTS` that do not depend on time.

    Args:
        issued: the collective.
        stack_depth: the number of the user's lines to name.
    """
    of_kind, of_origin = _kind_columns([CollectiveKind(issued, issued.state)]), _origin_columns([issued], stack_depth)
    rows = []
    for index in range(len(issued.messages)):
        row = {name: values[0] for name, values in of_origin.items()}
        row.update((name, values[index]) for name, values in of_kind.items())
        rows.append({**row, "step": 0})
    return rows


def _map_repeated(values: Sequence[V], make: Callable[[V], T], key: Callable[[V], Hashable] = id) -> list[T]:
    """Return ``make(value)`` of each value; `make` is called once per key, as many values have the same key."""
    value_keys = [key(value) for value in values]
    results = {value_key: make(value) for value_key, value in dict(zip(value_keys, values, strict=True)).items()}
    return [results[value_key] for value_key in value_keys]


def _dtype(message: Message) -> str:
    """Return the dtype of a message, ``"bfloat16"``; empty for one without a tensor."""
    return str(message.dtype).removeprefix("torch.") if message.dtype is not None else ""


def _global_rank(issued: Issued, rank: int | None) -> int | None:
    """Return the global rank of a rank in the collective's group; None if it is None or unknown."""
    if rank is None or issued.group is None:
        return None
    return issued.group.ranks[rank] if 0 <= rank < len(issued.group.ranks) else None


def parameter_columns(parameters: Sequence[ParameterRecord], rank: int) -> Columns:
    """Return {column of `schema.PARAMETERS`: one value per parameter}."""
    layouts = [parameter.layout for parameter in parameters]
    modules = _map_repeated([parameter.module for parameter in parameters], lambda module: module.name)
    return {
        "rank": [rank] * len(parameters),
        "module": modules,
        "name": [f"{module}.{parameter.name}" for module, parameter in zip(modules, parameters, strict=True)],
        "global_shape": [layout.global_shape for layout in layouts],
        "local_shape": [layout.local_shape for layout in layouts],
        "dtype": [layout.dtype for layout in layouts],
        "placements": [layout.placements for layout in layouts],
        "mesh": [layout.mesh for layout in layouts],
        "global_bytes": [layout.global_bytes for layout in layouts],
        "local_bytes": [layout.local_bytes for layout in layouts],
        "requires_grad": [parameter.requires_grad for parameter in parameters],
        "shared_with": [
            f"{parameter.shared_with.module.name}.{parameter.shared_with.name}" if parameter.shared_with else ""
            for parameter in parameters
        ],
    }


def module_columns(modules: Iterable[ModuleEntry], earlier_calls: Mapping[int, int]) -> Columns:
    """Return {column of `schema.MODULES`: one value per module}.

    Args:
        modules: the modules, parents before children.
        earlier_calls: {id of an entry: number of its calls before the recording, which do not count}.
    """
    listed = list(modules)
    names = [module.name for module in listed]
    return {
        "module": names,
        "parent": [name.rpartition(".")[0] if module.root else "" for module, name in zip(listed, names, strict=True)],
        "type": [module.type for module in listed],
        "depth": [module.path.count(".") + 1 if module.root else 0 for module in listed],
        "calls": [module.calls - earlier_calls.get(id(module), 0) for module in listed],
    }


def group_rows(groups: Iterable[Group]) -> list[tuple[Any, ...]]:
    """Return one row per group, in the order of `schema.GROUPS`."""
    return [
        (group.name, group.axis, group.mesh, list(group.ranks), group.size, group.backend, group.timing)
        for group in groups
    ]
