"""Exercises on collectives: their bytes, an all_reduce of two collectives, and the seconds of a ring."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dsexplore._internal.lessons.answer_run import run_answer
from dsexplore._internal.lessons.exercise_tensors import random_tensor, require_close
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes

ELEMENTS = 1 << 10


def _issue(op: str, ranks: int) -> None:
    """Issue a collective on a whole buffer of `ELEMENTS` elements."""
    whole, part = torch.ones(ELEMENTS), torch.ones(ELEMENTS // ranks)
    if op == "all_reduce":
        dist.all_reduce(whole)
    elif op == "all_gather":
        dist.all_gather_into_tensor(whole, part)
    elif op == "reduce_scatter":
        dist.reduce_scatter_tensor(part, whole)
    elif op == "all_to_all":
        dist.all_to_all_single(torch.empty_like(whole), whole)
    else:
        dist.broadcast(whole, 0)


def _hint_on_bytes(op: str, got: object, size: int, ranks: int) -> str:
    """Return the hint for wrong wire bytes, which depends on the likely mistake."""
    parts = f"{op} of {size:,} bytes on {ranks} ranks: yours is {got!r}. "
    if not isinstance(got, (int, float)):
        return f"{parts}Return a number of bytes."
    if op == "broadcast":
        return f"{parts}A rank of a broadcast passes the whole tensor on once."
    if op == "all_reduce" and same_bytes(got, size * (ranks - 1) / ranks):
        return f"{parts}That is half of it: an all_reduce is a reduce_scatter and then an all_gather."
    if same_bytes(got, size):
        return f"{parts}A rank keeps its own part, and sends the others: (n - 1) of n parts."
    if got > 2 * size:
        return f"{parts}S is the whole buffer of all ranks already, not the part of one: do not multiply by n."
    return f"{parts}Count what leaves one rank: each of the n parts is S / n, and one of them is its own."


def _wire_bytes(answer: Answer) -> Requirements:
    for ranks in (2, 8):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            event = run_answer(_issue, op, ranks, ranks=ranks, rank=0).events.row(0, named=True)
            got = answer(op, event["message_bytes"], ranks)
            is_right = same_bytes(got, event["wire_bytes"])
            hint = "" if is_right else _hint_on_bytes(op, got, event["message_bytes"], ranks)
            yield Requirement(f"{op}: what a simulated rank sends", is_right, hint)


def _all_reduce_in_two(answer: Answer) -> Requirements:
    """Require a reduce_scatter and an all_gather in place of an all_reduce."""
    size = 4 * ELEMENTS
    for rank in (0, 3):
        run = run_answer(answer, random_tensor(ELEMENTS, seed=rank), ranks=4, rank=rank)
        ops = run.events["op"].to_list()
        yield Requirement("no all_reduce", "all_reduce" not in ops, "Build it of two other collectives.")
        is_direct = not {"broadcast", "reduce", "gather", "scatter", "send", "recv"} & {*ops}
        yield Requirement(
            "no rank does more than the others",
            is_direct,
            f"You sent {run.sent()}: a root must take or give everything, while its peers wait. Share the sum out.",
        )
        yield Requirement(
            "first a reduce_scatter",
            ops[:1] == ["reduce_scatter"],
            f"You sent {run.sent()}: let each rank sum one part first, so that nobody needs all tensors.",
        )
        yield Requirement(
            "then an all_gather, and no more",
            ops == ["reduce_scatter", "all_gather"],
            f"You sent {run.sent()}: each rank has one part of the sum, and all need all parts.",
        )
        yield Requirement(
            "each of the whole tensor",
            run.events["message_bytes"].to_list() == [size, size],
            f"You sent {run.sent()}, not twice {size:,} bytes: scatter the tensor, gather its parts.",
        )
        tensor = random_tensor(ELEMENTS, seed=rank)
        yield require_close(
            "it returns the parts that it gathered",
            run.value,
            tensor.chunk(4)[rank].repeat(4),
            "Return the gathered tensor, of the shape of the argument.",
        )


def _ring_seconds(answer: Answer) -> Requirements:
    """Require the seconds of an all_reduce around a ring."""
    for size, ranks, latency, bandwidth in ((512, 8, 1e-6, 3e11), (1 << 30, 8, 1e-6, 3e11), (1 << 20, 64, 5e-6, 5e10)):
        got = answer(size, ranks, latency, bandwidth)
        steps, sent = 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size
        hint = f"{size:,} bytes on {ranks} ranks: yours is {got!r} s. "
        if not isinstance(got, (int, float)):
            hint += "Return seconds."
        elif abs(got - (latency + sent / bandwidth)) < 1e-9 * got:
            hint += f"The latency is paid in each step of the ring: {steps} of them."
        elif abs(got - (steps * latency + size / bandwidth)) < 1e-9 * got:
            hint += "The bytes that a rank sends are wire_bytes, not S."
        elif abs(got - (steps * latency + steps * size / bandwidth)) < 1e-9 * got:
            hint += "In each step a rank sends one part of n, not the whole tensor."
        else:
            hint += "Add up 2 (n - 1) steps, each a latency and S / n bytes."
        yield Requirement("the seconds of a ring", same_bytes(got, steps * latency + sent / bandwidth), hint)


EXERCISES = {
    "wire_bytes": Exercise(
        "wire_bytes(op, message_bytes, ranks) returns the bytes that each rank must send, for all_reduce, all_gather, "
        "reduce_scatter, all_to_all and broadcast; message_bytes is the whole buffer.",
        _wire_bytes,
    ),
    "all_reduce_in_two": Exercise(
        "all_reduce_in_two(tensor) returns the sum over all ranks, by two collectives in which all ranks do the same.",
        _all_reduce_in_two,
    ),
    "ring_seconds": Exercise(
        "ring_seconds(message_bytes, ranks, latency, bandwidth) returns the seconds of an all_reduce around a ring.",
        _ring_seconds,
    ),
}
