"""Counts and module trees in the form of torch's ``CommDebugMode``; torch writes the JSON itself.

Two things differ from torch's own counts. Collectives of activation checkpointing's recomputation and of optimizers
have sections of their own, ``recompute`` and ``optimizer``; torch counts them as backward and forward. And a collective
counts for the module that owns it; where FSDP prefetches, torch counts it for the module before.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore._internal.output import writing
from dsexplore._internal.torch_internals.comm_mode import counted_ops, make_mode
from dsexplore._internal.torch_internals.dispatch import find_op
from dsexplore._internal.trace.tables import Tables

Op = Callable[..., object]
"""torch's ``OpOverloadPacket``, such as ``torch.ops.c10d_functional.all_reduce``."""

GLOBAL = "Global"
"""torch's name for the root of all modules."""

OWN_PHASES = ("recompute", "optimizer")
"""Phases with a section of their own, which torch's mode does not have."""

PHASE_KEYS = {
    **dict.fromkeys(("start-up", "forward", "no-grad forward", "between steps", "other"), "forward"),
    "backward": "backward",
}
"""{recorder's phase: key of torch's module counts}; ``recompute`` and ``optimizer`` keep their names."""


class ModuleCounts(dict[Any, Any]):
    """Counts of one module as torch has them now: ``{"forward": {op: count}, "backward": {op: count}}``.

    Earlier versions of torch had ``{op: count}``, so an op as key gives its count over all phases.
    """

    def __init__(self) -> None:
        super().__init__(forward=defaultdict(int), backward=defaultdict(int))

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise KeyError(key)
        return sum(counts.get(key, 0) for counts in self.values())

    def add(self, phase: str, op: Op, count: int) -> None:
        """Add `count` calls of `op` under the key of a trace's phase."""
        self.setdefault(PHASE_KEYS.get(phase, phase), defaultdict(int))[op] += count

    def total(self) -> dict[Op, int]:
        """Return {op: count} over all phases."""
        sums: dict[Op, int] = defaultdict(int)
        for counts in self.values():
            for op, count in counts.items():
                sums[op] += count
        return sums


@dataclass
class ModuleNode:
    """A module in the tree that torch shows, which has only modules that ran."""

    name: str
    depth: int = 0
    type: str = ""
    placements: dict[str, str] = field(default_factory=dict)
    """{parameter: placements as torch writes them}, for DTensors only."""
    children: list[str] = field(default_factory=list)
    parents: set[str] = field(default_factory=set)
    """All enclosing modules, including `GLOBAL`."""

    def helper_dict(self) -> dict[str, object]:
        """Return the entry of torch's ``module_helper_dict``."""
        entry: dict[str, object] = {"depth": self.depth}
        if self.type:
            entry = {"module_type": self.type, **entry}
        if self.placements:
            entry["parameters"] = dict(self.placements)
        return entry


@cache
def packet(raw_op: str) -> Op | None:
    """Return the key under which torch's mode counts a dispatcher op; None for one that it does not count.

    The in-place and out variants that Inductor issues count as the op that the program called.
    """
    counted = counted_ops()
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        op: Op | None = find_op(raw_op)
        is_counted = op in counted.c10d or name == "gather_into_tensor_"  # which torch 2.15 does not list
        return op if is_counted else None
    for candidate in (name, name.removesuffix("_"), name.removesuffix("_out")):
        op = find_op(f"{namespace}::{candidate}") if namespace else None
        if op is not None and op in counted.functional:
            older: Op = counted.older_names.get(op, op)
            return older
    return None


def calls(events: pl.DataFrame) -> Iterator[tuple[str, str, Op, int]]:
    """Yield (owner, phase, op, count) of the calls that torch counts; a coalesced call counts once."""
    once = pl.when(pl.col("batch").is_null()).then(-1 - pl.col("seq")).otherwise(pl.col("batch"))
    unique = events.with_columns(once.alias("call")).unique(["rank", "raw_op", "call"], maintain_order=True)
    counted = unique.group_by("owner", "phase", "raw_op", maintain_order=True).len()
    for owner, phase, raw_op, count in counted.iter_rows():
        op = packet(raw_op)
        if op is not None:
            yield owner, phase, op, count


def module_tree(tables: Tables) -> dict[str, ModuleNode]:
    """Return {name: node} of `GLOBAL` and the modules that ran, parents before children."""
    ran = tables.modules.filter(pl.col("calls") > 0)
    tree = {GLOBAL: ModuleNode(GLOBAL)}
    for name, kind in ran.select("module", "type").iter_rows():
        around = [outer for outer in outer_modules(name) if outer in tree]
        parent = around[-1] if around else GLOBAL
        tree[name] = ModuleNode(name, len(around) + 1, f"class '{kind}'", parents={GLOBAL, *around})
        tree[parent].children.append(name)
    for module, name, placements in (
        tables.parameters.select("module", "name", "placements").unique(maintain_order=True).iter_rows()
    ):
        if placements and module in tree:
            tree[module].placements[name.removeprefix(f"{module}.")] = long_placements(placements)
    return tree


def outer_modules(name: str) -> list[str]:
    """Return the names of the enclosing modules: ``"A.b.c"`` → ``["A", "A.b"]``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def long_placements(short: str) -> str:
    """Return placements as torch writes them: ``"S(0), R"`` → ``"(Shard(dim=0), Replicate())"``."""
    words = short.replace("), ", ")\n").replace("R, ", "R\n").replace("P, ", "P\n").split("\n")
    written = [_long(word) for word in words]
    return f"({written[0]},)" if len(written) == 1 else f"({', '.join(written)})"


def _long(word: str) -> str:
    """Return one placement as torch writes it: ``"S(0)"`` → ``"Shard(dim=0)"``."""
    inside = word.partition("(")[2].removesuffix(")")
    if word == "R":
        return "Replicate()"
    if word.startswith("P"):
        return f"Partial({inside or 'sum'})"
    if word.startswith("_S("):
        dim, factor = inside.split(", ")
        return f"_StridedShard(dim={dim}, sf={factor})"
    return f"Shard(dim={inside})"


def module_counts(
    collectives: Iterable[tuple[str, str, Op, int]], tree: Mapping[str, ModuleNode]
) -> dict[str, ModuleCounts]:
    """Return the counts per module, including those of the modules inside it; `GLOBAL` has all."""
    counts = {GLOBAL: ModuleCounts()}
    for owner, phase, op, count in collectives:
        outer = [name for name in outer_modules(owner) if name in tree]
        for name in (GLOBAL, *outer, *([owner] if owner else [])):
            counts.setdefault(name, ModuleCounts()).add(phase, op, count)
    return counts


def torchs_mode(
    tree: Mapping[str, ModuleNode],
    counts: Mapping[str, ModuleCounts],
    operations: Mapping[str, Mapping[str, list[dict[str, object]]]],
) -> Any:
    """Return a ``CommDebugMode`` filled with these counts instead of counting itself.

    Args:
        tree: {name: node} of the modules, see `module_tree`.
        counts: {name of a module: its counts}, see `module_counts`.
        operations: {name of a module: ``{"operations_list": […]}``}, as torch's mode has them.
    """
    mode = make_mode()
    mode.comm_module_counts, mode.comm_module_operation_counts = counts, operations
    mode.advanced_module_tracker.module_helper_dict = {name: node.helper_dict() for name, node in tree.items()}
    mode.advanced_module_tracker.parent_dict = {name: node.children for name, node in tree.items()}
    return mode


def write_json(mode: Any, path: str | os.PathLike[str], noise_level: int) -> None:
    """Write the JSON of torch's mode, with the collectives of `OWN_PHASES`.

    An interrupted write leaves an existing file unchanged.

    Args:
        mode: mode with the counts, from `torchs_mode`.
        path: path of the file.
        noise_level: level of detail, as torch's ``generate_json_dump`` takes it.
    """

    def add_own_phases(node: dict[str, Any]) -> None:
        counts = mode.comm_module_counts.get(node["fqn"], {})
        for phase in OWN_PHASES:
            node[f"collectives_{phase}"] = [[str(op), count] for op, count in counts.get(phase, {}).items()]
        for child in node["children"]:
            add_own_phases(child)

    with writing(path) as partial:
        mode.generate_json_dump(str(partial), noise_level)
        written = json.loads(partial.read_text(encoding="utf-8"))
        add_own_phases(written)
        partial.write_text(json.dumps(written, indent=4), encoding="utf-8")


def write_torch_json(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write a trace as the JSON of torch's mode and return the path.

    The lists of operations are empty, because a trace has only collectives.
    """
    tree = module_tree(tables)
    write_json(torchs_mode(tree, module_counts(calls(tables.events), tree), {}), path, noise_level=3)
    return Path(path)
