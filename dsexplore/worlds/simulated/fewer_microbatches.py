"""A 1F1B schedule that performs fewer microbatches, because the ones that it leaves out repeat others.

Once the first backward is over, each microbatch of `Schedule1F1B` does what the one before it did: a backward, its
messages, a forward, its messages. So a trace of a few of them holds all that there is; what it lacks is put back by
`dsexplore.cost.microbatches`, which first compares two of them.
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

from dsexplore.worlds.patches import Patches

_BEYOND_WARM_UP = 3
"""How many microbatches beyond those of the warm-up are performed: the first, whose gradients are new, and two that are
alike."""


@dataclass
class LeftOut:
    """How many microbatches a schedule had, and how many of them were performed.

    Attributes:
        microbatches: of the schedule; 0 where none was left out.
        performed: of these.
    """

    microbatches: int = 0
    performed: int = 0


@contextmanager
def fewer_microbatches() -> Iterator[LeftOut]:
    """Make the first step of a 1F1B schedule perform no more microbatches than its warm-up has, and three.

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
        performed = stage.num_stages - stage.stage_index + _BEYOND_WARM_UP
        if left_out.microbatches or performed >= whole or type(schedule) is not Schedule1F1B:
            original(schedule, arg_mbs, kwarg_mbs, target_mbs, losses, *args, **kwargs)
            return
        left_out.microbatches, left_out.performed = whole, performed
        given = [each[:performed] if each is not None else None for each in (arg_mbs, kwarg_mbs, target_mbs)]
        schedule._n_microbatches = performed
        try:
            original(schedule, *given, losses, *args, **kwargs)
        finally:
            schedule._n_microbatches = whole
        for kept in (losses, stage.output_chunks):
            if kept:
                kept += [tree_map_only(torch.Tensor, torch.Tensor.detach, kept[-1]) for _ in range(whole - performed)]

    patches.attribute(Schedule1F1B, "_step_microbatches", shortened)
    try:
        yield left_out
    finally:
        patches.undo()
