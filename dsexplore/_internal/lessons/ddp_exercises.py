"""Exercises on data parallelism by hand: naive, flat, bucketed, and overlapped with backward."""

from __future__ import annotations

from typing import cast

from torch import nn

from dsexplore._internal.lessons.answer_run import AnswerRun, run_answer
from dsexplore._internal.lessons.exercise_tensors import is_close, layers, random_tensor, require_close
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements

RANKS, LAYERS, WIDTH = 4, 6, 16
GRADIENT = 4 * WIDTH * WIDTH
"""Bytes of one gradient; every layer has one parameter."""
BUCKET = 2 * GRADIENT


def _train(answer: Answer, rank: int, *more: object) -> AnswerRun:
    """Run the answer with a model, a batch and more arguments."""
    model, batch = layers(LAYERS, WIDTH), random_tensor(8, WIDTH, seed=100 + rank)
    return run_answer(answer, model, batch, *more, ranks=RANKS, rank=rank)


def _sends_all_reduces(run: AnswerRun) -> Requirements:
    """Require that gradients are summed, and only by all_reduce."""
    ops = {*run.events["op"]}
    yield Requirement(
        "gradients are summed over the ranks",
        "all_reduce" in ops,
        f"You sent {run.sent()}: every rank has seen another batch, so all need the sum of all gradients.",
    )
    yield Requirement("nothing but all_reduce", ops == {"all_reduce"}, f"You sent {run.sent()}.")


def _averages(run: AnswerRun) -> Requirements:
    """Require that each gradient is the mean over ranks; the simulated sum has only this rank's summand."""
    model, alone = cast("nn.Sequential", run.arguments[0]), layers(LAYERS, WIDTH)
    alone(run.arguments[1]).square().mean().backward()
    for (name, parameter), reference in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert reference.grad is not None
        if is_close(parameter.grad, reference.grad):
            hint = (
                f"The gradient of {name} is not divided: all_reduce adds. Divide by the number of ranks, and put the "
                "result back into parameter.grad."
            )
        else:
            hint = (
                f"The gradient of {name} is neither sum nor mean: put what came back into parameter.grad, in the order "
                "in which you took it, divided by the number of ranks."
            )
        yield require_close("gradients are means", parameter.grad, reference.grad / RANKS, hint)


def _naive(answer: Answer) -> Requirements:
    """Require one all_reduce per parameter."""
    for rank in (0, 2):
        run = _train(answer, rank)
        yield from _sends_all_reduces(run)
        sizes = run.events["message_bytes"].to_list()
        yield Requirement(
            f"one all_reduce for each of the {LAYERS} parameters",
            sizes == [GRADIENT] * LAYERS,
            f"You sent {run.sent()}, not {LAYERS} of {GRADIENT:,} bytes: loop over model.parameters().",
        )
        yield from _averages(run)


def _flat(answer: Answer) -> Requirements:
    """Require one all_reduce of all gradients."""
    for rank in (0, 2):
        run = _train(answer, rank)
        yield from _sends_all_reduces(run)
        yield Requirement(
            "one all_reduce of all gradients",
            run.events["message_bytes"].to_list() == [LAYERS * GRADIENT],
            f"You sent {run.sent()}, not 1 of {LAYERS * GRADIENT:,} bytes: join the flattened gradients with "
            "torch.cat.",
        )
        yield from _averages(run)


def _buckets(run: AnswerRun) -> Requirements:
    """Require buckets that are as full as the limit allows."""
    sizes = run.events["message_bytes"].to_list()
    yield Requirement(
        "no bucket is larger than bucket_bytes",
        max(sizes) <= BUCKET,
        f"You sent {run.sent()}; bucket_bytes is {BUCKET:,}: close a bucket before the gradient that would "
        "overflow it.",
    )
    yield Requirement(
        "buckets are full",
        sizes == [BUCKET] * (LAYERS // 2),
        f"You sent {run.sent()}, where {LAYERS // 2} buckets would do: each message costs a latency.",
    )


def _bucketed(answer: Answer) -> Requirements:
    for rank in (0, 2):
        run = _train(answer, rank, BUCKET)
        yield from _sends_all_reduces(run)
        yield from _buckets(run)
        yield from _averages(run)


def _overlapped(answer: Answer) -> Requirements:
    """Require buckets that are sent while backward runs."""
    for rank in (0, 2):
        run = _train(answer, rank, BUCKET)
        events = run.events
        yield from _sends_all_reduces(run)
        yield from _buckets(run)
        yield Requirement(
            "buckets leave during backward",
            {*events["phase"]} == {"backward"},
            "They leave when backward has ended: start them in a hook, parameter.register_post_accumulate_grad_hook.",
        )
        running = events["trigger"][0].rpartition(".")[2]
        yield Requirement(
            "the first bucket leaves as soon as it is full",
            running in (str(LAYERS - 1), str(LAYERS - 2)),
            f"It leaves in backward of layer {running}: backward begins with the last layer, so fill from there.",
        )
        yield Requirement(
            "backward does not wait for them",
            all(events["is_async"]),
            "Backward waits for each of them: give async_op=True, and keep what it returns.",
        )
        yield Requirement(
            "every bucket is waited for before the gradients are used",
            run.waits >= events.height,
            "Some are never waited for: the optimizer would read gradients that are on their way. Call wait() on each.",
        )
        yield from _averages(run)


EXERCISES = {
    "naive": Exercise(
        "naive(model, batch): the loss is model(batch).square().mean(); leave the mean over ranks in each .grad, one "
        "all_reduce per parameter.",
        _naive,
    ),
    "flat": Exercise("flat(model, batch): the same with one all_reduce.", _flat),
    "bucketed": Exercise(
        "bucketed(model, batch, bucket_bytes): the same in buckets that are as full as bucket_bytes allows.", _bucketed
    ),
    "overlapped": Exercise(
        "overlapped(model, batch, bucket_bytes): the same, and each bucket leaves while backward goes on.", _overlapped
    ),
}
