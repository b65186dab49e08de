"""How far the attention of a prompt is from published tables of single kernels. Run it without arguments.

``data/prefill_attention_perf.csv`` has 60 rows in bf16, causal, without windows or a past, drawn by chance, of each
table of vLLM, SGLang and TensorRT-LLM on A100, H100, H200, B200 and L40S in NVIDIA's aiconfigurator-core 0.12.0 (PyPI,
Apache-2.0, systems/data/*/attention/*/context_attention_perf.parquet). These calls write the keys and values of the
prompt into a cache besides, which is predicted as the copy that it is. On Hopper they are FlashAttention-3's or
TensorRT's, for which cuDNN's stand here.

vLLM's tables of A100, H100 and B200 were looked at for the mechanism that is there now. Of the others the median errors
of the mechanism before it were known, 17 to 79 %, and no row was looked at; these rows are a new draw.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from gemm_accuracy import MACHINES, line

from dsexplore.cost import Cluster
from dsexplore.cost.compute import SPEEDS, kernel_seconds

DATA = Path(__file__).with_name("data") / "prefill_attention_perf.csv"
SEEN = ("a100-sxm vllm 0.14.0", "h100-sxm vllm 0.24.0", "b200-sxm vllm 0.24.0")
BANDS = {"below 30 µs": 30e-6, "30 to 100 µs": 100e-6, "0.1 to 1 ms": 1e-3, "longer": float("inf")}


def kernels(batch: int, heads: int, kv_heads: int, queries: int, width: int) -> list[dict[str, Any]]:
    """Return the rows of `schema.KERNELS` of one causal bf16 attention, and of the copy of its keys and values."""
    own, kept = 2 * batch * heads * queries * width, 2 * 2 * batch * kv_heads * queries * width
    both = {"dtype": "bfloat16", "count": 1, "phase": "forward"}
    attention = {
        "kind": "attention",
        "op": "flash_attention, causal",
        "shape": [batch, heads, queries, queries, width],
        "flops": 4 * batch * heads * width * queries * (queries + 1) // 2,
        "read_bytes": own + kept,
        "written_bytes": own,
    }
    cache = {"kind": "memory", "op": "index_put", "shape": [], "flops": 0, "read_bytes": kept, "written_bytes": kept}
    return [attention | both, cache | both]


def main() -> None:
    """Print a line for each table, and for those that were unseen together."""
    machines = MACHINES | {"l40s": "8xl40s"}
    tables: dict[str, list[tuple[float, tuple[float, ...]]]] = defaultdict(list)
    with DATA.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            cluster = Cluster.load(machines[row["machine"]])
            both = kernels(*(int(row[name]) for name in ("batch", "heads", "kv_heads", "queries", "width")))
            predicted = tuple(
                sum(kernel_seconds(one, cluster, speed, False, "cudnn") for one in both) for speed in SPEEDS
            )
            true = float(row["microseconds"]) * 1e-6
            name = f"{row['machine']} {row['library']}"
            seen = "seen" if name in SEEN else "unseen"
            band = next(band for band, least in BANDS.items() if true < least)
            for table in (f"{name}, {seen}", f"all {seen}", *([f"all unseen, {band}"] if seen == "unseen" else [])):
                tables[table].append((true, predicted))
    for name, pairs in sorted(tables.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:36}{line(pairs)}")


if __name__ == "__main__":
    main()
