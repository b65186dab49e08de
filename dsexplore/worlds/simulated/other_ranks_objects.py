"""Object collectives in a simulated world, whose other ranks send nothing.

torch sends an object as its pickled bytes, and unpickles what it received. On a simulated group nothing is received:
the bytes would be whatever was in that memory. Here the receiver's own object takes the place of the one that another
rank would send, and travels torch's whole way, so that the same collectives are issued and only what was pickled in
this process is unpickled. Where the program passed no object of its own, one error says so. Ranks of one world that
are played together receive what those before them really broadcast or scattered (`SharedObjects`).

``gather_object`` and ``all_gather_object`` are filled with this rank's object by the fake group itself, which is said.
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
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks
from dsexplore.worlds.simulated.received_values import Received
from dsexplore.worlds.simulated.shared_objects import SharedObjects

_OWN = "{name} receives an object of rank {source}, {why}: this rank's own object takes its place"
_COPIES = "{name} receives objects of all ranks, of which one is here: each is a copy of this rank's own"

_COLLECTIVES = (c10d.__name__, "torch.distributed.c10d_logger")
"""Modules that an object collective passes through."""


class Objects:
    """Gives a rank its own objects where those of another would arrive.

    Args:
        patches: where the changes are kept.
        remarks: where the substitution is reported.
        received: the tensors that other ranks fill; those that bring own objects are none of them.
        shared: objects of other ranks that are played at the same time.
    """

    def __init__(self, patches: Patches, remarks: Remarks, received: Received, shared: SharedObjects) -> None:
        self._remarks, self._received, self._shared = remarks, received, shared
        self._substitutes: list[Any] | None = None
        patches.function(dist.broadcast_object_list, self._take_broadcast)
        patches.function(dist.scatter_object_list, self._take_scatter)
        patches.function(dist.recv_object_list, self._take_recv)
        patches.function(dist.send_object_list, _with_memory)
        for function in (dist.all_gather_object, dist.gather_object):
            patches.function(function, self._take_gathered)

    @contextmanager
    def standing_for(self, value: Any) -> Iterator[None]:
        """Make an object arrive in the block, whatever the program passes as its own."""
        self._substitutes = [value]
        try:
            yield
        finally:
            self._substitutes = None

    def _take_broadcast(self, original: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(original)

        def broadcast_object_list(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            source = _other_source(given)
            with unset_fake_temporarily():
                sent = self._sent("broadcast_object_list", given, source, given["object_list"])
                if source is None:
                    return original(*args, **kwargs)
                own = given["object_list"]
                if not sent or len(sent) != len(own):
                    sent = _pickled(self._own("broadcast_object_list", source, own))
                tensors, sizes = _joined(sent)
                with _arriving(self._received, broadcast=[sizes, tensors]):
                    return original(*args, **kwargs)

        return broadcast_object_list

    def _take_scatter(self, original: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(original)

        def scatter_object_list(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            source = _other_source(given)
            with unset_fake_temporarily():
                sent = self._sent("scatter_object_list", given, source, given.get("scatter_object_input_list"))
                if source is None:
                    return original(*args, **kwargs)
                place = dist.get_rank(given.get("group"))
                if sent is None or len(sent) <= place:
                    own = self._own("scatter_object_list", source, given["scatter_object_output_list"])
                    sent, place = _pickled(own[:1]), 0
                tensor, size = _joined(sent[place : place + 1])
                with _arriving(self._received, broadcast=[size], scatter=[tensor, size]):
                    return original(*args, **kwargs)

        return scatter_object_list

    def _take_recv(self, original: Callable[..., int]) -> Callable[..., int]:
        parameters = signature(original)

        def recv_object_list(*args: Any, **kwargs: Any) -> int:
            given = parameters.bind(*args, **kwargs).arguments
            source = _other_source({"src": None, **given}, default=None)
            objects = self._own("recv_object_list", "any" if source is None else source, given["object_list"])
            with unset_fake_temporarily():
                tensors, sizes = _joined(_pickled(objects))
                with _arriving(self._received, recv=[sizes, tensors], irecv=[sizes, tensors]):
                    return original(*args, **kwargs)

        return recv_object_list

    def _take_gathered(self, original: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(original)
        gather = _with_memory(original)

        def gathered(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            is_filled = given.get("object_list", given.get("object_gather_list"))
            if is_filled and dist.get_world_size(given.get("group")) > 1 and not _is_asked_by_torch():
                self._remarks.say(_COPIES.format(name=original.__name__))
            gather(*args, **kwargs)

        return gathered

    def _sent(
        self, name: str, given: dict[str, Any], source: int | None, objects: Sequence[Any] | None
    ) -> list[bytes] | None:
        """What the source sends, pickled, as far as it is known; where this rank is the source, others come to know."""
        group = given.get("group") or dist.group.WORLD
        if c10d._rank_not_in_group(group):
            return None
        ranks = tuple(dist.get_process_group_ranks(group))
        sender = dist.get_rank() if source is None else source
        number = self._shared.number(name, ranks, sender)
        if self._substitutes is not None:
            return None
        if source is None:
            self._shared.give(number, lambda: _pickled(objects or ()))
            return None
        return self._shared.take(number, sender)

    def _own(self, name: str, source: int | str, objects: Sequence[Any]) -> Sequence[Any]:
        """The objects of this rank, which take the place of those of another rank.

        Raises:
            UsageError: it has none.
        """
        if self._substitutes is not None:
            return self._substitutes
        rank, why = dist.get_rank(), self._shared.why_not()
        if not objects or any(one is None for one in objects):
            play = "" if self._shared.folder else f"play rank {source} (--rank {source}), or "
            remedy = f"{play}let rank {rank} pass an object of its own, which is then used"
            raise UsageError(
                f"{name} receives an object of rank {source}, {why}: this is rank {rank}, and it passes None in its "
                f"place. {remedy[0].upper()}{remedy[1:]}"
            )
        self._remarks.say(_OWN.format(name=name, source=source, why=why))
        return objects


def _with_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make torch pickle into real memory where tensors are fake."""

    def real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    return real


def _is_asked_by_torch() -> bool:
    """Whether torch gathers for itself: a checkpoint, say, in which a simulated rank is meant to have its own alone."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(2)))
    return next((name.startswith("torch.") for name in names if name not in _COLLECTIVES), False)


def _other_source(given: dict[str, Any], default: int | None = 0) -> int | None:
    """The global rank that the objects come from; None where this rank is the source, or not in the group."""
    group = given.get("group") or dist.group.WORLD
    assert group is not None
    if c10d._rank_not_in_group(group):
        return None
    source = given.get("src")
    if given.get("group_src") is not None:
        source = dist.get_global_rank(group, given["group_src"])
    source = default if source is None else source
    return None if source == dist.get_rank() else source


def _pickled(objects: Sequence[Any]) -> list[bytes]:
    """The objects as torch pickles them."""
    return [c10d._object_to_tensor(one, "cpu", None)[0].numpy().tobytes() for one in objects]


def _joined(pickled: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """All bytes in one tensor, and the size of each object, as torch sends them."""
    sizes = torch.tensor([len(one) for one in pickled], dtype=torch.long)
    return torch.frombuffer(bytearray(b"".join(pickled)), dtype=torch.uint8), sizes


@contextmanager
def _arriving(received: Received, /, **values: list[torch.Tensor]) -> Iterator[None]:
    """Make the calls of these functions in torch's module of collectives bring those values, in that order."""
    kept = {name: getattr(c10d, name) for name in values}
    try:
        for name, brought in values.items():
            setattr(c10d, name, _bringing(kept[name], list(brought), received))
        yield
    finally:
        for name, function in kept.items():
            setattr(c10d, name, function)


def _bringing(function: Callable[..., Any], values: list[torch.Tensor], received: Received) -> Callable[..., Any]:
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
