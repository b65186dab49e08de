"""The shapes, placements and bytes of each parameter, read when its model is first called. Values are never read."""

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
    """Shapes, placements and bytes of a parameter; of a DTensor, ``local`` means this rank's local tensor."""

    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    """``"bfloat16"``."""
    placements: str
    """``"S(0),R"``; empty for a plain tensor."""
    mesh: str
    """``"dp=2,tp=4"``; empty for a plain tensor."""
    global_bytes: int
    local_bytes: int


@dataclass(slots=True, eq=False)
class ParameterRecord:
    """One parameter of a module."""

    module: ModuleEntry
    name: str
    """The parameter's name in its module, such as ``weight``."""
    layout: ParameterLayout
    requires_grad: bool
    shared_with: ParameterRecord | None
    """The record of the first parameter of the model that is the same tensor; None if this is the first."""


@dataclass
class ParameterRecords:
    """The parameters of all models of a recording. It has no lock: `Modules` calls it under its own."""

    _all: list[ParameterRecord] = field(default_factory=list)
    _by_name: dict[str, dict[int, ParameterRecord]] = field(default_factory=dict)
    """{parameter's name in its module: {id of the module's entry: record}}; the outer dict is small."""
    _lazy: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    """{id of a model: the model}, for models with uninitialized (lazy) parameters."""
    _meshes: dict[int, DeviceMesh] = field(default_factory=dict)
    """{id of a mesh: the mesh}, for all meshes of parameters."""
    _layouts: dict[Hashable, ParameterLayout] = field(default_factory=dict)
    """{(shapes, dtype, placements, mesh): layout}; the layers of a model share a few."""

    def read(self, model: nn.Module, modules: Iterable[tuple[nn.Module, ModuleEntry]]) -> None:
        """Read the parameters of a model that were not read before.

        Args:
            model: the outermost module.
            modules: all modules of the model with their entries, in the order of ``named_modules``.
        """
        first: dict[int, ParameterRecord] = {}
        for holder, module in modules:
            for name, tensor in own_parameters(holder).items():
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
                    record = ParameterRecord(
                        module,
                        name,
                        layout=self._layout(tensor),
                        requires_grad=tensor.requires_grad,
                        shared_with=shared,
                    )
                    by_module[id(module)] = record
                    self._all.append(record)
                first.setdefault(id(tensor), record)

    def read_lazy(self, entry_of: Callable[[nn.Module], ModuleEntry | None]) -> None:
        """Read the parameters that were uninitialized when their model was met, and that its call has initialized.

        Args:
            entry_of: returns the entry of a module; None if it was not met.
        """
        lazy, self._lazy = self._lazy, {}
        for reference in lazy.values():
            model = reference()
            if model is not None:
                entries = ((module, entry_of(module)) for module in model.modules())
                self.read(model, [(module, entry) for module, entry in entries if entry is not None])

    def of(self, modules: Iterable[ModuleEntry]) -> list[ParameterRecord]:
        """Return all records, in the order of `modules`."""
        positions = {id(module): position for position, module in enumerate(modules)}
        return sorted(self._all, key=lambda record: positions.get(id(record.module), len(positions)))

    def meshes(self) -> list[DeviceMesh]:
        """Return the meshes of all parameters."""
        return list(self._meshes.values())

    def release(self) -> None:
        """Drop all references to meshes; the records stay."""
        self._meshes.clear()
        self._layouts.clear()

    def _layout(self, tensor: torch.Tensor) -> ParameterLayout:
        """Return the layout of a parameter, one object for equal ones; note its mesh."""
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
