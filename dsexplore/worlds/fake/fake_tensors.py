"""Changes to torch by which a program runs on fake tensors: those with shapes, but without memory.

Measured on torch 2.13, where under ``FakeTensorMode``

* making and slicing a `DeviceMesh` raises, because it reads values of its rank table: here it steps out of
  the mode for that moment;
* ``module.to(dtype)`` raises, because a parameter cannot be swapped while the mode refers to it: here the
  parameter takes the new data and stays the same object, as on real tensors;
* ``fully_shard`` lists all ranks anew for each parameter that is tensor parallel too, half a megabyte at 16,384
  ranks: here it does so once;
* ``fully_shard`` makes one fake tensor per rank and parameter, minutes at thousands of ranks: here the chunks
  are made when asked for;
* ``nn.init.trunc_normal_`` draws until all values lie between its bounds, for ever: here it draws once;
* a functional collective is waited for at once, as in a program that is compiled: here where its result is first
  used, as on real tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, overload

import torch
import torch.distributed.fsdp._flat_param as _flat_param
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.storage import TypedStorage, UntypedStorage
from torch.utils.data import DataLoader

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.invented_values import Inventor
from dsexplore.worlds.remarks import Remarks

F = TypeVar("F", bound=Callable[..., Any])

_MESH_METHODS = (
    "__init__",
    "__getitem__",
    "__repr__",
    "__setstate__",
    "_concatenate",
    "_flatten",
    "_get_all_submeshes",
    "_unflatten",
    "from_group",
)


def outside_fake_mode(function: F) -> F:
    """The function, run outside a `FakeTensorMode` where one is entered."""

    @wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return real  # type: ignore[return-value]  # wraps keeps the signature


def patch_meshes(patches: Patches) -> None:
    """Make a `DeviceMesh` step out of the fake mode wherever it reads its rank table."""
    for name in _MESH_METHODS:
        method = vars(DeviceMesh).get(name)
        if isinstance(method, staticmethod):
            real = outside_fake_mode(method.__func__)
            patches.attribute(DeviceMesh, name, staticmethod(_once(real) if name == "_concatenate" else real))
        elif method is not None:
            real = outside_fake_mode(method)
            patches.attribute(DeviceMesh, name, _once_each(real) if name == "__getitem__" else real)
    patches.attribute(DeviceMesh, "__deepcopy__", outside_fake_mode(_copied))
    table = DeviceMesh.mesh
    assert isinstance(table, property)
    assert table.fget is not None
    patches.attribute(DeviceMesh, "mesh", property(outside_fake_mode(table.fget), doc=table.__doc__))


def patch_waits(patches: Patches) -> None:
    """Make functional collectives return tensors that wait at their first use."""
    original: Callable[[torch.Tensor], torch.Tensor] = _functional_collectives._maybe_wrap_tensor

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or get_proxy_mode() is not None:
            return original(tensor)
        awaited: torch.Tensor = _Awaited.apply(tensor)  # type: ignore[no-untyped-call]  # torch types none of it
        return awaited

    patches.attribute(_functional_collectives, "_maybe_wrap_tensor", wrapped)


class _Awaited(torch.autograd.Function):
    """An op that wraps a fake tensor as torch's own op wraps real ones; torch's rule for fake ones wraps nothing."""

    @staticmethod
    def forward(_context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _functional_collectives.AsyncCollectiveTensor(tensor)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _copied(mesh: DeviceMesh, memo: dict[int, Any]) -> Any:
    return copy._reconstruct(mesh, memo, *mesh.__reduce_ex__(4))  # type: ignore[attr-defined]


def _once(concatenate: Callable[[list[DeviceMesh]], DeviceMesh]) -> Callable[[list[DeviceMesh]], DeviceMesh]:
    """FSDP2 joins the same meshes anew for each parameter, and each result lists all ranks: make it once."""
    made: dict[tuple[int, ...], tuple[list[DeviceMesh], DeviceMesh]] = {}

    def joined(device_mesh_list: list[DeviceMesh]) -> DeviceMesh:
        key = tuple(map(id, device_mesh_list))
        if key not in made:
            made[key] = (
                list(device_mesh_list),
                concatenate(device_mesh_list),
            )  # the list keeps those identities from being used again
        return made[key][1]

    return joined


def _once_each(sliced: Callable[[DeviceMesh, Any], DeviceMesh]) -> Callable[[DeviceMesh, Any], DeviceMesh]:
    """The same mesh for the same axes of a mesh: DTensors compare theirs for each op, and two that are equal rank by
    rank, 16,384 of them in 15 µs; one is equal to itself at once."""
    made: dict[tuple[int, Any], tuple[DeviceMesh, DeviceMesh]] = {}

    def of_axes(self: DeviceMesh, mesh_dim_names: Any) -> DeviceMesh:
        if not isinstance(mesh_dim_names, (str, tuple)):
            return sliced(self, mesh_dim_names)
        key = (id(self), mesh_dim_names)
        if key not in made:
            made[key] = (self, sliced(self, mesh_dim_names))  # the mesh keeps its identity from being used again
        return made[key][1]

    return of_axes


def patch_conversion(patches: Patches) -> None:
    """Make ``module.to`` and its kin convert fake parameters in place."""
    original: Callable[..., Any] = nn.Module._apply

    def apply(module: nn.Module, /, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        fakes: dict[str, Any] = {name: p for name, p in module._parameters.items() if isinstance(p, FakeTensor)}
        try:
            for name in fakes:
                module._parameters[name] = None
            original(module, fn, recurse)
        finally:
            module._parameters.update(fakes)
        for name, parameter in fakes.items():
            module._parameters[name] = _converted(parameter, fn)
        return module

    patches.attribute(nn.Module, "_apply", apply)


def _converted(parameter: FakeTensor, function: Callable[..., Any]) -> nn.Parameter:
    """The same parameter with new data; or, as torch does it, a new one where it comes from another world (meta)."""
    with torch.no_grad():
        data = function(parameter)
        grad = None if parameter.grad is None else function(parameter.grad)
    kept: Any = parameter
    if torch._has_compatible_shallow_copy_type(parameter, data):
        parameter.grad = None
        parameter.data = data
        parameter.fake_device = data.fake_device
    else:
        kept = nn.Parameter(data, parameter.requires_grad)
    kept.grad = grad
    return kept  # type: ignore[no-any-return]  # a FakeTensor that is a Parameter


class Chunks(Sequence[torch.Tensor]):
    """The result of ``torch.chunk``, padded with empty tensors to a number of chunks, each made when asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._length = -(-tensor.size(dim) // num_chunks)  # of each but the last; 0 where the dim is empty

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = range(self._count)[index]
        size = self._tensor.size(self._dim)
        start = position * self._length
        if start >= size > 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._length, size - start))


def patch_sharding(patches: Patches) -> None:
    """Make ``fully_shard`` make only the chunks that this rank keeps."""
    patches.attribute(fsdp_param, "_chunk_with_empty", Chunks)


def patch_reading(patches: Patches, inventor: Inventor) -> None:
    """Make a program read fake tensors in the ways that do not come by an op: text, lists, arrays, addresses."""
    text, array, numpy, listed = (
        getattr(torch.Tensor, name) for name in ("__format__", "__array__", "numpy", "tolist")
    )

    def formatted(self: torch.Tensor, format_spec: str) -> str:
        if isinstance(self, FakeTensor) and self.dim() == 0 and format_spec:
            return format(self.item(), format_spec)
        return str(text(self, format_spec))

    def as_numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        return inventor.array(self) if isinstance(self, FakeTensor) else numpy(self, force=force)

    def as_array(self: torch.Tensor, dtype: Any = None) -> Any:
        if not isinstance(self, FakeTensor):
            return array(self, dtype)
        made = inventor.array(self)
        return made if dtype is None else made.astype(dtype, copy=False)

    def as_list(self: torch.Tensor) -> Any:
        return inventor.values(self) if isinstance(self, FakeTensor) else listed(self)

    for name, function in (
        ("__format__", formatted),
        ("__array__", as_array),
        ("numpy", as_numpy),
        ("tolist", as_list),
    ):
        patches.attribute(torch.Tensor, name, function)
    patches.inherited(FakeTensor, "tolist")  # torch's own reads element by element: minutes for the order of a data set
    patches.attribute(FakeTensor, "data_ptr", _address)
    patches.attribute(TypedStorage, "_getitem", _element(inventor, TypedStorage._getitem))
    patches.attribute(UntypedStorage, "__getitem__", _element(inventor, UntypedStorage.__getitem__))
    patches.function(nn.functional.ctc_loss, _with_tensors_of_lengths)
    patches.function(_flat_param._same_storage, lambda _original: _share_storage)


def _element(inventor: Inventor, original: Callable[..., Any]) -> Callable[..., Any]:
    """``tensor.storage()[0]``: a value of which nothing is known but its type."""

    def element(storage: TypedStorage | UntypedStorage, /, *args: Any, **kwargs: Any) -> Any:
        index = args[0] if args else kwargs.get("idx")
        if storage.device.type != "meta" or type(index) is not int:
            return original(storage, *args, **kwargs)
        if isinstance(storage, TypedStorage):
            size, dtype = storage._size(), storage.dtype
        else:
            size, dtype = storage.nbytes(), torch.uint8
        if not -size <= index < size:
            raise IndexError(f"index {index} out of range for storage of size {size}")
        return inventor.value(torch.empty((), dtype=dtype))

    return element


def _with_tensors_of_lengths(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``ctc_loss`` of lengths in tuples, which its C++ writes to the memory of a tensor."""
    parameters = signature(original)

    def ctc_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = parameters.bind(*args, **kwargs).arguments
        for name in ("input_lengths", "target_lengths"):
            given[name] = torch.as_tensor(given[name], dtype=torch.int64)
        return original(**given)

    return ctc_loss


def _address(tensor: FakeTensor) -> int:
    """An address that no other tensor has but those that share its memory; 0 where there is none.

    torch gives 0 for all fake tensors, so that programs which tell parameters apart by address, as accelerate does to
    find those of an optimizer, take all for one.
    """
    storage = tensor.untyped_storage()
    return storage._cdata + tensor.storage_offset() * tensor.element_size() if storage.nbytes() else 0


def _share_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """FSDP1's question for the memory of two tensors, which asks storages for addresses: torch warns of that."""
    one, other = (getattr(each, "_local_tensor", each) for each in (a, b))
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def patch_initialisation(patches: Patches) -> None:
    """Make ``trunc_normal_`` end: it draws again until no value lies outside, which no fake tensor ever answers."""

    def build(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        parameters = signature(original)

        def trunc_normal(*args: Any, **kwargs: Any) -> torch.Tensor:
            given = parameters.bind(*args, **kwargs).arguments
            tensor: torch.Tensor = given["tensor"]
            if not isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor):
                return original(*args, **kwargs)
            with torch.no_grad():
                return tensor.normal_(given["mean"], given["std"], generator=given.get("generator"))

        return trunc_normal

    patches.function(nn.init._no_grad_trunc_normal_, build)


def patch_loaders(patches: Patches, remarks: Remarks) -> None:
    """Make a `DataLoader` read in this process: fake tensors have no memory that its workers could share."""
    init: Callable[..., None] = DataLoader.__init__
    parameters = signature(init)
    alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}

    @wraps(init)
    def without_workers(loader: DataLoader[Any], /, *args: Any, **kwargs: Any) -> None:
        given = parameters.bind(loader, *args, **kwargs).arguments
        if given.get("num_workers", 0):
            remarks.say("a DataLoader has no workers on fake tensors, and reads in the script's own process")
            given = {**given, **alone, "multiprocessing_context": None}
        given.pop("self")
        init(loader, **given)

    patches.attribute(DataLoader, "__init__", without_workers)
