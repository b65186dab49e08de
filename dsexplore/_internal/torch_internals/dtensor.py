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
"""{name: function that looks it up}; at first use, because ``torch.distributed.tensor`` takes long to import."""

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec as DTensorSpec

    RngTracker: Any
    """Base class of the trackers that keep the states of generators equal on ranks."""
    local_tensor_mode: Callable[[], Any]
    """Return the active ``LocalTensorMode``, which computes for all ranks at once; None if none is active."""
else:

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(name)
        value = globals()[name] = _LATER[name]()
        return value


local_tensor: Callable[[Any], torch.Tensor] = attrgetter("_local_tensor")
"""Return this rank's part of a DTensor, without autograd and without waiting for a collective."""

PROPAGATE_SHARDING = TorchName(
    "torch.distributed.tensor._sharding_prop:ShardingPropagator.propagate_op_sharding_non_cached"
)
"""Method that computes how the results of an op are sharded, if no cache has it."""

PROPAGATE_TENSOR_META = TorchName(
    "torch.distributed.tensor._sharding_prop:ShardingPropagator._propagate_tensor_meta_non_cached"
)
"""Method that runs an op on fake tensors of global shape, to get the shape of its result."""


root_mesh: Callable[[DeviceMesh], DeviceMesh] = internal(
    "torch.distributed.device_mesh:DeviceMesh._get_root_mesh",
    since="2.10",
    otherwise=internal("torch.distributed.device_mesh:_mesh_resources.get_root_mesh", otherwise=lambda mesh: mesh),
)
"""Return the mesh that a mesh was sliced from; the mesh itself if it is not a slice."""
_takes_rank = "_rank" in inspect.signature(DeviceMesh.__init__).parameters


def group_names(mesh: DeviceMesh) -> Sequence[str]:
    """Return the names of a mesh's process groups, one per axis; empty for a mesh without groups."""
    return getattr(mesh, "_dim_group_names", None) or ()


def group_of_mesh(mesh: DeviceMesh, name: str) -> dist.ProcessGroup | None:
    """Return the process group of a mesh with a name; None if the mesh has no such group.

    A mesh of an earlier world may have the name of a group that a later world made, so the name alone is not enough. A
    mesh of torch 2.9 has only names. There, the group is the one that had the name at the first call for this mesh.
    """
    root: Any = root_mesh(mesh)
    if hasattr(root, "_pg_registry"):
        group: dist.ProcessGroup | None = root._pg_registry.get(name)
        return group
    references: dict[str, weakref.ref[dist.ProcessGroup]] = vars(root).setdefault("_groups_by_name", {})
    if name not in references:
        try:
            references[name] = weakref.ref(resolve_group(name))
        except RuntimeError:  # the group was destroyed before the first call
            return None
    return references[name]()


def mesh_without_groups(ranks: torch.Tensor, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """Return a mesh without process groups, on its first rank."""
    if _takes_rank:
        return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=int(ranks.flatten()[0]))
    mesh = DeviceMesh("xla", ranks, mesh_dim_names=names, _init_backend=False)  # the device type that needs no rank
    vars(mesh)["_coordinate_on_dim"] = [0] * ranks.ndim
    return mesh


class PlannedStep(NamedTuple):
    """One step of a redistribution, which changes the placement of one axis."""

    axis: int
    """Number of the mesh axis."""
    before: Any
    """Placement of the axis before the step."""
    after: Any
    """Placement of the axis after the step."""
    shape: tuple[int, ...]
    """Shape of the tensor that the axis shards."""


def plan_redistribution(
    mesh: DeviceMesh, tensor: torch.Tensor, before: Sequence[Any], after: Sequence[Any]
) -> list[PlannedStep]:
    """Return the steps by which torch brings a tensor from some placements to others.

    Args:
        mesh: mesh of the tensor; it needs no process groups.
        tensor: tensor with the global shape and dtype, on the meta device.
        before: placements of the tensor, one per axis.
        after: placements to bring it to, one per axis.
    """
    meta = internal("torch.distributed.tensor._dtensor_spec:TensorMeta")(tensor.shape, tensor.stride(), tensor.dtype)
    spec = internal("torch.distributed.tensor._dtensor_spec:DTensorSpec")
    first, last = (spec(mesh, tuple(placements), tensor_meta=meta) for placements in (before, after))
    try:
        infos = internal("torch.distributed.tensor._redistribute:_gen_transform_infos_non_cached")(first, last)
    finally:
        forget_planners()
    return [
        PlannedStep(axis=info.mesh_dim, before=source, after=target, shape=tuple(map(int, info.logical_shape)))
        for info in infos
        for source, target in [info.src_dst_placements]
    ]


def forget_planners() -> None:
    """Clear torch's cache of planners of redistributions, which hold their meshes; torch 2.9 has none."""
    internal(
        "torch.distributed.tensor._redistribute:clear_redistribute_planner_cache", since="2.10", otherwise=lambda: None
    )()


def strided_shard(dim: int, split_factor: int) -> Any:
    """Return the placement of a dim of which this axis shards each of `split_factor` pieces."""
    return internal("torch.distributed.tensor.placement_types:_StridedShard")(dim, split_factor=split_factor)


MESH_METHODS_THAT_READ_RANKS = tuple(
    TorchName(f"torch.distributed.device_mesh:DeviceMesh.{name}", since=since)
    for since, names in {
        "2.9": ("__init__", "__getitem__", "__repr__", "_flatten", "from_group"),
        "2.10": ("__setstate__", "_concatenate", "_get_all_submeshes", "_unflatten"),
    }.items()
    for name in names
)
"""Methods of a mesh that read values of its table of ranks."""

MESH_RANKS = TorchName("torch.distributed.device_mesh:DeviceMesh.mesh", since="2.10")
"""Property that makes a mesh's table of ranks; in torch 2.9 the table is an attribute of the mesh."""

DTENSOR_INIT = TorchName("torch.distributed.tensor:DTensor.__init__")
FROM_LOCAL = TorchName("torch.distributed.tensor:DTensor.from_local")
TO_LOCAL = TorchName("torch.distributed.tensor:DTensor.to_local")

TENSOR_OF_SPEC = TorchName("torch.distributed.tensor._op_schema:_rebuild_tensor_from_dtensor_meta")
"""Function that makes a fake tensor from a spec, to compute the shape of an op's result."""

RNG_TRACKER = TorchName("torch.distributed.tensor._random:OffsetBasedRNGTracker")
"""Class of the tracker that keeps a generator's state equal on ranks for random ops on DTensors."""

MESH_INIT = TorchName("torch.distributed.device_mesh:DeviceMesh.__init__")
GET_GROUP = TorchName("torch.distributed.device_mesh:DeviceMesh.get_group")
INIT_DEVICE_MESH = TorchName("torch.distributed.device_mesh:init_device_mesh")


def change_device_type(mesh: DeviceMesh, device_type: str) -> None:
    """Change the device type of a mesh that has not been used yet."""
    name = "_device_type" if hasattr(mesh, "_device_type") else "device_type"
    vars(mesh)[name] = device_type
    vars(mesh)["_hash"] = None  # torch computes it again


_TABLES_OF_MESHES = [
    TorchName(f"torch.distributed.device_mesh:_mesh_resources.{name}", until="2.9")
    for name in ("child_to_root_mapping", "root_to_flatten_mapping", "flatten_name_to_root_dims")
]
"""Tables of torch 2.9, one per thread: by mesh, the mesh that it was sliced from and the meshes flattened from it."""


def forget_mesh(mesh: DeviceMesh) -> None:
    """Drop a mesh's references to its process groups, and torch's references to the mesh.

    A mesh of torch 2.9 has only names of groups; there, `_TABLES_OF_MESHES` refer to the mesh.
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
"""Static method that makes the process groups of one axis: ``(sub_layout, rank_map, dim_name, backend, …)``."""


def ranks_of_groups(layout: Any, rank_map: torch.Tensor) -> torch.Tensor:
    """Return the ranks of each process group of an axis, one group in each row."""
    mesh_layout = layout.nest() if hasattr(layout, "nest") else _layout_of_mesh([layout])  # nest() until torch 2.11
    groups: torch.Tensor = mesh_layout.remap_to_tensor(rank_map)
    return groups.flatten(1)


def flat_layout(size: int) -> Any:
    """Return the layout of one axis with `size` ranks in their order."""
    flat = internal("torch.distributed.device_mesh:_FlatLayout", since="2.12")
    return flat(size) if is_there(flat) else _layout_of_mesh((size,), (1,))


def _layout_of_mesh(*arguments: Any) -> Any:
    return internal("torch.distributed.device_mesh:_MeshLayout", since="2.10")(*arguments)


SHARD_DIM_ALLTOALL = TorchName("torch.distributed.tensor._collective_utils:shard_dim_alltoall")
"""Function that shards a DTensor along another dim: ``(input, gather_dim, shard_dim, mesh, mesh_dim)``."""

IS_RNG_SUPPORTED = TorchName("torch.distributed.tensor._random:is_rng_supported_mesh")
"""Function that returns whether random ops on the DTensors of a mesh are supported: ``(device_mesh)``."""

CURRENT_RNG_TRACKER = TorchName("torch.distributed.tensor._random:_rng_tracker")
"""Variable with the `RNG_TRACKER` object, once it was made."""

IS_TRACING_IN_DISPATCH = TorchName("torch.distributed.tensor._dispatch:_are_we_tracing", since="2.10")
"""Name under which ops on DTensors find the function that tells whether a compiler is tracing."""

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
"""{(first, last version of torch): functions of these versions that clear caches which hold meshes}."""


def release_cached_meshes() -> None:
    """Clear the caches of DTensor that hold meshes."""
    for (since, until), paths in _CACHES.items():
        for path in paths:
            name = TorchName(path, since=since, until=until)
            if name.is_expected and name.is_there:  # in this order, because is_there imports the module
                name.get()()
