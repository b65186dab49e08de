"""A 1F1B schedule that performs fewer microbatches, because the ones that it leaves out repeat others.

A stage of `Schedule1F1B` begins with forwards (the warm-up), goes on with pairs of a backward and a forward, and ends
with as many backwards as it began with forwards. Within each of the three, what is done for one microbatch is what was
done for the one before, but for the first ones. So a trace of a few of each holds all that there is; what it lacks is
put back by `microbatches`, which first compares two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.distributed.pipelining import Schedule1F1B
from torch.utils._pytree import tree_map_only

from dsexplore.torch_internals.patches import Patches

WARM_UP = 4
"""How many forwards of the warm-up are performed: the first, which gathers parameters, two that are alike, and the
last, whose output is sent later. Of the backwards at the end two are alike and one is the last."""
_PAIRS = 3
"""How many pairs are performed: the first, whose gradients are new, and two that are alike."""


@dataclass
class LeftOut:
    """The microbatches of a schedule's step, and those of them that were left out.

    Attributes:
        microbatches: of the schedule; 0 where none was left out.
        of_warm_up: how many forwards of the warm-up were left out, and as many backwards at the end.
    """

    microbatches: int = 0
    of_warm_up: int = 0


@contextmanager
def fewer_microbatches() -> Iterator[LeftOut]:
    """Make the first step of a 1F1B schedule perform a few microbatches of its warm-up, and three after it.

    What the program gets back has its whole length: the losses and outputs of the microbatches that are left out are
    those of the last one that was performed.

    Yields:
        What was left out, filled in by the schedule's step.
    """
    patches, left_out = Patches(), LeftOut()
    original: Callable[..., None] = Schedule1F1B._step_microbatches

    @wraps(original)
    def shortened(
        schedule: Any,
        /,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        whole, stage = schedule._n_microbatches, schedule._stage
        stages = schedule._num_stages
        warm_up = stages - stage.stage_index
        fewer = min(warm_up, WARM_UP)
        performed = fewer + min(whole - warm_up, _PAIRS)
        if left_out.microbatches or performed == whole or type(schedule) is not Schedule1F1B:
            original(schedule, arg_mbs, kwarg_mbs, target_mbs, losses, *args, **kwargs)
            return
        left_out.microbatches, left_out.of_warm_up = whole, warm_up - fewer
        given = [each[:performed] if each is not None else None for each in (arg_mbs, kwarg_mbs, target_mbs)]
        schedule._n_microbatches = performed
        schedule._num_stages = stages - left_out.of_warm_up  # of which the schedule counts the warm-up alone
        try:
            original(schedule, *given, losses, *args, **kwargs)
        finally:
            schedule._n_microbatches, schedule._num_stages = whole, stages
        for kept in (losses, stage.output_chunks):
            if kept:
                kept += [tree_map_only(torch.Tensor, torch.Tensor.detach, kept[-1]) for _ in range(whole - performed)]

    patches.attribute(Schedule1F1B, "_step_microbatches", shortened)
    try:
        yield left_out
    finally:
        patches.undo()
