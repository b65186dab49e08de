"""How far predicted memory is off tests of Megatron-DeepSpeed. Run: python benchmarks/megatron_memory.py FILE

FILE is ``train/tr11-176B-ml/chronicles-prequel.md`` of bigscience-workshop/bigscience (9e64ede1): tables of GPTs of 176
to 206 billion parameters on 320 to 384 A100 of 80 GB, from February 2022, each with its mesh, micro batch and memory of
the fullest GPU as ``nvidia-smi`` shows it, or a mark that it ran out of memory. Rows of ZeRO's stage 0 are left out,
and tables before "Choosing the fastest 3D Topology", whose programs are not described.

The memory that ``nvidia-smi`` shows is `MemoryNeed.most`: that of all tensors, the gaps of the allocator, and what is
outside of it. `megatron_gpt` says what the program is like. Where a table names no layers, these are the multiple of
the stages that comes nearest to the model's size. No number of the package was chosen by these rows.

Goals: the median error of memory at most 10 %, 90 % of runs told apart by whether they run out of memory.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from goals import beside_goal
from megatron_gpt import Gpt, build
from parallel_llama import Run

from dsexplore._internal.cost.meshes.compare_meshes import trace_rank
from dsexplore._internal.trace.trace import Trace, load

CLUSTER = "dgx-a100"
FIRST_SECTION, BF16_SECTION, LAST_SECTION = "Choosing the fastest 3D", "Rebalancing layers", "Hanging Issue"
WIDTH, HEADS = 14400, {14400: 96}
"""Width of models whose table has none, and heads of those whose table has none and that have not 64."""
SEQUENCE = 2048
IN_TURN = 2
"""Microbatches that are traced of those that find as many in flight as the one before them."""


@dataclass(frozen=True)
class Test:
    """One row of the tables; its memory in GiB, None if it ran out of memory."""

    model: Gpt
    run: Run
    sizes: tuple[tuple[str, int], ...]
    memory: float | None


def read_tests(text: str) -> Iterator[Test]:
    """Yield the rows that have a memory, each configuration once."""
    names: list[str] = []
    said: dict[str, int] = {}
    section, counted, seen = "", False, set()
    for line in text[text.index(FIRST_SECTION) : text.index(LAST_SECTION)].splitlines():
        section = line if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            found = {name: int(number) for name, number in re.findall(r"(HIDDEN|NLAYERS)=(\d+)", line)}
            if found:
                said, counted = said | found, "regex" in line or BF16_SECTION in section
        elif "Mem" in cells:
            names = cells
        elif len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            memory = re.fullmatch(r"(\d+) ?GB|OOM", row.get("Mem", ""))
            if memory is None or row.get("ZS") == "0":
                continue
            test = _test(row, said, counted, BF16_SECTION in section, memory.group(1))
            if (test.model, test.run, test.sizes) not in seen:
                seen.add((test.model, test.run, test.sizes))
                yield test


def _test(row: dict[str, str], said: dict[str, int], counted: bool, in_bf16: bool, memory: str | None) -> Test:
    numbers = {name: int(cell) for name, cell in row.items() if cell.isdigit()}
    width = numbers.get("NHIDDEN", said.get("HIDDEN", WIDTH))
    stages, data, batch = numbers["PP"], numbers.get("DP", 1), numbers["MBS"]
    layers = numbers.get("Layers", said.get("NLAYERS", 0))
    if "NHIDDEN" in numbers or not layers:
        size = float(row["Size"].rstrip("B")) * 1e9
        layers = stages * round((size - Gpt.vocabulary * width) / (12 * width**2) / stages)
    heads = numbers.get("NHEADS", HEADS.get(width, 64))
    run = Run(SEQUENCE, batch, min(numbers["GBS"] // (batch * data), stages + IN_TURN), "full")
    sizes = (("pp", stages), ("dp", data), ("cp", 1), ("tp", numbers["TP"]))
    model = Gpt(layers, width, heads, embeddings_count=counted, in_bf16=in_bf16)
    return Test(model, run, sizes, float(memory) if memory else None)


def trace_of(test: Test, kept: Path | None) -> Trace:
    """Return the trace of the first and the last stage, which have the embeddings; traces are kept in a folder."""
    name = hashlib.sha1(f"{test.model} {test.run} {test.sizes}".encode()).hexdigest()[:12]
    file = kept / f"megatron-{name}.parquet" if kept else None
    if file is not None and file.exists():
        return load(file)
    sizes = dict(test.sizes)
    stages, per_stage = sizes["pp"], sizes["dp"] * sizes["tp"]
    program = partial(build, test.model, test.run)
    traces = [Trace(trace_rank(program, sizes, stage * per_stage)) for stage in sorted({0, stages - 1})]
    merged = Trace.merge(traces) if len(traces) > 1 else traces[0]
    if file is not None:
        merged.save(file)
    return merged


def main() -> None:
    """Print a line for each row, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of so many rows one is predicted")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the traces there, and use those there are")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    errors, signed, apart = [], [], []
    for test in list(read_tests(options.file.read_text(encoding="utf-8")))[:: options.every]:
        need = trace_of(test, options.traces).predict(CLUSTER).memory
        apart.append(float((need.fit != "does not fit") == (test.memory is not None)))
        line = "out of memory"
        if test.memory is not None:
            signed.append(need.most / 2**30 / test.memory - 1)
            errors.append(abs(signed[-1]))
            line = f"{need.most / 2**30:5.1f} of {test.memory:5.1f} GiB {signed[-1]:+6.1%}"
        mesh = " ".join(f"{axis}={size}" for axis, size in test.sizes if size > 1)
        kind = "bf16" if test.model.in_bf16 else "fp16"
        shape = f"{test.model.layers:3} layers of {test.model.width} {kind} {mesh:18} batch {test.run.batch}"
        print(f"{shape:58} {line:28} predicted: {need.fit}", flush=True)
    print()
    print(beside_goal("median error of memory", statistics.median(errors), len(errors), most=0.10))
    print(f"median with its sign: {statistics.median(signed):+.1%}")
    print(beside_goal("run and out of memory told apart", statistics.mean(apart), len(apart), least=0.90))


if __name__ == "__main__":
    main()
