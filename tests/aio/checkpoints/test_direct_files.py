"""`load_file` returns what the library's own call returns, bit by bit; `save_file` writes a whole file or none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsexplore import aio
from dsexplore._internal.aio.checkpoints import direct_files
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


@pytest.mark.parametrize("piece", [4096, 32 << 20])
def test_safetensors_reads_every_bit(piece: int, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_files, "_PIECE", piece)
    state["cut"] = torch.arange(64).reshape(8, 8).t()
    aio.save_file(state, tmp_path / "model.safetensors")
    for loaded in (load_file(tmp_path / "model.safetensors"), aio.load_file(tmp_path / "model.safetensors")):
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_what_a_killed_process_of_the_same_number_left_is_written_over_whole(tmp_path: Path) -> None:
    (tmp_path / f".model.safetensors.{os.getpid()}.unfinished").write_bytes(b"x" * 100_000)
    aio.save_file({"a": torch.ones(10)}, tmp_path / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["a"], torch.ones(10))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_full_disk_leaves_the_old_file(state: State, mounted: Callable[..., Path]) -> None:
    folder = mounted("size=64k")
    aio.save_file({"a": torch.ones(10)}, folder / "model.safetensors")
    with pytest.raises(OSError, match=r"\[Errno 28\]") as raised:
        aio.save_file({"a": torch.ones(100_000)}, folder / "model.safetensors")
    assert raised.value.errno == errno.ENOSPC
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert load_file(folder / "model.safetensors")["a"].numel() == 10


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "'a' is int"),
        (torch.ones(2, device="meta"), "meta device"),
        (torch.ones(2, dtype=torch.complex128), "no name for torch.complex128"),
    ],
)
def test_what_a_safetensors_file_cannot_hold_is_refused(value: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        aio.save_file({"a": value}, tmp_path / "model.safetensors")  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []
