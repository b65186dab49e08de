"""The text tables of torch's ``CommDebugMode``: modules, indented, with collectives and operations per phase."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsexplore.atomic import writing
from dsexplore.trace.torch_json import ModuleCounts, Node

_COLORS = re.compile(r"\033\[[0-9;]*m")
_HEADINGS = {"recompute": "ACTIVATION CHECKPOINTING", "optimizer": "OPTIMIZER"}
"""Of the phases that torch's mode does not tell apart; operations that are recomputed stand under the first already."""


def earlier_table(tree: Mapping[str, Node], counts: Mapping[str, ModuleCounts]) -> str:
    """Return each module with its collectives: the table of earlier versions."""
    lines = []
    for name, node in tree.items():
        lines.append("  " * node.depth + name)
        total = counts.get(name, ModuleCounts()).total()
        lines += [_yellow("  " * (node.depth + 1) + f"*{op}: {count}") for op, count in total.items()]
    return "".join(f"{line}\n" for line in lines)


def table(mode: Any, noise_level: int) -> str:
    """Return the table of torch's mode, in which each module has its recomputed collectives and those of optimizers.

    Args:
        mode: of `dsexplore.trace.torch_json.torchs_mode`.
        noise_level: as torch has it.
    """
    tracker, blocks = mode.advanced_module_tracker, []
    for name, helper in tracker.module_helper_dict.items():
        tracker.module_helper_dict = {name: helper}
        block = mode.generate_comm_debug_tracing_table(noise_level)
        blocks += [block, *_own_sections(block, "    " * helper["depth"], mode.comm_module_counts.get(name, {}))]
    return "".join(blocks)


def _own_sections(block: str, indent: str, counts: Mapping[str, Mapping[Any, int]]) -> list[str]:
    lines = []
    for phase, heading in _HEADINGS.items():
        collectives = counts.get(phase, {})
        if collectives and f"  {heading}\n" not in block:
            lines.append(f"{indent}  {heading}\n")
        lines += [_yellow(f"{indent}    *{op}: {count}") + "\n" for op, count in collectives.items()]
    return lines


def write_plain(table: str, file_name: str | os.PathLike[str]) -> None:
    """Write a table without its colors."""
    with writing(Path(file_name)) as partial:
        partial.write_text(_COLORS.sub("", table), encoding="utf-8")


def _yellow(text: str) -> str:
    return f"\033[1;33m{text}\033[0m"
