"""From what the recorder holds to the tables of a `Trace`: here names and texts are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from dsexplore.capture.groups import Group
from dsexplore.capture.issued import Issued
from dsexplore.capture.modules import Modules
from dsexplore.capture.source_lines import source_texts
from dsexplore.trace import schema
from dsexplore.trace.collectives import wire_bytes


def events_frame(issued: Sequence[Issued], steps: Sequence[int], stack_depth: int) -> pl.DataFrame:
    """One row per message.

    Args:
        issued: in program order.
        steps: how many of them had been issued at each `Trace.step`.
        stack_depth: how many of the user's frames to name.
    """
    for one in issued:
        one.read_clock()
    numbers = _step_numbers(steps, len(issued))
    names = {id(module): module.name for one in issued for module in (one.trigger, one.owner) if module}
    rows = [(one, step, *message) for one, step in zip(issued, numbers, strict=True) for message in one.messages]
    collectives = [row[0] for row in rows]
    groups = [one.group for one in collectives]
    sizes = [group.size if group else 1 for group in groups]
    columns: dict[str, Any] = {
        "rank": [one.rank for one in collectives],
        "step": [step for _, step, *_ in rows],
        "seq": list(range(len(rows))),
        "op": [op for _, _, op, *_ in rows],
        "raw_op": [one.raw_op for one in collectives],
        "phase": [one.phase for one in collectives],
        "trigger": [names[id(one.trigger)] if one.trigger else "" for one in collectives],
        "owner": [names[id(one.owner)] if one.owner else "" for one in collectives],
        "axis": [group.axis if group else "" for group in groups],
        "group": [group.name if group else "" for group in groups],
        "group_size": sizes,
        "message_bytes": [sent for _, _, _, sent, *_ in rows],
        "wire_bytes": [wire_bytes(op, sent, size) for (_, _, op, sent, *_), size in zip(rows, sizes, strict=True)],
        "dtype": [str(dtype).removeprefix("torch.") if dtype else "" for *_, dtype, _ in rows],
        "shape": _shapes([shape for *_, shape in rows]),
        "implicit": [one.implicit for one in collectives],
        "cause": [one.cause_text for one in collectives],
        "source": source_texts(one.sources[:stack_depth] for one in collectives),
        "is_async": [one.is_async for one in collectives],
        "is_object": [one.is_object for one in collectives],
        "batch": [one.batch for one in collectives],
        "start": [one.start for one in collectives],
        "end": [one.end for one in collectives],
    }
    return pl.DataFrame(columns, schema=schema.EVENTS)


def _step_numbers(steps: Sequence[int], count: int) -> list[int]:
    numbers: list[int] = []
    for step, end in enumerate([*steps, count]):
        numbers.extend([step] * (end - len(numbers)))
    return numbers


def parameters_frame(modules: Modules, rank: int) -> pl.DataFrame:
    """One row per parameter of the modules met."""
    held = modules.parameters()
    layouts = [one.layout for one in held]
    names = [one.module.name for one in held]
    columns: dict[str, Any] = {
        "rank": [rank] * len(held),
        "module": names,
        "name": [f"{name}.{one.name}" for name, one in zip(names, held, strict=True)],
        "global_shape": _shapes([layout.global_shape for layout in layouts]),
        "local_shape": _shapes([layout.local_shape for layout in layouts]),
        "dtype": [layout.dtype for layout in layouts],
        "placements": [layout.placements for layout in layouts],
        "mesh": [layout.mesh for layout in layouts],
        "global_bytes": [layout.global_bytes for layout in layouts],
        "local_bytes": [layout.local_bytes for layout in layouts],
        "requires_grad": [one.requires_grad for one in held],
        "shared_with": [
            f"{one.shared_with.module.name}.{one.shared_with.name}" if one.shared_with else "" for one in held
        ],
    }
    return pl.DataFrame(columns, schema=schema.PARAMETERS)


def _shapes(shapes: Sequence[Sequence[int]]) -> pl.Series:
    """A column of shapes; a model has few different ones, and each list that is made costs polars a series."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = [numbers.setdefault(tuple(map(int, shape)), len(numbers)) for shape in shapes]
    return pl.Series(list(map(list, numbers)), dtype=schema.EVENTS["shape"]).gather(rows)


def modules_frame(modules: Modules, earlier: Mapping[int, int]) -> pl.DataFrame:
    """One row per module met, with its calls less those counted earlier, by identity of its entry."""
    rows = []
    for module in modules.in_order():
        name = module.name
        is_root = module.root is None
        parent = "" if is_root else name.rpartition(".")[0]
        depth = 0 if is_root else module.path.count(".") + 1
        rows.append((name, parent, module.type, depth, module.calls - earlier.get(id(module), 0)))
    return pl.DataFrame(rows, schema=schema.MODULES, orient="row")


def groups_frame(groups: Iterable[Group]) -> pl.DataFrame:
    """One row per group."""
    rows = [
        (group.name, group.axis, group.mesh, list(group.ranks), group.size, group.backend, group.timing)
        for group in groups
    ]
    return pl.DataFrame(rows, schema=schema.GROUPS, orient="row")
