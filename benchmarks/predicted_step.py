"""How far predicted steps are off published ones. Run: python benchmarks/predicted_step.py [--only WORD] [FILE.csv]

``data/published_steps.csv`` has throughputs and memories that others measured on Llama-like models; a file of the
same columns may be given instead, as ``data/llama_3_405b.csv`` of Llama 3 on 512 to 16,384 GPUs. Each row is built in
plain torch (`parallel_llama`), traced on fake tensors as one rank of a simulated world (of a pipeline: one rank of the
first, a middle and the last stage), and predicted for its cluster. Nothing here or in the package is fitted to these
rows.

Goals: the median error of the step at most 15 %, of memory at most 10 %, the rank correlation of the configurations
of a source at least 0.9.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from llama_layers import LLAMA_2_7B, LLAMA_2_13B, LLAMA_2_70B, LLAMA_3_8B, LLAMA_3_70B, LLAMA_3_405B, Model
from parallel_llama import Run, build
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.cost.meshes.compare_meshes import trace_rank
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.cost.step.schedules import Schedule, interleaved_1f1b, place
from dsexplore._internal.trace.trace import Trace, load
from dsexplore.cost import collective_time

DATA = Path(__file__).with_name("data")
MODELS = {
    "llama-3-8b": LLAMA_3_8B,
    "llama-3-70b": LLAMA_3_70B,
    "llama-3-405b": LLAMA_3_405B,
    "llama-2-7b": LLAMA_2_7B,
    "llama-2-13b": LLAMA_2_13B,
    "llama-2-34b": Model(48, 8192, 64, 8, 22016, 32000),
    "llama-2-70b": LLAMA_2_70B,
    # MPT: attention of as many key and value heads, GELU; positions as biases, which cost little.
    "mpt-760m": Model(24, 1536, 12, 12, 6144, 50368, gated=False),
    "mpt-1b": Model(24, 2048, 16, 16, 8192, 50368, gated=False),
    "internlm-7b": Model(32, 4096, 32, 32, 11008, 103168),
    "mpt-3b": Model(32, 2560, 20, 20, 10240, 50368, gated=False),
    "mpt-7b": Model(32, 4096, 32, 32, 16384, 50368, gated=False),
    "mpt-13b": Model(40, 5120, 40, 40, 20480, 50368, gated=False),
    "mpt-30b": Model(48, 7168, 56, 56, 28672, 50368, gated=False),
    "mpt-70b": Model(80, 8192, 64, 64, 32768, 50368, gated=False),
    # The first layers of Llama-3-405B, with GPT-2's vocabulary, as its recipe for few nodes runs them.
    **{f"llama-3-405b-{layers}": replace(LLAMA_3_405B, layers=layers, vocabulary=50304) for layers in (7, 21, 42, 126)},
    "gpt-3-175b": Model(96, 12288, 96, 96, 49152, 50304, gated=False),
    "nemotron-4-15b": Model(32, 6144, 48, 8, 24576, 256000, gated=False),
    "nemotron-4-340b": Model(96, 18432, 96, 8, 73728, 256000, gated=False),
}


@dataclass(frozen=True)
class Row:
    """One published measurement; the columns of the file."""

    source: str
    model: str
    cluster: str
    run: Run
    sizes: dict[str, int]
    tokens_per_second: float | None
    memory: float | None
    stages_per_rank: int = 1
    async_tp: bool = False
    attention: Literal["flash-2", "cudnn"] = "flash-2"
    program: Callable[[Model, Run, DeviceMesh], Callable[[], None]] = build
    """Builds the step."""
    ranks: tuple[int, ...] = ()
    """Ranks that are traced; if empty, the first of the first, a middle and the last stage."""

    @property
    def step(self) -> float | None:
        """Published seconds; None where those of another precision were published."""
        if self.tokens_per_second is None:
            return None
        tokens = self.run.sequence * self.run.batch * self.run.microbatches
        return tokens / (self.sizes["tp"] * self.sizes["pp"] * self.sizes["cp"]) / self.tokens_per_second


def read_rows(path: Path) -> list[Row]:
    """The rows of a file."""
    rows = []
    with path.open(encoding="utf-8", newline="") as lines:
        for each in csv.DictReader(lines):
            run = Run(
                int(each["sequence"]),
                int(each["batch"]),
                int(each["microbatches"]),
                each["checkpointing"],  # type: ignore[arg-type] # one of its words
                each["compiled"] != "False",
                compiled_loss=each["compiled"] == "with its loss",
                sharding=each["sharding"] or "fsdp",  # type: ignore[arg-type] # likewise
            )
            interleaved = int(each.get("stages_per_rank") or 1)
            sizes = {axis: int(each[axis]) for axis in ("pp", "dp", "cp", "tp")}
            cluster = each["cluster"]
            where = str(DATA / cluster) if cluster.endswith(".toml") else cluster
            memory = float(each["memory_gib"]) * 2**30 if each["memory_gib"] else None
            speed = float(each["tokens_per_second_per_gpu"]) if each["tokens_per_second_per_gpu"] else None
            rows.append(Row(each["source"], each["model"], where, run, sizes, speed, memory, interleaved))
            async_tp, attention = each.get("async_tp") == "True", each.get("attention") or "flash-2"
            rows[-1] = replace(rows[-1], async_tp=async_tp, attention=attention)  # type: ignore[arg-type] # one of its words
    return rows


def trace_of(row: Row, kept: Path | None) -> Trace:
    """One step of a row's program, as one rank of each kind of stage; read from the folder ``kept`` where it is."""
    text = f"{MODELS[row.model]} {row.run} {row.sizes}"
    if row.ranks:
        text += f" {row.program.__module__} {row.ranks}"
    file = kept / f"{row.model}-{hashlib.sha1(text.encode()).hexdigest()[:12]}.parquet" if kept else None
    if file is not None and file.exists():
        return load(file)
    stages = row.sizes["pp"]
    per_stage = row.sizes["dp"] * row.sizes["cp"] * row.sizes["tp"]
    program = partial(row.program, MODELS[row.model], row.run)
    ranks = row.ranks or sorted({stage * per_stage for stage in (0, stages // 2, stages - 1)})
    traces = [Trace(trace_rank(program, row.sizes, rank)) for rank in ranks]
    merged = Trace.merge(traces) if len(traces) > 1 else traces[0]
    if file is not None:
        merged.save(file)
    return merged


def predicted(row: Row, kept: Path | None) -> tuple[Prediction, float]:
    """The prediction of a row, and the seconds of its step.

    Of accumulated microbatches few are traced, as each but the last repeats the first.
    """
    count = row.run.microbatches
    if row.sizes["pp"] > 1:
        prediction = predicted_of(row, kept)
        return prediction, interleaved(row, prediction) if row.stages_per_rank > 1 else prediction.step.expected
    if count <= (2 if row.run.sharding == "fsdp" else 4):
        prediction = predicted_of(row, kept)
        return prediction, prediction.step.expected
    two = with_microbatches(row, 2, kept)
    if row.run.sharding == "fsdp":
        columns = two.by_module().filter(phase="optimizer").select("compute", "exposed", "idle")
        optimizer = columns.sum().sum_horizontal()[0]
        return two, (two.step.expected - optimizer) * count / 2 + optimizer
    three = with_microbatches(row, 3, kept)
    one_more = three.step.expected - two.step.expected
    return three, two.step.expected + (count - 2) * one_more


def predicted_of(row: Row, kept: Path | None) -> Prediction:
    """The prediction of a row's program, as it is."""
    return trace_of(row, kept).predict(row.cluster, async_tp=row.async_tp, attention=row.attention)


def with_microbatches(row: Row, count: int, kept: Path | None) -> Prediction:
    """The prediction of a row's program with so many microbatches."""
    return predicted_of(replace(row, run=replace(row.run, microbatches=count)), kept)


def interleaved(row: Row, prediction: Prediction) -> float:
    """Seconds of the step with several stages on each rank, from that of the same layers as one stage of 1F1B.

    Each stage takes its part of what the rank's one stage takes; only the order of the actions, and so the bubble, is
    another.
    """
    placed, parts, count = prediction.stages(), row.stages_per_rank, row.run.microbatches
    ranks = row.sizes["pp"]
    seconds = {(one.rank, one.action.kind): (one.end - one.start) / parts for one in placed}
    stages = range(ranks * parts)
    forward, backward = ({stage: seconds[stage % ranks, kind] for stage in stages} for kind in ("F", "B"))
    order = tuple(interleaved_1f1b(rank, ranks, parts, count) for rank in range(ranks))
    schedule = Schedule("interleaved 1F1B", ranks * parts, count, order)
    hop = collective_time("send", 2 * hidden_numbers(row), 2, 1, row.cluster).expected
    pipeline = max(one.end for one in place(schedule, forward, backward, hop))
    return prediction.step.expected - max(one.end for one in placed) + pipeline


def hidden_numbers(row: Row) -> int:
    """Numbers that one rank sends to the next stage."""
    return row.run.batch * row.run.sequence * MODELS[row.model].width // (row.sizes["cp"] * row.sizes["tp"])


def rank_correlation(published: list[float], ours: list[float]) -> float:
    """Spearman's, of lists whose ties have the mean of their ranks; not a number for fewer than three."""
    if len(published) < 3:
        return float("nan")
    return statistics.correlation(_ranks(published), _ranks(ours))


def _ranks(values: list[float]) -> list[float]:
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


@dataclass
class Errors:
    """What the rows so far were off by."""

    steps: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By source: published and predicted seconds."""
    inside: int = 0
    """Published steps in the predicted range."""
    memories: list[float] = field(default_factory=list)
    """Relative errors."""
    rates: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By source, model and number of GPUs: published and predicted tokens per second and GPU."""
    fitting: int = 0
    """Published steps, all of which ran, that are predicted to fit."""
    scaling: dict[str, list[tuple[int, float, bool]]] = field(default_factory=lambda: defaultdict(list))
    """By job but for its ``dp``: number of GPUs, predicted seconds, and whether the step was published."""

    def add(self, row: Row, prediction: Prediction, ours: float) -> str:
        """Count a row, of which `ours` are the predicted seconds; returns its line."""
        seconds = f"{ours:7.2f} s, no such step published"
        axes = ", ".join(f"{axis}={size}" for axis, size in row.sizes.items() if size > 1 and axis != "dp")
        job = f"{row.model}, {axes}, {row.run.microbatches} microbatches"
        self.scaling[job].append((math.prod(row.sizes.values()), ours, row.step is not None))
        if row.step is not None:
            self.steps[row.source].append((row.step, ours))
            assert row.tokens_per_second is not None
            group = f"{row.source}, {row.model} on {math.prod(row.sizes.values())}"
            self.rates[group].append((row.tokens_per_second, row.tokens_per_second * row.step / ours))
            self.fitting += prediction.fits
            scale = ours / prediction.step.expected
            self.inside += prediction.step.low * scale <= row.step <= prediction.step.high * scale
            seconds = f"{ours:7.2f} of {row.step:7.2f} s {ours / row.step - 1:+6.1%}"
        memory = ""
        if row.memory is not None:
            self.memories.append(abs(prediction.memory / row.memory - 1))
            memory = (
                f"  {prediction.memory / 2**30:5.1f} of {row.memory / 2**30:5.1f} GiB"
                f" {prediction.memory / row.memory - 1:+6.1%}"
            )
        sizes = " ".join(f"{axis}={size}" for axis, size in row.sizes.items() if size > 1)
        return (
            f"{row.source:26} {row.model:12} {sizes:18} {row.run.batch}×{row.run.sequence} {row.run.checkpointing:18}"
            f"{'compiled' if row.run.compiled else '':9} {seconds}"
            f"  exposed {prediction.exposed.expected / prediction.step.expected:4.0%}"
            f"  idle {prediction.idle.expected / prediction.step.expected:4.0%}{memory}"
        )

    def lines(self) -> Iterator[str]:
        """The errors of all rows, of each source, and of memory; the order within a model and number of GPUs."""
        errors = [abs(ours / published - 1) for pairs in self.steps.values() for published, ours in pairs]
        if errors:
            held = self.inside / len(errors)
            yield f"step: median error {statistics.median(errors):.1%} of {len(errors)} rows, {held:.0%} in range"
        for source, pairs in self.steps.items():
            published, ours = map(list, zip(*pairs, strict=True))
            median = statistics.median(abs(b / a - 1) for a, b in pairs)
            signed = statistics.median(b / a - 1 for a, b in pairs)
            order = rank_correlation(published, ours)
            yield f"  {source}: {len(pairs)} rows, {median:.1%}, signed {signed:+.1%}, rank correlation {order:.2f}"
        if self.memories:
            yield f"memory: median error {statistics.median(self.memories):.1%} of {len(self.memories)} rows"
        for group, pairs in self.rates.items():
            if len(pairs) > 2:
                order = rank_correlation([published for published, _ in pairs], [ours for _, ours in pairs])
                yield f"tokens per second of {group} GPUs: {len(pairs)} rows, rank correlation {order:.2f}"
        if errors:
            yield f"{self.fitting} of {len(errors)} steps, which all ran, are predicted to fit"
        for job, steps in self.scaling.items():
            if len(steps) > 2 and not all(is_published for *_, is_published in steps):
                ordered = sorted(steps)
                ascends = [ours for _, ours, _ in ordered] == sorted(ours for _, ours, _ in ordered)
                of = f"{ordered[0][0]:,} to {ordered[-1][0]:,} GPUs"
                yield f"weak scaling of {job}: steps of {of} ascend: {'met' if ascends else 'MISSED'}"


def main() -> None:
    """Print a line for each row, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=DATA / "published_steps.csv")
    parser.add_argument("--only", default="", help="rows whose source or model has this word")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the traces there, and use those there are")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    errors = Errors()
    for row in read_rows(options.file):
        if options.only in f"{row.source} {row.model}":
            print(errors.add(row, *predicted(row, options.traces)), flush=True)
    print("", *errors.lines(), sep="\n")


if __name__ == "__main__":
    main()
