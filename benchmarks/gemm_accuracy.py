"""How far predicted matrix products are from published tables of single kernels.

``data/gemm_perf.csv`` has 200 bf16 products, drawn by chance, of each of the tables of A100, H100, H200 and B200 in
NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0, systems/data/*/gemm): linear layers of vLLM, SGLang and
TensorRT-LLM. Those of vLLM were looked at: constants of a single product were chosen by its tables on H100 (all of
them) and on A100 and B200 (how fast the GPU is, and what a product takes besides). Of the others the errors of all rows
together were looked at once, before the last of these constants, and no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from published_kernels import Row, compare

DATA = Path(__file__).with_name("data") / "gemm_perf.csv"
BANDS = {"below 1 GFLOP": (0, 1e9), "1 to 100 GFLOP": (1e9, 1e11), "0.1 to 1 TFLOP": (1e11, 1e12), "more": (1e12, 1e18)}


def product(m: int, n: int, k: int) -> dict[str, Any]:
    """Return the row of `schema.KERNELS` of one bf16 product."""
    return {
        "kind": "matmul",
        "op": "mm",
        "dtype": "bfloat16",
        "shape": [1, m, n, k],
        "count": 1,
        "flops": 2 * m * n * k,
        "read_bytes": 2 * (m * k + n * k),
        "written_bytes": 2 * m * n,
        "phase": "forward",
    }


def products(row: Row) -> list[dict[str, Any]]:
    """Return the one product of a row."""
    return [product(int(row["m"]), int(row["n"]), int(row["k"]))]


def lines(row: Row, name: str, _measured: float) -> Iterator[str]:
    """Yield the table of a row, and for an unseen one the size of its product."""
    if row["library"].startswith("vllm") and row["machine"] != "h200-sxm":
        yield f"{name}, seen"
        return
    flops = products(row)[0]["flops"]
    yield f"{name}, unseen"
    yield f"all unseen, {next(band for band, (low, high) in BANDS.items() if low <= flops < high)}"
    yield "all unseen"


if __name__ == "__main__":
    compare(DATA, products, lines)
