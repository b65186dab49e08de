"""`CommDebugMode`: a drop-in for torch's class of that name, based on this package's recorder.

Requirements, on success and on exception:

1. counts, tables and JSON are those of torch (`trace.torch_json` lists additions);
2. collectives come from the recorder, so those of other threads, DDP's reducer, a module that runs twice, microbatches
   and nested modes are counted correctly; the dispatch mode itself only lists operations;
3. compiled code stays compiled;
4. no parameter and no model is kept alive: `get_parameter_info` reads the model when it is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor import debug as torchs

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.comm_debug_mode.tracker import CommModeModuleTracker
from dsexplore._internal.output import writing
from dsexplore._internal.signatures import names_arguments_of_methods
from dsexplore._internal.torch_internals.comm_mode import counted_ops
from dsexplore._internal.torch_internals.dispatch import OpOverload, TorchDispatchMode
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, active_fake_mode
from dsexplore._internal.trace import torch_json
from dsexplore._internal.trace.torch_json import GLOBAL, ModuleCounts, ModuleNode, Op
from dsexplore._internal.trace.trace import Trace

_COLORS = re.compile(r"\033\[[0-9;]*m")
_HEADINGS = {"recompute": "ACTIVATION CHECKPOINTING", "optimizer": "OPTIMIZER"}
"""Headings of the phases that torch's mode does not separate; it lists recomputed operations under the first."""


def earlier_table(tree: Mapping[str, ModuleNode], counts: Mapping[str, ModuleCounts]) -> str:
    """Return the table of earlier versions of torch: each module with its collectives."""
    lines = []
    for name, node in tree.items():
        lines.append("  " * node.depth + name)
        total = counts.get(name, ModuleCounts()).total()
        lines += [_yellow("  " * (node.depth + 1) + f"*{op}: {count}") for op, count in total.items()]
    return "".join(f"{line}\n" for line in lines)


def table(mode: Any, noise_level: int) -> str:
    """Return torch's table, with the collectives of recomputation and of optimizers added to each module.

    Args:
        mode: torch's mode with the recorded collectives, from `trace.torch_json.torchs_mode`.
        noise_level: 0 to 3, as for `CommDebugMode.generate_comm_debug_tracing_table`.
    """
    tracker, blocks = mode.advanced_module_tracker, []
    for name, helper in tracker.module_helper_dict.items():
        tracker.module_helper_dict = {name: helper}
        block = mode.generate_comm_debug_tracing_table(noise_level)
        blocks += [block, *_torch_sections(block, "    " * helper["depth"], mode.comm_module_counts.get(name, {}))]
    return "".join(blocks)


def _torch_sections(block: str, indent: str, counts: Mapping[str, Mapping[Any, int]]) -> list[str]:
    lines = []
    for phase, heading in _HEADINGS.items():
        collectives = counts.get(phase, {})
        if collectives and f"  {heading}\n" not in block:
            lines.append(f"{indent}  {heading}\n")
        lines += [_yellow(f"{indent}    *{op}: {count}") + "\n" for op, count in collectives.items()]
    return lines


def write_plain(table: str, file_name: str | os.PathLike[str]) -> None:
    """Write a table to a file, without colors."""
    with writing(Path(file_name)) as partial:
        partial.write_text(_COLORS.sub("", table), encoding="utf-8")


def _yellow(text: str) -> str:
    return f"\033[1;33m{text}\033[0m"


__all__ = [
    "NATIVE_TO_PY_MAPPING",
    "CommDebugMode",
    "CommModeModuleTracker",
    "c10d_collective_ops",
    "trivial_ops",
]

NATIVE_TO_PY_MAPPING, _, c10d_collective_ops, trivial_ops = counted_ops()

Operation = dict[str, object]
"""One dispatched op, with torch's keys: name, input_shape, input_sharding, device_mesh, is_bw, …"""


class CommDebugMode(torchs.CommDebugMode):
    """Counts collectives per op and per module: a drop-in for ``torch.distributed.tensor.debug.CommDebugMode``.

    Names of earlier versions of torch's class work too. `trace` is the full recording, with bytes, groups and causes.

    .. code-block:: python

        with CommDebugMode() as mode:
            model(x).sum().backward()
        mode.get_comm_counts()[torch.ops.c10d_functional.all_reduce]
        print(mode.generate_comm_debug_tracing_table(noise_level=1))

    Examples:
        >>> with dsexplore.simulate(4), dsexplore.CommDebugMode() as mode:
        ...     dist.all_reduce(torch.ones(256))
        >>> mode.get_total_counts()
        1
    """

    advanced_module_tracker: CommModeModuleTracker  # type: ignore[assignment] # it has the attributes of torch's
    _operations: dict[ModuleEntry | None, list[Operation]]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.advanced_module_tracker = CommModeModuleTracker()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled code stays compiled while this mode is active."""
        return True

    def __enter__(self) -> CommDebugMode:
        self.advanced_module_tracker.__enter__()
        try:
            TorchDispatchMode.__enter__(self)
        except BaseException:
            self.advanced_module_tracker.__exit__()
            raise
        self._operations = {}
        self._refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            TorchDispatchMode.__exit__(self, kind, error, traceback)
        finally:
            self.advanced_module_tracker.__exit__(kind, error, traceback)
            self._refresh()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # a higher-order op, which calls functions of the program
            return func(*args, **kwargs)
        if any(issubclass(kind, DTensor) for kind in types):
            self._list_operation(func, args)
            return NotImplemented  # DTensor's dispatch calls ops on local tensors, which come here again
        if active_fake_mode() is None and not any(isinstance(arg, FakeTensor) for arg in args):
            self._list_operation(func, args)
        return func(*args, **kwargs)

    def _list_operation(self, func: Any, args: tuple[Any, ...]) -> None:
        """Add an op to the operations of the running module."""
        tensors = [arg for arg in args if isinstance(arg, DTensor)]
        tracker = self.advanced_module_tracker
        operation = {
            "name": func,
            "input_shape": [tensor.shape for tensor in tensors],
            "input_sharding": [tensor.placements for tensor in tensors],
            "device_mesh": str(tensors[-1].device_mesh) if tensors else "",
            "is_bw": tracker.is_bw,
            "is_activation_checkpointing": tracker.activation_checkpointing,
        }
        self._operations.setdefault(recorder_in_use.running_module(), []).append(operation)

    def _refresh(self) -> None:
        tree = self.advanced_module_tracker.tree
        calls = list(torch_json.calls(self.trace.events))
        self._comm_counts.clear()
        for _, _, op, count in calls:
            self._comm_counts[op] += count
        self._comm_module_counts.clear()
        self._comm_module_counts.update(torch_json.module_counts(calls, tree))

    def _refresh_if_open(self) -> None:
        if self.advanced_module_tracker.active:
            self._refresh()

    @property
    def trace(self) -> Trace:
        """Trace of the last block, or of this one so far."""
        return self.advanced_module_tracker.trace

    @property
    def comm_counts(self) -> dict[Op, int]:
        """Count of each op; functional ops have their older names, those of `NATIVE_TO_PY_MAPPING`."""
        self._refresh_if_open()
        return self._comm_counts

    @comm_counts.setter
    def comm_counts(self, counts: dict[Op, int]) -> None:
        self._comm_counts = counts

    @property
    def comm_module_counts(self) -> dict[str, ModuleCounts]:
        """Counts by module, phase and op; a module includes its submodules."""
        self._refresh_if_open()
        return self._comm_module_counts

    @comm_module_counts.setter
    def comm_module_counts(self, counts: dict[str, ModuleCounts]) -> None:
        self._comm_module_counts = counts

    @property
    def comm_module_operation_counts(self) -> dict[str, dict[str, list[Operation]]]:
        """Operations of each module in order, collectives and others, as ``{"operations_list": […]}``."""
        listed: dict[str, dict[str, list[Operation]]] = {}
        for module, operations in self._operations.items():
            name = module.name if module is not None else GLOBAL
            listed.setdefault(name, {"operations_list": []})["operations_list"].extend(operations)
        return listed

    @comm_module_operation_counts.setter
    def comm_module_operation_counts(self, _value_in_torchs_constructor: object) -> None:
        self._operations = {}

    def get_comm_module_counts(self) -> dict[str, ModuleCounts]:
        """Return `comm_module_counts`; as in earlier versions of torch, an op can be a key in place of a phase.

        Examples:
            >>> list(mode.get_comm_module_counts())
            ['Global']
        """
        return self.comm_module_counts

    def print_parameter_info(self) -> None:
        """Print the result of `get_parameter_info`.

        Examples:
            >>> mode.print_parameter_info()  # no module ran
            {}
        """
        self.advanced_module_tracker.print_parameter_info()

    print_paramater_info = print_parameter_info

    def print_sharding_info(self) -> None:
        """Print the result of `get_sharding_info`, one line per parameter.

        Examples:
            >>> mode.print_sharding_info()  # no module ran
        """
        self.advanced_module_tracker.print_sharding_info()

    def _torchs_mode(self) -> Any:
        tree = self.advanced_module_tracker.tree
        return torch_json.torchs_mode(tree, self.comm_module_counts, self.comm_module_operation_counts)

    def generate_module_tracing_table(self) -> str:
        """Return the table of earlier versions of torch: modules, indented, each with its collectives.

        Examples:
            >>> "allreduce_: 1" in mode.generate_module_tracing_table()
            True
        """
        return earlier_table(self.advanced_module_tracker.tree, self.comm_module_counts)

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """Return a table of modules, indented, each with the collectives and operations of its phases.

        Args:
            noise_level: 0 for collectives; 1 adds types, parameters and operations on DTensors; 2 adds other
                operations; 3 adds `trivial_ops`.

        Examples:
            >>> "allreduce_" in mode.generate_comm_debug_tracing_table(noise_level=0)
            True
        """
        return table(self._torchs_mode(), noise_level)

    def generate_json_dump(
        self, file_name: str | os.PathLike[str] = "comm_mode_log.json", noise_level: int = 3
    ) -> None:
        """Write the content of `generate_comm_debug_tracing_table` as JSON.

        Args:
            file_name: path of the file.
            noise_level: as for `generate_comm_debug_tracing_table`.

        Examples:
            >>> mode.generate_json_dump("modules.json")
            >>> Path("modules.json").exists()
            True
        """
        torch_json.write_json(self._torchs_mode(), file_name, noise_level)

    def log_comm_debug_tracing_table_to_file(
        self, file_name: str | os.PathLike[str] = "comm_mode_log.txt", noise_level: int = 3
    ) -> None:
        """Write the table of `generate_comm_debug_tracing_table` to a file, without colors.

        Args:
            file_name: path of the file.
            noise_level: as for `generate_comm_debug_tracing_table`.

        Examples:
            >>> mode.log_comm_debug_tracing_table_to_file("table.txt")
            >>> Path("table.txt").exists()
            True
        """
        write_plain(self.generate_comm_debug_tracing_table(noise_level), file_name)

    def log_module_tracing_table_to_file(self, file_name: str | os.PathLike[str] = "output.txt") -> None:
        """Write the table of `generate_module_tracing_table` to a file, without colors.

        Examples:
            >>> mode.log_module_tracing_table_to_file("modules.txt")
            >>> Path("modules.txt").exists()
            True
        """
        write_plain(self.generate_module_tracing_table(), file_name)


names_arguments_of_methods(CommDebugMode)
