"""The demo's model is causal, has no biases, and is sharded block by block."""

from __future__ import annotations

import torch

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.demo import Llama, Shape, shard_parameters, train_step
from dsexplore._internal.worlds.simulate import simulate

SMALL = Shape(layers=2, dim=16, heads=4, kv_heads=2, hidden=32, vocabulary=32)


def test_a_token_changes_no_logits_before_it() -> None:
    model = Llama(SMALL)
    tokens = torch.arange(8).unsqueeze(0)
    other = tokens.index_fill(1, torch.tensor([5]), 31)
    before, after = model(tokens), model(other)
    assert before.shape == (1, 8, 32)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_projections_have_no_biases_as_in_llama() -> None:
    assert [name for name, _ in Llama(SMALL).named_parameters() if name.endswith("bias")] == []


def test_each_block_gathers_its_own_parameters() -> None:
    with simulate(2) as mesh, record() as trace:
        model = Llama(SMALL)
        shard_parameters(model, mesh)
        train_step(model, torch.zeros(1, 9, dtype=torch.int64))
    gathers = trace.events.filter(op="all_gather")["owner"].unique().sort().to_list()
    assert gathers == ["Llama", "Llama.layers.0", "Llama.layers.1"]
