"""Object collectives in a simulated world, whose other ranks send nothing.

torch sends an object as its pickled bytes, and unpickles what it received. In a simulated world nothing is received:
the bytes would be zeros. Here the receiver's own object takes the place of the one that another rank would send. torch
handles it as it would the other, so the same collectives are issued, and only what was pickled in this process is
unpickled. Where the program passed no object of its own, one error says so. Ranks of one world that are played together
receive what those before them really broadcast, scattered or sent (`SharedObjects`).

``gather_object`` and ``all_gather_object`` receive copies of this rank's object, which is remarked.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.fake_tensors import without_fake_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import (
    ALL_GATHER_OBJECTS,
    BROADCAST_OBJECTS,
    GATHER_OBJECTS,
    RECV_OBJECTS,
    SCATTER_OBJECTS,
    SEND_OBJECTS,
    is_outside,
    pickled,
)
from dsexplore._internal.worlds.fake.fake_workarounds import outside_fake_mode
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.simulated.received_values import TensorsFromPeers
from dsexplore._internal.worlds.simulated.shared_objects import SharedObjects

_LOCAL_OBJECT = "{name} receives an object of rank {source}, {why}: this rank's own object takes its place"
_COPIES = "{name} receives objects of all ranks, of which one is here: each is a copy of this rank's own"

_MESSAGE = "object_list"
"""What a ``send_object_list`` and the ``recv_object_list`` that it is for have in common."""
_COLLECTIVES = (c10d.__name__, "torch.distributed.c10d_logger")
"""Modules that an object collective passes through."""


class Objects:
    """The objects that arrive at this rank in place of those of other ranks.

    Args:
        parts: of the world.
    """

    def __init__(self, parts: Parts) -> None:
        self._remarks, self._received, self._shared = parts[Remarks], parts[TensorsFromPeers], parts[SharedObjects]
        self._substitutes: list[Any] | None = None

    @contextmanager
    def standing_for(self, value: Any) -> Iterator[None]:
        """Deliver this object in the block, whatever the program passes as its own."""
        self._substitutes = [value]
        try:
            yield
        finally:
            self._substitutes = None

    def sent(
        self,
        name: str,
        arguments: dict[str, Any],
        source: int | None,
        objects: Sequence[Any] | None,
        receiver: int | None = None,
    ) -> list[bytes] | None:
        """Return the pickled objects that the source of a call sends; None if unknown.

        Args:
            name: of the function, or of what it shares with the one at the other end.
            arguments: of the call.
            source: the rank that sends; None for this rank, which then leaves its objects to the others.
            objects: those of this rank.
            receiver: the one rank that they are for; None for all of the group.
        """
        group = arguments.get("group") or dist.group.WORLD
        assert group is not None
        if is_outside(group):
            return None
        ranks = tuple(dist.get_process_group_ranks(group))
        sender = dist.get_rank() if source is None else source
        number = self._shared.number(name, ranks if receiver is None else (*ranks, receiver), sender)
        if self._substitutes is not None:
            return None
        if source is None:
            self._shared.give(number, lambda: [*map(pickled, objects or ())])
            return None
        received = self._shared.take(number, sender)
        if received is None and (not objects or any(value is None for value in objects)):
            received = self._shared.ask(number, sender)
        return received

    def own(self, name: str, source: int | str, objects: Sequence[Any]) -> Sequence[Any]:
        """Return this rank's objects, which replace those of another rank.

        Raises:
            UsageError: it has none.
        """
        if self._substitutes is not None:
            return self._substitutes
        rank, why = dist.get_rank(), self._shared.why_not()
        if not objects or any(value is None for value in objects):
            play = "" if self._shared.folder else f"play rank {source} (--rank {source}), or "
            remedy = f"{play}let rank {rank} pass an object of its own, which is then used"
            raise UsageError(
                f"{name} receives an object of rank {source}, {why}: this is rank {rank}, and it passes None in its "
                f"place. {remedy[0].upper()}{remedy[1:]}"
            )
        self._remarks.say(_LOCAL_OBJECT.format(name=name, source=source, why=why))
        return objects

    @contextmanager
    def arriving(self, /, **values: list[torch.Tensor]) -> Iterator[None]:
        """Make these functions of torch's module of collectives return these values, in this order."""
        kept = {name: getattr(c10d, name) for name in values}
        try:
            for name, brought in values.items():
                setattr(c10d, name, _bringing(kept[name], list(brought), self._received))
            yield
        finally:
            for name, function in kept.items():
                setattr(c10d, name, function)


def _bringing(
    function: Callable[..., Any], values: list[torch.Tensor], received: TensorsFromPeers
) -> Callable[..., Any]:
    is_called = False

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_called
        if is_called:  # torch calls the same name again under a mode of functions, as that of GPUs is
            return function(tensor, *args, **kwargs)
        is_called = True
        try:
            result = function(tensor, *args, **kwargs)
        finally:
            is_called = False
        tensor.copy_(values.pop(0))
        received.discard(tensor)
        return result

    return call


def _broadcast_object_list(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    objects, parameters = parts[Objects], signature(original)

    def broadcast_object_list(*args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments
        source, local = _other_rank(given), given["object_list"]
        with without_fake_mode():
            sent = objects.sent("broadcast_object_list", given, source, local)
            if source is None:
                return original(*args, **kwargs)
            if not sent or len(sent) != len(local):
                sent = [*map(pickled, objects.own("broadcast_object_list", source, local))]
            tensors, sizes = _joined(sent)
            with objects.arriving(broadcast=[sizes, tensors]):
                return original(*args, **kwargs)

    return broadcast_object_list


def _scatter_object_list(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    objects, parameters = parts[Objects], signature(original)

    def scatter_object_list(*args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments
        source = _other_rank(given)
        with without_fake_mode():
            sent = objects.sent("scatter_object_list", given, source, given.get("scatter_object_input_list"))
            if source is None:
                return original(*args, **kwargs)
            place = dist.get_rank(given.get("group"))
            if sent is None or len(sent) <= place:
                local = objects.own("scatter_object_list", source, given["scatter_object_output_list"])
                sent, place = [pickled(local[0])], 0
            tensor, size = _joined(sent[place : place + 1])
            with objects.arriving(broadcast=[size], scatter=[tensor, size]):
                return original(*args, **kwargs)

    return scatter_object_list


def _recv_object_list(original: Callable[..., int], parts: Parts) -> Callable[..., int]:
    objects, parameters = parts[Objects], signature(original)

    def recv_object_list(*args: Any, **kwargs: Any) -> int:
        given = parameters.bind(*args, **kwargs).arguments
        source, local = _other_rank(given, "src", default=None), given["object_list"]
        if given.get("src") is None and given.get("group_src") is None:
            return original(*args, **kwargs)  # raises: torch documents a message from any rank, and refuses it
        with without_fake_mode():
            sent = objects.sent(_MESSAGE, given, source, local, dist.get_rank()) if source is not None else None
            if not sent or len(sent) != len(local):
                local = objects.own("recv_object_list", "any" if source is None else source, local)
                sent = [*map(pickled, local)]
            tensors, sizes = _joined(sent)
            with objects.arriving(recv=[sizes, tensors], irecv=[sizes, tensors]):
                return original(*args, **kwargs)

    return recv_object_list


def _send_object_list(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    objects, parameters = parts[Objects], signature(original)

    def send_object_list(*args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments
        receiver = _other_rank(given, "dst")
        with without_fake_mode():
            if receiver is not None:
                objects.sent(_MESSAGE, given, None, given["object_list"], receiver)
            return original(*args, **kwargs)

    return send_object_list


def _gathered(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    remarks, parameters = parts[Remarks], signature(original)
    gather = outside_fake_mode(original)

    def gathered(*args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments
        is_receiver = given.get("object_list", given.get("object_gather_list"))
        if is_receiver and dist.get_world_size(given.get("group")) > 1 and not _is_called_by_torch():
            remarks.say(_COPIES.format(name=original.__name__))
        gather(*args, **kwargs)

    return gathered


def _is_called_by_torch() -> bool:
    """Return True if torch itself gathers, as for a checkpoint, where a simulated rank has only its own objects."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(2)))
    return next((name.startswith("torch.") for name in names if name not in _COLLECTIVES), False)


def _other_rank(arguments: dict[str, Any], name: str = "src", default: int | None = 0) -> int | None:
    """Return the global rank at the other end of a call; None if it is this rank, or this one is not in the group.

    Args:
        arguments: of the call.
        name: of the argument: ``"src"`` or ``"dst"``.
        default: the rank of a call that names none.
    """
    group = arguments.get("group") or dist.group.WORLD
    assert group is not None
    if is_outside(group):
        return None
    rank = arguments.get(name)
    if arguments.get(f"group_{name}") is not None:
        rank = dist.get_global_rank(group, arguments[f"group_{name}"])
    rank = default if rank is None else rank
    return None if rank == dist.get_rank() else rank


def _joined(pickles: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate all bytes in one tensor, and return it with the size of each object, as torch sends them."""
    sizes = torch.tensor([*map(len, pickles)], dtype=torch.long)
    return torch.frombuffer(bytearray(b"".join(pickles)), dtype=torch.uint8), sizes


_WHY = "no other rank sends what it would unpickle"
PATCHES: tuple[Entry, ...] = (
    Patch(BROADCAST_OBJECTS, _WHY, _broadcast_object_list, by_code=True),
    Patch(SCATTER_OBJECTS, _WHY, _scatter_object_list, by_code=True),
    Patch(RECV_OBJECTS, _WHY, _recv_object_list, by_code=True),
    Patch(SEND_OBJECTS, "it pickles into memory, and nobody receives it", _send_object_list, by_code=True),
    Patch(ALL_GATHER_OBJECTS, "each object is a copy of this rank's own", _gathered, by_code=True),
    Patch(GATHER_OBJECTS, "each object is a copy of this rank's own", _gathered, by_code=True),
)
