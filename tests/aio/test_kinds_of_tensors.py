"""Tensors without memory of their own: each kind is refused by each call with one error.

Modules: ``aio/staging.py``, ``aio/handle.py``.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore.aio import aio_handle

SIZE = 4096
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
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


class Wrapper(torch.Tensor):
    """A tensor that hands each op to another one."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} is called")


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
    "wrapper": lambda: Wrapper(torch.ones(SIZE)),
    "no memory but zeros": lambda: torch._efficientzerotensor(SIZE),
    "two elements in a byte": lambda: torch.quantize_per_tensor(torch.ones(SIZE), 0.1, 0, torch.quint4x2),
    "masked": lambda: torch.masked.masked_tensor(torch.ones(SIZE), torch.ones(SIZE) > 0),
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
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors|torch.quantize_per_tensor:UserWarning")
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


def changed_layout(data: torch.Tensor, generator: random.Random) -> torch.Tensor:
    """Return a view of random shape, offset and strides: often one that cannot be moved."""
    offset = generator.randrange(64)
    view = data.view(torch.uint8)[offset * 8 :].view(generator.choice([*DTYPES]))
    way = generator.randrange(6)
    if way == 0:
        return view[:: generator.randrange(1, 4)]
    if way == 1:
        return view[:60].reshape(5, 12).t()
    if way == 2:
        return view[:1].expand(generator.randrange(1, 50))
    if way == 3:
        return view[: generator.randrange(200)]
    if way == 4:
        return view[:64].as_strided((4, 4), (generator.randrange(5), generator.randrange(5)), view.storage_offset())
    return view


def test_any_layout_is_moved_or_refused(tmp_path: Path) -> None:
    """Write the values that torch shows for the tensor, and read those of the file; else raise, and move nothing."""
    generator = random.Random(0)
    path = tmp_path / "file"
    outcomes = Counter[str]()
    with aio_handle(4096, 2, intra_op_parallelism=2) as handle:
        for _ in range(400):
            data = torch.frombuffer(bytearray(generator.randbytes(4096)), dtype=torch.int64)
            before = data.clone()
            tensor = changed_layout(data, generator)
            path.write_bytes(bytes(8192))
            try:
                call(handle, generator.choice(["write", "sync_pwrite", "pwrite"]), tensor, path)
            except UsageError as error:
                assert "not contiguous" in str(error), error  # noqa: PT017 - either of two outcomes is right
                outcomes["refused"] += 1
                assert path.read_bytes() == bytes(8192)
            else:
                outcomes["moved"] += 1
                held = b"".join(element.view(torch.uint8).numpy().tobytes() for element in tensor.reshape(-1, 1))
                assert path.read_bytes() == held + bytes(8192 - len(held))
                new = generator.randbytes(8192)
                path.write_bytes(new)
                call(handle, generator.choice(["read", "sync_pread", "pread"]), tensor, path)
                assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == new[: len(held)]
                begin = tensor.storage_offset() * tensor.element_size()
                beside = [slice(0, begin), slice(begin + len(held), None)]
                mine, old = (each.view(torch.uint8) for each in (data, before))
                assert all(torch.equal(mine[part], old[part]) for part in beside)
    assert min(outcomes["refused"], outcomes["moved"]) > 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([object(), {}]),
        lambda: np.zeros(4, dtype=[("number", "i4"), ("any", "O")]),
        lambda: (ctypes.py_object * 4)(1, 2, 3, 4),
        lambda: (ctypes.c_char_p * 4)(b"text"),
        lambda: (ctypes.c_wchar_p * 4)("text"),
        lambda: (ctypes.c_void_p * 4)(),
        lambda: (ctypes.POINTER(ctypes.c_int) * 4)(),
    ],
)
@pytest.mark.parametrize("name", CALLS[:8])
def test_addresses_of_objects_are_refused(make: Callable[[], Any], name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with aio_handle(4096, 2) as handle, pytest.raises(UsageError, match="addresses of objects"):
        call(handle, name, make(), path)
    assert path.read_bytes() == bytes(4096)


@pytest.mark.parametrize("value", [None, "text", 3, [1.0], torch.ones(4).untyped_storage(), np.zeros(4, "M8[s]")])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_memory_is_refused(value: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with aio_handle(4096, 2) as handle, pytest.raises(TypeError, match=r"has no memory|is not a tensor"):
        call(handle, name, value, path)


def test_numbers_of_any_format_are_moved(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pairs = np.zeros(4, dtype=[("Of zeros", "c16"), ("P", "i4")])
    with aio_handle(4096, 2) as handle:
        for array in (np.arange(4) * 1j, pairs, np.array(["a", "bc"]), (ctypes.c_int * 4)(1, 2, 3, 4)):
            path.unlink(missing_ok=True)
            handle.sync_pwrite(array, str(path))
            assert path.read_bytes() == bytes(array)


def test_a_path_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "fïle"
    with aio_handle(4096, 2) as handle:
        handle.sync_pwrite(torch.ones(10), str(path).encode())
        with pytest.raises(FileNotFoundError):
            handle.sync_pread(torch.ones(10), str(tmp_path / "none").encode())
    assert path.stat().st_size == 40
