"""Bytes that a handle moves, against those that plain Python reads and writes.

Modules: ``aio/handle.py``, ``aio/driver.py``, ``aio/staging.py``.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore.aio import Buffer, aio_handle

BLOCK = 8192
SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK, 37 * BLOCK + 700]
OFFSETS = [0, 1, 511, 512, 4095, 4096, BLOCK, 3 * BLOCK + 5]
DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64, torch.float8_e4m3fn]

FEW = settings(max_examples=60)


def memory(kind: str, nbytes: int) -> torch.Tensor:
    """Return a byte tensor that is aligned and on huge pages, ordinary, or at an odd address."""
    if kind == "aligned":
        return torch.from_numpy(Buffer(nbytes).bytes) if nbytes else torch.empty(0, dtype=torch.uint8)
    if kind == "odd":
        return torch.zeros(nbytes + 1, dtype=torch.uint8)[1:]
    return torch.zeros(nbytes, dtype=torch.uint8)


@FEW
@given(
    size=st.one_of(st.sampled_from(SIZES), st.integers(0, 40 * BLOCK)),
    offset=st.one_of(st.sampled_from(OFFSETS), st.integers(0, 5 * BLOCK)),
    threads=st.integers(1, 5),
    depth=st.sampled_from([1, 2, 7, 32]),
    single=st.booleans(),
    overlap=st.booleans(),
    kind=st.sampled_from(["aligned", "ordinary", "odd"]),
    before=st.integers(0, 60 * BLOCK),
)
def test_any_transfer(
    backend: str,
    tmp_path: Path,
    random_bytes: Callable[[int], bytes],
    size: int,
    offset: int,
    threads: int,
    depth: int,
    single: bool,
    overlap: bool,
    kind: str,
    before: int,
) -> None:
    path = tmp_path / "file"
    old = bytes(before)
    path.write_bytes(old)
    data = random_bytes(size)
    source = memory(kind, size)
    source.copy_(torch.from_numpy(np.frombuffer(data, np.uint8).copy()) if size else source)
    with aio_handle(BLOCK, depth, single, overlap, threads, backend=backend) as handle:
        assert handle.sync_pwrite(source, str(path), offset) == 1
        expected = (old.ljust(offset, b"\0")[:offset] + data + old[offset + size :]) if size else old
        assert path.read_bytes() == expected
        target = memory(kind, size)
        target.fill_(0x5A)
        assert handle.sync_pread(target, str(path), offset) == 1
        assert target.numpy().tobytes() == data


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype(backend: str, tmp_path: Path, random_bytes: Callable[[int], bytes], dtype: torch.dtype) -> None:
    path = str(tmp_path / "file")
    raw = np.frombuffer(random_bytes(30_000), np.uint8).copy()
    tensor = torch.from_numpy(raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(-1, 2)
    with aio_handle(4096, 4, False, True, 2, backend=backend) as handle:
        handle.sync_pwrite(tensor, path)
        back = torch.zeros_like(tensor)
        handle.sync_pread(back, path)
    assert Path(path).read_bytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_scalars_numpy_and_bytearrays(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with aio_handle(queue_depth=2) as handle:
        handle.sync_pwrite(torch.tensor(3.5), path)
        scalar = torch.tensor(0.0)
        handle.sync_pread(scalar, path)
        assert scalar.item() == 3.5
        handle.sync_pwrite(np.arange(6.0).reshape(2, 3), path)
        into = bytearray(48)
        handle.sync_pread(into, path)
        assert np.frombuffer(into).tolist() == [0, 1, 2, 3, 4, 5]


def test_more_requests_than_one_table(tmp_path: Path, random_bytes: Callable[[int], bytes], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("dsexplore._internal.aio.pool._SPAN", 16)
    path = str(tmp_path / "file")
    data = np.frombuffer(random_bytes(1 << 20), np.uint8).copy()
    with aio_handle(512, 5, False, True, 3) as handle:
        handle.sync_pwrite(data, path)
        back = np.zeros_like(data)
        handle.sync_pread(back, path)
    assert np.array_equal(back, data)


def test_blocks_larger_than_the_stage(tmp_path: Path, random_bytes: Callable[[int], bytes], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("dsexplore._internal.aio.staging._LARGEST_STAGE", 8192)
    path = str(tmp_path / "file")
    data = torch.zeros(300_001, dtype=torch.uint8)[1:]
    data.copy_(torch.frombuffer(bytearray(random_bytes(300_000)), dtype=torch.uint8))
    with aio_handle(16384, 8, False, True, 2) as handle:
        handle.sync_pwrite(data, path)
        back = torch.zeros(300_001, dtype=torch.uint8)[1:]
        handle.sync_pread(back, path)
    assert torch.equal(back, data)
