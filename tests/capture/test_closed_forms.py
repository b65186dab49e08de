"""Closed forms: what one Llama block communicates, compared with the formula in each test's docstring.

Modules: ``capture/``, ``trace/collectives.py``.

Symbols: B batch, T sequence length, D model width, H head width, Q query heads, K key-value heads, F width of
the feed-forward network, e = 4 bytes per float32 element; dp and tp are the sizes of the mesh's axes.
A line ``2 × all_reduce of B·T·D·e`` is a number of collectives and the message bytes of each.
"""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
import torch

import dsexplore
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds import demo

ELEMENT = 4
BATCH, LENGTH = 2, 32
SHAPES = [
    demo.Shape(layers=1, dim=32, heads=4, kv_heads=4, hidden=96, vocabulary=64),
    demo.Shape(layers=2, dim=96, heads=12, kv_heads=4, hidden=256, vocabulary=128),
]
Collectives = Counter[tuple[str, str, str, int]]
"""Number of collectives by phase, op, axis and message bytes."""


def trace(
    shape: demo.Shape, mesh: str, *, tensors: bool = False, sequence: bool = False, parameters: bool = False
) -> Trace:
    """Trace one training step of a Llama of that shape, sharded as asked."""
    with dsexplore.simulate(mesh=mesh) as world:
        model = demo.Llama(shape)
        if tensors:
            demo.shard_tensors(model, world["tp"], sequence)
        if parameters:
            demo.shard_parameters(model, world["dp"])
        with dsexplore.commtrace() as recorded:
            demo.train_step(model, torch.randint(shape.vocabulary, (BATCH, LENGTH + 1)))
    return recorded


def of_block(recorded: Trace, layer: int) -> Collectives:
    """Return what the recorder saw for one block: in its name or the name of a module inside it."""
    block = f"Llama.layers.{layer}"
    rows = recorded.events.select("owner", "phase", "op", "axis", "message_bytes").iter_rows()
    return Counter(tuple(rest) for owner, *rest in rows if f"{owner}.".startswith(f"{block}."))


def hidden_state(shape: demo.Shape) -> int:
    """B·T·D·e."""
    return BATCH * LENGTH * shape.dim * ELEMENT


def matrices(shape: demo.Shape) -> dict[str, tuple[int, int]]:
    """Rows and columns of a block's weights: ``column`` ones are split by rows under TP, ``row`` ones by columns."""
    head = shape.dim // shape.heads
    return {
        "wq column": (shape.heads * head, shape.dim),
        "wk column": (shape.kv_heads * head, shape.dim),
        "wv column": (shape.kv_heads * head, shape.dim),
        "wo row": (shape.dim, shape.heads * head),
        "w1 column": (shape.hidden, shape.dim),
        "w3 column": (shape.hidden, shape.dim),
        "w2 row": (shape.dim, shape.hidden),
    }


def gathered(shape: demo.Shape, dp: int, tp: int = 1) -> int:
    """Bytes of a block's parameters on one tensor-parallel rank, each padded to dp equal shards of its rows."""
    shards = [(shape.dim, 1), (shape.dim, 1)]
    for name, (rows, columns) in matrices(shape).items():
        shards.append((rows // tp, columns) if "column" in name else (rows, columns // tp))
    return sum(dp * ceil(rows / dp) * columns for rows, columns in shards) * ELEMENT


def tensor_parallel(shape: demo.Shape) -> Collectives:
    return Counter(
        {
            ("forward", "all_reduce", "tp", hidden_state(shape)): 2,
            ("backward", "all_reduce", "tp", hidden_state(shape)): 5,
        }
    )


def sequence_parallel(shape: demo.Shape) -> Collectives:
    return Counter(
        {
            (phase, op, "tp", hidden_state(shape)): 2
            for phase in ("forward", "backward")
            for op in ("all_gather", "reduce_scatter")
        }
    )


def fully_sharded(size: int) -> Collectives:
    return Counter(
        {
            ("forward", "all_gather", "dp", size): 1,
            ("backward", "all_gather", "dp", size): 1,
            ("backward", "reduce_scatter", "dp", size): 1,
        }
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestLlamaBlock:
    def test_tensor_parallel(self, shape: demo.Shape) -> None:
        """Forward 2 × all_reduce of B·T·D·e (after wo and w2); backward 5 × all_reduce of B·T·D·e.

        Five, because each column-parallel weight (wq, wk, wv, w1, w3) reduces its own input gradient.
        """
        recorded = trace(shape, "dp=2,tp=4", tensors=True)
        for layer in range(shape.layers):
            assert of_block(recorded, layer) == tensor_parallel(shape)

    def test_tensor_and_sequence_parallel(self, shape: demo.Shape) -> None:
        """Forward and backward each 2 × all_gather and 2 × reduce_scatter of B·T·D·e.

        The optimizer adds, outside the modules, 3 × all_reduce of D·e per norm, of which there are 2L + 1: the
        gradients of the norms are partial sums over tp.
        """
        recorded = trace(shape, "dp=2,tp=4", tensors=True, sequence=True)
        for layer in range(shape.layers):
            assert of_block(recorded, layer) == sequence_parallel(shape)
        optimizer = recorded.where(phase="optimizer").events
        assert optimizer.select("op", "axis", "message_bytes").unique().rows() == [
            ("all_reduce", "tp", shape.dim * ELEMENT)
        ]
        assert optimizer.height == 3 * (2 * shape.layers + 1)

    @pytest.mark.parametrize("dp", [2, 3, 8])
    def test_fully_sharded(self, shape: demo.Shape, dp: int) -> None:
        """Forward 1 × all_gather, backward 1 × all_gather and 1 × reduce_scatter, each of W.

        W = Σ dp·⌈rows/dp⌉·columns·e over the block's weights: wq Q·H×D, wk and wv K·H×D, wo D×Q·H, w1 and w3
        F×D, w2 D×F, and two norms D×1. Without padding W is the size of the block's parameters.
        """
        recorded = trace(shape, f"dp={dp}", parameters=True)
        for layer in range(shape.layers):
            assert of_block(recorded, layer) == fully_sharded(gathered(shape, dp))
        if all(rows % dp == 0 for rows, _ in matrices(shape).values()) and shape.dim % dp == 0:
            block = sum(p.numel() for p in demo.Block(shape).parameters())
            assert gathered(shape, dp) == block * ELEMENT

    def test_tensor_parallel_and_fully_sharded(self, shape: demo.Shape) -> None:
        """On the 2×4 mesh both: over tp the 2 + 5 all_reduce of B·T·D·e, over dp the 2 all_gather and 1
        reduce_scatter of W₄, where W₄ has each weight at a quarter (wq, wk, wv, w1, w3 of the rows, wo and w2 of
        the columns) and the norms whole.
        """
        recorded = trace(shape, "dp=2,tp=4", tensors=True, parameters=True)
        for layer in range(shape.layers):
            expected = tensor_parallel(shape) + fully_sharded(gathered(shape, dp=2, tp=4))
            assert of_block(recorded, layer) == expected

    def test_sequence_parallel_and_fully_sharded(self, shape: demo.Shape) -> None:
        """It sends what both above send, with one difference: FSDP2 reduces the norms' partial gradients over tp before
        it scatters them, so 2 × all_reduce of D·e move from the optimizer to the backward pass of each block.
        """
        recorded = trace(shape, "dp=2,tp=4", tensors=True, sequence=True, parameters=True)
        norms = Counter({("backward", "all_reduce", "tp", shape.dim * ELEMENT): 2})
        for layer in range(shape.layers):
            expected = sequence_parallel(shape) + fully_sharded(gathered(shape, dp=2, tp=4)) + norms
            assert of_block(recorded, layer) == expected
        assert recorded.where(phase="optimizer").events.is_empty()


@pytest.mark.parametrize(("sequence", "parameters"), [(False, False), (True, False), (False, True), (True, True)])
def test_counts_and_bytes_are_affine_in_the_number_of_layers(sequence: bool, parameters: bool) -> None:
    """Each phase, op and axis has total(L) = total(1) + (L − 1)·(total(2) − total(1)), in number and in bytes."""

    def totals(layers: int) -> dict[tuple[str, str, str], torch.Tensor]:
        recorded = trace(demo.Shape(layers=layers), "dp=2,tp=4", tensors=True, sequence=sequence, parameters=parameters)
        rows = recorded.events.select("phase", "op", "axis", "message_bytes").rows()
        found: dict[tuple[str, str, str], torch.Tensor] = {}
        for *key, size in rows:
            found[tuple(key)] = found.get(tuple(key), torch.zeros(2)) + torch.tensor([1, size])
        return found

    one, two, three = totals(1), totals(2), totals(3)
    assert one.keys() == two.keys() == three.keys()
    for key in one:
        torch.testing.assert_close(three[key], one[key] + 2 * (two[key] - one[key]), rtol=0, atol=0)


@pytest.mark.parametrize("fake", [False, True])
def test_a_large_world_on_fake_tensors_has_the_same_block(fake: bool) -> None:
    """More data-parallel ranks change the collectives of a block only by the padding of W."""
    shape = demo.Shape(layers=2)
    ranks = 512 if fake else 2
    with dsexplore.simulate(mesh=f"dp={ranks},tp=4", fake=fake) as world:
        model = demo.Llama(shape)
        demo.shard_tensors(model, world["tp"])
        demo.shard_parameters(model, world["dp"])
        with dsexplore.commtrace() as recorded:
            demo.train_step(model, torch.randint(shape.vocabulary, (BATCH, LENGTH + 1)))
    assert of_block(recorded, 1) == tensor_parallel(shape) + fully_sharded(gathered(shape, ranks, 4))
