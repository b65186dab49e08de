"""Tests of the GPU that a process group of NCCL is bound to; `torch.cuda.set_device` initializes CUDA."""

from __future__ import annotations

import pytest
import torch

from dsexplore._internal.comm.torch_backend import _device_to_bind


@pytest.mark.parametrize(
    ("current", "bound"),
    [
        pytest.param(None, 1, id="CUDA is not initialized"),
        pytest.param(0, 1, id="no GPU was set, or GPU 0"),
        pytest.param(3, 3, id="the program has set a GPU"),
    ],
)
def test_the_gpu_that_the_program_has_set_is_bound(
    current: int | None, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: current is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert _device_to_bind("nccl") == torch.device("cuda", bound)
    assert _device_to_bind("gloo") is None
