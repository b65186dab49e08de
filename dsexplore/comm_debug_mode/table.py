"""The text tables of torch's ``CommDebugMode``: modules, indented, with collectives and operations per phase."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsexplore.atomic import writing
from dsexplore.trace.torch_json import OPERATION_LISTS, ModuleCounts, Node

Operation = dict[str, Any]
"""One dispatched op, with torch's keys: name, input_shape, input_sharding, device_mesh, is_bw, …"""

trivial_ops = {
    f"aten.{name}"
    for name in (
        "_to_copy.default",
        "as_strided.default",
        "detach.default",
        "t.default",
        "transpose.int",
        "view.default",
    )
}
"""Operations that only the highest noise level shows."""

_COLOURS = re.compile(r"\033\[[0-9;]*m")


def shown(operations: list[Operation], noise_level: int) -> list[Operation]:
    """The operations of a noise level: 3 all, 2 all but `trivial_ops`, 1 of these the ones on DTensors, 0 none."""
    if noise_level > 2:
        return operations
    return [
        operation
        for operation in operations
        if str(operation["name"]) not in trivial_ops
        and (noise_level > 1 or (noise_level > 0 and bool(operation["input_sharding"])))
    ]


def earlier_table(tree: Mapping[str, Node], counts: Mapping[str, ModuleCounts]) -> str:
    """Each module with its collectives: the table of earlier versions."""
    lines = []
    for name, node in tree.items():
        lines.append("  " * node.depth + name)
        total = counts.get(name, ModuleCounts()).total()
        lines += [_yellow("  " * (node.depth + 1) + f"*{op}: {count}") for op, count in total.items()]
    return "".join(f"{line}\n" for line in lines)


def table(
    tree: Mapping[str, Node],
    counts: Mapping[str, ModuleCounts],
    operations: Mapping[str, list[Operation]],
    *,
    with_modules: bool,
) -> str:
    """Each module with collectives and operations of forward, backward and so on.

    Args:
        with_modules: also types, and the placements of parameters.
    """
    lines = []
    for name, node in tree.items():
        lines += module_lines(node, with_modules)
        lines += phase_lines(node.depth, counts.get(name, ModuleCounts()), operations.get(name, []))
    return "".join(f"{line}\n" for line in lines)


def write_plain(table: str, file_name: str | os.PathLike[str]) -> None:
    """Write a table without its colours."""
    with writing(Path(file_name)) as partial:
        partial.write_text(_COLOURS.sub("", table), encoding="utf-8")


def _yellow(text: str) -> str:
    return f"\033[1;33m{text}\033[0m"


def _red(text: str) -> str:
    return f"\033[1;31m{text}\033[0m"


def module_lines(node: Node, with_module: bool) -> list[str]:
    """A module's name, and its type and the placements of its parameters if ``with_module``."""
    indent = "    " * node.depth
    lines = [f"{indent}{node.name}"]
    if with_module and node.type:
        lines.append(f"{indent}*module type: {node.type}")
    if with_module and node.placements:
        lines.append(f"{indent}*Parameter List")
        lines += [f"{indent} *{name}: {placements}" for name, placements in node.placements.items()]
    return lines


_SECTIONS = (
    ("FORWARD PASS", "forward", "operations_forward"),
    ("BACKWARD PASS", "backward", "operations_backward"),
    ("ACTIVATION CHECKPOINTING", "recompute", "operations_checkpointing"),
    ("OPTIMIZER", "optimizer", None),
)
"""Heading, key of the counts, key of the operations."""


def phase_lines(depth: int, counts: ModuleCounts, operations: list[Operation]) -> list[str]:
    """A module's collectives and operations under a heading for each phase that has any."""
    indent = "    " * depth
    lines = []
    for heading, phase, key in _SECTIONS:
        collectives = counts.get(phase, {})
        listed = [operation for operation in operations if key is not None and OPERATION_LISTS[key](operation)]
        if collectives or listed:
            lines.append(f"{indent}  {heading}")
        lines += [_yellow(f"{indent}    *{op}: {count}") for op, count in collectives.items()]
        for operation in listed:
            lines.append(_yellow(f"{indent}    **{operation['name']}"))
            if operation["input_shape"]:
                lines.append(_red(f"{indent}      shape: {operation['input_shape']}"))
                lines.append(_red(f"{indent}      sharding: {operation['input_sharding']}"))
                lines.append(_red(f"{indent}      device mesh: {operation['device_mesh']}"))
    return lines
