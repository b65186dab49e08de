"""How far predicted all_reduces of inference engines are from published tables. Run it without arguments.

``data/custom_all_reduce_perf.csv`` has the bf16 all_reduces of vLLM, SGLang and TensorRT-LLM, launched by CUDA graphs,
on 2, 4 and 8 A100, H100, H200, B200 and GB200, from NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0,
systems/data/*/comm/*/custom_allreduce_perf.parquet). Its sizes count numbers: where the engines leave 512 Mi of them to
NCCL, the times are those of NCCL's own table at 1 GiB. The mechanism and its constants were written before any time was
looked at but two of 128 numbers on 2 H100, and stayed; the range was made wider afterwards.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from dsexplore._internal.cost.collectives.engine_collectives import custom_all_reduce_time
from dsexplore.cost import Cluster, Range

DATA = Path(__file__).with_name("data") / "custom_all_reduce_perf.csv"
MACHINES = {
    "a100-sxm": "dgx-a100",
    "b200-sxm": "b200",
    "gb200": "gb200-nvl72",
    "h100-sxm": "dgx-h100",
    "h200-sxm": "hgx-h200",
}
BANDS = {"up to 128 KiB": 128 << 10, "128 KiB to 16 MiB": 16 << 20, "more, left to NCCL mostly": 1 << 60}


def line(pairs: list[tuple[float, Range]]) -> str:
    """Return the number of times, the median error, the median of signed errors, and how many are in range."""
    errors = [predicted.expected / true - 1 for true, predicted in pairs]
    inside = statistics.mean(true in predicted for true, predicted in pairs)
    median = statistics.median(map(abs, errors))
    return (
        f"{len(pairs):5}  median error {median:5.1%}  signed {statistics.median(errors):+6.1%}  in range {inside:4.0%}"
    )


def main() -> None:
    """Print a line for each table, and for each size over all of them."""
    tables: dict[str, list[tuple[float, Range]]] = defaultdict(list)
    with DATA.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            size = int(row["bytes"])
            predicted = custom_all_reduce_time(size, int(row["ranks"]), Cluster.load(MACHINES[row["machine"]]))
            band = next(band for band, most in BANDS.items() if size <= most)
            for name in (f"{row['machine']} {row['library']}", f"all, {band}", "all"):
                tables[name].append((float(row["microseconds"]) * 1e-6, predicted))
    for name, pairs in sorted(tables.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:32}{line(pairs)}")


if __name__ == "__main__":
    main()
