"""A cluster whose compute is what was measured, and steps without streams.

Modules: ``cost/kernels/compute.py``, ``cost/collectives/calibrate.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore.cost import Cluster, with_measured_compute

GLOO = Cluster.load("gloo-local")


@pytest.fixture(scope="module")
def layers(traced_layers: Callable[..., Trace]) -> Trace:
    return traced_layers(4)


@pytest.mark.parametrize("seconds", [1e-3, 0.08, 3.0])
def test_a_step_without_communication_takes_what_was_measured(layers: Trace, seconds: float) -> None:
    cluster = with_measured_compute(GLOO, layers, seconds)
    alone = Trace(replace(layers.tables, events=layers.events.clear()))
    assert alone.predict(cluster).step.expected == pytest.approx(seconds, rel=1e-3)
    assert layers.predict(cluster).exposed.expected == pytest.approx(layers.predict(GLOO).exposed.expected)


def test_modules_keep_their_shares(layers: Trace) -> None:
    before = layers.predict(GLOO)
    after = layers.predict(with_measured_compute(GLOO, layers, 20 * before.compute.expected))
    shares = [one.by_module()["compute"] / one.compute.expected for one in (before, after)]
    assert shares[0].to_list() == pytest.approx(shares[1].to_list(), rel=0.02)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(layers: Trace, seconds: float) -> None:
    with pytest.raises(UsageError, match=f"seconds={seconds!r} is not how long"):
        with_measured_compute(GLOO, layers, seconds)


def test_ranks_of_one_machine_hide_nothing(layers: Trace) -> None:
    """They send with the processors that they compute with, FSDP2's gathers and DDP's buckets alike."""
    with dsexplore.commtrace(mesh="dp=2", fake=True, hardware="cpu", costs=True) as ddp:
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), bucket_cap_mb=4)
        model(torch.randn(1024, 1024)).sum().backward()
    for trace in (layers, ddp):
        here, gpus = trace.predict(GLOO), trace.predict("dgx-h100")
        assert here.exposed.expected == pytest.approx(here.communication.expected)
        assert here.compute.expected + here.exposed.expected + here.idle.expected == pytest.approx(here.step.expected)
        assert gpus.exposed.expected < 0.95 * gpus.communication.expected
