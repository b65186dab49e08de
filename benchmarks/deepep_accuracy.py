"""How far predicted dispatches and combines of DeepEP are from published tables. Run it without arguments.

``data/deepep_perf.csv`` has 40 calls, drawn by chance, of each table of SGLang's DeepEP, of normal and of low-latency
kernels and of each number of nodes, in NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0,
systems/data/*/comm/sglang/*/wideep_deepep_*_perf.parquet): fp8 to the experts, bf16 back, experts of tokens drawn by
chance, from 4 nodes at most (collector/deep_collector of ai-dynamo/aiconfigurator). In one node, normal times are of
whole calls; of several, those of the two kernels are added.

A first mechanism, whose constants were all of DeepEP's docs/legacy.md, was held beside all tables. Those of `SEEN` were
then looked at for the one that is there now; of the others only these first errors were known. Left out is the table
that is called H100 and SGLang 0.5.6.post2, since it is the one of H200, number by number; so are those of vLLM and
TensorRT-LLM, which time calls of the engine with what its CPU does, of tokens whose experts they do not state, and 288
experts on 64 ranks, which DeepEP refuses.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from published_kernels import MACHINES

from dsexplore.cost import Cluster, Range, deepep_time

DATA = Path(__file__).with_name("data") / "deepep_perf.csv"
SEEN = ("h100-sxm sglang 0.5.12", "h200-sxm sglang 0.5.6.post2")
MOST_NODES = 4


def line(pairs: list[tuple[float, Range]]) -> str:
    """Return the number of times, the median error, the median of signed errors, and how many are in range."""
    errors = [predicted.expected / true - 1 for true, predicted in pairs]
    inside = statistics.mean(true in predicted for true, predicted in pairs)
    median = statistics.median(map(abs, errors))
    return (
        f"{len(pairs):5}  median error {median:5.1%}  signed {statistics.median(errors):+6.1%}  in range {inside:4.0%}"
    )


def main() -> None:
    """Print a line for each table, kind of kernels and number of nodes, and for all that were seen or unseen."""
    tables: dict[str, list[tuple[float, Range]]] = defaultdict(list)
    with DATA.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            ranks, nodes = int(row["ranks"]), int(row["nodes"])
            predicted = deepep_time(
                "dispatch" if row["op"] == "dispatch" else "combine",
                int(row["tokens"]),
                int(row["hidden"]),
                int(row["experts"]),
                int(row["top_k"]),
                ranks,
                ranks // nodes,
                Cluster.load(MACHINES[row["machine"]]),
                low_latency=row["kernels"] == "low latency",
                nodes_per_token=MOST_NODES,
                multiprocessors=int(row["multiprocessors"]) or 20,
            )
            table = f"{row['machine']} {row['library']}"
            seen = "seen" if table in SEEN else "unseen"
            where = f"{row['kernels']}, {nodes} node{'s' * (nodes > 1)}"
            for name in (f"{table}, {seen}: {where}", f"all {seen}: {row['kernels']}", f"all {seen}"):
                tables[name].append((float(row["microseconds"]) * 1e-6, predicted))
    for name, pairs in sorted(tables.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:59}{line(pairs)}")


if __name__ == "__main__":
    main()
