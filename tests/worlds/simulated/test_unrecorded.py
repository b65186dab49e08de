"""A program that communicates in a way that is not recorded gets an error or a remark."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric_memory
from torch.distributed import group

import dsexplore
from dsexplore._internal.errors import UsageError


@pytest.mark.parametrize("fake", [False, True])
def test_symmetric_memory_is_refused(fake: bool) -> None:
    with dsexplore.simulate(2, fake=fake):
        with pytest.raises(UsageError, match=r"symmetric memory .*empty\) is not recorded.*use collectives"):
            symmetric_memory.empty(4, device="cuda")
        with pytest.raises(UsageError, match=r"rendezvous\) is not recorded"):
            symmetric_memory.rendezvous(torch.ones(4), group.WORLD)


def test_torchcomms_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchcomms.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with dsexplore.simulate(2), dsexplore.commtrace() as trace, pytest.warns(RuntimeWarning, match="torchcomms"):
        import_module("torchcomms")
    del sys.modules["torchcomms"]
    assert any("torchcomms is not recorded" in note for note in trace.info.notes)
