"""The tables of a `Trace`, made of what a recording holds; names and texts are made only now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist

from dsexplore.capture.collective_kinds import CollectiveKinds, Kind
from dsexplore.capture.groups import Group, own_rank, size_of
from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.module_entry import ModuleEntry
from dsexplore.capture.modules import Modules
from dsexplore.capture.parameters import Parameter
from dsexplore.capture.peers import Parties
from dsexplore.capture.recording import Recording
from dsexplore.capture.source_lines import source_texts
from dsexplore.trace import schema
from dsexplore.trace.collectives import wire_bytes
from dsexplore.trace.tables import Tables, TraceInfo


def tables_of(
    recording: Recording,
    steps: Sequence[int],
    issued: Sequence[Issued],
    groups: Sequence[Group],
    modules: Modules,
    *,
    waits: bool = True,
) -> Tables:
    """All tables of a recording, and what its trace says of itself.

    Args:
        recording: the recording, closed or still open.
        steps: how many collectives had been issued at each `Trace.step`.
        issued: its collectives in program order.
        groups: the groups that the recorder describes now; a recording that was opened again may hold older ones.
        modules: the modules that the recording has met.
        waits: see `Issued.read_clock`.
    """
    found = CollectiveKinds(issued, waits=waits)
    ranks = _ranks(kind.issued for kind in found.kinds)
    used = {id(kind.issued.group): kind.issued.group for kind in found.kinds if kind.issued.group is not None}
    known = {group.name for group in groups}
    older = {group.name: group for group in used.values() if group.name not in known}
    groups = [*groups, *older.values()]
    kernels = recording.kernels
    tables = Tables(
        events=events_table(found, steps, recording.stack_depth),
        **_cost_tables(recording, issued, ranks[0] if ranks else 0),
        parameters=parameters_table(modules.parameters(), ranks[0] if ranks else 0),
        modules=modules_table(modules.in_order(), recording.earlier_calls),
        groups=groups_table(group for group in groups if id(group) in used),
        info=TraceInfo(
            world_size=_world_size(groups),
            ranks=tuple(ranks),
            mesh=recording.mesh or _mesh_of(groups),
            simulated=recording.simulated or any(group.backend == "fake" for group in groups),
            target=recording.target,
            schedule=kernels.schedule if kernels else "",
            torch_version=torch.__version__,
            notes=(*recording.notes, *recording.further_notes(len(issued))),
        ),
    )
    if recording.ends_with_step:
        tables = _of_steps(tables, len(steps))
    recording.trains = recording.trains or modules.differentiable_calls() > recording.earlier_differentiable
    return tables if recording.trains else _of_inference(tables)


def _of_steps(tables: Tables, count: int) -> Tables:
    """The same tables with what belongs to the first ``count`` steps."""
    parts = ("events", "kernels", "memory")
    return replace(tables, **{name: getattr(tables, name).filter(pl.col("step") < count) for name in parts})


def _of_inference(tables: Tables) -> Tables:
    """The same tables where no call ran with gradients: forwards without them are what the program does."""
    names = {"events": "trigger", "kernels": "module", "memory": "module"}
    is_apart = pl.col("phase") == "no-grad forward"
    return replace(
        tables,
        **{
            name: getattr(tables, name).with_columns(
                phase=pl.when(~is_apart)
                .then("phase")
                .when(pl.col(module) == "")
                .then(pl.lit("other"))
                .otherwise(pl.lit("forward"))
            )
            for name, module in names.items()
        },
    )


def _cost_tables(recording: Recording, issued: Sequence[Issued], rank: int) -> dict[str, pl.DataFrame]:
    """The tables of kernels and of memory; empty where costs are not recorded."""
    if recording.kernels is None:
        return {name: schema.empty(name) for name in ("kernels", "memory")}
    from dsexplore.capture.kernel_tables import kernels_table, memory_table  # loads torch's FLOP formulas

    return {
        "kernels": kernels_table(recording.kernels, issued, rank),
        "memory": memory_table(recording.kernels, issued, rank),
    }


def _ranks(issued: Iterable[Issued]) -> list[int]:
    """The ranks that issued these collectives; where there are none, this process's rank."""
    ranks = sorted({one.rank for one in issued})
    if ranks:
        return ranks
    if dist.is_initialized():
        return [own_rank()]
    # Started by a launcher, and has no process group yet or no more.
    return [int(os.environ["RANK"])] if "RANK" in os.environ else []


def _mesh_of(groups: Sequence[Group]) -> str:
    """The first mesh that has names; torch makes one of the world without names, as for its random numbers."""
    meshes = [group.mesh for group in groups if group.mesh]
    return next((mesh for mesh in meshes if not mesh.startswith("dim_0=")), meshes[0] if meshes else "")


def _world_size(groups: Sequence[Group]) -> int:
    """The size of the process group; where there is none, the launcher's, or that of the largest group seen."""
    if dist.is_initialized():
        return dist.get_world_size()
    return max([int(os.environ.get("WORLD_SIZE", "1")), *(group.size for group in groups)])


def events_table(found: CollectiveKinds, steps: Sequence[int], stack_depth: int) -> pl.DataFrame:
    """One row per message; columns: `schema.EVENTS`.

    Args:
        found: the collectives.
        steps: how many of them had been issued at each `Trace.step`.
        stack_depth: how many of the user's lines to name per event.
    """
    of_rows, collectives = found.rows()
    table = _kinds_table(found.kinds, stack_depth).select(pl.all().gather(pl.Series(of_rows, dtype=pl.UInt32)))
    of_collectives: dict[str, Sequence[int | None]] = {
        **found.columns,
        "step": _step_numbers(steps, len(found.numbers)),
    }
    columns = {name: pl.Series(values, dtype=schema.EVENTS[name]) for name, values in of_collectives.items()}
    if len(found.numbers) != len(of_rows) or (collectives != np.arange(len(of_rows))).any():
        columns = {name: values.gather(collectives) for name, values in columns.items()}
    columns["seq"] = pl.int_range(len(of_rows), eager=True)
    columns["group_seq"] = pl.repeat(None, len(of_rows), dtype=schema.EVENTS["group_seq"], eager=True)
    return table.with_columns(**columns).select(schema.EVENTS.keys())


def _kinds_table(kinds: Sequence[Kind], stack_depth: int) -> pl.DataFrame:
    """One row per message of each kind, with the columns of `schema.EVENTS` that its events have in common."""
    places = [(kind.issued, position) for kind in kinds for position in range(len(kind.issued.messages))]
    collectives = [one for one, _ in places]
    messages = [one.messages[position] for one, position in places]
    origins = [one.origin for one in collectives]
    names = {id(module): module.name for each in origins for module in (each.trigger, each.owner) if module}
    groups = [one.group for one in collectives]
    sizes = [size_of(group) for group in groups]
    columns: dict[str, Any] = {
        "rank": [one.rank for one in collectives],
        "op": [op for op, *_ in messages],
        "raw_op": [one.raw_op for one in collectives],
        "phase": [origin.phase for origin in origins],
        "trigger": [names[id(origin.trigger)] if origin.trigger else "" for origin in origins],
        "owner": [names[id(origin.owner)] if origin.owner else "" for origin in origins],
        "axis": [_axis(*place) for place in places],
        "group": [group.name if group else "" for group in groups],
        "group_size": sizes,
        "message_bytes": [sent for _, sent, *_ in messages],
        "wire_bytes": [wire_bytes(op, sent, size) for (op, sent, *_), size in zip(messages, sizes, strict=True)],
        "dtype": [str(dtype).removeprefix("torch.") if dtype else "" for *_, dtype, _ in messages],
        "shape": _shapes([shape for *_, shape in messages]),
        "implicit": [origin.is_implicit for origin in origins],
        "cause": [one.cause_text for one in collectives],
        "source": source_texts(origin.sources[:stack_depth] for origin in origins),
        "is_async": [one.is_async for one in collectives],
        "is_object": [origin.is_object for origin in origins],
        "state": [kind.state for kind in kinds for _ in kind.issued.messages],
        **_parties(places),
    }
    return pl.DataFrame(columns, schema={name: schema.EVENTS[name] for name in columns})


def _axis(one: Issued, position: int) -> str:
    """The axis of the collective's group; of a message in a group along none, the one between its two ranks."""
    group, parties = one.group, one.parties
    if group is None or group.axis or parties is None or position >= len(parties.peers):
        return group.axis if group is not None else ""
    peer = _global_rank(one, parties.peers[position])
    return group.axis_of_peer.get(peer, "") if peer is not None else ""


def _parties(places: Iterable[tuple[Issued, int]]) -> dict[str, pl.Series]:
    """Peer, root and split sizes: ranks of the group become global ones."""
    columns: dict[str, list[Any]] = {name: [] for name in ("peer", "root", "send_splits", "recv_splits")}
    for one, position in places:
        known = one.parties or _ALIKE
        columns["peer"].append(_global_rank(one, known.peers[position]) if position < len(known.peers) else None)
        columns["root"].append(_global_rank(one, known.root))
        columns["send_splits"].append(known.send_splits)
        columns["recv_splits"].append(known.recv_splits)
    return {name: pl.Series(values, dtype=schema.EVENTS[name]) for name, values in columns.items()}


_ALIKE = Parties()


def _global_rank(one: Issued, rank: int | None) -> int | None:
    if rank is None or one.group is None:
        return rank
    return one.group.ranks[rank] if 0 <= rank < len(one.group.ranks) else None


def _step_numbers(steps: Sequence[int], count: int) -> list[int]:
    """Per collective the number of its step.

    Worked example: steps marked after 2 and after 3 collectives of 4 give 0, 0, 1, 2.
    """
    numbers: list[int] = []
    for step, end in enumerate([*steps, count]):
        numbers.extend([step] * (end - len(numbers)))
    return numbers


def parameters_table(parameters: Sequence[Parameter], rank: int) -> pl.DataFrame:
    """One row per parameter of the modules met; columns: `schema.PARAMETERS`."""
    layouts = [one.layout for one in parameters]
    modules = [one.module.name for one in parameters]
    columns: dict[str, Any] = {
        "rank": [rank] * len(parameters),
        "module": modules,
        "name": [f"{module}.{one.name}" for module, one in zip(modules, parameters, strict=True)],
        "global_shape": _shapes([layout.global_shape for layout in layouts]),
        "local_shape": _shapes([layout.local_shape for layout in layouts]),
        "dtype": [layout.dtype for layout in layouts],
        "placements": [layout.placements for layout in layouts],
        "mesh": [layout.mesh for layout in layouts],
        "global_bytes": [layout.global_bytes for layout in layouts],
        "local_bytes": [layout.local_bytes for layout in layouts],
        "requires_grad": [one.requires_grad for one in parameters],
        "shared_with": [
            f"{one.shared_with.module.name}.{one.shared_with.name}" if one.shared_with else "" for one in parameters
        ],
    }
    return pl.DataFrame(columns, schema=schema.PARAMETERS)


def _shapes(shapes: Sequence[Sequence[int]]) -> pl.Series:
    """A column of shapes; a model has few different ones, and polars makes a series of each list that it is given."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = [numbers.setdefault(tuple(map(int, shape)), len(numbers)) for shape in shapes]
    return pl.Series(list(map(list, numbers)), dtype=schema.EVENTS["shape"]).gather(rows)


def modules_table(modules: Iterable[ModuleEntry], earlier_calls: Mapping[int, int]) -> pl.DataFrame:
    """One row per module met; columns: `schema.MODULES`.

    Args:
        modules: parents before children.
        earlier_calls: calls to leave out, by identity of the entry.
    """
    rows = []
    for module in modules:
        name = module.name
        is_root = module.root is None
        parent = "" if is_root else name.rpartition(".")[0]
        depth = 0 if is_root else module.path.count(".") + 1
        rows.append((name, parent, module.type, depth, module.calls - earlier_calls.get(id(module), 0)))
    return pl.DataFrame(rows, schema=schema.MODULES, orient="row")


def groups_table(groups: Iterable[Group]) -> pl.DataFrame:
    """One row per group; columns: `schema.GROUPS`."""
    rows = [
        (group.name, group.axis, group.mesh, list(group.ranks), group.size, group.backend, group.timing)
        for group in groups
    ]
    return pl.DataFrame(rows, schema=schema.GROUPS, orient="row")
