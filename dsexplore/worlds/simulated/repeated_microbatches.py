"""Pipeline steps on fake tensors that run some microbatches and repeat what these recorded.

`ScheduleGPipe` and `Schedule1F1B` perform a stage's microbatches in three phases: forwards; then pairs of a backward
and a forward; then backwards. Within a phase each part (a forward, a pair, a backward) follows one of its kind, so that
what it does repeats once two of them in a row have recorded the same. The rest of the phase is then recorded again
without being run, but for the very last backward, in which DDP reduces gradients. What a schedule sends between its
calls of the stage, and the loss, are run for every microbatch.

A backward that is run needs a forward that was. A microbatch whose forward was not run borrows one whose backward was
not; so the first phase runs as many forwards as later backwards may borrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Literal

from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from dsexplore.capture.repeated_parts import Part, can_repeat
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.simulated.layers_left_out import LayersLeftOut, NotAlike

_LEAST_FORWARDS = 4
"""Forwards of the first phase that are run: as many as backwards of the last phase, which may borrow them."""
Phase = Literal["forwards", "pairs", "backwards"]


@contextmanager
def repeated_microbatches(
    on_repeat: Callable[[], None], on_leave_out: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Repeat microbatches in the steps of GPipe and 1F1B schedules, in the block, and leave layers out of others.

    What the program gets back has its whole length: outputs and gradients of microbatches that were not run are those
    of others.

    Args:
        on_repeat: called where a step repeats a part of a microbatch.
        on_leave_out: called where a part of a microbatch was run without some alike layers; see `layers_left_out`.
    """
    patches = Patches()
    for kind in (ScheduleGPipe, Schedule1F1B):
        patches.attribute(kind, "_step_microbatches", _shortened(kind, on_repeat, on_leave_out))
    try:
        yield
    finally:
        patches.undo()


def _shortened(kind: type[Any], on_repeat: Callable[[], None], on_leave_out: Callable[[], None]) -> Callable[..., None]:
    original: Callable[..., None] = kind._step_microbatches

    @wraps(original)
    def step(schedule: Any, /, *args: Any, **kwargs: Any) -> None:
        stage = schedule._stage
        if type(schedule) is not kind or not schedule._has_backward or not can_repeat():
            original(schedule, *args, **kwargs)
            return
        own = Patches()
        layers = LayersLeftOut(stage.submod, on_leave_out)
        run = _Step(stage, stage.forward_one_chunk, stage.backward_one_chunk, _plan(schedule), layers, on_repeat)
        own.attribute(stage, "forward_one_chunk", run.forward)
        own.attribute(stage, "backward_one_chunk", run.backward)
        try:
            layers.begin()
            original(schedule, *args, **kwargs)
            layers.check()
        finally:
            layers.end()
            own.undo()

    return step


def _plan(schedule: Any) -> list[Phase]:
    """The phase of each call that the schedule makes of its stage, in their order."""
    count, stage = schedule._n_microbatches, schedule._stage
    warm_up = count
    if type(schedule) is Schedule1F1B:
        warm_up = min(count, stage.num_stages - stage.stage_index)
    pairs: list[Phase] = ["pairs", "pairs"] * (count - warm_up)
    forwards: list[Phase] = ["forwards"] * warm_up
    backwards: list[Phase] = ["backwards"] * warm_up
    return forwards + pairs + backwards


@dataclass
class _PhaseRun:
    """The part of a phase that was run: its units, of which a pair has two parts.

    Attributes:
        units: those that were run to their end.
        is_known: whether the last two of them recorded the same, so that all that follow would.
    """

    least: int
    """Units that are run in any case."""
    units: list[list[Part]] = field(default_factory=list)
    is_known: bool = False

    def add(self, unit: list[Part]) -> None:
        """Keep a unit that was run."""
        self.units.append(unit)
        if len(self.units) >= self.least:
            self.is_known = all(map(Part.is_like, *self.units[-2:]))


@dataclass
class _Step:
    """One step of a schedule.

    Args:
        stage: its only stage.
        run_forward: the stage's method.
        run_backward: the stage's method.
        plan: the phase of each call.
        layers: the stage's layers, some of which may be left out.
        on_repeat: called where a call is repeated.
    """

    stage: Any
    run_forward: Callable[..., Any]
    run_backward: Callable[..., Any]
    plan: list[Phase]
    layers: LayersLeftOut
    on_repeat: Callable[[], None]
    _done: int = 0
    """Calls so far."""
    _begun: list[Part] = field(default_factory=list)
    """The backward of a pair whose forward comes next."""
    _phases: dict[Phase, _PhaseRun] = field(
        default_factory=lambda: {
            "forwards": _PhaseRun(_LEAST_FORWARDS),
            "pairs": _PhaseRun(2),
            "backwards": _PhaseRun(2),
        }
    )
    _to_lend: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Of the microbatches whose forward was run and whose backward was not: what the forward returned, and what the
    stage keeps for the backward."""
    _with_all_layers: int = -1
    """The last microbatch of the first phase that was run, where layers were left out before; -1 for none."""
    _gradients: Any = ()
    """The gradients that the last backward that was run returned for the stage's inputs."""

    def forward(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of a microbatch, or repeat that of another one."""
        stage, phase = self.stage, self._next()
        if self._begun or not self._phases[phase].is_known:
            is_last = phase == "forwards" and self._done == min(_LEAST_FORWARDS, self.plan.count("forwards"))
            if is_last and self.layers.leaves_out:
                self._with_all_layers = fwd_chunk_id
            output = self._run(phase, partial(self.run_forward, fwd_chunk_id, *args, **kwargs), all_layers=is_last)
            self._to_lend[fwd_chunk_id] = output, stage.fwd_cache[fwd_chunk_id]
            return output
        if not self._to_lend:
            raise NotAlike
        self._repeat(phase, -1)
        output, stage.fwd_cache[fwd_chunk_id] = self._to_lend[max(self._to_lend)]
        if stage.is_last and kwargs.get("save_forward_output", True):
            stage.output_chunks.append(output)
        return output

    def backward(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the backward of a microbatch, or repeat that of another one."""
        stage, phase = self.stage, self._next()
        if self._phases[phase].is_known and not kwargs.get("last_backward", False):
            self._repeat(phase, 0)
            stage.fwd_cache.pop(bwd_chunk_id)
            stage.bwd_cache[bwd_chunk_id] = self._gradients
            return
        if not self._to_lend:
            raise NotAlike
        lent = self._lent(bwd_chunk_id)
        _, stage.fwd_cache[bwd_chunk_id] = self._to_lend.pop(lent)
        self._run(phase, partial(self.run_backward, bwd_chunk_id, *args, **kwargs))
        self._gradients = stage.bwd_cache[bwd_chunk_id]

    def _lent(self, bwd_chunk_id: int) -> int:
        """The microbatch whose forward a backward is run on: that with all layers comes last."""
        some = [one for one in self._to_lend if one != self._with_all_layers]
        return bwd_chunk_id if bwd_chunk_id in some else max(some or self._to_lend)

    def _next(self) -> Phase:
        """The phase of this call."""
        self._done += 1
        return self.plan[self._done - 1]

    def _run(self, phase: Phase, call: Callable[[], Any], *, all_layers: bool = False) -> Any:
        result, part = self.layers.watched(call, all_layers=all_layers)
        self._begun.append(part)
        if len(self._begun) == (2 if phase == "pairs" else 1):
            self._phases[phase].add(self._begun)
            self._begun = []
        return result

    def _repeat(self, phase: Phase, position: int) -> None:
        """Record a part of the last unit again."""
        self._phases[phase].units[-1][position].repeat()
        self.on_repeat()
