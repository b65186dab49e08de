"""Summaries of tensors: what adds up, what depends on the order, and what every dtype has."""

from __future__ import annotations

import pytest
import torch

from dsexplore._internal.capture.values.tensor_summary import FLOATS, Projections, read, summarize


def numbers(tensor: torch.Tensor) -> dict[str, float]:
    floats, hashes = read([summarize(tensor, Projections())])
    return {**dict(zip(FLOATS, floats[0], strict=True)), "hash": hashes[0]}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4)])
def test_norm_mean_and_bounds_are_those_of_the_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = drawn(*shape, dtype=dtype)
    exact, found = tensor.double(), numbers(tensor)
    expected = (exact.norm(), exact.mean(), exact.min(), exact.max())
    assert [found[name] for name in FLOATS[:4]] == pytest.approx([float(one) for one in expected], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_hash_is_the_sum_of_bits_modulo_32_bits(dtype: torch.dtype) -> None:
    tensor = drawn(64, 80, dtype=dtype)
    of_size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    exact = sum(tensor.flatten().view(of_size).tolist())
    assert (numbers(tensor)["hash"] - exact) % 2**32 == 0


@pytest.mark.parametrize("dim", [0, 1])
def test_another_order_has_the_same_hash_and_another_projection(dim: int) -> None:
    tensor = drawn(6, 8)
    moved = numbers(tensor.roll(1, dim))
    assert moved["hash"] == numbers(tensor)["hash"]
    assert moved["projection"] != numbers(tensor)["projection"]


def test_one_bit_changes_the_hash() -> None:
    tensor = drawn(6, 8)
    changed = tensor.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(9.0))
    assert numbers(changed)["hash"] != numbers(tensor)["hash"]


def test_hashes_and_squared_norms_of_parts_add_up() -> None:
    tensor = drawn(6, 8)
    parts = [numbers(part) for part in tensor.chunk(2, 1)]
    assert (sum(part["hash"] for part in parts) - numbers(tensor)["hash"]) % 2**32 == 0
    assert sum(part["norm"] ** 2 for part in parts) == pytest.approx(numbers(tensor)["norm"] ** 2)


def test_autocast_does_not_round_a_projection() -> None:
    tensor = drawn(6, 8)
    plain = numbers(tensor)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert numbers(tensor) == plain


def test_summaries_of_several_dtypes_are_read_together() -> None:
    tensors = [drawn(3, 4, dtype=dtype) for dtype in (torch.float64, torch.bfloat16, torch.float32, torch.float64)]
    floats, hashes = read([summarize(tensor, Projections()) for tensor in tensors])
    assert [{**dict(zip(FLOATS, row, strict=True)), "hash": one} for row, one in zip(floats, hashes, strict=True)] == [
        numbers(tensor) for tensor in tensors
    ]
    assert read([]) == ([], [])
