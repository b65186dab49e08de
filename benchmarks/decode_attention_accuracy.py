"""How far the attention of a decoder's next token is from published tables of single kernels. Run it without arguments.

``data/decode_attention_perf.csv`` has 60 rows in bf16, without windows, drawn by chance, of each table of vLLM, SGLang
and TensorRT-LLM on A100, H100, H200, B200 and L40S in NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0,
systems/data/*/attention/*/generation_attention_perf.parquet). vLLM's on A100 and H100 were looked at when the mechanism
was written; the others were not, and nothing was changed after their errors were seen.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from gemm_accuracy import MACHINES, line

from dsexplore.cost import Cluster
from dsexplore.cost.compute import SPEEDS, kernel_seconds

DATA = Path(__file__).with_name("data") / "decode_attention_perf.csv"
SEEN = ("a100-sxm vllm 0.14.0", "h100-sxm vllm 0.24.0")


def attention(batch: int, heads: int, kv_heads: int, keys: int, width: int) -> dict[str, Any]:
    """Return the row of `schema.KERNELS` of one bf16 attention with one query a sequence."""
    queries = batch * heads * width
    return {
        "kind": "attention",
        "op": "scaled_dot_product_attention",
        "dtype": "bfloat16",
        "shape": [batch, heads, 1, keys, width],
        "count": 1,
        "flops": 4 * queries * keys,
        "read_bytes": 2 * (queries + 2 * batch * kv_heads * keys * width),
        "written_bytes": 2 * queries,
        "phase": "forward",
    }


def main() -> None:
    """Print a line for each table, and for those that were unseen together."""
    machines = MACHINES | {"l40s": "8xl40s"}
    tables: dict[str, list[tuple[float, tuple[float, ...]]]] = defaultdict(list)
    with DATA.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            cluster = Cluster.load(machines[row["machine"]])
            one = attention(*(int(row[name]) for name in ("batch", "heads", "kv_heads", "keys", "width")))
            predicted = tuple(kernel_seconds(one, cluster, speed, False) for speed in SPEEDS)
            name = f"{row['machine']} {row['library']}"
            seen = "seen" if name in SEEN else "unseen"
            for table in (f"{name}, {seen}", f"all {seen}"):
                tables[table].append((float(row["microseconds"]) * 1e-6, predicted))
    for name, pairs in sorted(tables.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:36}{line(pairs)}")


if __name__ == "__main__":
    main()
