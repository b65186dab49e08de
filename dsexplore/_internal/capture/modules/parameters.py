"""Where each parameter lives: its shapes, placements and bytes, read when its model is met; never its values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from dsexplore._internal import placement_text
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.mesh import mesh_text
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.modules import own_parameters


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Shapes, placements and bytes of a parameter; ``local`` is this rank's part of a DTensor, else the same."""

    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    placements: str
    mesh: str
    global_bytes: int
    local_bytes: int


@dataclass(slots=True, eq=False)
class ParameterRecord:
    """What is recorded of one parameter of a module."""

    module: ModuleEntry
    name: str
    """The parameter's name in its module, such as ``weight``."""
    layout: ParameterLayout
    requires_grad: bool
    shared_with: ParameterRecord | None
    """The first parameter of the model that is the same tensor; None for that one itself."""


@dataclass
class ParameterRecords:
    """The records of the parameters of all models met. Its caller keeps other threads out meanwhile."""

    _all: list[ParameterRecord] = field(default_factory=list)
    _by_name: dict[str, dict[int, ParameterRecord]] = field(default_factory=dict)
    """{name: {identity of the module's entry: record}}, by name first, as a model has few names."""
    _lazy: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    """Models with parameters that had no shape yet, by identity."""
    _meshes: dict[int, DeviceMesh] = field(default_factory=dict)
    """Meshes that parameters lie on, by identity."""
    _layouts: dict[Hashable, ParameterLayout] = field(default_factory=dict)
    """{(shapes, dtype, placements, mesh): layout}; the layers of a model share a few."""

    def read(self, model: nn.Module, parts: Iterable[tuple[nn.Module, ModuleEntry]]) -> None:
        """Read the parameters of a model that were not read before.

        Args:
            model: the outermost module.
            parts: all modules of the model, in the order of ``named_modules``, with their entries.
        """
        first: dict[int, ParameterRecord] = {}
        for part, module in parts:
            for name, tensor in own_parameters(part).items():
                if tensor is None:
                    continue
                if is_lazy(tensor):
                    self._lazy[id(model)] = weakref.ref(model)
                    continue
                by_module = self._by_name.get(name)
                if by_module is None:
                    by_module = self._by_name[name] = {}
                record = by_module.get(id(module))
                if record is None:
                    shared = first.get(id(tensor))
                    record = ParameterRecord(module, name, self._layout(tensor), tensor.requires_grad, shared)
                    by_module[id(module)] = record
                    self._all.append(record)
                first.setdefault(id(tensor), record)

    def read_lazy(self, entry_of: Callable[[nn.Module], ModuleEntry | None]) -> None:
        """Read the parameters that had no shape when their model was met: its first call has given them one.

        Args:
            entry_of: the entry of a module, if it was met.
        """
        lazy, self._lazy = self._lazy, {}
        for reference in lazy.values():
            model = reference()
            if model is not None:
                entries = ((part, entry_of(part)) for part in model.modules())
                self.read(model, [(part, module) for part, module in entries if module is not None])

    def of(self, modules: Iterable[ModuleEntry]) -> list[ParameterRecord]:
        """Return all records, in the order of `modules`."""
        places = {id(module): place for place, module in enumerate(modules)}
        return sorted(self._all, key=lambda record: places.get(id(record.module), len(places)))

    def meshes(self) -> list[DeviceMesh]:
        """Return the meshes of all parameters."""
        return list(self._meshes.values())

    def release(self) -> None:
        """Drop all references to meshes; what was read stays."""
        self._meshes.clear()
        self._layouts.clear()

    def _layout(self, tensor: torch.Tensor) -> ParameterLayout:
        if isinstance(tensor, DTensor):
            local, placed, mesh = local_tensor(tensor), tensor.placements, tensor.device_mesh
            self._meshes[id(mesh)] = mesh
        else:
            local, placed, mesh = tensor, (), None
        key = tensor.shape, local.shape, tensor.dtype, placed, id(mesh)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = ParameterLayout(
                global_shape=tuple(map(int, tensor.shape)),
                local_shape=tuple(map(int, local.shape)),
                dtype=str(tensor.dtype).removeprefix("torch."),
                placements=placement_text.joined(placed),
                mesh=mesh_text(mesh) if mesh is not None else "",
                global_bytes=tensor.numel() * tensor.element_size(),
                local_bytes=local.numel() * local.element_size(),
            )
        return layout
