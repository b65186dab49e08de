"""Exercises on experts: dispatch tokens, return them, and count the bytes."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from dsexplore._internal.lessons.answer_run import AnswerRun, run_answer
from dsexplore._internal.lessons.exercise_tensors import is_close, random_tensor, require_close
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes

RANKS, TOKENS, WIDTH = 4, 8, 4
CHOICES = ((0, 1, 1, 3, 2, 1, 0, 3), (2, 2, 0, 1, 3, 0, 2, 2), (3, 0, 1, 2, 0, 3, 1, 2), (1, 3, 2, 0, 1, 0, 3, 0))
"""Expert of each token, by rank; there is one expert on each rank."""
COUNTS = [[choice.count(expert) for expert in range(RANKS)] for choice in CHOICES]
"""``COUNTS[a][b]`` tokens go from rank a to rank b."""


def _arguments(rank: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Return the tokens of a rank, their experts, and `COUNTS`."""
    return random_tensor(TOKENS, WIDTH, seed=rank), torch.tensor(CHOICES[rank]), [[*row] for row in COUNTS]


def _order_by_expert(rank: int) -> Tensor:
    """Return the order of a rank's tokens by expert."""
    return torch.argsort(torch.tensor(CHOICES[rank]), stable=True)


def _received(rank: int) -> int:
    return sum(row[rank] for row in COUNTS)


def _splits(run: AnswerRun, number: int, column: str) -> list[int]:
    """Return the rows that the rank exchanges with each rank, in the all_to_all with a number."""
    splits = run.of("all_to_all")[column][number]
    return [TOKENS // RANKS] * RANKS if splits is None else [elements // WIDTH for elements in splits]


def _dispatches(run: AnswerRun, exchanges: int) -> Requirements:
    """Require a number of all_to_all, of which the first sends each token to the rank of its expert."""
    rank = run.rank
    ops = run.events["op"].to_list()
    yield Requirement(
        "tokens go by all_to_all",
        "all_to_all" in ops and not {*ops} - {"all_to_all"},
        f"You sent {run.sent()}: send each token to the rank of its expert alone, not to all.",
    )
    advice = (
        "one carries all tokens." if exchanges == 1 else "one to the experts, and one back, whatever they computed."
    )
    yield Requirement(
        f"{exchanges} all_to_all",
        len(ops) == exchanges,
        f"You sent {run.sent()}: {advice}",
    )
    yield Requirement(
        "each rank is sent the tokens of its expert",
        _splits(run, 0, "send_splits") == COUNTS[rank],
        f"Rank {rank} sends {_splits(run, 0, 'send_splits')} tokens to the ranks, not {COUNTS[rank]}: "
        "input_split_sizes is this rank's row of counts.",
    )
    column = [row[rank] for row in COUNTS]
    yield Requirement(
        "and receives what the others send it",
        _splits(run, 0, "recv_splits") == column,
        f"Rank {rank} receives {_splits(run, 0, 'recv_splits')} tokens, not {column}: output_split_sizes is "
        "its column.",
    )


def _expected(rows: Tensor, wanted: int) -> Tensor:
    """Return the output of a simulated all_to_all: the first rows of its input."""
    return rows[:wanted]


def _dispatch(answer: Answer) -> Requirements:
    """Require that each token is sent to the rank of its expert."""
    for rank in (0, 2):
        run = run_answer(answer, *_arguments(rank), ranks=RANKS, rank=rank)
        yield from _dispatches(run, 1)
        tokens = random_tensor(TOKENS, WIDTH, seed=rank)
        count = min(_received(rank), TOKENS)
        got = run.value
        is_whole = isinstance(got, Tensor) and got.shape == (_received(rank), WIDTH)
        yield Requirement(
            "it returns the tokens that came",
            is_whole,
            f"It returns {_shape(got)}, not {(_received(rank), WIDTH)}: make the output as long as this rank's "
            "column adds up to.",
        )
        yield require_close(
            "tokens of one expert stand together",
            cast("Tensor", got)[:count],
            _expected(tokens[_order_by_expert(rank)], count),
            "all_to_all sends the first rows to rank 0, the next ones to rank 1, …: sort the tokens by expert first.",
        )


def _shape(got: object) -> str:
    return str(tuple(got.shape)) if isinstance(got, Tensor) else type(got).__name__


def _expert(x: Tensor) -> Tensor:
    return 3 * x


def _exchange(answer: Answer) -> Requirements:
    """Require that tokens are sent to their experts, computed and returned to their places."""
    for rank in (2, 0):
        applied: list[int] = []

        def expert(x: Tensor, applied: list[int] = applied) -> Tensor:
            applied.append(x.shape[0])
            return _expert(x)

        run = run_answer(answer, *_arguments(rank), expert, ranks=RANKS, rank=rank)
        yield from _dispatches(run, 2)
        yield Requirement(
            "the expert computes what came, once",
            applied == [_received(rank)],
            f"It was called with {applied} tokens, not [{_received(rank)}]: call it with what the first "
            "all_to_all brought.",
        )
        yield Requirement(
            "the way back is the way there, turned round",
            _splits(run, 1, "send_splits") == [row[rank] for row in COUNTS],
            f"Rank {rank} sends {_splits(run, 1, 'send_splits')} back: what was received from a rank goes back to it.",
        )
        tokens, order = random_tensor(TOKENS, WIDTH, seed=rank), _order_by_expert(rank)
        sent = 3 * tokens[order]
        back = torch.zeros(TOKENS, WIDTH)
        back[order] = sent
        if _received(rank) < TOKENS:
            continue  # the simulated rank receives fewer rows than it has sent, so not all come back
        is_sorted = is_close(run.value, sent)
        yield require_close(
            "each token is back in its place",
            run.value,
            back,
            "They stand by expert still: put them where they came from, out[order] = returned."
            if is_sorted
            else f"It returns {_shape(run.value)} of other numbers than the expert's: return what came back, in order.",
        )


def _exchanged(tokens: int, width: int) -> None:
    """Send tokens by an even all_to_all."""
    rows = torch.ones(tokens, width, dtype=torch.bfloat16)
    dist.all_to_all_single(torch.empty_like(rows), rows)


def _sent_bytes(answer: Answer) -> Requirements:
    """Require the bytes that a rank sends to dispatch its tokens."""
    for tokens, width, top, ranks in ((64, 32, 4, 4), (128, 16, 8, 8)):
        event = run_answer(_exchanged, tokens * top, width, ranks=ranks, rank=0).events.row(0, named=True)
        got, wanted = answer(tokens, width, top, ranks, 2), event["wire_bytes"]
        hint = f"{tokens} tokens of {width} numbers, {top} experts each, {ranks} ranks: yours is {got!r}. "
        if same_bytes(got, event["message_bytes"]):
            hint += "One part of n is for this rank's own experts, and is not sent."
        elif same_bytes(got, wanted / top):
            hint += f"Each token goes to {top} experts."
        elif same_bytes(got, wanted / 2):
            hint += "The last argument is the bytes of one number."
        elif same_bytes(got, 2 * wanted):
            hint += "Count the way there alone."
        else:
            hint += "Tokens × experts of each × numbers × bytes, of which (n - 1) of n parts leave the rank."
        yield Requirement("what a simulated rank sends", same_bytes(got, wanted), hint)


EXERCISES = {
    "dispatch": Exercise(
        "dispatch(tokens, choice, counts) sends each token to the rank of its expert, choice[i], and returns what "
        "came; counts[a][b] tokens go from rank a to rank b.",
        _dispatch,
    ),
    "exchange": Exercise(
        "exchange(tokens, choice, counts, expert) does that, applies this rank's expert to what came, sends it back, "
        "and returns the results in the order of tokens.",
        _exchange,
    ),
    "sent_bytes": Exercise(
        "sent_bytes(tokens, width, top, ranks, bytes_each) returns what a rank sends to dispatch its tokens to top "
        "experts each, evenly spread over all ranks.",
        _sent_bytes,
    ),
}
