"""Answers to the exercises on tensor, pipeline and expert parallelism, on meshes, and on equal numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.lessons.answers import is_wrong, solves, wrong

# Tensor and sequence parallelism


@solves("tensor")
def plan() -> dict[str, Any]:
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


@solves("tensor")
def sequence_plan() -> dict[str, Any]:
    return {"up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))}


@solves("tensor")
def activation_bytes(s: int, b: int, h: int, a: int, t: int, sequence: bool) -> float:
    return s * b * h * ((34 + 5 * a * s / h) / t if sequence else 10 + (24 + 5 * a * s / h) / t)


is_wrong("tensor", "plan", "give up a style", dict)
is_wrong("tensor", "plan", "give down a style", lambda: {"up": ColwiseParallel(output_layouts=Replicate())})
is_wrong("tensor", "plan", "cut up by columns", lambda: {"up": ColwiseParallel(output_layouts=Replicate()),
         "down": ColwiseParallel(output_layouts=Replicate())})  # fmt: skip
is_wrong("tensor", "plan", "down sums the parts, once", lambda: {"up": RowwiseParallel(input_layouts=Replicate()),
         "down": RowwiseParallel(input_layouts=Replicate())})  # fmt: skip
is_wrong("tensor", "sequence_plan", "input_layouts=Shard(1)", plan)
is_wrong("tensor", "sequence_plan", "output_layouts=Shard(1)",
         lambda: {"up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()})  # fmt: skip
is_wrong(
    "tensor",
    "sequence_plan",
    "both layouts are Shard(1)",
    lambda: {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))},
)
is_wrong("tensor", "activation_bytes", "divide what it cuts by t",
         lambda s, b, h, a, t, sequence: s * b * h * (34 + 5 * a * s / h))  # fmt: skip
is_wrong("tensor", "activation_bytes", "whole on every rank",
         lambda s, b, h, a, t, sequence: s * b * h * (34 + 5 * a * s / h) / t)  # fmt: skip
is_wrong("tensor", "activation_bytes", "Heads are cut too",
         lambda s, b, h, a, t, sequence: s * b * h * (10 + 24 / t + 5 * a * s / h))  # fmt: skip
is_wrong("tensor", "activation_bytes", "cuts the 10 s b h too",
         lambda s, b, h, a, t, sequence: s * b * h * (10 + (24 + 5 * a * s / h) / t))  # fmt: skip


# Pipelines


@solves("pipeline")
def stage(microbatches: list[Tensor], layer: Callable[[Tensor], Tensor]) -> list[Tensor]:
    rank, last, outputs = dist.get_rank(), dist.get_world_size() - 1, []
    for x in microbatches:
        if rank:
            dist.recv(x, rank - 1)
        outputs.append(layer(x))
        if rank < last:
            dist.send(outputs[-1], rank + 1)
    return outputs


def one_f_one_b(stage: int, stages: int, microbatches: int, warm_up: int) -> list[tuple[str, int]]:
    actions = [("F", i) for i in range(min(warm_up, microbatches))]
    for i in range(microbatches):
        if i + warm_up < microbatches:
            actions.append(("F", i + warm_up))
        actions.append(("B", i))
    return actions


@solves("pipeline")
def schedule(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    return one_f_one_b(stage, stages, microbatches, stages - 1 - stage)


@solves("pipeline")
def bubble(stages: int, microbatches: int, chunks: int) -> float:
    return (stages - 1) / (chunks * microbatches)


is_wrong("pipeline", "bubble", "the share of the whole step", lambda p, m, v: (p - 1) / (v * m + p - 1))
is_wrong("pipeline", "bubble", "waits for stages - 1 others", lambda p, m, v: p / (v * m))
is_wrong("pipeline", "bubble", "divide by them", lambda p, m, v: (p - 1) / m)
is_wrong("pipeline", "schedule", "take a backward for each forward", lambda s, p, m: one_f_one_b(s, p, m, m))
is_wrong("pipeline", "schedule", "waits for ever", lambda s, p, m: one_f_one_b(s, p, m, 0)[::-1])
is_wrong("pipeline", "schedule", "stage s warms up", lambda s, p, m: one_f_one_b(s, p, m, 0))
is_wrong("pipeline", "schedule", "has 6 actions", lambda s, p, m: [("F", i) for i in range(m)])
is_wrong("pipeline", "stage", "has the data", lambda xs, layer: [dist.recv(x, 1) for x in xs])
is_wrong("pipeline", "stage", "neighbors send and receive", lambda xs, layer: [dist.broadcast(x, 0) for x in xs])


@wrong("pipeline", "stage", "nobody is behind it")
def around(microbatches: list[Tensor], layer: Callable[[Tensor], Tensor]) -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    for x in microbatches:
        if rank:
            dist.recv(x, rank - 1)
        dist.send(layer(x), (rank + 1) % size)
    return microbatches


@wrong("pipeline", "stage", "You receive all of them first")
def in_two_loops(microbatches: list[Tensor], layer: Callable[[Tensor], Tensor]) -> list[Tensor]:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank:
        for x in microbatches:
            dist.recv(x, rank - 1)
    outputs = [layer(x) for x in microbatches]
    if rank < last:
        for y in outputs:
            dist.send(y, rank + 1)
    return outputs


# Experts


def sent(tokens: Tensor, counts: list[list[int]], back: bool = False) -> Tensor:
    rank = dist.get_rank()
    there, here = counts[rank], [row[rank] for row in counts]
    if back:
        there, here = here, there
    received = tokens.new_empty(sum(here), tokens.shape[1])
    dist.all_to_all_single(received, tokens.contiguous(), here, there)
    return received


@solves("experts")
def dispatch(tokens: Tensor, choice: Tensor, counts: list[list[int]]) -> Tensor:
    return sent(tokens[torch.argsort(choice, stable=True)], counts)


def exchange_as(tokens: Tensor, choice: Tensor, counts: list[list[int]], expert: Any) -> tuple[Tensor, Tensor]:
    order = torch.argsort(choice, stable=True)
    return sent(expert(sent(tokens[order], counts)), counts, back=True), order


@solves("experts")
def exchange(tokens: Tensor, choice: Tensor, counts: list[list[int]], expert: Any) -> Tensor:
    returned, order = exchange_as(tokens, choice, counts, expert)
    result = torch.empty_like(returned)
    result[order] = returned
    return result


@solves("experts")
def sent_bytes(tokens: int, width: int, top: int, ranks: int, bytes_each: int) -> float:
    return tokens * top * width * bytes_each * (ranks - 1) / ranks


def even(tokens: Tensor) -> Tensor:
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens)
    return received


is_wrong("experts", "dispatch", "sort the tokens by expert first", lambda tokens, choice, counts: sent(tokens, counts))
is_wrong("experts", "dispatch", "this rank's row of counts", lambda tokens, choice, counts: even(tokens))
is_wrong("experts", "dispatch", "to the rank of its expert alone",
         lambda tokens, choice, counts: dist.all_gather_into_tensor(tokens.new_empty(32, 4), tokens))  # fmt: skip
is_wrong("experts", "dispatch", "one carries all tokens",
         lambda tokens, choice, counts: sent(sent(tokens, counts), counts, back=True))  # fmt: skip
is_wrong("experts", "exchange", "and one back", lambda tokens, choice, counts, expert: expert(sent(tokens, counts)))
is_wrong("experts", "exchange", "keep torch.float32", lambda *given: exchange(*given).half())
is_wrong("experts", "exchange", "out[order] = returned", lambda *given: exchange_as(*given)[0])
is_wrong("experts", "exchange", "what the first all_to_all brought", lambda tokens, choice, counts, expert:
         sent(sent(expert(tokens), counts), counts, back=True))  # fmt: skip
is_wrong("experts", "sent_bytes", "own experts", lambda t, w, k, n, b: t * w * k * b)
is_wrong("experts", "sent_bytes", "goes to 4 experts", lambda t, w, k, n, b: t * w * b * (n - 1) / n)
is_wrong("experts", "sent_bytes", "bytes of one number", lambda t, w, k, n, b: t * w * k * (n - 1) / n)
is_wrong("experts", "sent_bytes", "way there alone", lambda t, w, k, n, b: 2 * t * w * k * b * (n - 1) / n)


# A mesh


@solves("mesh")
def mesh(gpus: int) -> str:
    return "pp=16,dp=128,tp=8"


@solves("mesh")
def long_mesh(gpus: int, tokens: int) -> str:
    return "pp=16,dp_replicate=2,dp_shard=4,cp=16,tp=8"


@solves("mesh")
def utilization(parameters: float, tokens: float, seconds: float, gpus: int, peak: float) -> float:
    return 6 * parameters * tokens / (seconds * gpus * peak)


is_wrong("mesh", "mesh", "16,384 GPUs", lambda gpus: "pp=16,dp=64,tp=8")
is_wrong("mesh", "mesh", "use these names", lambda gpus: "pp=16,data=128,tp=8")
is_wrong("mesh", "mesh", "innermost axis", lambda gpus: "tp=8,pp=16,dp=128")
is_wrong("mesh", "mesh", "a divisor of 8", lambda gpus: "pp=16,dp=64,tp=16")
is_wrong("mesh", "mesh", "more pp or tp", lambda gpus: "dp=2048,tp=8")
is_wrong("mesh", "mesh", "Fewer stages", lambda gpus: "pp=32,dp=128,tp=4")
is_wrong("mesh", "long_mesh", "cp: one rank", lambda gpus, tokens: "pp=16,dp_replicate=2,dp_shard=64,tp=8")
is_wrong("mesh", "long_mesh", "sixteen times cp", lambda gpus, tokens: "pp=16,dp_replicate=2,dp_shard=8,cp=8,tp=8")
is_wrong("mesh", "utilization", "forward alone", lambda n, t, s, g, peak: 2 * n * t / (s * g * peak))
is_wrong("mesh", "utilization", "All GPUs together", lambda n, t, s, g, peak: 6 * n * t / (s * peak))
is_wrong("mesh", "utilization", "not percent", lambda n, t, s, g, peak: 600 * n * t / (s * g * peak))


# The same numbers


@solves("numbers")
def loss_weights(counts: list[int]) -> list[float]:
    return [len(counts) * count / sum(counts) for count in counts]


@solves("numbers")
def clip_factor(shard_norms: list[float], replicated_norm: float, most: float) -> float:
    norm = (sum(each**2 for each in shard_norms) + replicated_norm**2) ** 0.5
    return min(1.0, most / norm)


@solves("numbers")
def fused_rows(width: int, ranks: int, rank: int) -> list[int]:
    own = range(rank * width // ranks, (rank + 1) * width // ranks)
    return [part * width + row for part in range(3) for row in own]


@solves("numbers")
def positions(length: int, ranks: int, rank: int) -> list[int]:
    chunks = torch.arange(length).chunk(2 * ranks)
    return [*chunks[rank].tolist(), *chunks[2 * ranks - 1 - rank].tolist()]


is_wrong("numbers", "loss_weights", "Equal weights", lambda counts: [1.0] * len(counts))
is_wrong("numbers", "loss_weights", "These are the shares", lambda counts: [each / sum(counts) for each in counts])
is_wrong("numbers", "loss_weights", "sums of means", lambda counts: counts)
is_wrong("numbers", "loss_weights", "one for each", lambda counts: 1.0)
is_wrong("numbers", "clip_factor", "norm of one rank's shards", lambda shards, whole, most: min(1.0, most / shards[0]))
is_wrong(
    "numbers", "clip_factor", "their squares do", lambda shards, whole, most: min(1.0, most / (sum(shards) + whole))
)
is_wrong("numbers", "clip_factor", "count them once",
         lambda shards, whole, most: min(1.0, most / sum(each**2 + whole**2 for each in shards) ** 0.5))  # fmt: skip
is_wrong("numbers", "clip_factor", "stay as they are",
         lambda shards, whole, most: most / (sum(each**2 for each in shards) + whole**2) ** 0.5)  # fmt: skip
is_wrong("numbers", "fused_rows", "Cut as one", lambda width, ranks, rank: torch.arange(3 * width).chunk(ranks)[rank])
is_wrong("numbers", "fused_rows", "no rank has a whole head", lambda width, ranks, rank: range(rank, 3 * width, ranks))
is_wrong("numbers", "fused_rows", "the indices of this rank's rows",
         lambda width, ranks, rank: torch.arange(width).chunk(ranks)[rank])  # fmt: skip
is_wrong("numbers", "fused_rows", "in another order", lambda width, ranks, rank: fused_rows(width, ranks, rank)[::-1])
is_wrong("numbers", "positions", "not of the rank's part", lambda length, ranks, rank: range(length // ranks))
is_wrong("numbers", "positions", "have each once", lambda length, ranks, rank: range(rank))
is_wrong("numbers", "positions", "one from the end",
         lambda length, ranks, rank: torch.arange(length).chunk(ranks)[rank])  # fmt: skip


@wrong("numbers", "positions", "chunk i from the end")
def single_positions(length: int, ranks: int, rank: int) -> list[int]:
    in_turn = torch.arange(length).view(-1, 2 * ranks)
    return in_turn[:, [rank, 2 * ranks - 1 - rank]].flatten().tolist()  # type: ignore[no-any-return]
