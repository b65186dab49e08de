"""Where each parameter lives: its shapes, placements and bytes, read when its model is met; never its values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import is_lazy

from dsexplore import placements
from dsexplore.meshes import mesh_text

if TYPE_CHECKING:
    from dsexplore.trace.modules import Module


@dataclass(slots=True, eq=False)
class Parameter:
    """Shape and place of one parameter."""

    module: Module
    name: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    placements: str
    mesh: str
    global_bytes: int
    local_bytes: int
    requires_grad: bool
    shared_with: Parameter | None


@dataclass
class Parameters:
    """Those of all models met; for one thread at a time."""

    _read: dict[tuple[int, str], Parameter] = field(default_factory=dict)
    """By the identity of the module's entry, and name."""
    _lazy: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    """Models with parameters that had no shape yet, by identity."""
    _meshes: dict[int, tuple[DeviceMesh, str]] = field(default_factory=dict)
    """Meshes that parameters lie on, and their text, by identity."""

    def read(self, model: nn.Module, entry_of: Callable[[nn.Module], Module | None]) -> None:
        """Read those of a model that were not read before, of the modules that have an entry."""
        first: dict[int, Parameter] = {}
        for part in model.modules():
            module = entry_of(part)
            if module is None:
                continue
            for name, tensor in part._parameters.items():
                if tensor is None:
                    continue
                if is_lazy(tensor):
                    self._lazy[id(model)] = weakref.ref(model)
                    continue
                key = (id(module), name)
                if key not in self._read:
                    self._read[key] = self._describe(module, name, tensor, first.get(id(tensor)))
                first.setdefault(id(tensor), self._read[key])

    def read_lazy(self, entry_of: Callable[[nn.Module], Module | None]) -> None:
        """Read those that had no shape when their model was met: its first call has given them one."""
        lazy, self._lazy = self._lazy, {}
        for reference in lazy.values():
            model = reference()
            if model is not None:
                self.read(model, entry_of)

    def of(self, modules: Iterable[Module]) -> list[Parameter]:
        """All of them, in the order of their modules."""
        places = {id(module): place for place, module in enumerate(modules)}
        return sorted(self._read.values(), key=lambda parameter: places.get(id(parameter.module), len(places)))

    def meshes(self) -> list[DeviceMesh]:
        """The meshes that they lie on."""
        return [mesh for mesh, _ in self._meshes.values()]

    def release(self) -> None:
        """Hold no mesh any more; what was read stays."""
        self._meshes.clear()

    def _describe(self, module: Module, name: str, tensor: torch.Tensor, shared: Parameter | None) -> Parameter:
        spec = getattr(tensor, "_spec", None)
        local = tensor._local_tensor if spec is not None else tensor  # type: ignore[attr-defined]
        return Parameter(
            module=module,
            name=name,
            global_shape=tuple(tensor.shape),
            local_shape=tuple(local.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            placements=placements.joined(spec.placements) if spec is not None else "",
            mesh=self._mesh_text(spec.mesh) if spec is not None else "",
            global_bytes=tensor.numel() * tensor.element_size(),
            local_bytes=local.numel() * local.element_size(),
            requires_grad=tensor.requires_grad,
            shared_with=shared,
        )

    def _mesh_text(self, mesh: DeviceMesh) -> str:
        if id(mesh) not in self._meshes:
            self._meshes[id(mesh)] = mesh, mesh_text(mesh)
        return self._meshes[id(mesh)][1]
