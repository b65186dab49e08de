"""Exercises on plans that compute other numbers than the model: weights of batches, norms, fused layers, positions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dsexplore._internal.lessons.exercise_tensors import is_close, random_tensor
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements

WIDTH, HEADS, LENGTH = 16, 4, 8


def _numbers(got: object, count: int) -> list[float] | None:
    """Return an answer as `count` numbers; None if it is something else."""
    if isinstance(got, Tensor):
        got = got.tolist()
    if not isinstance(got, (list, tuple)) or len(got) != count:
        return None
    return [float(number) for number in got]


def _agree(got: Sequence[float], wanted: Sequence[float]) -> bool:
    """Return True if numbers are the wanted ones, up to rounding."""
    return all(abs(number - other) <= 1e-6 * abs(other) for number, other in zip(got, wanted, strict=True))


def _loss_weights(answer: Answer) -> Requirements:
    """Require weights for which the mean over ranks is the mean over all targets."""
    for counts in ([3, 5], [4, 4, 4, 4], [1, 2, 3, 10]):
        ranks, total = len(counts), sum(counts)
        got = _numbers(answer(list(counts)), ranks)
        says = "a weight for each rank"
        yield Requirement(says, got is not None, f"Return a list of {ranks} numbers, one for each of {counts}.")
        assert got is not None
        wanted = [ranks * count / total for count in counts]
        rows = [random_tensor(count, WIDTH, seed=at) for at, count in enumerate(counts)]
        averaged = sum((weight * losses.mean(0) for weight, losses in zip(got, rows, strict=True))) / ranks
        hint = f"{counts} targets on {ranks} ranks: yours are {[round(weight, 4) for weight in got]}. "
        if _agree(got, [1.0] * ranks):
            hint += "Equal weights make a target of a small batch count more than one of a large batch."
        elif _agree(got, [count / total for count in counts]):
            hint += f"These are the shares; DDP then divides by {ranks} ranks, so multiply by {ranks}."
        elif _agree(got, [float(count) for count in counts]):
            hint += "That makes sums of means; divide by the number of targets on all ranks."
        else:
            hint += "A rank's mean counts as much as its share of all targets."
        same = _agree(got, wanted) and is_close(averaged, torch.cat(rows).mean(0))
        yield Requirement("the mean over ranks is the mean over all targets", same, hint)


def _clip_factor(answer: Answer) -> Requirements:
    """Require the factor that clips by the norm of the whole model."""
    for shards, replicated, most in (([3.0, 4.0], 0.0, 1.0), ([1.0, 2.0, 2.0, 4.0], 12.0, 2.6), ([0.3, 0.4], 0.0, 1.0)):
        got = answer(list(shards), replicated, most)
        squares = sum(norm**2 for norm in shards)
        norm = (squares + replicated**2) ** 0.5
        wanted = min(1.0, most / norm)
        hint = f"shards of norms {shards}, replicas of norm {replicated}, at most {most}: yours is {got!r}. "
        of_ranks = (squares + len(shards) * replicated**2) ** 0.5
        if not isinstance(got, (int, float)):
            hint += "Return one number, by which all gradients are multiplied."
        elif norm <= most:
            hint += "Gradients that are small enough stay as they are: the factor is at most 1."
        elif any(abs(got - most / shard) < 1e-9 for shard in shards):
            hint += "That is the norm of one rank's shards: ranks would scale by different factors."
        elif abs(got - most / (sum(shards) + replicated)) < 1e-9:
            hint += "Norms do not add up, their squares do."
        elif abs(got - most / of_ranks) < 1e-9:
            hint += "Replicas are one tensor on several ranks: count them once."
        else:
            hint += "The norm is the root of the sum of squares over all gradients of the model."
        is_right = isinstance(got, (int, float)) and abs(got - wanted) <= 1e-9
        yield Requirement("all ranks clip by the norm of the whole model", is_right, hint)


def _attention(x: Tensor, qkv: Tensor, wo: Tensor, heads: int) -> Tensor:
    """Return the output of attention with some heads, for x of shape (sequence, width)."""
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in (x @ qkv.T).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1) @ wo.T


def _fused_rows(answer: Answer) -> Requirements:
    """Require the rows of fused query, key and value that match a rank's columns."""
    x, qkv, wo = (
        random_tensor(6, WIDTH, seed=0),
        random_tensor(3 * WIDTH, WIDTH, seed=1),
        random_tensor(WIDTH, WIDTH, seed=2),
    )
    for ranks in (2, 4):
        rows = [_rows(answer(WIDTH, ranks, rank)) for rank in range(ranks)]
        every = sorted(row for rows_of_rank in rows for row in rows_of_rank)
        yield Requirement(
            "each row is on one rank",
            every == list(range(3 * WIDTH)),
            f"{ranks} ranks hold {len(every)} rows, {len(set(every))} of them different, of {3 * WIDTH}: return the "
            "indices of this rank's rows.",
        )
        wanted = [
            [part * WIDTH + row for part in range(3) for row in _chunk(WIDTH, ranks, rank)] for rank in range(ranks)
        ]
        hint = f"Rank 0 of {ranks} holds rows {rows[0][:12]}{'…' if len(rows[0]) > 12 else ''}. "
        if all(rows_of_rank == _chunk(3 * WIDTH, ranks, rank) for rank, rows_of_rank in enumerate(rows)):
            hint += "Cut as one, the first rank has query and no value: give it its heads of query, key and value each."
        elif all(rows_of_rank[:3] == [rank, rank + ranks, rank + 2 * ranks] for rank, rows_of_rank in enumerate(rows)):
            hint += "Dealt in turn, no rank has a whole head: a head's rows stand side by side."
        elif sorted(rows[0]) == wanted[0]:
            hint += "The right rows in another order: first those of query, then of key, then of value."
        else:
            hint += f"Query, key and value have {WIDTH} rows each, one after another: a rank holds the same of each."
        parts = [
            _attention(x, qkv[rows_of_rank], wo[:, _chunk(WIDTH, ranks, rank)], HEADS // ranks)
            if len(rows_of_rank) == 3 * WIDTH // ranks
            else x
            for rank, rows_of_rank in enumerate(rows)
        ]
        same = is_close(torch.stack(parts).sum(0), _attention(x, qkv, wo, HEADS))
        yield Requirement("the sum over ranks is what the whole attention computes", same, hint)


def _rows(got: object) -> list[int]:
    """Return an answer as indices; empty if it is something else."""
    if isinstance(got, Tensor):
        got = got.tolist()
    return [int(row) for row in got] if isinstance(got, (list, tuple, range)) else []


def _chunk(size: int, parts: int, part: int) -> list[int]:
    """Return the indices of one of several contiguous parts."""
    return list(range(size * part // parts, size * (part + 1) // parts))


def _positions(answer: Answer) -> Requirements:
    """Require positions for which all ranks have the same work under a causal mask."""
    for ranks in (2, 4):
        held = [_rows(answer(LENGTH * ranks, ranks, rank)) for rank in range(ranks)]
        size = LENGTH * ranks
        every: list[Any] = sorted(place for positions in held for place in positions)
        hint = f"{ranks} ranks, {size} positions: rank 1 has {held[1]}. "
        yield Requirement(
            "each position is on one rank",
            every == list(range(size)),
            hint + "Positions count from the start of the sequence, not of the rank's part."
            if all(positions == held[0] for positions in held)
            else hint + "Return the positions of this rank, so that all ranks together have each once.",
        )
        yield Requirement(
            "ranks have equally many",
            len({len(positions) for positions in held}) == 1,
            hint + "Chunks of one size keep the ranks in step.",
        )
        work = [sum(place + 1 for place in positions) for positions in held]
        yield Requirement(
            "a causal mask leaves all ranks the same work",
            len(set(work)) == 1,
            f"{hint}A position attends to all before it, so ranks have {work} pairs: give each rank a chunk from the "
            "start and one from the end.",
        )
        yield Requirement(
            "two chunks, in ascending order",
            all(positions == sorted(positions) and _runs(positions) <= 2 for positions in held),
            f"{hint}Cut the sequence into {2 * ranks} chunks: rank i has chunk i, and chunk i from the end.",
        )


def _runs(places: Sequence[int]) -> int:
    """Return the number of runs of consecutive numbers."""
    return 1 + sum(after != before + 1 for before, after in itertools.pairwise(places))


EXERCISES = {
    "loss_weights": Exercise(
        "loss_weights(counts): rank i takes the mean loss of its counts[i] targets, and DDP the mean over ranks; "
        "return the weight of each rank's loss for which that is the mean over all targets.",
        _loss_weights,
    ),
    "clip_factor": Exercise(
        "clip_factor(shard_norms, replicated_norm, most) returns the factor for all gradients: shard_norms are those "
        "of each rank's shards, replicated_norm is that of the parameters which all ranks hold.",
        _clip_factor,
    ),
    "fused_rows": Exercise(
        "fused_rows(width, ranks, rank) returns the rows that a rank holds of a weight of query, key and value, "
        "3 × width rows, where it holds columns rank × width / ranks and so on of the layer after attention.",
        _fused_rows,
    ),
    "positions": Exercise(
        "positions(length, ranks, rank) returns the positions of a sequence that a rank holds under context "
        "parallelism with a causal mask, for which all ranks have the same work.",
        _positions,
    ),
}
