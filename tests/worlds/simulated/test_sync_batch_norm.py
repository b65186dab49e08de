"""SyncBatchNorm sends under the CUDA stand-in what it sends on GPUs, and computes batch normalization."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dsexplore
from dsexplore._internal.torch_internals.patches import Parts, Patches, install_all
from dsexplore._internal.worlds.simulated.sync_batch_norm import PATCHES


@pytest.mark.parametrize("fake", [False, True])
def test_gathers_statistics_and_sums_their_gradients(fake: bool) -> None:
    with dsexplore.simulate(mesh="dp=4", hardware="h100", fake=fake), dsexplore.commtrace() as trace:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))).cuda()
        model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    rows = trace.events.select("op", "phase", "message_bytes", "trigger").rows()
    assert rows == [
        ("all_gather", "forward", 4 * 4 * (2 * 6 + 1), "Sequential.1"),
        ("all_reduce", "backward", 4 * 2 * 6, "Sequential.1"),
    ]


def test_normalizes_as_batch_norm_does() -> None:
    """On a simulated group, the gathered statistics are copies of this rank's."""
    values = torch.randn(8, 5, 4)
    with dsexplore.simulate(mesh="dp=4", hardware="h100"):
        norm = nn.SyncBatchNorm(5).cuda()
        found = norm(values.cuda())
        assert torch.allclose(found, F.batch_norm(values.cuda(), None, None, training=True), atol=1e-5)
        assert torch.allclose(norm.running_mean, 0.1 * values.mean([0, 2]).cuda(), atol=1e-5)


def test_the_running_variance_counts_the_values_of_all_ranks() -> None:
    """With n equal values on each of 4 ranks, the variance is divided by 4 n - 1, not by 4 n."""
    values = torch.randn(8, 5, 4)
    with dsexplore.simulate(mesh="dp=4", hardware="h100"):
        norm = nn.SyncBatchNorm(5).cuda()
        norm(values.cuda())
        count = 4 * 8 * 4
        unbiased = values.var([0, 2], correction=0) * count / (count - 1)
        assert torch.allclose(norm.running_var, (0.9 + 0.1 * unbiased).cuda(), atol=1e-5)


def test_without_running_statistics_it_normalizes_all_the_same() -> None:
    values = torch.randn(8, 5, 4)
    with dsexplore.simulate(mesh="dp=4", hardware="h100"):
        found = nn.SyncBatchNorm(5, track_running_stats=False).cuda()(values.cuda())
        assert torch.allclose(found, F.batch_norm(values.cuda(), None, None, training=True), atol=1e-5)


def test_gradients_of_one_rank_are_those_of_batch_norm() -> None:
    patches = Patches()
    install_all(PATCHES, {"cuda traffic"}, patches, Parts())
    try:
        values = torch.randn(8, 5, 4, dtype=torch.float64, requires_grad=True)
        weight, bias = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
        gradient = torch.randn(8, 5, 4, dtype=torch.float64)
        expected = torch.autograd.grad(
            F.batch_norm(values, None, None, weight, bias, training=True), (values, weight, bias), gradient
        )
        with torch.no_grad():
            mean, invstd = torch.batch_norm_stats(values, 1e-5)
            total, moved, of_weight, of_bias = torch.batch_norm_backward_reduce(
                gradient, values, mean, invstd, weight, True, True, True
            )
            of_values = torch.batch_norm_backward_elemt(
                gradient, values, mean, invstd, weight, total, moved, torch.tensor([32], dtype=torch.int32)
            )
        for one, other in zip((of_values, of_weight, of_bias), expected, strict=True):
            assert torch.allclose(one, other)
    finally:
        patches.undo()


def test_a_module_on_the_cpu_is_torchs_to_refuse() -> None:
    with dsexplore.simulate(mesh="dp=4"), pytest.raises(ValueError, match="input tensor to be on GPU"):
        nn.SyncBatchNorm(3)(torch.ones(2, 3))
