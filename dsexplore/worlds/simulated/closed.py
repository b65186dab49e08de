"""Leftovers of a closed world in the hands of the user: meshes, groups and models that say so when used.

A model of a closed simulated world would go on "communicating" without a word: a fake group that somebody still
holds works for ever, and DTensor finds groups by names that the next world would use again. So while a world is
open `Watch` remembers what was made in it, and when the world closes

* its meshes change their class to `ClosedMesh`: DTensor asks them first. A closed mesh no longer equals a mesh
  of the same shape in the next world, so that no cache can take one for the other;
* FSDP2's parameter groups hold a `ClosedGroup` in place of their process groups, and their modules refuse
  ``forward``, as parameters that are still gathered would let it pass;
* DDP modules, whose C++ reducer holds the group, refuse ``forward``;
* the groups' backends refuse every collective (torch's own ``RuntimeError``), whoever holds them. `translated`
  turns that error into ours.

All this lives in those objects and goes with them: torch itself is left as it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from dsexplore.errors import ClosedWorldError
from dsexplore.torch_internals.patches import Patches

GROUP_NAME = "simulated world {number}, group {name}"
"""How groups of simulated worlds are named: no two worlds share a name, and torch's errors quote it."""

_MESSAGE = "_dsexplore_closed"
_HARMLESS = frozenset({_MESSAGE, "__class__", "__dict__"})
_SIGNS = (
    "FakeProcessGroup collective operation error",  # the backend of a closed group
    "registered under the name simulated world",  # a group's name outlived its group
)


class ClosedMesh(DeviceMesh):
    """A mesh of a closed world: can be printed and compared, nothing else."""

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, "__dict__")
        return object.__getattribute__(self, name) if name in _HARMLESS else _refuse(found[_MESSAGE])

    def __repr__(self) -> str:
        return "DeviceMesh(closed)"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return _refuse(self.__dict__[_MESSAGE])


class ClosedGroup:
    """Stands where a process group of a closed world was held: can be printed, nothing else."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(self._message)

    def __repr__(self) -> str:
        return "ProcessGroup(closed)"


class Watch:
    """The meshes, groups and modules made in one world, held weakly, so that they can be closed with it."""

    def __init__(self) -> None:
        self._backends: list[Any] = []  # FakeProcessGroup.Options, which torch's stubs do not have
        self._meshes: list[weakref.ref[DeviceMesh]] = []
        self._sharded: list[weakref.ref[FSDPParamGroup]] = []
        self._modules: list[weakref.ref[nn.Module]] = []

    def install(self, patches: Patches) -> None:
        """Watch the meshes, the groups and the FSDP modules that are made from now on."""
        plugin = dist.Backend._BackendPlugin(self._new_backend, True)
        patches.item(dist.Backend._plugins, "FAKE", plugin)
        _before(patches, DeviceMesh, "__init__", lambda mesh: self._meshes.append(weakref.ref(mesh)))
        _before(patches, FSDPParamGroup, "__init__", lambda group: self._sharded.append(weakref.ref(group)))

    def module(self, module: nn.Module) -> None:
        """Watch a module that holds groups in C++."""
        self._modules.append(weakref.ref(module))

    @property
    def made(self) -> tuple[int, int]:
        """How many meshes were made so far, and how many parameter groups of FSDP2 and modules with groups."""
        return len(self._meshes), len(self._sharded) + len(self._modules)

    def close(self, world: str) -> None:
        """Close all that is still there; ``world`` describes it in messages."""
        for options in self._backends:
            options.error_on_collective = True
        for group in _alive(self._sharded):
            _close_sharded(group, _message("model", world))
        for mesh in _alive(self._meshes):
            mesh.__dict__.pop("_pg_registry", None)
            mesh.__dict__[_MESSAGE] = _message("mesh or model", world)
            mesh.__class__ = ClosedMesh
        for module in _alive(self._modules):
            _close_module(module, _message("model", world))

    def _new_backend(self, common: Any, options: Any) -> FakeProcessGroup:
        # Each backend gets options of its own: torch's default is one object shared by all, closed or not.
        if options is None:
            options = vars(FakeProcessGroup)["Options"]()
        self._backends.append(options)
        create: Callable[..., FakeProcessGroup] = FakeProcessGroup._create_internal
        return create(common.group_rank, common.group_size, options)


@contextmanager
def translated() -> Iterator[None]:
    """Turn torch's errors about groups of a closed world into `ClosedWorldError`."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, ClosedWorldError) and any(sign in str(error) for sign in _SIGNS):
            raise ClosedWorldError(_message("process group", "some ranks")) from error
        raise


def _before(patches: Patches, owner: type, name: str, note: Callable[[Any], None]) -> None:
    method = getattr(owner, name)

    @wraps(method)
    def noted(made: Any, /, *args: Any, **kwargs: Any) -> Any:
        note(made)
        return method(made, *args, **kwargs)

    patches.attribute(owner, name, noted)


def _close_sharded(group: FSDPParamGroup, message: str) -> None:
    # An error may have left the parameter group without some of these.
    for info in filter(None, (getattr(group, name, None) for name in ("mesh_info", "post_forward_mesh_info"))):
        for name, value in vars(info).items():
            if isinstance(value, dist.ProcessGroup):
                setattr(info, name, ClosedGroup(message))
    for module in getattr(group, "modules", ()):
        _close_module(module, message)


def _close_module(module: nn.Module, message: str) -> None:
    module.forward = partial(_refuse, message)


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [made for made in (reference() for reference in references) if made is not None]


def _message(thing: str, world: str) -> str:
    return (
        f"this {thing} belongs to a simulated world of {world}, and that world is closed: "
        "build it again in an open one (%commtrace --world-size N, or dsexplore.simulate)"
    )


def _refuse(message: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise ClosedWorldError(message)
