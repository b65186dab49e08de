"""DTensor: local parts, specifications, meshes and their process groups, and the planner of redistributions."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.torch_internals.names import TorchName, internal, is_there
from dsexplore._internal.torch_internals.process_groups import resolve_group

_LATER: dict[str, Callable[[], Any]] = {
    "DTensorSpec": partial(internal, "torch.distributed.tensor._dtensor_spec:DTensorSpec"),
    "RngTracker": partial(internal, "torch.distributed.tensor._random:_RNGStateTracker"),
    "local_tensor_mode": partial(
        internal, "torch.distributed._local_tensor:local_tensor_mode", since="2.10", otherwise=lambda: None
    ),
}
"""What is not looked up before it is asked for, as ``torch.distributed.tensor`` takes long to import."""

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec as DTensorSpec

    RngTracker: Any
    """The base class of what shares the state of generators."""
    local_tensor_mode: Callable[[], Any]
    """Return the active ``LocalTensorMode``, which computes for all ranks at once; None where there is none."""
else:

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(name)
        value = globals()[name] = _LATER[name]()
        return value


local_tensor: Callable[[Any], torch.Tensor] = attrgetter("_local_tensor")
"""Return this rank's part of a DTensor, without autograd and without waiting for it."""

PROPAGATE_SHARDING = TorchName(
    "torch.distributed.tensor._sharding_prop:ShardingPropagator.propagate_op_sharding_non_cached"
)
"""The method that works out how the results of an op are sharded, where no cache knows it."""

PROPAGATE_TENSOR_META = TorchName(
    "torch.distributed.tensor._sharding_prop:ShardingPropagator._propagate_tensor_meta_non_cached"
)
"""The method that runs an op on fake tensors of global shape, to learn the shape of its result."""


root_mesh: Callable[[DeviceMesh], DeviceMesh] = internal(
    "torch.distributed.device_mesh:DeviceMesh._get_root_mesh",
    since="2.10",
    otherwise=internal("torch.distributed.device_mesh:_mesh_resources.get_root_mesh", otherwise=lambda mesh: mesh),
)
"""Return the mesh that a mesh was sliced from; the mesh itself if it is not a slice. The older way is deprecated."""
_takes_rank = "_rank" in inspect.signature(DeviceMesh.__init__).parameters


def group_names(mesh: DeviceMesh) -> Sequence[str]:
    """Return the names of a mesh's process groups, one per axis; none for a mesh without groups, as one on paper."""
    return getattr(mesh, "_dim_group_names", None) or ()


def group_of_mesh(mesh: DeviceMesh, name: str) -> dist.ProcessGroup | None:
    """Return the process group of a mesh that has that name; None where the mesh has no such group.

    A mesh of an earlier world may carry the name of another group of today's. A mesh of torch 2.9 has names alone, so
    there the group is the one that had the name when it was first asked for; None if none had.
    """
    root: Any = root_mesh(mesh)
    if hasattr(root, "_pg_registry"):
        group: dist.ProcessGroup | None = root._pg_registry.get(name)
        return group
    references: dict[str, weakref.ref[dist.ProcessGroup]] = vars(root).setdefault("_groups_by_name", {})
    if name not in references:
        try:
            references[name] = weakref.ref(resolve_group(name))
        except RuntimeError:  # the group was destroyed before anybody asked
            return None
    return references[name]()


def mesh_without_groups(ranks: torch.Tensor, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """Return a mesh on paper, seen from its first rank."""
    if _takes_rank:
        return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=int(ranks.flatten()[0]))
    mesh = DeviceMesh("xla", ranks, mesh_dim_names=names, _init_backend=False)  # the type that asks for no rank
    vars(mesh)["_coordinate_on_dim"] = [0] * ranks.ndim
    return mesh


class PlannedStep(NamedTuple):
    """One step of a redistribution: an axis gets another placement."""

    axis: int
    before: Any
    after: Any
    shape: tuple[int, ...]
    """The shape that the axis cuts."""


def plan_redistribution(
    mesh: DeviceMesh, tensor: torch.Tensor, before: Sequence[Any], after: Sequence[Any]
) -> list[PlannedStep]:
    """Return the steps by which torch brings a tensor from some placements to others.

    Args:
        mesh: where it lies; needs no process groups.
        tensor: has the global shape and dtype, on the meta device.
        before: its placements, one per axis.
        after: those wanted.
    """
    meta = internal("torch.distributed.tensor._dtensor_spec:TensorMeta")(tensor.shape, tensor.stride(), tensor.dtype)
    spec = internal("torch.distributed.tensor._dtensor_spec:DTensorSpec")
    first, last = (spec(mesh, tuple(placements), tensor_meta=meta) for placements in (before, after))
    try:
        infos = internal("torch.distributed.tensor._redistribute:_gen_transform_infos_non_cached")(first, last)
    finally:
        forget_planners()
    return [
        PlannedStep(info.mesh_dim, source, target, tuple(map(int, info.logical_shape)))
        for info in infos
        for source, target in [info.src_dst_placements]
    ]


def forget_planners() -> None:
    """Drop the planners of redistributions that torch keeps, each with its mesh; torch 2.9 keeps none."""
    internal("torch.distributed.tensor._redistribute:clear_redistribute_planner_cache", since="2.10", otherwise=int)()


def strided_shard(dim: int, split_factor: int) -> Any:
    """Return the placement of a dim that was cut into so many pieces before this axis cuts each of them."""
    return internal("torch.distributed.tensor.placement_types:_StridedShard")(dim, split_factor=split_factor)


MESH_METHODS_THAT_READ_RANKS = tuple(
    TorchName(f"torch.distributed.device_mesh:DeviceMesh.{name}", since=since)
    for since, names in {
        "2.9": ("__init__", "__getitem__", "__repr__", "_flatten", "from_group"),
        "2.10": ("__setstate__", "_concatenate", "_get_all_submeshes", "_unflatten"),
    }.items()
    for name in names
)
"""The methods of a mesh that read values of its table of ranks."""

MESH_RANKS = TorchName("torch.distributed.device_mesh:DeviceMesh.mesh", since="2.10")
"""The property that makes a mesh's table of ranks; in torch 2.9 the table is an attribute of the mesh."""

DTENSOR_INIT = TorchName("torch.distributed.tensor:DTensor.__init__")
FROM_LOCAL = TorchName("torch.distributed.tensor:DTensor.from_local")
TO_LOCAL = TorchName("torch.distributed.tensor:DTensor.to_local")

TENSOR_OF_SPEC = TorchName("torch.distributed.tensor._op_schema:_rebuild_tensor_from_dtensor_meta")
"""The function that makes a fake tensor of a specification, on which the shape of an op's result is found."""

RNG_TRACKER = TorchName("torch.distributed.tensor._random:OffsetBasedRNGTracker")
"""The class by which random ops on DTensors share the state of a device's generator."""

MESH_INIT = TorchName("torch.distributed.device_mesh:DeviceMesh.__init__")
GET_GROUP = TorchName("torch.distributed.device_mesh:DeviceMesh.get_group")
INIT_DEVICE_MESH = TorchName("torch.distributed.device_mesh:init_device_mesh")


def change_device_type(mesh: DeviceMesh, device_type: str) -> None:
    """Change the device type of a mesh that has not been used."""
    name = "_device_type" if hasattr(mesh, "_device_type") else "device_type"
    vars(mesh)[name] = device_type
    vars(mesh)["_hash"] = None  # torch works it out anew


_TABLES_OF_MESHES = [
    TorchName(f"torch.distributed.device_mesh:_mesh_resources.{name}", until="2.9")
    for name in ("child_to_root_mapping", "root_to_flatten_mapping", "flatten_name_to_root_dims")
]
"""Where torch 2.9 finds what a mesh was sliced from and what was flattened of it, by mesh; each thread has its own."""


def forget_mesh(mesh: DeviceMesh) -> None:
    """Drop the process groups that a mesh keeps alive, and what torch keeps of the mesh itself.

    A mesh of torch 2.9 keeps names of groups alone; there, tables keep each slice and what it was sliced from.
    """
    vars(mesh).pop("_pg_registry", None)
    for table in (name.get() for name in _TABLES_OF_MESHES if name.is_there):
        for key in [key for key, value in table.items() if key is mesh or value is mesh]:
            del table[key]


def custom_handlers() -> dict[Any, Callable[..., Any]]:
    """Return {op: function that runs it on DTensors, bypassing sharding propagation}."""
    dispatcher = internal("torch.distributed.tensor:DTensor._op_dispatcher")
    handlers: dict[Any, Callable[..., Any]] = dispatcher._custom_op_handlers
    return handlers


INIT_MESH_GROUPS = TorchName("torch.distributed.device_mesh:DeviceMesh._init_one_process_group", since="2.10")
"""The static method that makes the process groups of one axis: ``(sub_layout, rank_map, dim_name, backend, …)``."""


def ranks_of_groups(layout: Any, rank_map: torch.Tensor) -> torch.Tensor:
    """Return the ranks of each process group of an axis, one group in each row."""
    whole = layout.nest() if hasattr(layout, "nest") else _layout_of_mesh([layout])  # nested until torch 2.11
    groups: torch.Tensor = whole.remap_to_tensor(rank_map)
    return groups.flatten(1)


def flat_layout(size: int) -> Any:
    """Return the layout of an axis that holds all ranks of a table, in their order."""
    flat = internal("torch.distributed.device_mesh:_FlatLayout", since="2.12")
    return flat(size) if is_there(flat) else _layout_of_mesh((size,), (1,))


def _layout_of_mesh(*arguments: Any) -> Any:
    return internal("torch.distributed.device_mesh:_MeshLayout", since="2.10")(*arguments)


SHARD_DIM_ALLTOALL = TorchName("torch.distributed.tensor._collective_utils:shard_dim_alltoall")
"""The function that shards a DTensor along another dim: ``(input, gather_dim, shard_dim, mesh, mesh_dim)``."""

IS_RNG_SUPPORTED = TorchName("torch.distributed.tensor._random:is_rng_supported_mesh")
"""The function that says whether random ops on DTensors share the state of a generator: ``(device_mesh)``."""

CURRENT_RNG_TRACKER = TorchName("torch.distributed.tensor._random:_rng_tracker")
"""The variable that holds what shares the state of generators, once it was made."""

IS_TRACING_IN_DISPATCH = TorchName("torch.distributed.tensor._dispatch:_are_we_tracing", since="2.10")
"""The name under which ops on DTensors ask whether a compiler traces what runs."""

_PROPAGATOR = "torch.distributed.tensor:DTensor._op_dispatcher.sharding_propagator"
_CACHES: dict[tuple[str, str | None], tuple[str, ...]] = {
    ("2.9", "2.9"): (f"{_PROPAGATOR}._propagate_tensor_meta.cache_clear",),
    ("2.9", None): (
        f"{_PROPAGATOR}.propagate_op_sharding.cache.cache_clear",
        "torch.distributed.tensor._redistribute:_gen_transform_infos.cache_clear",
        "torch.distributed.tensor._collective_utils:MeshTopoInfo.build_from_mesh.cache_clear",
    ),
    ("2.10", None): (
        f"{_PROPAGATOR}._propagate_tensor_meta_cached.cache_clear",
        "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
        "torch.distributed.tensor._redistribute:clear_redistribute_planner_cache",
    ),
}
"""The functions that clear caches which hold meshes, by the first and the last version of torch that has them."""


def release_cached_meshes() -> None:
    """Clear the caches of DTensor that hold meshes."""
    for (since, until), paths in _CACHES.items():
        for path in paths:
            name = TorchName(path, since=since, until=until)
            if name.is_expected and name.is_there:  # in this order: what is not expected is not imported
                name.get()()
