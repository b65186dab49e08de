"""A program can copy, pickle, save and load fake tensors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

import dsexplore
from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fake tensors", "ignore:a checkpoint of a simulated", "ignore:Accessing the data pointer of FakeTensor"
)
DEVICE = "cuda"
MANY = 1 << 34


@pytest.fixture(params=["cuda", "cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the device of an open world of fake tensors."""
    with simulate(8, fake=True, hardware="h100" if request.param == "cuda" else None):
        yield request.param


def trained(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 8, device=device)).sum().backward()
    optimizer.step()
    return model, optimizer


class TestCopies:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            lambda: AveragedModel(nn.Linear(8, 8)).module,
            lambda: copy.deepcopy(nn.Linear(8, 8)),
        ],
    )
    def test_of_modules_are_modules(self, make: Callable[[], nn.Module], device: str) -> None:
        module = make().to(device)
        parameters = [*module.parameters()]
        assert parameters
        assert all(isinstance(each, nn.Parameter) and each.device.type == device for each in parameters)

    def test_keep_what_the_program_knows_of_a_tensor(self, device: str) -> None:
        tensor = nn.Parameter(torch.ones(3, 2, device=device))
        tensor.sum().backward()
        tensor.is_shared = True  # type: ignore[attr-defined]
        made, again = copy.deepcopy([tensor, tensor])
        assert made is again is not tensor
        assert (made.is_shared, made.shape, made.device, made.requires_grad) == (True, (3, 2), tensor.device, True)
        assert made.grad is not tensor.grad
        assert made.grad.shape == (3, 2)
        assert copy.deepcopy(torch.arange(3, device=device)).tolist() == [0, 1, 2]

    def test_of_results_are_torchs_to_refuse(self, device: str) -> None:
        with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
            copy.deepcopy(torch.ones(2, device=device, requires_grad=True) * 2)

    def test_of_sharded_modules(self, device: str) -> None:
        model, optimizer = trained(device)
        state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        assert state["model"]["0.weight"].to_local().shape == (1, 8)


def test_objects_of_other_ranks_hold_fake_tensors(device: str) -> None:
    found: list[Any] = [None] * 8
    dist.all_gather_object(found, {"loss": torch.ones(3, device=device), "weight": nn.Parameter(torch.ones(2))})
    assert all(isinstance(one["loss"], FakeTensor) and one["loss"].device.type == device for one in found)
    assert all(isinstance(one["weight"], nn.Parameter) for one in found)


def test_what_was_pickled_has_shapes_where_no_world_is_open() -> None:
    with simulate(8, fake=True):
        data = pickle.dumps(torch.ones(2, 3))
    made = pickle.loads(data)
    assert (made.shape, made.device.type) == ((2, 3), "meta")


class TestFiles:
    def test_are_holes_of_the_right_size(self, device: str, tmp_path: Path) -> None:
        file = tmp_path / "model.pt"
        torch.save({"weight": torch.empty(MANY, dtype=torch.bfloat16, device=device), "step": 3}, file)
        assert file.stat().st_size > 2 * MANY
        assert file.stat().st_blocks * 512 < 1 << 20
        loaded = torch.load(file)
        assert (loaded["weight"].shape, loaded["weight"].device.type, loaded["step"]) == ((MANY,), device, 3)
        assert torch.load(file, map_location="cpu")["weight"].device.type == "cpu"

    @pytest.mark.parametrize("location", [None, "cuda:0", {"cuda:0": "cuda:0"}])
    def test_of_whole_modules_train_where_they_are_loaded(self, location: Any, device: str, tmp_path: Path) -> None:
        if location is not None and device == "cpu":
            pytest.skip("no file of a CPU is mapped to a GPU")
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8, device=device))
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False, map_location=location)
        assert loaded.module.weight.device.type == device
        assert loaded.module.weight.is_cuda == (device == "cuda")
        with record() as trace:
            loaded(torch.ones(2, 8, device=device)).sum().backward()
        assert trace.events.select("op", "message_bytes").row(-1) == ("all_reduce", 4 * (8 * 8 + 8))
        assert loaded.module.weight.grad.device.type == device

    def test_may_be_streams_that_only_write(self, device: str) -> None:
        class Stream:
            def __init__(self) -> None:
                self.data = b""

            def write(self, data: Any) -> int:
                self.data += bytes(data)
                return len(data)

            def seekable(self) -> bool:
                return False

        stream, buffer = Stream(), io.BytesIO()
        for each in (stream, buffer):
            torch.save(torch.ones(1000, device=device), each)
        assert stream.data == buffer.getvalue()
        assert torch.load(io.BytesIO(stream.data)).shape == (1000,)

    def test_are_said_once(self, tmp_path: Path) -> None:
        with dsexplore.commtrace(world_size=8, fake=True) as trace:
            for name in "ab":
                torch.save(torch.ones(2), tmp_path / name)
        (note,) = [note for note in trace.info.notes if "a file of fake tensors" in note]
        assert note.count("test_fake_files.py:") == 1

    def test_hold_a_random_state_that_changes_none(self, device: str, tmp_path: Path) -> None:
        torch.save(torch.get_rng_state(), tmp_path / "state.pt")
        torch.set_rng_state(torch.load(tmp_path / "state.pt"))

    def test_of_safetensors(self, device: str, tmp_path: Path) -> None:
        file = tmp_path / "model.safetensors"
        save_file({"a": torch.empty(3, 2, device=device), "b": torch.empty(MANY, dtype=torch.int8)}, file, {"k": "v"})
        assert file.stat().st_blocks * 512 < 1 << 20
        loaded = load_file(file)
        assert {name: (each.shape, each.dtype) for name, each in loaded.items()} == {
            "a": ((3, 2), torch.float32),
            "b": ((MANY,), torch.int8),
        }
        there = load_file(file, device=device)
        assert {name: each.device.type for name, each in there.items()} == {"a": device, "b": device}

    def test_of_the_programs_data_are_read(self, device: str, tmp_path: Path) -> None:
        file = tmp_path / "tokens.bin"
        torch.arange(6, dtype=torch.int32).numpy(force=True).tofile(file)
        header = torch.from_file(str(file), False, 4, dtype=torch.int32)
        assert header.tolist() == [0, 1, 2, 3]
        assert header.to(device).device.type == device
        assert torch.empty(int(header[3]), device=device).shape == (3,)

    def test_of_a_module_with_safetensors(self, device: str, tmp_path: Path) -> None:
        file = str(tmp_path / "model.safetensors")
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(device)
        model[1].weight = model[0].weight
        save_model(model, file)
        assert load_model(model, file, device=device) == (set(), [])
        assert model[1].weight is model[0].weight

    def test_of_transformers(self, tmp_path: Path) -> None:
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
        )
        with simulate(8, fake=True, hardware="h100"):
            model = transformers.LlamaForCausalLM(config).to(DEVICE)
            model.save_pretrained(tmp_path)
            again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
            shapes = {name: each.shape for name, each in again.named_parameters()}
            assert shapes == {name: each.shape for name, each in model.named_parameters()}


def test_a_distributed_checkpoint_sends_what_it_sends_on_real_tensors(tmp_path: Path) -> None:
    sent = []
    for fake in (False, True):
        with simulate(8, fake=fake, hardware="h100"):
            model, _ = trained(DEVICE)
            with record() as trace:
                dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / str(int(fake)))
                dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path / str(int(fake)))
        sent.append(trace.events.select("op", "group_size", "message_bytes").rows())
    assert len(sent[0]) > 5
    assert sent[0] == sent[1]


def test_a_checkpoint_that_is_written_meanwhile_has_copies(tmp_path: Path) -> None:
    with simulate(8, fake=True, hardware="h100"):
        model, _ = trained(DEVICE)
        state = {"model": model.state_dict(), "tied": [model.state_dict()], "step": torch.ones(3, device=DEVICE)}
        dcp.async_save(state, checkpoint_id=tmp_path / "async").result()
        dcp.load(state, checkpoint_id=tmp_path / "async")
        copied = StateDictStager().stage({"one": state["step"], "two": [state["step"]]})
        assert copied["one"] is copied["two"][0] is not state["step"]


def test_no_checkpoint_is_written_beside_the_next_step(tmp_path: Path) -> None:
    with simulate(8, fake=True, hardware="h100"):
        model, _ = trained(DEVICE)
        written = dcp.async_save({"model": model.state_dict()}, checkpoint_id=tmp_path / "async")
        assert written.done()
        assert (tmp_path / "async" / ".metadata").exists()


def test_what_a_checkpoint_s_thread_raises_stays_in_the_future(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with simulate(8, fake=True, hardware="h100"):
        written = dcp.async_save({"one": torch.ones(3)}, checkpoint_id=tmp_path / "file" / "async")
        assert written.done()
        with pytest.raises(CheckpointException, match="Not a directory"):
            written.result()


@pytest.mark.parametrize("where", ["cpu", None, lambda storage, location: storage])
def test_a_file_is_loaded_where_a_function_of_the_program_would_put_it(where: Any, tmp_path: Path) -> None:
    with simulate(8, fake=True, hardware="h100"):
        torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
        assert torch.load(tmp_path / "a.pt", map_location=where)["a"].device.type == "cpu"


def test_a_thread_of_the_program_saves_a_module_of_real_tensors(tmp_path: Path) -> None:
    file = str(tmp_path / "model.safetensors")
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with simulate(8, fake=True), ThreadPoolExecutor(1) as threads:
        threads.submit(save_model, model, file).result()
    assert load_file(file)["0.weight"].tolist() == model[0].weight.tolist()


def test_files_of_real_tensors_stay_as_they_are(tmp_path: Path) -> None:
    with simulate(8, fake=True):
        pass
    torch.save(torch.arange(3), tmp_path / "a.pt")
    save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    assert torch.load(tmp_path / "a.pt").tolist() == load_file(tmp_path / "a.safetensors")["a"].tolist() == [0, 1, 2]
    assert copy.deepcopy(torch.arange(3)).tolist() == [0, 1, 2]
