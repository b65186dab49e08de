"""`WorldObjects`: meshes, groups and models of a closed simulated world raise an error when they are used.

Without this, a model of a closed world would continue silently: groups of torch's backend "fake" work forever, and
DTensor finds groups by names that the next world would use again. So `WorldObjects` records the objects created while a
world is open. When the world is closed,

* its meshes change their class to `ClosedMesh`, which DTensor asks first, and which equals no mesh of a later world, so
  that no cache takes one for the other;
* FSDP2's parameter groups get a `ClosedGroup` in place of their process groups, and their modules refuse ``forward``,
  which would otherwise run if the parameters are still gathered;
* `DistributedDataParallel` modules, whose C++ reducer holds the group, refuse ``forward`` and a later backward;
* the backends of its groups refuse every collective with torch's own RuntimeError, which `translated` turns into a
  `ClosedWorldError`. While a later world is open, its kernels refuse those groups too.

Only the objects change; torch is restored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import count
from typing import Any, NoReturn, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.torch_internals import ddp, dtensor, fsdp
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import GROUP_NAME, fake_backend, replace_fake_backend

T = TypeVar("T")

_WORLD = "simulated world "
_MESSAGE = "_dsexplore_closed"
_HARMLESS = frozenset({_MESSAGE, "__class__", "__dict__"})
_SIGNS = (
    "FakeProcessGroup collective operation error",  # the backend of a closed group
    f"registered under the name {_WORLD}",  # a group's name outlived its group
)
_numbers = count(1)


class ClosedMesh(DeviceMesh):
    """A mesh of a closed world; it can be printed and compared only."""

    def __getattribute__(self, name: str) -> Any:
        if name in _HARMLESS:
            return object.__getattribute__(self, name)
        return _refuse(object.__getattribute__(self, "__dict__")[_MESSAGE])

    def __repr__(self) -> str:
        return "DeviceMesh(closed)"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return _refuse(self.__dict__[_MESSAGE])


class ClosedGroup:
    """Replaces a process group of a closed world; it can be printed only."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(self._message)

    def __repr__(self) -> str:
        return "ProcessGroup(closed)"


class WorldObjects:
    """The meshes, groups and modules created in one world; Python objects are held weakly.

    Attributes:
        number: number of the world, unique in this process. It is part of the names of its groups, which torch's
            errors quote.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._refusals: list[Callable[[], None]] = []
        self._meshes: list[weakref.ref[DeviceMesh]] = []
        self._parameter_groups: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[nn.Module]] = []

    @property
    def meshes(self) -> int:
        """Number of meshes created so far."""
        return len(self._meshes)

    @property
    def modules(self) -> int:
        """Number of DDP modules and of FSDP2's parameter groups created so far."""
        return len(self._parameter_groups) + len(self._models)

    def name_group(self, name: str) -> str:
        """Return the name of a group in this world, from torch's name for it."""
        return f"{_WORLD}{self.number}, group {name}"

    def check_group(self, group: dist.ProcessGroup) -> None:
        """Check that a group does not belong to an earlier world.

        Raises:
            ClosedWorldError: the group belongs to an earlier world.
        """
        name = group.group_name
        if name.startswith(_WORLD) and not name.startswith(f"{_WORLD}{self.number},"):
            _refuse(_message("process group", "some ranks"))

    def add_mesh(self, mesh: DeviceMesh) -> None:
        """Record a mesh, which is closed with the world."""
        self._meshes.append(weakref.ref(mesh))

    def add_parameter_group(self, group: object) -> None:
        """Record a parameter group of ``fully_shard``, which is closed with the world."""
        self._parameter_groups.append(weakref.ref(group))

    def add_model(self, model: nn.Module) -> None:
        """Record a `DistributedDataParallel` module, which is closed with the world."""
        self._models.append(weakref.ref(model))

    def create_backend(self, rank: int, size: int) -> Any:
        """Return the backend of a new group, which is closed with the world."""
        backend, refuse = fake_backend(rank, size)
        self._refusals.append(refuse)
        return backend

    def close(self, world: str) -> None:
        """Close all recorded objects that still exist.

        Args:
            world: description of the world, for errors: ``"dp=2 × tp=4"``.
        """
        for refuse in self._refusals:
            refuse()
        for group in _alive(self._parameter_groups):
            message = _message("model", world)
            fsdp.replace_groups(group, ClosedGroup(message))
            for module in fsdp.modules_of(group):
                module.forward = partial(_refuse, message)
        for mesh in _alive(self._meshes):
            dtensor.forget_mesh(mesh)
            mesh.__dict__[_MESSAGE] = _message("mesh or model", world)
            mesh.__class__ = ClosedMesh
        for model in _alive(self._models):
            ddp.refuse_use(model, partial(_refuse, _message("model", world)))


@contextmanager
def translated() -> Iterator[None]:
    """Turn torch's errors about groups of a closed world into `ClosedWorldError`."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, ClosedWorldError) and any(sign in str(error) for sign in _SIGNS):
            raise ClosedWorldError(_message("process group", "some ranks")) from error
        raise


def _alive(references: list[weakref.ref[T]]) -> list[T]:
    objects = [reference() for reference in references]
    return [alive for alive in objects if alive is not None]


def _message(thing: str, world: str) -> str:
    return (
        f"this {thing} belongs to a simulated world of {world}, and that world is closed: "
        "build it again in an open one (%commtrace --world-size N, or dsexplore.simulate)"
    )


def _refuse(message: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise ClosedWorldError(message)


def _name_groups(original: Callable[..., str], parts: Parts) -> Callable[..., str]:
    """Wrap the function that names a new group, so that names differ between worlds."""
    return lambda *args, **kwargs: parts[WorldObjects].name_group(original(*args, **kwargs))


def _watched(target: TorchName, add: Callable[[WorldObjects, Any], None]) -> Patch:
    """Return a patch of an ``__init__`` that records each new object first, as the original may raise."""

    def make(init: Callable[..., None], parts: Parts) -> Callable[..., None]:
        @wraps(init)
        def watched(self: Any, /, *args: Any, **kwargs: Any) -> None:
            add(parts[WorldObjects], self)
            init(self, *args, **kwargs)

        return watched

    return Patch(target, "objects of a world are closed with it", make)


PATCHES: tuple[Entry, ...] = (
    Patch(GROUP_NAME, "two worlds would give the same names to different groups", _name_groups, by_code=True),
    Change(
        "the backend of groups that send nothing",
        "groups of a closed world would still work",
        lambda patches, parts: replace_fake_backend(patches, parts[WorldObjects].create_backend),
    ),
    _watched(dtensor.MESH_INIT, WorldObjects.add_mesh),
    _watched(fsdp.PARAMETER_GROUP_INIT, WorldObjects.add_parameter_group),
    _watched(ddp.INIT, WorldObjects.add_model),
)
