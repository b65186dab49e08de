"""How far predicted matrix products are from published tables of single kernels.

``data/gemm_perf.csv`` has 200 bf16 products, drawn by chance, of each of the tables of A100, H100, H200 and B200 in
NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0, systems/data/*/gemm): linear layers of vLLM, SGLang and
TensorRT-LLM. Those of vLLM were looked at: constants of a single product were chosen by its tables on H100 (all of
them) and on A100 and B200 (how fast the GPU is, and what a product takes besides). Of the others the errors of all rows
together were looked at once, before the last of these constants, and no row.

``--wheel FILE`` draws 100,000 bf16 products of all tables there but the seen ones, also those of B300, GB200, GB300,
L40S and RTX PRO 6000, whose errors by GPU were looked at once. FILE is what ``pip download --no-deps
aiconfigurator-core==0.12.0`` brings. Goals: a median error of at most 10 %, 80 % in range.
"""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from goals import beside_goal
from published_kernels import MACHINES, Row, compare, errors_of, read_rows

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
    if is_seen(row):
        yield f"{name}, seen"
        return
    flops = products(row)[0]["flops"]
    yield f"{name}, unseen"
    yield f"all unseen, {next(band for band, (low, high) in BANDS.items() if low <= flops < high)}"
    yield "all unseen"


def wheel_rows(wheel: Path, count: int) -> list[Row]:
    """Draw products by chance from all tables of a wheel whose machine has a cluster file, but for the seen ones."""
    rows: list[Row] = []
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            _, _, _, machine, *rest = name.split("/") if "/gemm/" in name else [""] * 4
            machine = machine.replace("_", "-")
            if machine not in MACHINES or not name.endswith("gemm_perf.parquet"):
                continue
            library = f"{rest[1]} {rest[2]}"
            table = pl.read_parquet(io.BytesIO(files.read(name))).filter(gemm_dtype="bfloat16")
            found = table.select(
                pl.lit(machine).alias("machine"),
                pl.lit(library).alias("library"),
                *(pl.col(size).cast(pl.String) for size in ("m", "n", "k")),
                (pl.col("latency") * 1e3).cast(pl.String).alias("microseconds"),
            ).to_dicts()
            if found and not is_seen(found[0]):
                rows += found
    return random.Random(1).sample(rows, min(count, len(rows)))


def is_seen(row: Row) -> bool:
    """Return True for a row of a table by which constants were chosen."""
    return row["library"].startswith("vllm") and row["machine"] in ("a100-sxm", "b200-sxm", "h100-sxm")


def main() -> None:
    """Compare the drawn products, or those of a wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="predict products of all tables of this wheel")
    wheel = parser.parse_args().wheel
    groups = compare(wheel_rows(wheel, 100_000) if wheel is not None else read_rows(DATA), products, lines)
    unseen = groups["all unseen"]
    median, inside = errors_of(unseen)
    print(beside_goal("unseen products: median error", median, len(unseen), most=0.10))
    print(beside_goal("unseen products: in range", inside, len(unseen), least=0.80))


if __name__ == "__main__":
    main()
