"""How long ``import dsexplore`` takes beside ``import torch``: fresh interpreters, median and range.

Run ``python benchmarks/import_time.py [rounds]``.
"""

import statistics
import subprocess
import sys

PROGRAM = """
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
import dsexplore
print(between - start, time.perf_counter() - between)
"""


def main(rounds: int) -> None:
    """Print the table."""
    runs = [
        [float(number) for number in subprocess.check_output([sys.executable, "-c", PROGRAM]).split()]
        for _ in range(rounds)
    ]
    for name, times in zip(("torch", "dsexplore, on top"), zip(*runs, strict=True), strict=True):
        spread = f"{min(times):.4f}–{max(times):.4f}"
        print(f"import {name:18} {statistics.median(times):.4f} s  ({spread} s, n = {rounds})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
