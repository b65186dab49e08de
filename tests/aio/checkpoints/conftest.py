"""Checkpoints of one small state dict in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dsexplore._internal.aio.checkpoints.checkpoint_files import save_as

State = dict[str, torch.Tensor]


@pytest.fixture
def state() -> State:
    """Tensors of several dtypes and odd sizes, one of them empty and one a scalar."""
    torch.manual_seed(0)
    return {
        "weight": torch.randn(37, 41),
        "half": torch.randn(1001).to(torch.bfloat16),
        "codes": torch.arange(333, dtype=torch.uint8),
        "mask": torch.tensor([True, False, True]),
        "counts": torch.arange(5),
        "scale": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
    }


def _shards(state: State, folder: Path) -> Path:
    folder.mkdir()
    names = list(state)
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: state[name] for name in part}, folder / f"model-{number}.safetensors")
    homes = {name: f"model-{0 if name in names[:3] else 1}.safetensors" for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": homes}), encoding="utf-8")
    return index


def _nested(state: State, folder: Path) -> Path:
    folder.mkdir()
    torch.save({"model": state, "optimizer": {"state": [{"exp_avg": state["weight"]}]}, "step": 3}, folder / "all.pt")
    return folder / "all.pt"


def _old(state: State, folder: Path) -> Path:
    folder.mkdir()
    torch.save(state, folder / "old.bin", _use_new_zipfile_serialization=False)
    return folder / "old.bin"


def _dcp(state: State, folder: Path) -> Path:
    folder.mkdir()
    return save_as("DCP", {name: tensor for name, tensor in state.items() if tensor.numel()}, folder)


FORMATS: dict[str, Callable[[State, Path], Path]] = {
    "safetensors": lambda state, folder: (folder.mkdir(), save_as("safetensors", state, folder))[1],
    "shards": _shards,
    "torch.save": lambda state, folder: (folder.mkdir(), save_as("torch.save", state, folder))[1],
    "nested": _nested,
    "old torch.save": _old,
    "DCP": _dcp,
}


@pytest.fixture(params=FORMATS)
def saved(request: pytest.FixtureRequest, state: State, tmp_path: Path) -> Path:
    """Return the path of the state in each format in turn."""
    return FORMATS[request.param](state, tmp_path / "saved")
