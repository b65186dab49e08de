"""Meshes, groups and models of a simulated world that was closed, which say so when they are used.

Without this, a model of a closed world would go on without a word: the groups of torch's backend "fake" work for ever,
and DTensor finds groups by names that the next world would use again. So `WorldObjects` remembers what is made while a
world is open, and when the world is closed

* its meshes change their class to `ClosedMesh`, which DTensor asks first, and which equals no mesh of a later world, so
  that no cache can take one for the other;
* FSDP2's parameter groups hold a `ClosedGroup` in place of their process groups, and their modules refuse ``forward``,
  as parameters that are still gathered would let it pass;
* `DistributedDataParallel` modules, whose C++ reducer holds the group, refuse ``forward`` and a backward to come;
* the backends of its groups refuse every collective with torch's own RuntimeError, which `translated` makes a
  `ClosedWorldError`. While a later world is open, its kernels refuse those groups too.

All this lives in the objects themselves: torch is left as it was.
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
    """A mesh of a closed world: can be printed and compared, nothing else."""

    def __getattribute__(self, name: str) -> Any:
        held = object.__getattribute__(self, "__dict__")
        return object.__getattribute__(self, name) if name in _HARMLESS else _refuse(held[_MESSAGE])

    def __repr__(self) -> str:
        return "DeviceMesh(closed)"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return _refuse(self.__dict__[_MESSAGE])


class ClosedGroup:
    """Stands in place of a process group of a closed world: can be printed, nothing else."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(self._message)

    def __repr__(self) -> str:
        return "ProcessGroup(closed)"


class WorldObjects:
    """The meshes, groups and modules that are made in one world; objects of Python are held weakly.

    Attributes:
        number: the number of the world in this process, part of the names of its groups: no two worlds share one, and
            torch's errors quote them.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._refusals: list[Callable[[], None]] = []
        self._meshes: list[weakref.ref[DeviceMesh]] = []
        self._parameter_groups: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[nn.Module]] = []

    @property
    def meshes(self) -> int:
        """Number of meshes that were made so far."""
        return len(self._meshes)

    @property
    def modules(self) -> int:
        """Number of DDP modules and of FSDP2's parameter groups that were made so far."""
        return len(self._parameter_groups) + len(self._models)

    def name_group(self, name: str) -> str:
        """Return the name of a group of this world, given the one that torch would give it."""
        return f"{_WORLD}{self.number}, group {name}"

    def check_group(self, group: dist.ProcessGroup) -> None:
        """Check that a group is not one of an earlier world.

        Raises:
            ClosedWorldError: it is.
        """
        name = group.group_name
        if name.startswith(_WORLD) and not name.startswith(f"{_WORLD}{self.number},"):
            _refuse(_message("process group", "some ranks"))

    def add_mesh(self, mesh: DeviceMesh) -> None:
        """Close that mesh with the world."""
        self._meshes.append(weakref.ref(mesh))

    def add_parameter_group(self, group: object) -> None:
        """Close that parameter group of ``fully_shard`` with the world."""
        self._parameter_groups.append(weakref.ref(group))

    def add_model(self, model: nn.Module) -> None:
        """Close that `DistributedDataParallel` module with the world."""
        self._models.append(weakref.ref(model))

    def create_backend(self, rank: int, size: int) -> Any:
        """Return the backend of a new group, which is closed with the world."""
        backend, refuse = fake_backend(rank, size)
        self._refusals.append(refuse)
        return backend

    def close(self, world: str) -> None:
        """Close all that is still there; ``world`` describes it in messages."""
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
    return [made for made in (reference() for reference in references) if made is not None]


def _message(thing: str, world: str) -> str:
    return (
        f"this {thing} belongs to a simulated world of {world}, and that world is closed: "
        "build it again in an open one (%commtrace --world-size N, or dsexplore.simulate)"
    )


def _refuse(message: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise ClosedWorldError(message)


def _name_groups(original: Callable[..., str], parts: Parts) -> Callable[..., str]:
    return lambda *args, **kwargs: parts[WorldObjects].name_group(original(*args, **kwargs))


def _watched(target: TorchName, add: Callable[[WorldObjects, Any], None]) -> Patch:
    """Return an entry that adds each new object to the watch before its ``__init__`` runs, which may raise."""

    def make(init: Callable[..., None], parts: Parts) -> Callable[..., None]:
        @wraps(init)
        def watched(self: Any, /, *args: Any, **kwargs: Any) -> None:
            add(parts[WorldObjects], self)
            init(self, *args, **kwargs)

        return watched

    return Patch(target, "what is made in a world is closed with it", make)


PATCHES: tuple[Entry, ...] = (
    Patch(GROUP_NAME, "two worlds would give the same names to different groups", _name_groups, by_code=True),
    Change(
        "the backend of groups that send nothing",
        "those of a closed world would go on",
        lambda patches, parts: replace_fake_backend(patches, parts[WorldObjects].create_backend),
    ),
    _watched(dtensor.MESH_INIT, WorldObjects.add_mesh),
    _watched(fsdp.PARAMETER_GROUP_INIT, WorldObjects.add_parameter_group),
    _watched(ddp.INIT, WorldObjects.add_model),
)
