"""How far predicted matrix products are from published tables of single kernels.

``data/gemm_perf.csv`` has 200 bf16 products, drawn by chance, of each of the tables of A100, H100, H200 and B200 in
NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0, systems/data/*/gemm): linear layers of vLLM, SGLang and
TensorRT-LLM. Those of vLLM were looked at: constants of a single product were chosen by its tables on H100 (all of
them) and on A100 and B200 (how fast the GPU is, and what a product takes besides). Of the others the errors of all rows
together were looked at once, before the last of these constants, and no row.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from dsexplore.cost import Cluster
from dsexplore.cost.compute import SPEEDS, kernel_seconds

DATA = Path(__file__).with_name("data") / "gemm_perf.csv"
MACHINES = {"a100-sxm": "dgx-a100", "b200-sxm": "b200", "h100-sxm": "dgx-h100", "h200-sxm": "hgx-h200"}
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


def line(pairs: list[tuple[float, tuple[float, ...]]]) -> str:
    """Return the number of products, the median error, the median of signed errors, and how many are in range."""
    errors = [expected / true - 1 for true, (_, expected, _) in pairs]
    inside = statistics.mean(low <= true <= high for true, (low, _, high) in pairs)
    median = statistics.median(map(abs, errors))
    return (
        f"{len(pairs):5}  median error {median:5.1%}  signed {statistics.median(errors):+6.1%}  in range {inside:4.0%}"
    )


def main() -> None:
    """Print a line for each table, and for each size of product over those that were unseen."""
    tables: dict[str, list[tuple[float, tuple[float, ...]]]] = defaultdict(list)
    with DATA.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            cluster = Cluster.load(MACHINES[row["machine"]])
            one = product(int(row["m"]), int(row["n"]), int(row["k"]))
            pair = (
                float(row["microseconds"]) * 1e-6,
                tuple(kernel_seconds(one, cluster, speed, False) for speed in SPEEDS),
            )
            seen = "seen" if row["library"].startswith("vllm") and row["machine"] != "h200-sxm" else "unseen"
            tables[f"{row['machine']} {row['library']}, {seen}"].append(pair)
            if seen == "unseen":
                band = next(band for band, (low, high) in BANDS.items() if low <= one["flops"] < high)
                tables[f"all unseen, {band}"].append(pair)
                tables["all unseen"].append(pair)
    for name, pairs in sorted(tables.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:36}{line(pairs)}")


if __name__ == "__main__":
    main()
