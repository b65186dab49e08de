"""The function ``dsexplore.sharding``: build a `Sharding` from a model, a tensor, or shapes and placements."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, MeshLike, parse_mesh
from dsexplore._internal.model_names import class_name
from dsexplore._internal.placement_text import Placement, read, read_all
from dsexplore._internal.sharding.joint_mesh import Reading, join, plain_readings
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.sharding.tensor import PlacedTensor, fit
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.torch_internals.modules import unwrapped, without_wrappers
from dsexplore._internal.units import format_count


@names_arguments
def sharding(
    shown: object,
    placements: object = None,
    mesh: object = None,
    dtype: torch.dtype | str | None = None,
) -> Sharding:
    """Compute which rank holds which slice of a tensor, of a model's parameters, or of a plan on paper.

    No process group is needed, no value is read, and the cost does not depend on the number of ranks::

        dsexplore.sharding(model)                                                  # its parameters, as they lie now
        dsexplore.sharding(dtensor)
        dsexplore.sharding((8192, 1024), placements=[Shard(0), Replicate()], mesh="dp=2,tp=4")
        dsexplore.sharding({"w1": ((512, 64), "S(0), R"), "w2": ((64,), "R, R")}, mesh="dp=2,tp=4")

    Args:
        shown: module, tensor or DTensor, shape, or mapping from names to tensors or to pairs of a shape and its
            placements.
        placements: placements of a shape or a plain tensor, one per mesh axis, in mesh order: torch's ``Shard(0)``,
            ``Replicate()``, ``Partial()``, or text ``"S(0), R"``. None for modules, DTensors and mappings.
        mesh: ``"dp=2,tp=4"``, a mapping, or a ``DeviceMesh``; None for DTensors, which have their own.
        dtype: data type of tensors that are given as shapes; None for torch's default.

    Raises:
        UsageError: placements do not fit the mesh or the shape, or something cannot be placed.

    Examples:
        >>> dsexplore.sharding((8, 6), "S(0), R", mesh="dp=2,tp=2").to_frame().select("rank", "index").rows()
        [(0, '0:4 | 0:6'), (1, '0:4 | 0:6'), (2, '4:8 | 0:6'), (3, '4:8 | 0:6')]
    """
    if isinstance(shown, nn.Module):
        _refuse(placements, "a model", "its parameters")
        return _plan_of_tensors(_title(shown), _named_parameters(shown), mesh)
    if isinstance(shown, Mapping):
        _refuse(placements, "a mapping", "its entries, {'name': (shape, placements)}")
        return _plan_of_mapping(shown, mesh, _dtype(dtype))
    if isinstance(shown, torch.Tensor):
        if placements is None:
            return _plan_of_tensors("tensor", [("tensor", shown, ())], mesh)
        if _is_dtensor(shown):
            raise UsageError(
                "this tensor is a DTensor and has its placements: leave placements= out, or give its shape"
            )
        return _plan_on_paper({"tensor": (shown.shape, placements, shown.dtype, shown.requires_grad)}, mesh)
    if placements is None:
        raise UsageError(
            f"{shown!r} is neither a model nor a tensor; for a shape give placements=[Shard(0), …] and mesh='dp=2,tp=4'"
        )
    return _plan_on_paper({"tensor": (shown, placements, _dtype(dtype), True)}, mesh)


def _refuse(placements: Any, what: str, where: str) -> None:
    """Raise if placements are given for something that has its own.

    Raises:
        UsageError: they are given.
    """
    if placements is not None:
        raise UsageError(f"placements= is for a shape or a plain tensor: {what} has those of {where}")


def _title(model: nn.Module) -> str:
    return class_name(unwrapped(model))


_Named = tuple[str, torch.Tensor, tuple[str, ...]]
"""Name, tensor, and other names of the same tensor."""


def _named_parameters(model: nn.Module) -> list[_Named]:
    """Return the parameters with their names, without those of wrappers; a tied parameter once."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        tensors[id(tensor)] = tensor
        names.setdefault(id(tensor), []).append(without_wrappers(name))
    return [(paths[0], tensors[key], tuple(dict.fromkeys(paths[1:]))) for key, paths in names.items()]


def _plan_of_mapping(shown: Mapping[Any, Any], mesh: Any, dtype: torch.dtype) -> Sharding:
    """Return the sharding of {name: tensor} or {name: (shape, placements)}."""
    if all(isinstance(entry, torch.Tensor) for entry in shown.values()):
        return _plan_of_tensors("tensors", [(str(name), tensor, ()) for name, tensor in shown.items()], mesh)
    entries = {}
    for name, entry in shown.items():
        if isinstance(entry, torch.Tensor) or not isinstance(entry, Sequence) or len(entry) != 2:
            raise UsageError(
                f"entry {name!r} is {_brief(entry)}: give each name a pair (shape, placements), or give only tensors"
            )
        entries[str(name)] = (*entry, dtype, True)
    return _plan_on_paper(entries, mesh)


def _plan_on_paper(entries: Mapping[str, tuple[Any, Any, torch.dtype, bool]], mesh: Any) -> Sharding:
    """Return the sharding of {name: (shape, placements, dtype, whether it requires gradients)} on a mesh."""
    parsed = _mesh_of_plan(mesh)
    axes = plain_readings(parsed)
    placed = []
    for name, (shape, placements, dtype, requires_grad) in entries.items():
        sizes = _shape(shape, name)
        fitted = fit(read_all(placements, name), sizes, parsed.axes, name)
        placed.append(
            PlacedTensor(name, shape=sizes, dtype=dtype, placements=fitted, axes=axes, requires_grad=requires_grad)
        )
    return Sharding(placed[0].name if len(placed) == 1 else "plan", parsed, placed)


def _mesh_of_plan(mesh: MeshLike | Mesh | None) -> Mesh:
    parsed = parse_mesh(mesh)
    if not parsed.axes:
        raise UsageError("a plan on paper needs a mesh: write mesh='dp=2,tp=4', or give a DeviceMesh")
    return parsed


def _plan_of_tensors(title: str, tensors: Sequence[_Named], mesh: Any) -> Sharding:
    """Return the sharding of tensors; those that are not DTensors are plain, and whole on each rank.

    Raises:
        UsageError: a tensor has no shape yet, or a mesh is given although there are DTensors.
    """
    lazy = [name for name, tensor, _ in tensors if is_lazy(tensor)]
    if lazy:
        raise UsageError(f"{lazy[0]} has no shape yet: run the model once, or give it its sizes, before it is shown")
    dtensors = [tensor for _, tensor, _ in tensors if _is_dtensor(tensor)]
    if dtensors and mesh is not None:
        raise UsageError("mesh= is for plans and plain tensors: DTensors have their own, so leave it out")
    readings: dict[int, tuple[Reading, ...]] = {}
    if dtensors:
        joint, of_dtensors = join([tensor.device_mesh for tensor in dtensors])  # type: ignore[attr-defined]
        readings = dict(zip(map(id, dtensors), of_dtensors, strict=True))
    else:
        joint = _mesh_of_plan(mesh) if mesh is not None else _world()
    placed = [_placed(name, tensor, also, readings.get(id(tensor), ())) for name, tensor, also in tensors]
    return Sharding(title, joint, placed, _notes(placed, joint, has_dtensors=bool(dtensors)))


def _placed(name: str, tensor: torch.Tensor, also: tuple[str, ...], axes: tuple[Reading, ...]) -> PlacedTensor:
    """Return a tensor with its placements; without any if it is not a DTensor."""
    placements: tuple[Placement, ...] = tuple(map(read, tensor.placements)) if _is_dtensor(tensor) else ()  # type: ignore[attr-defined]
    fitted = fit(placements, tuple(tensor.shape), [axis.name for axis in axes], name)
    return PlacedTensor(
        name,
        shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        placements=fitted,
        axes=axes,
        requires_grad=tensor.requires_grad,
        also=also,
    )


def _notes(placed: Sequence[PlacedTensor], mesh: Mesh, *, has_dtensors: bool) -> list[str]:
    """Return a note on plain tensors, if there are any and several ranks."""
    plain = sum(not tensor.placements for tensor in placed)
    if not plain or mesh.size == 1:
        return []
    which = format_count(plain, "plain tensor") if has_dtensors else "Plain tensors"
    return [f"{which} without placements: each of the {mesh.size:,} ranks holds a whole tensor."]


def _world() -> Mesh:
    """Return a mesh of one axis with all ranks of the default process group; one rank without a group."""
    is_in_group = dist.is_available() and dist.is_initialized()
    return Mesh(("world",), (dist.get_world_size() if is_in_group else 1,))


def _is_dtensor(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # unless it is imported, there are no DTensors
    return module is not None and isinstance(tensor, module.DTensor)


def _shape(shape: Any, name: str) -> tuple[int, ...]:
    """Return a shape as a tuple of sizes; a number is the size of a tensor with one dim.

    Raises:
        UsageError: it is not a shape.
    """
    sizes = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, (str, torch.Tensor)) else (shape,)
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(f"{name}: {_brief(shape)} is not a shape: give a tuple of sizes such as (8192, 1024)")
    return sizes


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    if dtype is None:
        return torch.get_default_dtype()
    parsed = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(parsed, torch.dtype):
        raise UsageError(f"dtype {dtype!r} is not a dtype of torch: give torch.bfloat16, or 'bfloat16'")
    return parsed


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
