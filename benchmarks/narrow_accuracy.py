"""How far fp8 and fp4 layers, and kernels that move bytes, are from published tables. Run it without arguments.

``data/narrow_perf.csv`` has 60 rows, drawn by chance, of each table of fp8 and nvfp4 linear layers of vLLM, SGLang and
TensorRT-LLM on six GPUs in NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0, systems/data/*/gemm), and of their
tables of quantizing by a given scale alone (quantize/*/*/scale_matrix_perf.parquet). A layer quantizes its bf16 input,
and then multiplies; quantizing reads two bytes of each number and writes one, or 9/16.

All were predicted before any was looked at: layers as products of bf16 at twice and four times the rate. Those of
`SEEN` were then looked at for what `cost.kernels.product_time` says of narrow numbers, and of quantizing on an H100
for the range of a kernel's start; of the others these first errors were known. Left out are SGLang's tables of
quantizing, which moves 0.34 TB/s on an H100 where its own layers move more, and layers with scales of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from published_kernels import Row, compare, read_rows

DATA = Path(__file__).with_name("data") / "narrow_perf.csv"
SEEN = (
    "fp8: b200-sxm vllm 0.24.0",
    "fp8: h100-sxm trtllm 1.3.0rc20",
    "fp8: h100-sxm vllm 0.24.0",
    "nvfp4: b200-sxm vllm 0.24.0",
    "quantize: h100-sxm trtllm 1.3.0rc20",
    "quantize: h100-sxm vllm 0.24.0",
)
BANDS = {"below 1 GFLOP": (0, 1e9), "1 to 100 GFLOP": (1e9, 1e11), "0.1 to 1 TFLOP": (1e11, 1e12), "more": (1e12, 1e18)}
FORMATS = {"fp8": ("float8_e4m3fn", 1.0), "quantize": ("float8_e4m3fn", 1.0), "nvfp4": ("float4_e2m1fn_x2", 9 / 16)}


def kernels(row: Row) -> list[dict[str, Any]]:
    """Return the rows of `schema.KERNELS` of quantizing an input and, of a layer, of the product."""
    m, n, k = (int(row[name]) for name in "mnk")
    dtype, size = FORMATS[row["kernel"]]
    both = {"dtype": dtype, "count": 1, "phase": "forward"}
    quantize = {
        "kind": "memory",
        "op": "scaled_quantize",
        "shape": [],
        "flops": 0,
        "read_bytes": 2 * m * k,
        "written_bytes": round(size * m * k),
    }
    product = {
        "kind": "matmul",
        "op": "_scaled_mm",
        "shape": [1, m, n, k],
        "flops": 2 * m * n * k,
        "read_bytes": round(size * (m * k + n * k)),
        "written_bytes": 2 * m * n,
    }
    return [quantize | both] if row["kernel"] == "quantize" else [quantize | both, product | both]


def lines(row: Row, name: str, _measured: float) -> Iterator[str]:
    """Yield the table of a row, its kind, and for an unseen layer the size of its product."""
    table = f"{row['kernel']}: {name}"
    seen = "seen" if table in SEEN else "unseen"
    yield f"{table}, {seen}"
    yield f"all {seen} {row['kernel']}"
    flops = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
    if flops and seen == "unseen":
        yield f"all unseen layers, {next(band for band, (low, high) in BANDS.items() if low <= flops < high)}"


if __name__ == "__main__":
    compare(read_rows(DATA), kernels, lines)
