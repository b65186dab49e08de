"""``torch.cuda`` and ``torch.accelerator`` work without a GPU: properties, streams, events, loading, pinning."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in


@pytest.fixture(autouse=True)
def stand_in() -> Iterator[None]:
    with cuda_stand_in(ranks_per_node=4, local_rank=1):
        yield


def cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


def test_devices() -> None:
    assert (torch.cuda.device_count(), torch.cuda.current_device(), torch.cuda.is_initialized()) == (4, 1, True)
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("cuda")
    assert (torch.accelerator.device_count(), torch.accelerator.current_device_index()) == (4, 1)
    assert torch.device(2) == cuda(2)
    with torch.cuda.device(3):
        assert torch.zeros(1, device="cuda").device == cuda(3)
        with torch.accelerator.device_index(0):
            assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(torch.zeros(1, device="cuda:2")):
        assert torch.cuda.current_device() == 2
    torch.accelerator.set_device_index("cuda:0")
    assert torch.cuda.current_device() == 0
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.is_bf16_supported()
    assert torch.backends.cuda.is_built()
    assert torch.cuda.get_arch_list() == ["sm_90"]
    assert torch.cuda.nccl.version() == (2, 29, 7)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(4)


def test_streams_and_events() -> None:
    stream, other = torch.cuda.Stream(), torch.cuda.Stream(device=2, priority=-1)
    assert stream != other
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == torch.accelerator.current_stream() == stream
        with torch.cuda.stream(other):
            assert (torch.cuda.current_stream(), torch.cuda.current_device()) == (other, 2)
        assert (torch.cuda.current_stream(), torch.cuda.current_device()) == (stream, 1)
    with torch.Stream(device="cuda") as generic:
        assert torch.cuda.current_stream() == generic
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    stream.wait_stream(other)
    stream.wait_event(other.record_event())
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert repr(began) == f"<torch.cuda.Event {began.cuda_event:#x}>" != repr(ended)
    with pytest.raises(RuntimeError, match="recorded before"):
        began.elapsed_time(ended)
    began.record()
    ended.record(stream)
    ended.synchronize()
    assert ended.query()
    assert began.elapsed_time(ended) > 0
    with pytest.raises(ValueError, match="enable_timing=True"):
        began.elapsed_time(stream.record_event())
    torch.zeros(1, device="cuda").record_stream(stream)
    torch.cuda.synchronize()


def test_reports_and_settings() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.memory._record_memory_history()
    assert torch.cuda.memory_snapshot() == []
    with torch.cuda.nvtx.range("step"):
        assert torch.cuda.nvtx.range_push("inner") == 1
        torch.cuda.nvtx.mark("here")
        assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.cudart().cudaError.success
    with pytest.raises(UsageError, match=r"cudart\(\)\.cudaMalloc needs the CUDA runtime"):
        torch.cuda.cudart().cudaMalloc(8)
    with pytest.raises(AttributeError, match=r"_cuda_getCurrentBlasHandle needs a GPU"):
        torch.cuda.current_blas_handle()
    assert not hasattr(torch._C, "_no_such_thing")


def test_the_attention_kernel_of_a_gpu_gives_way() -> None:
    q = torch.randn(1, 2, 8, 16, device="cuda", requires_grad=True)
    for backend in (torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        with torch.nn.attention.sdpa_kernel(backend):
            nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def test_old_types() -> None:
    made = torch.cuda.FloatTensor(2, 3)
    assert (made.device, made.dtype) == (cuda(1), torch.float32)
    assert isinstance(made, torch.cuda.FloatTensor)
    assert not isinstance(torch.zeros(1), torch.cuda.FloatTensor)
    assert torch.zeros(1).type(torch.cuda.LongTensor).type() == "torch.cuda.LongTensor"


def test_the_text_of_a_tensor_names_its_device() -> None:
    assert str(torch.ones(1, device="cuda")) == "tensor([1.], device='cuda:1')"
    assert str(torch.ones(1)) == "tensor([1.])"


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("cuda", cuda(1)),
        ("cuda:2", cuda(2)),
        (cuda(3), cuda(3)),
        ("cpu", torch.device("cpu")),
        (None, torch.device("cpu")),
        ({"cpu": "cuda:0"}, cuda(0)),
        (lambda storage, location: storage.cuda(2), cuda(2)),
        (lambda storage, location: storage, torch.device("cpu")),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_loads_where_the_map_says(where: Any, device: torch.device, weights_only: bool) -> None:
    module = nn.Linear(2, 2).cuda()
    file = io.BytesIO()
    torch.save({"state": module.state_dict(), "parameter": module.weight}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where, weights_only=weights_only)
    assert loaded["state"]["bias"].device == loaded["parameter"].device == device
    assert torch.equal(loaded["parameter"], module.weight)
    assert isinstance(loaded["parameter"], nn.Parameter)


def test_copies_are_where_the_original_is() -> None:
    x = torch.ones(2, device="cuda:1")
    x.note = "kept"  # type: ignore[attr-defined]
    for made in (copy.copy(x), copy.deepcopy(x)):
        assert (made.device, made.note) == (x.device, "kept")  # type: ignore[attr-defined]
    assert copy.copy(torch.ones(2)).device.type == "cpu"
    layer = nn.Linear(2, 2).cuda()
    assert copy.copy(layer.weight).is_cuda
    assert copy.deepcopy(layer).weight.is_cuda
    assert isinstance(copy.copy(layer.weight), nn.Parameter)


def test_what_is_pickled_does_not_know_of_the_stand_in() -> None:
    assert b"dsexplore" not in pickle.dumps(nn.Linear(2, 2).cuda())


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_pins(workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True, num_workers=workers)
    found = [batch.cuda(non_blocking=True) for (batch,) in loader]
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3]]
    assert {batch.device for batch in found} == {cuda(1)}


def test_products_with_a_dtype_of_their_own() -> None:
    a = torch.full((2, 2), 2.0, dtype=torch.bfloat16, device="cuda")
    total = torch.ones(2, 2, device="cuda")
    assert torch.mm(a, a, out_dtype=torch.float32).dtype == torch.float32
    assert torch.bmm(a[None], a[None], out_dtype=torch.float32).dtype == torch.float32
    assert torch.addmm(total, a, a, out_dtype=torch.float32, beta=2).tolist() == [[10, 10], [10, 10]]
    torch.addmm(total, a, a, out_dtype=torch.float32, out=total)
    assert total.tolist() == [[9, 9], [9, 9]]


def test_histograms_of_whole_numbers() -> None:
    chosen = torch.tensor([0, 2, 2, 3], device="cuda")
    counts = torch.histc(chosen.int(), bins=4, min=0, max=3)
    assert (counts.tolist(), counts.dtype, counts.device) == ([1, 0, 2, 1], torch.int32, cuda(1))
    assert chosen.float().histc(2).tolist() == [1, 3]
