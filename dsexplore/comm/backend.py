"""The base class of the backends of `dsexplore.comm`; the only one is `dsexplore.comm.torch.TorchBackend`."""

from __future__ import annotations

from typing import Any


class Backend:
    """A communication backend.

    Args:
        name: of the backend.
        rank: of this process in the world.
        size: of the world.
    """

    def __init__(self, name: str = "backend", rank: int = 0, size: int = 1) -> None:
        self.name = name
        self.world_size = size
        self.world_rank = rank
        self.process_groups: list[Any] = []
        self.initialized = False

    @property
    def world_group(self) -> Any:
        """The group of all ranks; None if there is none."""
        return None

    def is_initialized(self) -> bool:
        """Return True if the backend can communicate."""
        return self.initialized

    def new_group(self, *args: Any, **named: Any) -> Any:
        """Create a process group."""
        raise NotImplementedError(f"{type(self).__name__} makes no groups")

    def init_process_group(self, *args: Any, **named: Any) -> None:
        """Create the world's process group."""
        self.initialized = True
