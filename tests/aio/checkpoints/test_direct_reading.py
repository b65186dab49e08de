"""`load_file` returns what the library's own call returns, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsexplore import aio
from dsexplore._internal.aio.checkpoints.loaders import tensors_in
from dsexplore._internal.errors import UsageError
from tests.aio.checkpoints.conftest import FORMATS, State

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("nested", "DCP")])
def test_every_tensor_is_bit_equal(name: str, state: State, tmp_path: Path) -> None:
    loaded = aio.load_file(FORMATS[name](state, tmp_path / "saved"))
    assert loaded.keys() == state.keys()
    for key, tensor in tensors_in(loaded):
        assert (tensor.dtype, tensor.shape) == (state[key].dtype, state[key].shape)
        assert torch.equal(tensor, state[key])


def test_nested_values_stay_as_they_were_saved(state: State, tmp_path: Path) -> None:
    loaded = aio.load_file(FORMATS["nested"](state, tmp_path / "saved"))
    assert loaded["step"] == 3
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], state["weight"])  # type: ignore[index]


def test_a_model_takes_over_the_tensors(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(9, 5), torch.nn.Linear(9, 5)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(aio.load_file(tmp_path / "model.pt"), assign=True)
    assert torch.equal(other.weight, model.weight)


def test_what_cannot_be_read_so_is_refused(state: State, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"load it with its load\(\)"):
        aio.load_file(FORMATS["DCP"](state, tmp_path / "saved"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UsageError, match="holds a list"):
        aio.load_file(tmp_path / "list.pt")


@pytest.mark.parametrize("header", [b'\xff\xff\xff\0\0\0\0\0{"a"', b"\x03\0\0\0\0\0\0\0{{{"])
def test_a_damaged_header_is_refused(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(header)
    with pytest.raises(UsageError, match="safetensors file"):
        aio.load_file(tmp_path / "cut.safetensors")
