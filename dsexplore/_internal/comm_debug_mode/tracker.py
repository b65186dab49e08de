"""`CommModeModuleTracker`: replaces torch's module tracker in `CommDebugMode`, based on this package's recorder."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from types import TracebackType

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.autograd import is_in_backward
from dsexplore._internal.trace import torch_json
from dsexplore._internal.trace.torch_json import GLOBAL, ModuleNode
from dsexplore._internal.trace.trace import Trace


class CommModeModuleTracker:
    """Modules that ran in a block, with their parameters and placements, under the attribute names of torch's class.

    Each attribute is computed when it is read, during the block or after it. A deleted model has no parameters.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self._open: ExitStack | None = None
        self._references: dict[str, weakref.ref[nn.Module]] = {}
        self._tree: dict[str, ModuleNode] = {}

    def __enter__(self) -> CommModeModuleTracker:
        if self._open is not None:
            raise UsageError("this mode is already active: nest another CommDebugMode() instead of the same one")
        with ExitStack() as stack:
            self.trace = stack.enter_context(record())
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
    def active(self) -> bool:
        """True while the block runs."""
        return self._open is not None

    @property
    def tree(self) -> dict[str, ModuleNode]:
        """`GLOBAL` and the modules that ran, parents before children; empty before the first block."""
        if self._open is not None:
            self._refresh()
        return self._tree

    def _refresh(self) -> None:
        """Compute the tree of the modules that ran so far."""
        tree = torch_json.module_tree(self.trace.tables)
        self._references = {
            module.name: module.reference for module in recorder_in_use.recorded_modules() if module.name in tree
        }
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
        models = {name: reference() for name, reference in references.items()}
        return [(name, model) for name, model in models.items() if model is not None]

    @property
    def module_helper_dict(self) -> dict[str, dict[str, object]]:
        """{module: depth, type, and placements of its parameters as text}."""
        return {name: node.helper_dict() for name, node in self.tree.items()}

    @property
    def module_depth_dict(self) -> dict[str, int]:
        """{module: depth}, 0 for `GLOBAL`."""
        return {name: node.depth for name, node in self.tree.items()}

    @property
    def module_parents_dict(self) -> dict[str, set[str]]:
        """{module: itself and the modules that contain it}."""
        return {name: node.parents | ({name} if node.parents else set()) for name, node in self.tree.items()}

    @property
    def parent_dict(self) -> dict[str, list[str]]:
        """{module: its children}, for modules with children."""
        return {name: list(node.children) for name, node in self.tree.items() if node.children}

    @property
    def module_parameters_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """{module: {name: data of its direct parameters}}, for modules that still exist."""
        tree = self.tree
        alive = dict(self._alive(self._references))
        parameters: dict[str, dict[str, torch.Tensor]] = {}
        for name in tree:
            direct = alive[name].named_parameters(recurse=False) if name in alive else ()
            data = {key: parameter.data for key, parameter in direct}
            if data:
                parameters[name] = data
        return parameters

    @property
    def sharding_dict(self) -> dict[str, tuple[Placement, ...]]:
        """{parameter: placements}, for DTensors of modules that still exist."""
        return {
            f"{name}.{key}": data.placements
            for name, parameters in self.module_parameters_dict.items()
            for key, data in parameters.items()
            if isinstance(data, DTensor)
        }

    @property
    def is_bw(self) -> bool:
        """True while autograd runs a backward pass in this thread."""
        return is_in_backward()

    @property
    def activation_checkpointing(self) -> bool:
        """True while a module's forward runs inside backward."""
        return self.is_bw and recorder_in_use.is_in_forward()

    @property
    def name(self) -> str:
        """Running module; in backward, the module whose forward created the running autograd node."""
        module = recorder_in_use.running_module() if self._open is not None else None
        return module.name if module is not None else GLOBAL

    @property
    def parents(self) -> set[str]:
        """`GLOBAL`, the running module, and the modules that contain it."""
        name = self.name
        return {GLOBAL, name, *torch_json.outer_modules(name)}

    def print_parameter_info(self) -> None:
        """Print `module_parameters_dict`."""
        print(self.module_parameters_dict)

    print_paramater_info = print_parameter_info

    def print_sharding_info(self) -> None:
        """Print one line per DTensor parameter."""
        for name, placements in self.sharding_dict.items():
            print(f"{name}: {placements}")
