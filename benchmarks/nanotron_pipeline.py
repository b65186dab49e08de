"""When the stages of a nanotron pipeline compute: both ends of a message wait for each other, and their CPUs with them.

Two messages describe a tensor before nanotron sends it (``parallel/pipeline_parallel/p2p.py``). The receiver reads
their numbers one by one, the sender looks at what it has sent, and for each look the CPU waits for the GPU. So no end
goes on before the other is there, and no kernel is launched ahead. Two tensors go forward, one back. In an early
version (67c5ebb6) both ends look every 0.1 s whether a description has arrived.

Pipelines of the sweep take some 0.25 ms longer for each collective and each rank of its group, whatever its size; no
others do. torch does so that is told to check all collectives (``TORCH_DISTRIBUTED_DEBUG=DETAIL``, as some scripts of
nanotron do): the CPUs of a group meet in a barrier, in which the first waits for one after another, and gather two
descriptions, over gloo. Which was set when these ran is not published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import polars as pl
from llama_layers import Model
from nanotron_llama import output_block, sent_shape, stage_blocks
from predicted_step import MODELS, Row

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.compute import SPEEDS, host_seconds, issue_seconds
from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore.cost import collective_time

SCALARS = 20
"""Numbers of a tensor's description that the receiver reads one by one."""
DESCRIPTIONS = 2
"""Messages that describe a tensor."""
TENSORS = {"F": 2, "B": 1}
"""Tensors that are sent on after a forward, hidden states and mask, and after a backward."""
_PHASES = {"F": ("forward",), "B": ("backward",)}


class Step(NamedTuple):
    """What a stage does next: compute a forward or backward, or exchange its result with another stage."""

    what: Literal["compute", "send", "receive"]
    kind: Literal["F", "B"]
    other: int = -1


class Message(NamedTuple):
    """Seconds of a message between stages.

    Attributes:
        description: of one that describes a tensor, with its issue.
        reading: in which the receiver reads the description.
        tensor: of the tensor.
        poll: between two looks whether a description has arrived; 0 if the CPU waits for it.
    """

    description: float
    reading: float
    tensor: float
    poll: float


class Kind(NamedTuple):
    """What a stage computes: the number of its blocks, and which of them are not layers."""

    blocks: int
    has_embedding: bool
    has_output: bool
    casts: bool


def distinct_stages(model: Model, stages: int) -> list[int]:
    """Return the first stage of each kind."""
    kinds: dict[Kind, int] = {}
    for stage, kind in enumerate(_kinds(model, stages)):
        kinds.setdefault(kind, stage)
    return sorted(kinds.values())


def _kinds(model: Model, stages: int) -> list[Kind]:
    output = output_block(model)
    return [
        Kind(len(blocks), 0 in blocks, output in blocks, output + 1 in blocks) for blocks in stage_blocks(model, stages)
    ]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[Step]:
    """Yield what a stage does, in the order of ``OneForwardOneBackwardPipelineEngine``."""
    receive, send = Step("receive", "F", stage - 1), Step("send", "F", stage + 1)
    receive_back, send_back = Step("receive", "B", stage + 1), Step("send", "B", stage - 1)
    is_first, is_last = stage == 0, stage == stages - 1
    ahead = min(stages - stage - 1, microbatches)
    backwards = 0
    for number in range(microbatches):
        if not is_first:
            yield receive
            if number > ahead:
                yield send_back
        yield Step("compute", "F")
        if not is_last:
            yield send
        if number >= ahead:
            if not is_last:
                yield receive_back
            yield Step("compute", "B")
            backwards += 1
    if not is_first and backwards:
        yield send_back
    for _ in range(microbatches - backwards):
        yield receive_back
        yield Step("compute", "B")
        if not is_first:
            yield send_back


def play(seconds: Mapping[tuple[int, str], float], microbatches: int, messages: Sequence[Message]) -> float:
    """Return the time at which the last stage is done.

    Args:
        seconds: {(stage, ``"F"`` or ``"B"``): of one microbatch}.
        microbatches: of the step.
        messages: what one costs, of each pair of neighboring stages.
    """
    stages = len(messages) + 1
    steps = [list(one_forward_one_backward(stage, stages, microbatches))[::-1] for stage in range(stages)]
    clocks = [0.0] * stages
    while any(steps):
        progressed = False
        for stage in range(stages):
            while steps[stage] and steps[stage][-1].what == "compute":
                clocks[stage] += seconds[stage, steps[stage].pop().kind]
                progressed = True
            if steps[stage] and steps[stage][-1].what == "send":
                sent = steps[stage][-1]
                if steps[sent.other] and steps[sent.other][-1] == Step("receive", sent.kind, stage):
                    steps[stage].pop()
                    steps[sent.other].pop()
                    ends = _exchange(
                        clocks[stage], clocks[sent.other], TENSORS[sent.kind], messages[min(stage, sent.other)]
                    )
                    clocks[stage], clocks[sent.other] = ends
                    progressed = True
        assert progressed, "stages wait for each other"
    return max(clocks)


def _exchange(sender: float, receiver: float, tensors: int, message: Message) -> tuple[float, float]:
    """Return when both ends have exchanged so many tensors."""
    for _ in range(tensors):
        for _ in range(DESCRIPTIONS):
            arrived = max(sender, receiver) + message.description
            sender, receiver = (_noticed(begun, arrived, message.poll) for begun in (sender, receiver))
        receiver += message.reading
        sender = receiver = max(sender, receiver) + message.tensor
    return sender, receiver


def _noticed(begun: float, arrived: float, poll: float) -> float:
    """Return when an end notices that a message has arrived."""
    return begun + math.ceil((arrived - begun) / poll) * poll if poll else arrived


def check_seconds(ranks: int) -> float:
    """Return the seconds in which torch checks a collective of so many ranks over gloo."""
    gloo = Cluster.load("gloo-local")
    gathers = 2 * collective_time("all_gather", 64, ranks, ranks, gloo).expected
    return gathers + 2 * (ranks - 1) * gloo.node.latency


def pipeline_seconds(row: Row, prediction: Prediction, microbatches: int, poll: float) -> float:
    """Return the seconds of a step: the pipeline as nanotron plays it, and the rest as predicted.

    Args:
        row: the run.
        prediction: of its step.
        microbatches: that the prediction has.
        poll: see `Message`.
    """
    model, cluster = MODELS[row.model], prediction.cluster
    kinds = _kinds(model, row.sizes["pp"])
    predicted = seconds_by_stage(prediction)
    of_kind: dict[tuple[Kind, str], float] = {}
    for stage, rank in zip(distinct_stages(model, row.sizes["pp"]), row.ranks, strict=True):
        for kind in "FB":
            launched = launch_seconds(row, prediction, rank, kind) / microbatches
            of_kind[kinds[stage], kind] = max(predicted[stage, kind], launched)
    seconds = {(stage, kind): of_kind[what, kind] for stage, what in enumerate(kinds) for kind in "FB"}
    launch = cluster.launch_overhead * SPEEDS[Estimate.EXPECTED].host
    near = 2 if row.sizes["dp"] * row.sizes["tp"] < cluster.ranks_per_domain else 1

    def sent(size: float) -> float:
        return (
            issue_seconds(cluster, SPEEDS[Estimate.EXPECTED]) + collective_time("send", size, 2, near, cluster).expected
        )

    messages = []
    for blocks in stage_blocks(model, row.sizes["pp"])[:-1]:
        size = 2 * math.prod(sent_shape(model, row.run, blocks, row.sizes["tp"]))
        messages.append(Message(sent(64) + launch, SCALARS * launch, sent(size), poll))
    rest = prediction.step.expected - max(one.end for one in prediction.stages())
    return rest + play(seconds, row.run.microbatches, messages)


def seconds_by_stage(prediction: Prediction) -> dict[tuple[int, str], float]:
    """Return the seconds of one forward and of one backward of each stage, as predicted."""
    return {(one.rank, one.action.kind): one.end - one.start for one in prediction.stages()}


def launch_seconds(row: Row, prediction: Prediction, rank: int, kind: str) -> float:
    """Return the seconds in which a rank's CPU launches all forwards or backwards, with the checks of collectives."""
    speed, phases = SPEEDS[Estimate.EXPECTED], _PHASES[kind]
    cluster, tables = prediction.cluster, prediction.tables
    kernels = tables.kernels.filter((pl.col("rank") == rank) & pl.col("phase").is_in(phases))
    kernels = kernels.group_by("kind", "phase", "compiled").agg(pl.sum("count", "fused_count"))
    launched = sum(host_seconds(one, cluster, speed, one["compiled"]) for one in kernels.iter_rows(named=True))
    ranks = row.sizes["tp"]
    issued = tables.events.filter(
        (pl.col("rank") == rank) & pl.col("phase").is_in(phases) & (pl.col("group_size") == ranks)
    )
    each = issue_seconds(cluster, speed) + (check_seconds(ranks) if ranks > 1 else 0.0)
    return launched + (issued.height if ranks > 1 else 0) * each
