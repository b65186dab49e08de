"""Exercises on pipelines: the messages of a stage, the schedule 1F1B, and its bubble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor

from dsexplore._internal.lessons.answer_run import run_answer
from dsexplore._internal.lessons.exercise_tensors import random_tensor
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes

STAGES, MICROBATCHES = 4, 6
SECONDS = {"F": 1.0, "B": 2.0}
"""Seconds of one microbatch in a stage, in forward and backward."""
Action = tuple[str, int]
"""Kind and microbatch of an action: ``("F", 3)`` is the forward of microbatch 3."""


def _layer(x: Tensor) -> Tensor:
    return 2 * x


def _stage(answer: Answer) -> Requirements:
    """Require the messages of a stage, microbatch by microbatch."""
    for rank in (0, 1, STAGES - 1):
        batches = [random_tensor(2, 4, seed=index) for index in range(MICROBATCHES)]
        run = run_answer(answer, batches, _layer, ranks=STAGES, rank=rank)
        sends, receives = run.of("send"), run.of("recv")
        others = {*run.events["op"]} - {"send", "recv"}
        yield Requirement("messages alone", not others, f"You sent {run.sent()}: neighbors send and receive.")
        wanted = 0 if rank == 0 else MICROBATCHES
        yield Requirement(
            "each stage but the first receives every microbatch from the one before",
            receives["peer"].to_list() == [rank - 1] * wanted,
            f"Rank {rank} has {receives.height} recv, from {sorted({*receives['peer']})}, not {wanted} from {rank - 1}."
            if rank
            else f"Rank 0 has {receives.height} recv: nobody is before it, it has the data.",
        )
        wanted = 0 if rank == STAGES - 1 else MICROBATCHES
        yield Requirement(
            "each stage but the last sends every microbatch to the next",
            sends["peer"].to_list() == [rank + 1] * wanted,
            f"Rank {rank} has {sends.height} send, to {sorted({*sends['peer']})}, not {wanted} to {rank + 1}."
            if rank < STAGES - 1
            else f"The last rank has {sends.height} send: nobody is behind it.",
        )
        ops = run.events["op"].to_list()
        is_mixed = rank in (0, STAGES - 1) or ops == ["recv", "send"] * MICROBATCHES
        yield Requirement(
            "a microbatch goes on before the next one is taken",
            is_mixed,
            "You receive all of them first: the next stage idles until the last one is here. One loop: recv, "
            "layer, send.",
        )
        values = cast("Sequence[Tensor]", run.value) if isinstance(run.value, (list, tuple)) else ()
        is_right = rank == 1 or len(values) == MICROBATCHES
        yield Requirement(
            "it returns its outputs",
            is_right,
            f"Return a list of {MICROBATCHES} outputs, of the layer that you were given.",
        )


def run_schedule(schedules: Sequence[Sequence[Action]]) -> tuple[dict[int, float], float, tuple[int, Action] | None]:
    """Run the schedules of all stages, in which an action waits for those that it depends on.

    Returns:
        The seconds that each stage works, the end of the last action in seconds, and the first stage that waits for
        ever with its action; None if no stage does.
    """
    ended: dict[tuple[int, Action], float] = {}
    clock, position = [0.0] * len(schedules), [0] * len(schedules)
    while True:
        is_moving = False
        for stage, actions in enumerate(schedules):
            while position[stage] < len(actions):
                kind, microbatch = action = actions[position[stage]]
                needs = [(stage, ("F", microbatch))] if kind == "B" else []
                before = stage - 1 if kind == "F" else stage + 1
                needs += [(before, action)] if 0 <= before < len(schedules) else []
                if not {*needs} <= ended.keys():
                    break
                clock[stage] = max(clock[stage], *(ended[need] for need in needs), 0.0) + SECONDS[kind]
                ended[stage, action] = clock[stage]
                position[stage] += 1
                is_moving = True
        if not is_moving:
            break
    stuck: tuple[int, Action] | None = None
    for stage, actions in enumerate(schedules):
        if stuck is None and position[stage] < len(actions):
            stuck = stage, actions[position[stage]]
    work = {stage: sum(SECONDS[kind] for kind, _ in actions) for stage, actions in enumerate(schedules)}
    return work, max(clock), stuck


def _most_held(actions: Sequence[Action]) -> int:
    """Return the largest number of microbatches whose activations a stage holds at once."""
    held = most = 0
    for kind, _ in actions:
        held += 1 if kind == "F" else -1
        most = max(most, held)
    return most


def _schedule(answer: Answer) -> Requirements:
    """Require the schedule 1F1B."""
    schedules: list[list[Action]] = []
    for stage in range(STAGES):
        actions_of_answer = cast("Sequence[Sequence[object]]", answer(stage, STAGES, MICROBATCHES))
        schedules.append([cast("Action", tuple(action)) for action in actions_of_answer])
    wanted = sorted((kind, index) for kind in "BF" for index in range(MICROBATCHES))
    for stage, actions in enumerate(schedules):
        yield Requirement(
            "every microbatch once forward and once backward",
            sorted(actions) == wanted,
            f'Stage {stage} has {len(actions)} actions, of {len(wanted)}: ("F", i) and ("B", i) for each i.',
        )
    _, end, stuck = run_schedule(schedules)
    yield Requirement(
        "no stage waits for ever",
        stuck is None,
        f"Stage {stuck[0]} waits for ever at {stuck[1]}: its input comes from a stage that waits itself. "
        "Warm up with stages - 1 - stage forwards before the first backward."
        if stuck
        else "",
    )
    for stage, actions in enumerate(schedules):
        held, most = _most_held(actions), STAGES - stage
        yield Requirement(
            "a stage holds at most stages - stage microbatches",
            held <= most,
            f"Stage {stage} holds {held}, where {most} do: after the warm-up take a backward for each forward.",
        )
    ideal = (MICROBATCHES + STAGES - 1) * sum(SECONDS.values())
    yield Requirement(
        "it ends as soon as such a schedule can",
        end <= ideal,
        f"It ends after {end:g} s, where {ideal:g} s do: stage s warms up with stages - 1 - s forwards, so that its "
        "first backward is ready as soon as it comes.",
    )


def _bubble(answer: Answer) -> Requirements:
    """Require the idle time over the working time of a stage."""
    for stages, microbatches, chunks in ((4, 8, 1), (8, 32, 1), (16, 16, 1), (8, 32, 4)):
        got = answer(stages, microbatches, chunks)
        wanted = (stages - 1) / (chunks * microbatches)
        hint = f"{stages} stages, {microbatches} microbatches, {chunks} chunks each: yours is {got!r}. "
        if isinstance(got, (int, float)) and same_bytes(got, (stages - 1) / (chunks * microbatches + stages - 1)):
            hint += "That is the share of the whole step: take it of the time in which a stage works."
        elif isinstance(got, (int, float)) and same_bytes(got, stages / (chunks * microbatches)):
            hint += "The first microbatch of the last stage waits for stages - 1 others."
        elif chunks > 1:
            hint += "With v chunks a stage waits for chunks of a v-th: divide by them."
        else:
            hint += "A stage idles for stages - 1 microbatches, and works for all microbatches."
        yield Requirement("idle time over working time", same_bytes(got, wanted), hint)


EXERCISES: Mapping[str, Exercise] = {
    "stage": Exercise(
        "stage(microbatches, layer) plays this rank's stage: it takes the microbatches, which only rank 0 has, "
        "the others "
        "have tensors of the same shape to receive into, applies layer, passes them on, and returns its outputs.",
        _stage,
    ),
    "schedule": Exercise(
        "schedule(stage, stages, microbatches) returns the actions of a stage in 1F1B, such as ('F', 0), in "
        "their order.",
        _schedule,
    ),
    "bubble": Exercise(
        "bubble(stages, microbatches, chunks) returns the idle time of a stage over the time in which it works; each "
        "stage has so many chunks of the model (interleaved 1F1B).",
        _bubble,
    ),
}
