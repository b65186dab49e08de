"""Sizes that depend on values of fake tensors are exact if lengths are known, else balanced."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpad_sequence

from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.fake.invented_values import SIZED
from dsexplore._internal.worlds.simulate import simulate

LENGTHS = [3, 7, 5, 7]


def run_packed(device: str, *, batch_first: bool, as_list: bool) -> list[object]:
    """Return shapes and lengths in an LSTM on packed sequences, forward and backward."""
    sequences = torch.randn(4, 7, 8) if batch_first else torch.randn(7, 4, 8)
    layer = nn.LSTM(8, 6, batch_first=batch_first, bidirectional=True).to(device)
    lengths = LENGTHS if as_list else torch.tensor(LENGTHS)
    packed = pack_padded_sequence(sequences.to(device), lengths, batch_first, enforce_sorted=False)
    output, (hidden, _) = layer(packed)
    padded, back = pad_packed_sequence(output, batch_first)
    padded.sum().backward()
    gradients = [tuple(parameter.grad.shape) for parameter in layer.parameters() if parameter.grad is not None]
    shapes = [tuple(each.shape) for each in (packed.data, output.data, hidden, padded, back)]
    return [*shapes, packed.batch_sizes.tolist(), *gradients]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("as_list", [True, False])
def test_packed_sequences_are_as_long_as_real_ones(device: str, batch_first: bool, as_list: bool) -> None:
    real = run_packed("cpu", batch_first=batch_first, as_list=as_list)
    with simulate(8, fake=True, hardware="h100" if device == "cuda" else None):
        assert run_packed(device, batch_first=batch_first, as_list=as_list) == real


def test_lengths_come_back_from_packed_sequences() -> None:
    with simulate(8, fake=True):
        packed = pack_sequence([torch.randn(length, 3) for length in (5, 3, 2)])
        padded, lengths = pad_packed_sequence(packed, batch_first=True, total_length=6)
        assert lengths.tolist() == [5, 3, 2]
        assert padded.shape == (3, 6, 3)
        parts = unpad_sequence(padded, torch.tensor([5, 3, 2]), batch_first=True)
        assert [len(part) for part in parts] == [5, 3, 2]


def test_lengths_that_nobody_knows_are_spread_and_said() -> None:
    with commtrace(world_size=8, fake=True) as trace, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        packed = pack_padded_sequence(torch.randn(7, 4, 8), torch.randint(1, 8, (4,)), enforce_sorted=False)
    assert packed.data.shape == (16, 8)  # 7 + 9 in three others
    assert packed.batch_sizes.tolist() == [4, 4, 4, 1, 1, 1, 1]
    assert any(note.startswith(SIZED) for note in trace.info.notes)


@pytest.mark.parametrize("kind", ["tensors", "tuples", "flat", "alone"])
def test_ctc_loss_has_the_shapes_of_a_real_one(kind: str) -> None:
    def shapes() -> list[tuple[int, ...]]:
        if kind == "alone":
            logits, targets = torch.randn(50, 20, requires_grad=True), torch.randint(1, 20, (10,))
            lengths: tuple[object, object] = torch.tensor(50), torch.tensor(10)
        else:
            logits = torch.randn(50, 4, 20, requires_grad=True)
            given = (50, 50, 40, 30), (10, 8, 7, 5)
            targets = torch.randint(1, 20, (30,) if kind == "flat" else (4, 10))
            lengths = given if kind != "tensors" else (torch.tensor(given[0]), torch.tensor(given[1]))
        loss = nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths, reduction="none")
        loss.sum().backward()
        assert logits.grad is not None
        return [tuple(loss.shape), tuple(logits.grad.shape), tuple(nn.CTCLoss()(logits, targets, *lengths).shape)]

    real = shapes()
    with simulate(8, fake=True):
        assert shapes() == real


def test_comparisons_of_known_values_are_true_ones() -> None:
    with simulate(8, fake=True):
        assert len(torch.randn(9)[torch.arange(9) < 4]) == 4
        assert (torch.tensor([1, 5]) == torch.tensor([1, 2])).tolist() == [True, False]
