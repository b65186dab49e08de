"""`Objects`: object collectives in a simulated world, where other ranks send nothing.

torch sends an object as pickled bytes, and unpickles what it received. A simulated rank would receive zeros. So the
receiver's own object replaces the one that another rank would send. torch handles it as usual, so the same collectives
are issued. If the program passed no object of its own, an error says so. Ranks of one world that run together
receive the objects that those before them really sent (`SharedObjects`).

``gather_object`` and ``all_gather_object`` return copies of this rank's object, with a remark.
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
_COPIES = "{name} receives objects of all ranks, and only this rank is here: each is a copy of its own object"

_MESSAGE = "object_list"
"""Name shared by a ``send_object_list`` and its ``recv_object_list``, from which both derive the id of the call."""
_COLLECTIVES = (c10d.__name__, "torch.distributed.c10d_logger")
"""Modules of the frames of an object collective."""


class Objects:
    """The objects that arrive at this rank in place of those of other ranks.

    Args:
        parts: parts of the world, with `Remarks`, `TensorsFromPeers` and `SharedObjects`.
    """

    def __init__(self, parts: Parts) -> None:
        self._remarks, self._received, self._shared = parts[Remarks], parts[TensorsFromPeers], parts[SharedObjects]
        self._substitutes: list[Any] | None = None

    @contextmanager
    def delivering(self, value: Any) -> Iterator[None]:
        """Deliver an object in the block, in place of the program's own."""
        self._substitutes = [value]
        try:
            yield
        finally:
            self._substitutes = None

    def sent(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        source: int | None,
        objects: Sequence[Any] | None,
        receiver: int | None = None,
    ) -> list[bytes] | None:
        """Return the pickled objects that the source of a call sends; None if unknown.

        Args:
            name: name of the function; for a message, `_MESSAGE` on both ends.
            arguments: arguments of the call, by name.
            source: global rank that sends; None for this rank, whose objects are then written for the others.
            objects: objects of this rank; None if it passed none.
            receiver: global rank that receives; None for all ranks of the group.
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
        """Return this rank's objects, which replace those of another rank, and remark on that.

        Args:
            name: name of the collective.
            source: global rank that would send; ``"any"`` for any rank.
            objects: objects that the program passed.

        Raises:
            UsageError: the program passed None for one of them.
        """
        if self._substitutes is not None:
            return self._substitutes
        rank, why = dist.get_rank(), self._shared.why_not()
        if not objects or any(value is None for value in objects):
            run_source = "" if self._shared.folder else f"run as rank {source} (--rank {source}), or "
            remedy = f"{run_source}let rank {rank} pass an object of its own, which is then used"
            raise UsageError(
                f"{name} receives an object of rank {source}, {why}: this is rank {rank}, and it passes None. "
                f"{remedy[0].upper()}{remedy[1:]}"
            )
        self._remarks.say(_LOCAL_OBJECT.format(name=name, source=source, why=why))
        return objects

    @contextmanager
    def arriving(self, /, **values: list[torch.Tensor]) -> Iterator[None]:
        """Make functions of ``distributed_c10d`` write these tensors in the block.

        Args:
            values: for each name of a function, the tensors that its calls write, in their order.
        """
        originals = {name: getattr(c10d, name) for name in values}
        try:
            for name, tensors in values.items():
                setattr(c10d, name, _bringing(originals[name], list(tensors), self._received))
            yield
        finally:
            for name, function in originals.items():
                setattr(c10d, name, function)


def _bringing(
    function: Callable[..., Any], values: list[torch.Tensor], received: TensorsFromPeers
) -> Callable[..., Any]:
    """Wrap a collective, whose first argument receives, to write the next of these values to it."""
    is_called = False

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_called
        if is_called:  # in a function mode, such as that of the CUDA stand-in, torch calls the same name again
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
    """Wrap ``broadcast_object_list``: on receivers, the source's objects arrive, or else this rank's own."""
    objects, parameters = parts[Objects], signature(original)

    def broadcast_object_list(*args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(*args, **kwargs).arguments
        source, local = _other_rank(arguments), arguments["object_list"]
        with without_fake_mode():
            sent = objects.sent("broadcast_object_list", arguments, source=source, objects=local)
            if source is None:
                return original(*args, **kwargs)
            if not sent or len(sent) != len(local):
                sent = [*map(pickled, objects.own("broadcast_object_list", source, local))]
            tensors, sizes = _joined(sent)
            with objects.arriving(broadcast=[sizes, tensors]):
                return original(*args, **kwargs)

    return broadcast_object_list


def _scatter_object_list(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``scatter_object_list``: on receivers, their object of the source arrives, or else this rank's own."""
    objects, parameters = parts[Objects], signature(original)

    def scatter_object_list(*args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(*args, **kwargs).arguments
        source = _other_rank(arguments)
        with without_fake_mode():
            sent = objects.sent(
                "scatter_object_list",
                arguments,
                source=source,
                objects=arguments.get("scatter_object_input_list"),
            )
            if source is None:
                return original(*args, **kwargs)
            group_rank = dist.get_rank(arguments.get("group"))
            if sent is not None and group_rank < len(sent):
                arriving = sent[group_rank]
            else:
                local = objects.own("scatter_object_list", source, arguments["scatter_object_output_list"])
                arriving = pickled(local[0])
            tensor, size = _joined([arriving])
            with objects.arriving(broadcast=[size], scatter=[tensor, size]):
                return original(*args, **kwargs)

    return scatter_object_list


def _recv_object_list(original: Callable[..., int], parts: Parts) -> Callable[..., int]:
    """Wrap ``recv_object_list``: the source's objects arrive, or else this rank's own."""
    objects, parameters = parts[Objects], signature(original)

    def recv_object_list(*args: Any, **kwargs: Any) -> int:
        arguments = parameters.bind(*args, **kwargs).arguments
        source, local = _other_rank(arguments, "src", default=None), arguments["object_list"]
        if arguments.get("src") is None and arguments.get("group_src") is None:
            return original(*args, **kwargs)  # raises: torch documents a message from any rank, and refuses it
        with without_fake_mode():
            sent = None
            if source is not None:
                sent = objects.sent(_MESSAGE, arguments, source=source, objects=local, receiver=dist.get_rank())
            if not sent or len(sent) != len(local):
                local = objects.own("recv_object_list", "any" if source is None else source, local)
                sent = [*map(pickled, local)]
            tensors, sizes = _joined(sent)
            with objects.arriving(recv=[sizes, tensors], irecv=[sizes, tensors]):
                return original(*args, **kwargs)

    return recv_object_list


def _send_object_list(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``send_object_list`` to also write the objects for a receiver that another process runs."""
    objects, parameters = parts[Objects], signature(original)

    def send_object_list(*args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(*args, **kwargs).arguments
        receiver = _other_rank(arguments, "dst")
        with without_fake_mode():
            if receiver is not None:
                objects.sent(_MESSAGE, arguments, source=None, objects=arguments["object_list"], receiver=receiver)
            return original(*args, **kwargs)

    return send_object_list


def _gathered(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap a gather of objects to remark that they are copies, if the program calls it and receives them."""
    remarks, parameters = parts[Remarks], signature(original)
    gather = outside_fake_mode(original)

    def gathered(*args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(*args, **kwargs).arguments
        is_receiver = arguments.get("object_list", arguments.get("object_gather_list"))
        if is_receiver and dist.get_world_size(arguments.get("group")) > 1 and not _is_called_by_torch():
            remarks.say(_COPIES.format(name=original.__name__))
        gather(*args, **kwargs)

    return gathered


def _is_called_by_torch() -> bool:
    """Return True if torch itself calls the collective of the caller's caller, as it does for checkpoints."""
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        module = frame.f_globals.get("__name__", "")
        if module not in _COLLECTIVES:
            return bool(module.startswith("torch."))
    return False


def _other_rank(arguments: dict[str, Any], name: str = "src", default: int | None = 0) -> int | None:
    """Return the global rank at the other end of a call; None if it is this rank, or this rank is not in the group.

    Args:
        arguments: arguments of the call, by name.
        name: name of the argument with the rank: ``"src"`` or ``"dst"``.
        default: rank for a call that names none.
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
    """Return two tensors, as torch sends them: the concatenated bytes, and the size of each object."""
    sizes = torch.tensor([*map(len, pickles)], dtype=torch.long)
    return torch.frombuffer(bytearray(b"".join(pickles)), dtype=torch.uint8), sizes


_WHY = "no other rank sends an object to unpickle"
PATCHES: tuple[Entry, ...] = (
    Patch(BROADCAST_OBJECTS, _WHY, _broadcast_object_list, by_code=True),
    Patch(SCATTER_OBJECTS, _WHY, _scatter_object_list, by_code=True),
    Patch(RECV_OBJECTS, _WHY, _recv_object_list, by_code=True),
    Patch(SEND_OBJECTS, "it pickles into memory, and nobody receives it", _send_object_list, by_code=True),
    Patch(ALL_GATHER_OBJECTS, "each object is a copy of this rank's own", _gathered, by_code=True),
    Patch(GATHER_OBJECTS, "each object is a copy of this rank's own", _gathered, by_code=True),
)
