"""How long a large trace takes to save, load, slice and sum up, and how large the trace of a large model's step is.

Run it from the repository's root: ``python -m benchmarks.trace_files``. Goals, printed beside what was measured:
1,000,000 events load within 1 s and are summed up within 0.2 s each; a 126-layer step's file is at most 5 MB.

A process of its own (`trace_apart.py`) loads the file, and asks for findings, headline, the view and the timeline,
one after another; its peak memory is printed after each. Goals: 1,000,000 events take at most 0.7 GB up to the
headline; of 5,000,000 (``--events 5000000``), findings and headline take at most 3 s each, and 2 GB. ``--only-apart``
measures this alone.
Seconds are wall time; those of the processor follow, which show what a busy machine does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from dsexplore._internal.capture.record import record
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import wire_bytes
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace, load
from dsexplore._internal.worlds.simulate import simulate

LOAD_GOAL_S = 1.0
TOTALS_GOAL_S = 0.2
SIZE_GOAL_MB = 5.0
APART_GOALS: dict[int, tuple[float | None, float]] = {1_000_000: (None, 0.7), 5_000_000: (3.0, 2.0)}
"""{events: seconds of findings and of the headline, and GB of memory}."""
PARTS = ("", "self_attn", "self_attn.q_proj", "self_attn.o_proj", "mlp", "mlp.up_proj", "mlp.down_proj")
KINDS = (  # op, raw op, axis, ranks of the group
    ("all_gather", "_c10d_functional::all_gather_into_tensor", "dp_shard", 2048),
    ("reduce_scatter", "_c10d_functional::reduce_scatter_tensor", "tp", 8),
    ("all_reduce", "_c10d_functional::all_reduce", "tp", 8),
)


def synthetic(count: int, layers: int = 126, seed: int = 0) -> Trace:
    """A trace with that many events of a Llama of that many layers, in the proportions of a TP × FSDP step."""
    draw = np.random.default_rng(seed)
    modules = [f"Llama.layers.{layer}{'.' if part else ''}{part}" for layer in range(layers) for part in PARTS]
    owner = np.array(modules)[np.sort(draw.integers(0, len(modules), count))]
    kind = draw.integers(0, len(KINDS), count)
    sizes = np.array([1 << 20, 1 << 24, 1 << 28, 977 * 4096])[draw.integers(0, 4, count)]
    start = np.cumsum(draw.integers(1_000, 100_000, count)) + 1_700_000_000_000_000_000
    columns: dict[str, Any] = {
        "rank": np.zeros(count, np.int32),
        "step": np.arange(count, dtype=np.int32) // 5_000,
        "seq": np.arange(count),
        **{name: np.array([each[i] for each in KINDS])[kind] for name, i in (("op", 0), ("raw_op", 1), ("axis", 2))},
        "phase": np.array(schema.PHASES[1:5])[draw.integers(0, 4, count)],
        "trigger": owner,
        "owner": owner,
        "group": np.array([f"mesh_{each[2]}" for each in KINDS])[kind],
        "group_size": np.array([each[3] for each in KINDS])[kind],
        "message_bytes": sizes,
        "wire_bytes": _wire(kind, sizes),
        "dtype": np.full(count, "bfloat16"),
        "shape": pl.Series(np.stack([sizes // 8192, np.full(count, 4096)], axis=1)).arr.to_list(),
        "implicit": draw.random(count) < 0.1,
        "cause": np.array(["FSDP pre_forward", "aten.add P→S(1)", "redistribute S(1)→R"])[kind],
        "source": np.array([f"transformers/models/llama/modeling_llama.py:{line}" for line in range(300, 340)])[
            draw.integers(0, 40, count)
        ],
        "is_async": np.ones(count, bool),
        "is_object": np.zeros(count, bool),
        **{
            name: pl.Series([None] * count, dtype=schema.EVENTS[name])
            for name in ("batch", *schema.ADDED[2], "waited", "group_seq", "same_input")
        },
        "start": start,
        "end": start + draw.integers(1_000, 1_000_000, count),
        "state": np.full(count, "completed"),
    }
    events = pl.DataFrame({name: columns[name] for name in schema.EVENTS}).cast(dict(schema.EVENTS))
    return Trace(Tables(events=events, info=TraceInfo(world_size=16_384, ranks=(0,), mesh="dp_shard=2048,tp=8")))


def _wire(kind: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = {(k, s): wire_bytes(KINDS[k][0], int(s), KINDS[k][3]) for k in range(len(KINDS)) for s in np.unique(sizes)}
    return np.array([values[k, s] for k, s in zip(kind.tolist(), sizes.tolist(), strict=True)])


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median of several runs."""
    runs = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        runs.append(time.perf_counter() - begin)
    return statistics.median(runs)


def measured(trace: Trace, folder: Path, repeats: int) -> list[tuple[str, float, float | None]]:
    """What was done, its seconds, and the goal if there is one."""
    file = folder / "large.parquet"
    rows: list[tuple[str, float, float | None]] = [
        ("save", seconds(lambda: trace.save(file), 1), None),
        ("load", seconds(lambda: load(file), repeats), LOAD_GOAL_S),
    ]
    loaded = load(file)
    for name in ("by_module", "by_op", "by_axis", "by_phase"):
        rows.append((name, seconds(getattr(loaded, name), repeats), TOTALS_GOAL_S))
    rows += [
        ("where(phase, axis)", seconds(lambda: loaded.where(phase="backward", axis="tp"), repeats), None),
        ("where(module)", seconds(lambda: loaded.where(module="layers.7"), repeats), None),
        ("diff", seconds(lambda: loaded.diff(loaded.where(step=range(100))).to_frame(), repeats), None),
        ("to_csv", seconds(lambda: loaded.to_csv(folder / "large.csv"), 1), None),
        ("to_perfetto", seconds(lambda: loaded.to_perfetto(folder / "large.json.gz"), 1), None),
    ]
    return rows


def measured_apart(file: Path, events: int) -> list[str]:
    """The lines of `trace_apart`, in a process of its own, beside the goals for that many events."""
    command = [sys.executable, "-m", "benchmarks.trace_apart", str(file)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = []
    for row in map(json.loads, printed.splitlines()):
        goals = APART_GOALS.get(events, (None, None)) if row["step"] in ("findings", "headline") else (None, None)
        lines.append(line(f"apart: {row['step']}", row["seconds"], "s", goals[0]))
        lines.append(line("  of the processor", row["processor"], "s", None))
        lines.append(line("  peak memory", row["peak"], "GB", goals[1]))
    return lines


class Block(nn.Module):
    """A decoder layer's linear and norm layers; attention itself does not communicate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(width)
        self.self_attn = nn.ModuleDict({f"{part}_proj": nn.Linear(width, width, bias=False) for part in "qkvo"})
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.mlp = nn.ModuleDict(
            {f"{part}_proj": nn.Linear(width, width, bias=False) for part in ("gate", "up", "down")}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention's projections, then the MLP's, each with its residual."""
        attention, mlp = self.self_attn, self.mlp
        h = self.input_layernorm(x)
        x = x + attention["o_proj"](attention["q_proj"](h) + attention["k_proj"](h) + attention["v_proj"](h))
        h = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](nn.functional.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


def recorded_step(layers: int = 126, width: int = 64) -> Trace:
    """Forward, backward and optimizer under TP 8 × FSDP 64, recorded on simulated ranks.

    The layers are narrow: a trace's size depends on how many events and modules there are, not on how large.
    """
    plan: dict[str, ParallelStyle] = {}
    for part in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"):
        plan[f"{part}_proj"] = ColwiseParallel()
    for part in ("self_attn.o", "mlp.down"):
        plan[f"{part}_proj"] = RowwiseParallel()
    with simulate(512, "dp_shard=64,tp=8") as mesh:
        model = nn.Sequential(*(Block(width) for _ in range(layers)))
        for block in model:
            parallelize_module(block, mesh["tp"], plan)
            fully_shard(block, mesh=mesh["dp_shard"])
        fully_shard(model, mesh=mesh["dp_shard"])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with record() as trace:
            model(torch.ones(8, width)).sum().backward()
            optimizer.step()
    return trace


def line(what: str, value: float, unit: str, goal: float | None) -> str:
    """One figure, its goal, and whether it was missed."""
    missed = goal is not None and value > goal
    return f"{what:20} {value:8.3f} {unit}{f'   goal ≤ {goal} {unit}' if goal else ''}{'   MISSED' if missed else ''}"


def main() -> None:
    """Print each figure beside its goal, and fail where one is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--only-apart", action="store_true", help="measure only the process of its own")
    given = arguments.parse_args()
    if given.only_apart:
        with tempfile.TemporaryDirectory() as scratch:
            file = synthetic(given.events).save(Path(scratch) / "large.parquet")
            print(f"{given.events:,} events, polars {pl.__version__}, {pl.thread_pool_size()} threads", flush=True)
            lines = measured_apart(file, given.events)
        print("\n".join(lines))
        _fail_where_missed(lines)
        return
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        trace = synthetic(given.events)
        print(f"{len(trace):,} events, polars {pl.__version__}, {pl.thread_pool_size()} threads")
        lines += [line(what, took, "s", goal) for what, took, goal in measured(trace, folder, given.repeats)]
        lines.append(line("file", (folder / "large.parquet").stat().st_size / 1e6, "MB", None))
        del trace
        lines += measured_apart(folder / "large.parquet", given.events)
        print("\n".join(lines))
        step = recorded_step()
        rows = f"{len(step):,} events, {step.modules.height:,} modules, {step.parameters.height:,} parameters"
        print(f"\na step of 126 layers: {rows}")
        lines.append(line("file", step.save(folder / "step.parquet").stat().st_size / 1e6, "MB", SIZE_GOAL_MB))
        print(lines[-1])
    _fail_where_missed(lines)


def _fail_where_missed(lines: list[str]) -> None:
    if any("MISSED" in each for each in lines):
        raise SystemExit("a goal was missed")


if __name__ == "__main__":
    main()
