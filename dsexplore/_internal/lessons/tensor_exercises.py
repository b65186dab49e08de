"""Exercises on tensor and sequence parallelism: two plans for an MLP, and the bytes of its activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import polars as pl
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from dsexplore._internal.lessons.answer_run import AnswerRun, run_answer
from dsexplore._internal.lessons.exercise_tensors import random_tensor
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes

RANKS, BATCH, SEQUENCE, WIDTH = 4, 2, 8, 16
ACTIVATION = 4 * BATCH * SEQUENCE * WIDTH
"""Bytes of the activations between layers."""


class TwoLayers(nn.Module):
    """Two linear layers, ``up`` and ``down``, with a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``down(relu(up(x)))``."""
        result: Tensor = self.down(torch.relu(self.up(x)))
        return result


def _train(plan: Mapping[str, ParallelStyle], module: TwoLayers, batch: Tensor) -> Tensor:
    """Parallelize the module, and run forward and backward."""
    parallelize_module(module, init_device_mesh("cpu", (RANKS,)), dict(plan))
    result: Tensor = module(batch)
    result.square().sum().backward()
    return result.detach()


def _train_by_plan(answer: Answer, length: int) -> AnswerRun:
    """Run a training step with the plan of the answer, on a batch of sequences of a length."""
    plan = cast("Mapping[str, ParallelStyle]", answer())
    batch = random_tensor(BATCH, length, WIDTH, seed=1).requires_grad_()
    return run_answer(_train, plan, TwoLayers(), batch, ranks=RANKS, rank=0)


def _cuts_both(run: AnswerRun) -> Requirements:
    """Require that both weights are sharded over all ranks."""
    module = cast("TwoLayers", run.arguments[1])
    for name, parameter in module.named_parameters():
        held = parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()
        yield Requirement(
            f"a rank holds one part of {RANKS} of each weight",
            held * RANKS == parameter.numel(),
            f"It holds {held:,} of the {parameter.numel():,} elements of {name}: give {name.partition('.')[0]} a "
            "style.",
        )


def _forward(run: AnswerRun) -> list[str]:
    """Return the collectives of forward."""
    return run.events.filter(pl.col("phase") == "forward")["op"].to_list()


def _plan(answer: Answer) -> Requirements:
    """Require a tensor-parallel plan with one all_reduce in forward and one in backward."""
    run = _train_by_plan(answer, SEQUENCE)
    yield from _cuts_both(run)
    sent = _forward(run)
    yield Requirement(
        "nothing is gathered",
        "all_gather" not in sent and "all_to_all" not in sent,
        f"Forward sends {', '.join(sent)}: cut up by columns, so that its output is cut as down, cut by rows, "
        "takes it.",
    )
    yield Requirement(
        "one all_reduce in forward",
        sent == ["all_reduce"],
        f"Forward sends {', '.join(sent) or 'nothing'}: down sums the parts, once, and its output is whole on "
        "every rank.",
    )
    backward = run.events.filter(pl.col("phase") == "backward")["op"].to_list()
    yield Requirement(
        "one all_reduce in backward",
        backward == ["all_reduce"],
        f"Backward sends {', '.join(backward) or 'nothing'}: the gradient of the input is a sum over the columns "
        "of up.",
    )


def _sequence_plan(answer: Answer) -> Requirements:
    """Require a plan with sequence parallelism, which gathers before and scatters after."""
    run = _train_by_plan(answer, SEQUENCE // RANKS)
    yield from _cuts_both(run)
    sent = _forward(run)
    yield Requirement(
        "the sequence is gathered before up",
        "all_gather" in sent,
        f"Forward sends {', '.join(sent) or 'nothing'}: this rank's input is its part of dim 1: "
        "input_layouts=Shard(1).",
    )
    yield Requirement(
        "no all_reduce in forward",
        "all_reduce" not in sent,
        f"Forward sends {', '.join(sent)}: the output may stay cut in dim 1, so sum and scatter: "
        "output_layouts=Shard(1).",
    )
    yield Requirement(
        "an all_gather, then a reduce_scatter",
        sent == ["all_gather", "reduce_scatter"],
        f"Forward sends {', '.join(sent)}: gather dim 1 once before up, and scatter dim 1 once behind down.",
    )
    causes = run.events.filter(pl.col("phase") == "forward")["cause"].to_list()
    yield Requirement(
        "both in dim 1",
        all("S(1)" in cause for cause in causes),
        f"Their causes are {', '.join(causes)}: dim 0 is the batch; the sequence is dim 1, so both layouts are "
        "Shard(1).",
    )
    bytes_ = run.events.filter(pl.col("phase") == "forward")["message_bytes"].to_list()
    yield Requirement("as many bytes as one all_reduce", bytes_ == [ACTIVATION] * 2, f"You sent {run.sent()}.")


def _activation_bytes(answer: Answer) -> Requirements:
    """Require the bytes of a layer's activations on a rank."""
    for s, b, h, a, t in ((2048, 1, 12288, 96, 8), (2048, 4, 6144, 64, 8)):
        for with_sequence in (False, True):
            got = answer(s, b, h, a, t, with_sequence)
            whole, cut, scores = (0, 34, 5 * a * s / h) if with_sequence else (10, 24, 5 * a * s / h)
            hint = f"s={s}, b={b}, h={h}, a={a}, t={t}: yours is {got!r}. "
            if isinstance(got, (int, float)) and same_bytes(got, s * b * h * (34 + scores)):
                hint += "That is without tensor parallelism: divide what it cuts by t."
            elif isinstance(got, (int, float)) and same_bytes(got, s * b * h * (whole + cut / t + scores)):
                hint += "Heads are cut too: each rank has a / t of them, and their scores."
            elif isinstance(got, (int, float)) and same_bytes(got, s * b * h * (34 + scores) / t) and not with_sequence:
                hint += "Without sequence parallelism norms, dropouts and inputs (10 s b h) are whole on every rank."
            elif with_sequence:
                hint += "Sequence parallelism cuts the 10 s b h too: all of it is divided by t."
            else:
                hint += (
                    "10 s b h is whole; 24 s b h of the matrix products and 5 a s² b of the scores are divided by t."
                )
            says = f"a layer's activations {'with' if with_sequence else 'without'} sequence parallelism"
            yield Requirement(says, same_bytes(got, s * b * h * (whole + (cut + scores) / t)), hint)


EXERCISES = {
    "plan": Exercise(
        "plan() returns {name: ParallelStyle} for parallelize_module of a module with the linear layers up and "
        "down, such "
        "that a step sends one all_reduce in forward and one in backward.",
        _plan,
    ),
    "sequence_plan": Exercise(
        "sequence_plan() returns the same for an input, and an output, of which each rank has a part of dim 1.",
        _sequence_plan,
    ),
    "activation_bytes": Exercise(
        "activation_bytes(s, b, h, a, t, sequence) returns the bytes of a transformer layer's activations on a rank, "
        "of 34 s b h + 5 a s² b in all, with tensor parallelism t, and sequence parallelism if it is true.",
        _activation_bytes,
    ),
}
