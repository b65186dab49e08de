"""How far predicted steps and memory are off a public sweep of meshes. Run: python benchmarks/training_sweep.py FILE

FILE is ``assets/data/benchmarks/benchmarks_interactive.html`` of Hugging Face's Ultra-Scale Playbook
(huggingface.co/spaces/nanotron/ultrascale-playbook; vinjn/nanotron-ultrascale-playbook, 924e4d0b, has a copy), a figure
of 3,261 runs of nanotron: Llamas of 1, 3, 8 and 80 billion parameters on 8 to 512 H100, each with its mesh, micro
batch and ZeRO stage, tokens per second and memory, or a mark that it crashed. Shapes, sequence of 4,096, vocabulary of
131,072 and gradients in fp32 are those of ``scripts/scaling_benchmarks.py`` of huggingface/nanotron (0e0a27ea); the
network is AWS p5 with the collectives that the Playbook measured (``data/ultrascale-p5.toml``). Runs of 1B on one node
are left out, as some of them were seen before.

Runs are drawn by chance: twelve of one model and number of nodes after another, ``--count`` in all. The first 60 were
looked at to find what nanotron does; ``--skip 60`` draws others. What counts as told apart: a run that crashed is
predicted not to fit, and another one to fit. Meshes of which some stage gets no block are left out, as they crash
whatever their memory. Memory is what nanotron reports (`nanotron_memory`). Each is traced as nanotron trains
(`nanotron_llama`) on fake tensors, and predicted; of the numbers of the package only `memory_need.NEAR` was chosen by
these runs, those with nearly full memory. Pipelines are played as nanotron plays them, with what their messages and
collectives wait for (`nanotron_pipeline`).

The figure has pipelines of two versions of nanotron and does not say which is which: ``scaling_benchmarks.py`` ran some
again, where their job was one of the early version (67c5ebb6), whose messages wait in steps of 0.1 s. `Published.polls`
guesses, by what the script's comments choose and by the first 60 runs.

Goals: the median error of steps and of memory at most 10 %, the rank correlation of the runs of one model and number of
nodes at least 0.85, 90 % of runs told apart, 80 % of those whose memory is nearly full said to be near the limit.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from goals import beside_goal
from llama_layers import Model
from nanotron_llama import build
from nanotron_memory import has_empty_stage, is_near_limit, reported_bytes
from nanotron_pipeline import distinct_stages, pipeline_seconds
from parallel_llama import Run
from predicted_step import DATA, MODELS, Row, predicted, predicted_of, rank_correlation

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.memory.memory_need import NEAR, Fit

SHAPES = {
    "x": Model(16, 2048, 32, 32, 8192, 131072, tied=True),
    "x2": Model(28, 3072, 32, 32, 8192, 131072, tied=True),
    "x3": Model(32, 4096, 32, 32, 14336, 131072),
    "x4": Model(80, 8192, 64, 64, 28672, 131072),
}
"""The model of each column of the figure, by its axis."""
NAMES = {"x": "1B", "x2": "3B", "x3": "8B", "x4": "80B"}
SEQUENCE, SAMPLES = 4096, 256
SEEN = "1B", 1
"""Model and number of nodes of runs that were looked at before any was predicted."""
CLUSTER = str(DATA / "ultrascale-p5.toml")
AT_A_TIME = 12
"""Runs that are drawn of one model and number of nodes before those of the next."""
DEVELOPMENT = 60
"""Runs that were looked at to find what nanotron does and what it takes."""
POLL = 0.1
"""Seconds between two looks of the early version of nanotron, whether a message has arrived."""
NUMBERS = re.compile(r"(Nodes|MBS|GradAcc|DP|PP|TP|ZeRO): *(\d+)")


@dataclass(frozen=True)
class Published:
    """One run of the sweep."""

    row: Row
    nodes: int

    @property
    def has_run(self) -> bool:
        """False if it crashed."""
        return self.row.tokens_per_second is not None

    @property
    def has_stages(self) -> bool:
        """True for a pipeline."""
        return self.row.sizes["pp"] > 1

    @property
    def is_nearly_full(self) -> bool:
        """True if it has run and its memory was nearly full."""
        return self.row.memory is not None and self.row.memory >= nearly_full_bytes()

    @property
    def polls(self) -> bool:
        """True for a pipeline that, as far as can be told, was not run again with the later version."""
        run, sizes = self.row.run, self.row.sizes
        chosen = sizes["dp"] < 32 or run.sharding == "zero0 in fp32" or self.row.model == "80B"
        again = self.nodes <= 32 and chosen and (run.batch == 1 or self.nodes < 32)
        return self.has_stages and not again

    @property
    def group(self) -> tuple[str, int]:
        """Model and number of nodes."""
        return self.row.model, self.nodes


@cache
def nearly_full_bytes() -> float:
    """Return the bytes from which on the memory of a GPU is nearly full."""
    return NEAR * Cluster.load(CLUSTER).memory.size


def read_sweep(path: Path) -> list[Published]:
    """Read the runs of the figure, but for those whose micro batches do not add up to the batch."""
    text = path.read_text(encoding="utf-8")
    plot, _ = json.JSONDecoder().raw_decode(text, text.index("[{", text.index("Plotly.newPlot(")))
    labels = {(trace["xaxis"], label) for trace in plot for label in trace.get("text", ()) if trace["xaxis"] in SHAPES}
    runs = (_read(axis, re.sub("<[^>]+>", "\n", label)) for axis, label in sorted(labels))
    return [run for run in runs if run is not None and run.group != SEEN]


def _read(axis: str, label: str) -> Published | None:
    numbers = {name: int(value) for name, value in NUMBERS.findall(label)}
    sizes = {"pp": numbers["PP"], "dp": numbers["DP"], "cp": 1, "tp": numbers["TP"]}
    if numbers["MBS"] * numbers["GradAcc"] * numbers["DP"] != SAMPLES:
        return None
    sharding: Any = f"zero{numbers['ZeRO']} in fp32"
    per_stage = sizes["dp"] * sizes["tp"]
    stages = distinct_stages(SHAPES[axis], sizes["pp"])
    ranks = tuple(stage * per_stage + sizes["tp"] // 2 for stage in stages)
    run = Run(SEQUENCE, numbers["MBS"], numbers["GradAcc"], sharding=sharding)
    speed = re.search(r"tok/s/gpu:\s*([\d,.]+)", label)
    memory = re.search(r"GPU memory:\s*([\d.]+)", label)
    row = Row(
        "nanotron 2025",
        NAMES[axis],
        CLUSTER,
        run,
        sizes,
        float(speed.group(1).replace(",", "")) if speed else None,
        float(memory.group(1)) * 2**30 if speed and memory else None,
        program=build,
        ranks=ranks,
    )
    return Published(row, numbers["Nodes"])


def drawn(runs: Sequence[Published], count: int) -> Iterator[Published]:
    """Yield runs by chance, `AT_A_TIME` of one model and number of nodes after another.

    Runs with fewer micro batches than stages of the pipeline are left out: torch's 1F1B refuses them.
    """
    draw = random.Random(1)
    groups: dict[tuple[str, int], list[Published]] = defaultdict(list)
    for run in draw.sample(runs, len(runs)):
        if run.row.run.microbatches >= run.row.sizes["pp"]:
            groups[run.group].append(run)
    order = draw.sample(sorted(groups), len(groups))
    while count > 0 and any(groups.values()):
        for group in order:
            part, groups[group] = groups[group][:AT_A_TIME], groups[group][AT_A_TIME:]
            yield from part[:count]
            count -= len(part[:count])


@dataclass(frozen=True)
class Compared:
    """A run beside what is predicted of it.

    Attributes:
        run: the run.
        fit: whether the step is predicted to fit, see `MemoryNeed.fit`.
        reported: bytes of memory that nanotron would report.
        is_near_limit: True if its memory is predicted to be nearly full, or not to fit.
        seconds: predicted for the version of nanotron that the run is taken to have; None if it crashed.
        other: seconds for the other version of a pipeline, as `seconds` without a pipeline.
    """

    run: Published
    fit: Fit
    reported: int
    is_near_limit: bool
    seconds: float | None = None
    other: float | None = None

    @property
    def is_told_apart(self) -> bool:
        """True if it has run and is predicted to fit, or has crashed and is not."""
        return (self.fit != "does not fit") == self.run.has_run

    @property
    def step_error(self) -> float:
        """Predicted seconds relative to those of the run, less 1; not of a run that crashed."""
        return _relative(self.seconds, self.run.row.step)

    @property
    def least_error(self) -> float:
        """The smaller error of the two versions, without its sign."""
        return min(abs(self.step_error), abs(_relative(self.other, self.run.row.step)))

    @property
    def memory_error(self) -> float:
        """Predicted bytes relative to those of the run, less 1; not of a run that crashed."""
        return _relative(self.reported, self.run.row.memory)

    def line(self) -> str:
        """The run with its mesh, step and memory."""
        row = self.run.row
        sizes = " ".join(f"{axis}={size}" for axis, size in row.sizes.items() if size > 1)
        mesh = f"{row.model:4}{self.run.nodes:3} nodes {sizes:20} {row.run.microbatches:3}×{row.run.batch}"
        said = "crashed"
        if self.seconds is not None and row.step is not None and row.memory is not None:
            said = (
                f"{self.seconds:7.2f} of {row.step:7.2f} s {self.step_error:+6.1%}  "
                f"{self.reported / 2**30:5.1f} of {row.memory / 2**30:5.1f} GiB"
            )
        return f"{f'{mesh} {row.run.sharding}':54} {said:45} predicted: {self.fit}"


def _relative(predicted: float | None, measured: float | None) -> float:
    assert predicted is not None, "a run that crashed"
    assert measured is not None, "a run that crashed"
    return predicted / measured - 1


def compare(run: Published, kept: Path | None) -> Compared:
    """Predict a run; traces are kept in a folder, and taken from there."""
    row = run.row
    # More microbatches than stages are not in flight, and each takes as long as the others.
    few = replace(row, run=replace(row.run, microbatches=min(row.run.microbatches, max(2, row.sizes["pp"]))))
    count = few.run.microbatches
    seconds, other = None, None
    if run.has_run and not run.has_stages:
        prediction, seconds = predicted(row, kept)
        other = seconds
    else:
        prediction = predicted_of(few, kept)
    if run.has_run and run.has_stages:
        polls = (POLL, 0.0) if run.polls else (0.0, POLL)
        seconds, other = (pipeline_seconds(row, prediction, count, poll) for poll in polls)
    return Compared(
        run=run,
        fit=prediction.memory.fit,
        reported=reported_bytes(row, prediction, count),
        is_near_limit=is_near_limit(row, prediction, count),
        seconds=seconds,
        other=other,
    )


def print_medians(compared: Sequence[Compared]) -> None:
    """Print the median errors of steps and memory, without a pipeline, of pipelines and of all."""
    have_run = [each for each in compared if each.run.has_run]
    for kind, rows in (
        ("without a pipeline", [each for each in have_run if not each.run.has_stages]),
        ("pipelines", [each for each in have_run if each.run.has_stages]),
        ("all", have_run),
    ):
        if not rows:
            continue
        steps = statistics.median(abs(each.step_error) for each in rows)
        memory = statistics.median(abs(each.memory_error) for each in rows)
        print(f"\n{kind}")
        print(f"with the nearer of both versions: {statistics.median(each.least_error for each in rows):.1%}")
        print(beside_goal("median error of steps", steps, len(rows), most=0.10))
        print(beside_goal("median error of memory", memory, len(rows), most=0.10))


def print_order(compared: Sequence[Compared]) -> None:
    """Print the mean rank correlation of steps within a model and number of nodes."""
    steps: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for each in compared:
        if each.seconds is not None and each.run.row.step is not None:
            steps[each.run.group].append((each.run.row.step, each.seconds))
    orders = [rank_correlation(*map(list, zip(*pairs, strict=True))) for pairs in steps.values() if len(pairs) > 2]
    what = "mean rank correlation within a model and number of nodes"
    print(beside_goal(what, statistics.mean(orders), len(orders), least=0.85) if orders else f"{what}: none drawn")


def print_limits(compared: Sequence[Compared]) -> None:
    """Print how many runs were told apart from those that crashed, and how many said to be near the limit."""
    apart = statistics.mean(each.is_told_apart for each in compared)
    print(beside_goal("ran and crashed told apart", apart, len(compared), least=0.90))
    near = [each.is_near_limit for each in compared if each.run.is_nearly_full]
    others = [each.is_near_limit for each in compared if each.run.has_run and not each.run.is_nearly_full]
    what = "runs with nearly full memory said to be near its limit"
    print(beside_goal(what, statistics.mean(near), len(near), least=0.80) if near else f"{what}: none drawn")
    print(f"other runs said to be near it: {sum(others)} of {len(others)}")


def main() -> None:
    """Print a line for each run, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=400, help="runs that are drawn (default: 400)")
    parser.add_argument(
        "--skip", type=int, default=0, help=f"runs that are drawn before, and left out; {DEVELOPMENT} were looked at"
    )
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the traces there, and use those there are")
    parser.add_argument("--nearly-full", action="store_true", help="only runs whose memory was nearly full")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    MODELS.update({NAMES[axis]: shape for axis, shape in SHAPES.items()})
    runs = [run for run in read_sweep(options.file) if run.is_nearly_full or not options.nearly_full]
    compared: list[Compared] = []
    without_blocks: list[Published] = []
    for run in islice(drawn(runs, options.skip + options.count), options.skip, None):
        if has_empty_stage(MODELS[run.row.model], run.row.sizes["pp"]):
            without_blocks.append(run)
            continue
        compared.append(compare(run, options.traces))
        print(compared[-1].line(), flush=True)
    print_medians(compared)
    print_order(compared)
    print_limits(compared)
    if without_blocks:
        crashed = sum(not run.has_run for run in without_blocks)
        print(f"runs of which a stage gets no block, left out: {len(without_blocks)}, of which {crashed} crashed")


if __name__ == "__main__":
    main()
