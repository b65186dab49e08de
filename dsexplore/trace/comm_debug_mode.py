"""torch's ``CommDebugMode`` on this project's recorder: the same names and results, without its faults.

What must hold, on success and on exception:

1. counts, tables and JSON have torch's keys and shape (`dsexplore.trace.torch_form` says where there is more);
2. collectives come from the recorder, so that other threads, DDP's reducer, a module that runs twice, microbatches and
   nested modes are counted right; the dispatch mode itself only lists operations, as torch's does;
3. compiled code stays compiled;
4. no parameter and no model is kept alive: `get_parameter_info` reads the model when it is called.
"""

from __future__ import annotations

import os
import re
import weakref
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dsexplore.errors import UsageError
from dsexplore.trace import recorder, torch_form
from dsexplore.trace.atomic import writing
from dsexplore.trace.model import Trace
from dsexplore.trace.modules import Module
from dsexplore.trace.torch_form import (
    COUNTED,
    GLOBAL,
    NATIVE_TO_PY_MAPPING,
    OPERATION_LISTS,
    ModuleCounts,
    Node,
    Op,
    c10d_collective_ops,
)

__all__ = [
    "NATIVE_TO_PY_MAPPING",
    "CommDebugMode",
    "CommModeModuleTracker",
    "c10d_collective_ops",
    "trivial_ops",
]

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

Operation = dict[str, Any]

_COLOURS = re.compile(r"\033\[[0-9;]*m")


class CommModeModuleTracker:
    """Which modules ran inside the block, with their parameters and placements, under torch's attribute names.

    Everything is read when asked for, during the block and after it; a model that is gone has no parameters.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self._open: ExitStack | None = None
        self._references: dict[str, weakref.ref[nn.Module]] = {}
        self._tree: dict[str, Node] = {}

    def __enter__(self) -> CommModeModuleTracker:
        if self._open is not None:
            raise UsageError("this mode is already active: nest another CommDebugMode() instead of the same one")
        with ExitStack() as stack:
            self.trace = stack.enter_context(recorder.record())
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        stack, self._open = self._open, None
        if stack is not None:
            try:
                self._refresh()
            finally:
                stack.__exit__(kind, error, traceback)

    @property
    def tree(self) -> dict[str, Node]:
        """`GLOBAL` and the modules that ran, parents before children; empty before the first block."""
        if self._open is not None:
            self._refresh()
        return self._tree

    def _refresh(self) -> None:
        tree = torch_form.module_tree(self.trace.tables)
        self._references = {module.name: module.reference for module in recorder.followed() if module.name in tree}
        for name, model in self._alive(self._references):
            tree[name].type = str(type(model)).strip("<>")
            tree[name].placements = {
                key: str(parameter.placements)
                for key, parameter in model.named_parameters(recurse=False)
                if isinstance(parameter, DTensor)
            }
        self._tree = tree

    @staticmethod
    def _alive(references: dict[str, weakref.ref[nn.Module]]) -> list[tuple[str, nn.Module]]:
        return [(name, model) for name, reference in references.items() if (model := reference()) is not None]

    @property
    def module_helper_dict(self) -> dict[str, dict[str, Any]]:
        """Module → its depth, type, and the placements of its parameters as text."""
        return {
            name: {
                **({"module_type": node.type} if node.type else {}),
                "depth": node.depth,
                **({"parameters": dict(node.placements)} if node.placements else {}),
            }
            for name, node in self.tree.items()
        }

    @property
    def module_depth_dict(self) -> dict[str, int]:
        """Module → depth, 0 for `GLOBAL`."""
        return {name: node.depth for name, node in self.tree.items()}

    @property
    def module_parents_dict(self) -> dict[str, set[str]]:
        """Module → itself and all that surrounds it."""
        return {name: node.parents | ({name} if node.parents else set()) for name, node in self.tree.items()}

    @property
    def parent_dict(self) -> dict[str, list[str]]:
        """Module → the modules directly inside it, each once."""
        return {name: list(node.children) for name, node in self.tree.items() if node.children}

    @property
    def module_parameters_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Module → its own parameters' data, for modules that still exist."""
        tree = self.tree
        alive = dict(self._alive(self._references))
        parameters = {
            name: {key: parameter.data for key, parameter in alive[name].named_parameters(recurse=False)}
            for name in tree
            if name in alive
        }
        return {name: own for name, own in parameters.items() if own}

    @property
    def sharding_dict(self) -> dict[str, tuple[Any, ...]]:
        """Parameter → its placements, for DTensors of modules that still exist."""
        return {
            f"{name}.{key}": data.placements
            for name, own in self.module_parameters_dict.items()
            for key, data in own.items()
            if isinstance(data, DTensor)
        }

    @property
    def is_bw(self) -> bool:
        """Whether autograd is running a backward pass in this thread."""
        return torch._C._current_graph_task_id() != -1

    @property
    def activation_checkpointing(self) -> bool:
        """Whether a module's forward runs inside backward."""
        return self.is_bw and recorder.is_in_forward()

    @property
    def name(self) -> str:
        """The module that is running; in backward, the one whose forward made the running node."""
        module = recorder.running_module() if self._open is not None else None
        return module.name if module is not None else GLOBAL

    @property
    def parents(self) -> set[str]:
        """`GLOBAL`, the module that is running, and all that surrounds it."""
        name = self.name
        return {GLOBAL, name, *torch_form.outer_modules(name)}

    def print_parameter_info(self) -> None:
        """Print `module_parameters_dict`."""
        print(self.module_parameters_dict)

    print_paramater_info = print_parameter_info

    def print_sharding_info(self) -> None:
        """Print a line per parameter that is a DTensor."""
        for name, placements in self.sharding_dict.items():
            print(f"{name}: {placements}")


class CommDebugMode(TorchDispatchMode):
    """Counts collectives per op and per module: a drop-in for ``torch.distributed.tensor.debug.CommDebugMode``.

    Names of earlier versions of torch's class work too. `trace` has all that the recorder saw: bytes, groups, causes.

    .. code-block:: python

        with CommDebugMode() as mode:
            model(x).sum().backward()
        mode.get_comm_counts()[torch.ops.c10d_functional.all_reduce]
        print(mode.generate_comm_debug_tracing_table(noise_level=1))
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.supports_higher_order_operators = True
        self.advanced_module_tracker = CommModeModuleTracker()
        self.comm_registry: set[Op] = set(COUNTED)
        self._comm_counts: dict[Op, int] = defaultdict(int)
        self._comm_module_counts: dict[str, ModuleCounts] = {}
        self._operations: dict[Module | None, list[Operation]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled while this mode is active."""
        return True

    def __enter__(self) -> CommDebugMode:
        self.advanced_module_tracker.__enter__()
        try:
            super().__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped
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
            super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call] # torch leaves it untyped
        finally:
            self.advanced_module_tracker.__exit__(kind, error, traceback)
            self._refresh()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **kwargs)
        if any(issubclass(kind, DTensor) for kind in types):
            self._note(func, args)
            return NotImplemented  # DTensor runs, and what it does in its place comes here again
        if detect_fake_mode(args) is None:
            self._note(func, args)
        return func(*args, **kwargs)

    def _note(self, func: Any, args: tuple[Any, ...]) -> None:
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
        self._operations.setdefault(recorder.running_module(), []).append(operation)

    def _refresh(self) -> None:
        tree = self.advanced_module_tracker.tree
        found = list(torch_form.calls(self.trace.events))
        self._comm_counts.clear()
        for _, _, op, count in found:
            self._comm_counts[op] += count
        self._comm_module_counts.clear()
        self._comm_module_counts.update(torch_form.module_counts(found, tree))

    def _refresh_if_open(self) -> None:
        if self.advanced_module_tracker._open is not None:
            self._refresh()

    @property
    def trace(self) -> Trace:
        """What the recorder saw, in the last block or so far."""
        return self.advanced_module_tracker.trace

    @property
    def comm_counts(self) -> dict[Op, int]:
        """Op → count; functional ops under their older names, as `NATIVE_TO_PY_MAPPING` has them."""
        self._refresh_if_open()
        return self._comm_counts

    @property
    def comm_module_counts(self) -> dict[str, ModuleCounts]:
        """Module → phase → op → count, each module with those inside it."""
        self._refresh_if_open()
        return self._comm_module_counts

    @property
    def comm_module_operation_counts(self) -> dict[str, dict[str, list[Operation]]]:
        """Module → ``{"operations_list": […]}``: its operations in order, collective or not."""
        listed: dict[str, dict[str, list[Operation]]] = {}
        for module, operations in self._operations.items():
            name = module.name if module is not None else GLOBAL
            listed.setdefault(name, {"operations_list": []})["operations_list"].extend(operations)
        return listed

    def get_total_counts(self) -> int:
        """All counts of `get_comm_counts` together."""
        return sum(self.comm_counts.values())

    def get_comm_counts(self) -> dict[Op, int]:
        """Op → count: `comm_counts`."""
        return self.comm_counts

    def get_comm_module_counts(self) -> dict[str, ModuleCounts]:
        """`comm_module_counts`, where an op is a key beside the phases, as in earlier versions."""
        return self.comm_module_counts

    def get_parameter_info(self) -> dict[str, dict[str, torch.Tensor]]:
        """Module → parameter → its data, for models that still exist."""
        return self.advanced_module_tracker.module_parameters_dict

    def get_sharding_info(self) -> dict[str, tuple[Any, ...]]:
        """Parameter → placements, for DTensors of models that still exist."""
        return self.advanced_module_tracker.sharding_dict

    def print_parameter_info(self) -> None:
        """Print what `get_parameter_info` returns."""
        self.advanced_module_tracker.print_parameter_info()

    print_paramater_info = print_parameter_info

    def print_sharding_info(self) -> None:
        """Print what `get_sharding_info` returns, a line per parameter."""
        self.advanced_module_tracker.print_sharding_info()

    def generate_module_tracing_table(self) -> str:
        """The modules, indented, each with its collectives: the table of earlier versions."""
        lines = []
        for name, node in self.advanced_module_tracker.tree.items():
            lines.append("  " * node.depth + name)
            counts = self.comm_module_counts.get(name, ModuleCounts()).total()
            lines += [_yellow("  " * (node.depth + 1) + f"*{op}: {count}") for op, count in counts.items()]
        return "".join(f"{line}\n" for line in lines)

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """The modules, indented, each with collectives and operations of forward, backward and so on.

        Args:
            noise_level: 0: collectives; 1: and types, parameters, and operations on DTensors; 2: and other operations;
                3: and trivial ones, see `trivial_ops`.
        """
        counts = self.comm_module_counts
        operations = self._shown_operations(noise_level)
        lines = []
        for name, node in self.advanced_module_tracker.tree.items():
            lines += _module_lines(node, noise_level > 0)
            lines += _phase_lines(node.depth, counts.get(name, ModuleCounts()), operations.get(name, []))
        return "".join(f"{line}\n" for line in lines)

    def _shown_operations(self, noise_level: int) -> dict[str, list[Operation]]:
        """Per module, the operations that a noise level shows."""

        def shown(operation: Operation) -> bool:
            if noise_level > 2:
                return True
            trivial = str(operation["name"]) in trivial_ops
            return not trivial and (noise_level > 1 or (noise_level > 0 and bool(operation["input_sharding"])))

        return {
            name: [operation for operation in lists["operations_list"] if shown(operation)]
            for name, lists in self.comm_module_operation_counts.items()
        }

    def generate_json_dump(
        self, file_name: str | os.PathLike[str] = "comm_mode_log.json", noise_level: int = 3
    ) -> None:
        """Write the tree of `generate_comm_debug_tracing_table` as JSON."""
        tree = self.advanced_module_tracker.tree
        operations = self._shown_operations(noise_level)
        written = torch_form.json_tree(tree, self.comm_module_counts, operations, with_modules=noise_level > 0)
        torch_form.write_json(written, file_name)

    def log_comm_debug_tracing_table_to_file(
        self, file_name: str | os.PathLike[str] = "comm_mode_log.txt", noise_level: int = 3
    ) -> None:
        """Write `generate_comm_debug_tracing_table` without its colours."""
        _write_plain(self.generate_comm_debug_tracing_table(noise_level), file_name)

    def log_module_tracing_table_to_file(self, file_name: str | os.PathLike[str] = "output.txt") -> None:
        """Write `generate_module_tracing_table` without its colours."""
        _write_plain(self.generate_module_tracing_table(), file_name)

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"


def _write_plain(table: str, file_name: str | os.PathLike[str]) -> None:
    with writing(Path(file_name)) as partial:
        partial.write_text(_COLOURS.sub("", table), encoding="utf-8")


def _yellow(text: str) -> str:
    return f"\033[1;33m{text}\033[0m"


def _red(text: str) -> str:
    return f"\033[1;31m{text}\033[0m"


def _module_lines(node: Node, with_module: bool) -> list[str]:
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


def _phase_lines(depth: int, counts: ModuleCounts, operations: list[Operation]) -> list[str]:
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
