"""Single matrix products: tiles, parts of k, numbers of 16, 8 and 4 bits, and how long a GPU stays cool."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.kernels.product_time import (
    ProductFactors,
    heat,
    is_known_alone,
    product_alone,
    shape_efficiency,
    stated_rate,
)
from dsexplore.cost import Cluster

H100, B200 = Cluster.load("dgx-h100"), Cluster.load("b200")
BYTES = {"bfloat16": 2.0, "float8_e4m3fn": 1.0, "float4_e2m1fn_x2": 9 / 16}


def alone(m: int, n: int, k: int, dtype: str = "bfloat16", cluster: Cluster = H100, **factors: float) -> float:
    traffic = BYTES[dtype] * (m * k + n * k) + 2 * m * n
    return product_alone((1, m, n, k), dtype, traffic, cluster, ProductFactors(**factors))


def test_each_narrower_dtype_is_faster_and_none_as_fast_as_it_is_stated() -> None:
    times = [alone(8192, 8192, 8192, dtype, B200) for dtype in BYTES]
    assert times == sorted(times, reverse=True)
    for dtype, time in zip(BYTES, times, strict=True):
        assert 0.4 < 2 * 8192**3 / stated_rate(dtype, B200) / time < 0.9


@pytest.mark.parametrize(
    ("m", "n", "k", "microseconds"),
    [
        (1, 8192, 8192, 28),
        (512, 8192, 8192, 53),
        (4096, 8192, 8192, 460),
        (1024, 1024, 8192, 35),
        (4096, 4096, 4096, 134),
    ],
)
def test_fp8_products_of_h100_as_vllm_and_tensorrt_llm_measured_them(
    m: int, n: int, k: int, microseconds: float
) -> None:
    """Their layers without what quantizing takes, by aiconfigurator-core 0.12.0."""
    assert alone(m, n, k, "float8_e4m3fn") * 1e6 == pytest.approx(microseconds, rel=0.3)


def test_k_is_divided_where_tiles_are_few_but_not_of_narrow_numbers() -> None:
    """Twice the k, on 16 tiles: with parts of k the other multiprocessors take the second half."""
    wide, narrow = (alone(256, 512, 16384, dtype) / alone(256, 512, 8192, dtype) for dtype in list(BYTES)[:2])
    assert wide < 1.6
    assert narrow > 1.7


@given(m=st.integers(1, 20000), n=st.integers(1, 20000), k=st.integers(1, 20000))
def test_no_shape_is_faster_than_the_gpu(m: int, n: int, k: int) -> None:
    assert 0 < shape_efficiency((1, m, n, k), "hopper") <= 1


def test_one_tile_more_than_fits_costs_a_wave() -> None:
    """132 multiprocessors: 132 tiles of 256 × 128 fill a wave; one column of tiles more needs another."""
    full, more = (shape_efficiency((1, 256 * 12, 128 * columns, 8192), "hopper") for columns in (11, 12))
    assert full > 0.95
    assert more < 0.9 * full


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from(list(BYTES)))
def test_larger_factors_are_longer_times_and_no_product_is_faster_than_its_bytes(
    m: int, n: int, k: int, dtype: str
) -> None:
    times = [alone(m, n, k, dtype, B200, arithmetic=one, memory=one, start=one) for one in (0.7, 1.0, 1.4)]
    assert all(before < after for before, after in itertools.pairwise(times))
    traffic = BYTES[dtype] * (m * k + n * k) + 2 * m * n
    assert times[1] > traffic / (B200.memory.bandwidth * B200.memory.achievable)


def test_it_is_known_where_tables_of_single_kernels_are() -> None:
    shape = (1, 64, 64, 64)
    assert is_known_alone("float8_e5m2", shape, "", H100)
    assert not is_known_alone("float32", shape, "", H100)
    assert not is_known_alone("bfloat16", (), "", H100)
    assert not is_known_alone("bfloat16", shape, "aligned to 2 bytes", H100)
    assert is_known_alone("bfloat16", shape, "", Cluster.load("8xl40s"))
    assert not is_known_alone("bfloat16", shape, "", Cluster.load("mi300x"))


@pytest.mark.parametrize("dtype", list(BYTES))
@pytest.mark.parametrize("m", [1, 256, 8192])
def test_products_of_a_gpu_that_nobody_looked_at_have_a_wider_range(m: int, dtype: str) -> None:
    """The same GPU, named as of a generation that borrows its burst."""
    widths = []
    for cluster in (B200, replace(B200, generation="rtx-blackwell")):
        assert is_known_alone(dtype, (1, m, 4096, 4096), "", cluster)
        low, high = (alone(m, 4096, 4096, dtype, cluster, arithmetic=one, start=one) for one in (0.8, 1.25))
        widths.append(high / low)
    assert 1 < widths[0] < widths[1]


def test_heat_rises_from_a_thousandth_of_a_second_to_a_hundredth() -> None:
    assert [heat(busy) for busy in (0.0, 1e-3, 1e-2, 1.0)] == [0, 0, 1, 1]
    assert heat(10**-2.5) == pytest.approx(0.5)
