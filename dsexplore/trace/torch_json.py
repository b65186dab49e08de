"""Counts and module trees in the form of torch's ``CommDebugMode``: its keys, its nesting, its JSON.

Two things differ from torch's. Collectives issued by activation checkpointing's recomputation and by optimizers
have sections of their own, ``recompute`` and ``optimizer``; torch counts them as backward and forward. A collective
counts for the module that owns it; where FSDP prefetches, torch counts it for the module before.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed._functional_collectives  # registers c10d_functional

from dsexplore.atomic import writing
from dsexplore.trace.tables import Tables

Op = Any
"""A ``torch._ops.OpOverloadPacket``, such as ``torch.ops.c10d_functional.all_reduce``."""

GLOBAL = "Global"
"""torch's name for what surrounds all modules."""

_native = torch.ops._c10d_functional
_python = torch.ops.c10d_functional

NATIVE_TO_PY_MAPPING: dict[Op, Op] = {
    **{
        getattr(_native, name): getattr(_python, name)
        for name in (
            "all_gather_into_tensor",
            "all_gather_into_tensor_coalesced",
            "all_reduce",
            "all_reduce_coalesced",
            "all_to_all_single",
            "broadcast",
            "reduce_scatter_tensor",
            "reduce_scatter_tensor_coalesced",
        )
    },
    torch.ops._c10d_functional_autograd.all_to_all_single: _python.all_to_all_single,
}
"""Functional ops, and the older ones whose names they are counted under."""

c10d_collective_ops: set[Op] = {
    getattr(torch.ops.c10d, name)
    for name in (
        "_allgather_base_",
        "_reduce_scatter_base_",
        "allgather_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "allreduce_",
        "allreduce_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "broadcast_",
        "gather_",
        "gather_into_tensor_",
        "reduce_",
        "reduce_scatter_",
        "reduce_scatter_tensor_coalesced_",
        "scatter_",
    )
    if hasattr(torch.ops.c10d, name)
}
"""The c10d ops that torch's class counts, as far as this torch has them: none from point to point, no barriers."""

COUNTED: frozenset[Op] = frozenset(
    {*NATIVE_TO_PY_MAPPING, *NATIVE_TO_PY_MAPPING.values(), torch.ops._dtensor.shard_dim_alltoall}
)
"""The functional and DTensor ops that torch's class counts."""

PHASE_KEYS = {**dict.fromkeys(("start-up", "forward", "no-grad forward", "other"), "forward"), "backward": "backward"}
"""A recorder's phase → the key of torch's module counts; ``recompute`` and ``optimizer`` keep their names."""


class ModuleCounts(dict[Any, Any]):
    """``{"forward": {op: count}, "backward": {op: count}}``, as torch has it now.

    Earlier versions of torch had ``{op: count}``: an op as key gives its count over all phases.
    """

    def __init__(self) -> None:
        super().__init__(forward=defaultdict(int), backward=defaultdict(int))

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise KeyError(key)
        return sum(counts.get(key, 0) for counts in self.values())

    def add(self, phase: str, op: Op, count: int) -> None:
        """Add ``count`` calls of ``op`` under the key of a trace's phase."""
        self.setdefault(PHASE_KEYS.get(phase, phase), defaultdict(int))[op] += count

    def total(self) -> dict[Op, int]:
        """``{op: count}`` over all phases."""
        sums: dict[Op, int] = defaultdict(int)
        for counts in self.values():
            for op, count in counts.items():
                sums[op] += count
        return sums


@dataclass
class Node:
    """One module of the tree that torch shows: only modules that ran."""

    name: str
    depth: int = 0
    type: str = ""
    placements: dict[str, str] = field(default_factory=dict)
    """Parameter → placements as torch writes them, for DTensors only."""
    children: list[str] = field(default_factory=list)
    parents: set[str] = field(default_factory=set)
    """All modules around it, `GLOBAL` included."""


def packet(raw_op: str) -> Op | None:
    """The key that torch's class counts an op of the dispatcher under; None for one that it does not count.

    The in-place and out variants that Inductor issues count as the op that the program called.
    """
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        op = getattr(torch.ops.c10d, name, None)
        return op if op in c10d_collective_ops else None
    for known in (name, name.removesuffix("_"), name.removesuffix("_out")):
        op = getattr(getattr(torch.ops, namespace), known, None) if namespace else None
        if op is not None and op in COUNTED:
            return NATIVE_TO_PY_MAPPING.get(op, op)
    return None


def calls(events: pl.DataFrame) -> Iterator[tuple[str, str, Op, int]]:
    """Owner, phase, op and count of the calls that torch counts; a coalesced call is one, whatever it moved."""
    once = pl.when(pl.col("batch").is_null()).then(-1 - pl.col("seq")).otherwise(pl.col("batch"))
    unique = events.with_columns(once.alias("call")).unique(["rank", "raw_op", "call"], maintain_order=True)
    counted = unique.group_by("owner", "phase", "raw_op", maintain_order=True).len()
    for owner, phase, raw_op, count in counted.iter_rows():
        op = packet(raw_op)
        if op is not None:
            yield owner, phase, op, count


def module_tree(tables: Tables) -> dict[str, Node]:
    """`GLOBAL` and below it the modules that ran, parents before children."""
    ran = tables.modules.filter(pl.col("calls") > 0)
    tree = {GLOBAL: Node(GLOBAL)}
    for name, kind in ran.select("module", "type").iter_rows():
        around = [outer for outer in outer_modules(name) if outer in tree]
        parent = around[-1] if around else GLOBAL
        tree[name] = Node(name, len(around) + 1, f"class '{kind}'", parents={GLOBAL, *around})
        tree[parent].children.append(name)
    for module, name, placements in (
        tables.parameters.select("module", "name", "placements").unique(maintain_order=True).iter_rows()
    ):
        if placements and module in tree:
            tree[module].placements[name.removeprefix(f"{module}.")] = long_placements(placements)
    return tree


def outer_modules(name: str) -> list[str]:
    """``"A.b.c"`` → ``["A", "A.b"]``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def long_placements(short: str) -> str:
    """``"S(0), R"`` → ``"(Shard(dim=0), Replicate())"``, as torch writes a tuple of placements."""
    words = short.replace("), ", ")\n").replace("R, ", "R\n").replace("P, ", "P\n").split("\n")
    written = [_long(word) for word in words]
    return f"({written[0]},)" if len(written) == 1 else f"({', '.join(written)})"


def _long(word: str) -> str:
    inside = word.partition("(")[2].removesuffix(")")
    if word == "R":
        return "Replicate()"
    if word.startswith("P"):
        return f"Partial({inside or 'sum'})"
    if word.startswith("_S("):
        dim, factor = inside.split(", ")
        return f"_StridedShard(dim={dim}, sf={factor})"
    return f"Shard(dim={inside})"


def module_counts(found: Iterable[tuple[str, str, Op, int]], tree: Mapping[str, Node]) -> dict[str, ModuleCounts]:
    """Counts per module, each with those of the modules inside it; `GLOBAL` has all."""
    counts = {GLOBAL: ModuleCounts()}
    for owner, phase, op, count in found:
        outer = [name for name in outer_modules(owner) if name in tree]
        for name in (GLOBAL, *outer, *([owner] if owner else [])):
            counts.setdefault(name, ModuleCounts()).add(phase, op, count)
    return counts


OPERATION_LISTS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "operations_forward": lambda op: not op["is_bw"],
    "operations_backward": lambda op: op["is_bw"] and not op["is_activation_checkpointing"],
    "operations_checkpointing": lambda op: op["is_activation_checkpointing"],
}
"""torch's three lists of operations, and which operations belong to each."""


def json_tree(
    tree: Mapping[str, Node],
    counts: Mapping[str, ModuleCounts],
    operations: Mapping[str, list[dict[str, Any]]],
    *,
    with_modules: bool = True,
) -> dict[str, Any]:
    """The tree as torch's ``generate_json_dump`` writes it; each module stands in it once.

    Args:
        operations: per module, those to list.
        with_modules: also types and parameters.
    """

    def node(name: str) -> dict[str, Any]:
        module, listed = tree[name], operations.get(name, [])
        own = counts.get(name, ModuleCounts())
        return {
            "fqn": name,
            "module_type": module.type if with_modules else "",
            "parameters": [list(item) for item in module.placements.items()] if with_modules else [],
            "children": [node(child) for child in module.children],
            **{
                f"collectives_{phase}": [[str(op), count] for op, count in own.get(phase, {}).items()]
                for phase in ("forward", "backward", "recompute", "optimizer")
            },
            **{key: [_as_text(op) for op in listed if belongs(op)] for key, belongs in OPERATION_LISTS.items()},
        }

    return node(GLOBAL)


def _as_text(operation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **operation,
        "name": str(operation["name"]),
        "input_shape": [str(shape) for shape in operation["input_shape"]],
        "input_sharding": [str(sharding) for sharding in operation["input_sharding"]],
    }


def write_torch_json(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write `json_tree` of a trace, without operations, as a trace holds collectives only; returns the path."""
    tree = module_tree(tables)
    written = json_tree(tree, module_counts(calls(tables.events), tree), {})
    write_json(written, path)
    return Path(path)


def write_json(written: Any, path: str | os.PathLike[str]) -> None:
    """Write a JSON file; an interrupted write leaves the file that was there before."""
    with writing(path) as partial:
        partial.write_text(json.dumps(written, indent=4), encoding="utf-8")
