"""Only memory that is there is moved: each kind of tensor without any is refused, by each call, with one error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

import dsexplore
from dsexplore.aio import aio_handle
from dsexplore.errors import UsageError

SIZE = 4096
Use = Callable[[torch.Tensor], None]


def freed(offset: int = 0) -> torch.Tensor:
    tensor = torch.ones(SIZE + offset)[offset:]
    tensor.untyped_storage().resize_(4 * offset)
    return tensor


@contextmanager
def fake() -> Iterator[torch.Tensor]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        yield torch.ones(SIZE)


@contextmanager
def fake_in_a_world() -> Iterator[torch.Tensor]:
    with dsexplore.simulate(2, fake=True):
        yield torch.ones(SIZE)


@contextmanager
def dtensor() -> Iterator[torch.Tensor]:
    with dsexplore.simulate(2) as mesh:
        yield distribute_tensor(torch.ones(SIZE), mesh, [Shard(0)])


@contextmanager
def not_waited_for() -> Iterator[torch.Tensor]:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce

    with dsexplore.simulate(2) as mesh:
        tensor = all_reduce(torch.ones(SIZE), "sum", mesh.get_group())
        assert isinstance(tensor, AsyncCollectiveTensor)
        yield tensor
        tensor.wait()


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])


WITHOUT: dict[str, Callable[[], Any]] = {
    "fake": fake,
    "fake in a world": fake_in_a_world,
    "DTensor": dtensor,
    "not waited for": not_waited_for,
    "meta": lambda: torch.ones(SIZE, device="meta"),
    "freed": freed,
    "freed in part": lambda: freed(100),
    "jagged": jagged,
    "nested": nested,
    "sparse": lambda: torch.eye(64).to_sparse(),
    "sparse rows": lambda: torch.eye(64).to_sparse_csr(),
    "opaque": lambda: torch.ones(SIZE).to_mkldnn(),
    "uninitialized": torch.nn.UninitializedParameter,
}
REMEDIES = {
    "DTensor": r"pass its \.to_local\(\)",
    "freed": "needs 16384 bytes, and its storage holds 0",
    "fake": "leave",
}
CALLS = (
    "read", "write", "pread", "pwrite", "sync_pread", "sync_pwrite", "async_pread", "async_pwrite",
    "is_pinned", "free_cpu_locked_tensor",
)  # fmt: skip


def call(handle: aio_handle, name: str, tensor: torch.Tensor, path: Path) -> Any:
    """Call a method of the handle as its users do."""
    if name in ("is_pinned", "free_cpu_locked_tensor"):
        return getattr(handle, name)(tensor)
    further = (False, False) if name in ("pread", "pwrite") else (False,) if name in ("read", "write") else ()
    return getattr(handle, name)(tensor, str(path), *further)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype|Sparse .* beta:UserWarning")
@pytest.mark.parametrize("kind", WITHOUT)
@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_without_memory_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = bytes(range(256)) * 64 + b"end"
    path.write_bytes(before)
    made = WITHOUT[kind]()
    with aio_handle(4096, 2) as handle:
        if isinstance(made, torch.Tensor):
            refused(handle, name, made, path, kind)
        else:
            with made as tensor:
                refused(handle, name, tensor, path, kind)
        with pytest.raises(UsageError, match="nothing to wait for"):
            handle.wait()
    assert path.read_bytes() == before


def refused(handle: aio_handle, name: str, tensor: torch.Tensor, path: Path, kind: str) -> None:
    if name == "is_pinned" and tensor.device.type == "meta":
        assert call(handle, name, tensor, path) is False
        return
    with pytest.raises(UsageError, match=REMEDIES.get(kind, "memory|storage")):
        call(handle, name, tensor, path)


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(f), torch.func.functionalize])
def test_what_transforms_hand_to_functions_is_refused(transform: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    with aio_handle(4096, 2) as handle:

        def function(x: torch.Tensor) -> torch.Tensor:
            for name in CALLS[:8]:
                with pytest.raises(UsageError, match="no memory that can be moved"):
                    call(handle, name, x, path)
            return x.sum()

        transform(function)(torch.ones(4, 8))


class Labeled(torch.Tensor):
    """A subclass with memory of its own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data,
        torch.nn.Parameter,
        lambda data: data.as_subclass(Labeled),
        lambda data: data[100:3000],
        lambda data: data[:0],
        lambda data: data.view(torch.int32),
        lambda data: data.reshape(64, 64).t().contiguous(),
        lambda data: data.clone().share_memory_(),
    ],
)
def test_memory_of_its_own_is_moved(make: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    tensor = make(torch.arange(SIZE, dtype=torch.float32))
    path = tmp_path / "file"
    with aio_handle(4096, 2) as handle:
        handle.sync_pwrite(tensor, str(path))
        assert path.read_bytes() == tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
        back = torch.zeros_like(tensor)
        handle.sync_pread(back, str(path))
    assert torch.equal(back.detach(), tensor.detach())


def test_a_path_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "fïle"
    with aio_handle(4096, 2) as handle:
        handle.sync_pwrite(torch.ones(10), str(path).encode())
        with pytest.raises(FileNotFoundError):
            handle.sync_pread(torch.ones(10), str(tmp_path / "none").encode())
    assert path.stat().st_size == 40
