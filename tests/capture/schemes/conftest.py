"""Worlds, models and readers that the recorder's tests share.

The models are in ``small_models``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import BATCH, BLOCK_PARAMETERS, FFN, FLOAT, HEADS, ROOT_PARAMETERS, SEQ, VOCAB, Block, D, Llama
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture
def world() -> Iterator[Callable[..., DeviceMesh]]:
    """``world("dp=2,tp=4", rank=0)`` opens a simulated world until the end of the test, or until it is called again."""
    with ExitStack() as opened:

        def open_(mesh: str, rank: int = 0, fake: bool = False, hardware: str | None = None) -> DeviceMesh:
            opened.close()
            torch.manual_seed(0)
            return opened.enter_context(simulate(mesh=mesh, rank=rank, fake=fake, hardware=hardware))

        yield open_


@pytest.fixture
def sizes() -> SimpleNamespace:
    """Return the models' sizes, for formulas."""
    return SimpleNamespace(
        d=D,
        ffn=FFN,
        vocab=VOCAB,
        heads=HEADS,
        batch=BATCH,
        seq=SEQ,
        tokens=BATCH * SEQ,
        float=FLOAT,
        block=BLOCK_PARAMETERS,
        root=ROOT_PARAMETERS,
    )


@pytest.fixture
def llama() -> type[Llama]:
    """Return the Llama-shaped model's class."""
    return Llama


@pytest.fixture
def block() -> type[Block]:
    """Return its block's class."""
    return Block


@pytest.fixture
def tokens() -> torch.Tensor:
    """Return one batch for it."""
    return torch.zeros(BATCH, SEQ, dtype=torch.long)


@pytest.fixture
def totals() -> Callable[..., dict[tuple[Any, ...], tuple[int, int]]]:
    """``totals(trace, "phase", "op")``: ``{("forward", "all_reduce"): (count, message bytes), …}``."""

    def read(trace: Any, *keys: str) -> dict[tuple[Any, ...], tuple[int, int]]:
        counts: Counter[tuple[Any, ...]] = Counter()
        sums: Counter[tuple[Any, ...]] = Counter()
        for row in trace.events.select(*keys, "message_bytes").iter_rows():
            key = row[:-1] if len(keys) > 1 else row[0]
            counts[key] += 1
            sums[key] += row[-1]
        return {key: (counts[key], sums[key]) for key in counts}

    return read


@pytest.fixture
def column() -> Callable[..., list[Any]]:
    """``column(trace, "op")``: that column's values; with several names, tuples."""

    def read(trace: Any, *names: str) -> list[Any]:
        frame = trace.events
        return frame[names[0]].to_list() if len(names) == 1 else list(frame.select(*names).iter_rows())

    return read
