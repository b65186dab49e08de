"""``cuda`` means the CPU inside the block, scripts see the expected devices, and leaving the block restores torch."""

from __future__ import annotations

import io
import pickle
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda import device_marks
from dsexplore._internal.worlds.cuda.device_marks import ATTRIBUTE
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

CPU = torch.device("cpu")


def cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


class TestDevices:
    def test_factories_make_tensors_where_they_are_asked_to(self) -> None:
        with cuda_stand_in(local_rank=3):
            assert torch.zeros(2, device="cuda").device == cuda(3)
            assert torch.randn(2, device="cuda:1").device == cuda(1)
            assert torch.ones(2, device=2).device == cuda(2)
            assert torch.tensor([1.0], device=torch.device("cuda")).device == cuda(3)
            assert torch.zeros(2).device == CPU
            assert torch.zeros(2, device="cpu", pin_memory=True).device == CPU
            assert torch.empty(2, device="meta").device.type == "meta"

    def test_numbers_of_tensors_in_lists_are_copied_to_the_cpu(self) -> None:
        with cuda_stand_in():
            loss = torch.ones((), device="cuda")
            for make in (torch.tensor, torch.as_tensor):
                assert make([loss, 2]).device == CPU
                assert make([loss, 2], device="cuda").device == cuda(0)
                assert make([1, 2]).device == make(torch.ones(2)).device == CPU
            assert torch.as_tensor(loss) is loss
            assert torch.tensor(loss.tolist(), pin_memory=True).device == CPU
            assert torch.as_tensor(loss, dtype=torch.float64).device == cuda(0)

    def test_results_are_where_their_inputs_are(self) -> None:
        with cuda_stand_in():
            x = torch.randn(4, 4, device="cuda:2")
            results = [
                x + 1,
                x @ x,
                x.T,
                x[0],
                torch.cat([x, x]),
                torch.zeros_like(x),
                x.new_ones(3),
                x.bool(),
                *x.chunk(2),
            ]
            results += [torch.stack((x, x)), nn.functional.softmax(x, dim=0), 1 - x, torch.where(x > 0, x, 0.0)]
            assert {result.device for result in results} == {cuda(2)}
            assert torch.zeros_like(x, device="cpu").device == CPU
            assert (torch.ones(4) + 1).device == CPU

    def test_moving_copies_and_staying_does_not(self) -> None:
        with cuda_stand_in():
            on_cpu = torch.zeros(3)
            moved = on_cpu.cuda(non_blocking=True)
            moved += 1
            assert (on_cpu.device, moved.device) == (CPU, cuda(0))
            assert on_cpu.tolist() == [0, 0, 0]
            snapshot = moved.cpu()
            moved += 1
            assert (snapshot.device, snapshot.tolist()) == (CPU, [1, 1, 1])
            assert moved.to("cuda") is moved
            assert moved.to(0) is moved
            assert moved.to(cuda(1)).device == cuda(1)
            assert moved.to(on_cpu).device == CPU
            assert on_cpu.to(moved).device == cuda(0)
            assert moved.to(torch.float16).device == moved.half().device == cuda(0)
            assert moved.to("cuda", torch.float64).dtype == torch.float64
            assert moved.type() == "torch.cuda.FloatTensor"
            assert on_cpu.type("torch.cuda.HalfTensor").device == cuda(0)
            assert on_cpu.type_as(moved).device == cuda(0)
            assert moved.type_as(on_cpu.half()).device.type == "cpu"
            assert moved.type_as(on_cpu.half()).dtype == torch.float16
            assert moved.type_as(moved) is moved

    def test_data_of_the_cpu_is_copied_to_the_gpu(self) -> None:
        with cuda_stand_in():
            array, on_cpu = np.zeros(3), torch.zeros(3)
            for make in (torch.as_tensor, torch.asarray):
                for data in (array, on_cpu):
                    moved = make(data, device="cuda")
                    moved += 1
                    assert moved.device == cuda(0)
                    assert make(moved, device="cuda:0").data_ptr() == moved.data_ptr()
            assert array.tolist() == on_cpu.tolist() == [0, 0, 0]
            assert torch.as_tensor(array).data_ptr() == array.ctypes.data

    def test_what_a_function_returns_as_it_was_stays_where_it_is(self) -> None:
        with cuda_stand_in():
            there, here = torch.ones(2, device="cuda"), torch.ones(2)
            returned = torch.atleast_1d(there, here)
            assert returned[0] is there
            assert returned[1] is here
            assert here.device == CPU

    def test_lists_over_two_gpus(self) -> None:
        with cuda_stand_in():
            tensors = [torch.ones(2, device=device) for device in ("cuda:1", "cpu", "cuda:0")]
            devices = [cuda(1), CPU, cuda(0)]
            assert [made.device for made in torch._foreach_add(tensors, 1)] == devices
            torch._foreach_add_(tensors, 1)
            assert [tensor.device for tensor in tensors] == devices

    def test_a_result_is_not_written_to_another_device(self) -> None:
        with cuda_stand_in(), pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            torch.add(torch.ones(2, device="cuda"), 1, out=torch.empty(2))

    def test_the_type_of_a_tensor_on_another_gpu_is_its_own(self) -> None:
        with cuda_stand_in():
            x = torch.ones(2, device="cuda:1")
            assert x.type("torch.cuda.FloatTensor") is x.type(x.type()) is x

    def test_tensors_say_so_in_every_way(self) -> None:
        with cuda_stand_in():
            x = torch.zeros(2, device="cuda:1")
            assert x.is_cuda
            assert not x.is_cpu
            assert x.get_device() == x.device.index == 1
            assert x.device == torch.device("cuda", 1) != torch.device("cuda")
            assert x.pin_memory() is x
            x.record_stream(torch.cuda.current_stream())

    def test_modules_move(self) -> None:
        with cuda_stand_in():
            module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            before = list(module.parameters())

            def devices() -> set[torch.device]:
                return {tensor.device for tensor in (*module.parameters(), *module.buffers())}

            for move, device in [
                (lambda: module.cuda(), cuda(0)),
                (lambda: module.to(1), cuda(1)),
                (lambda: module.to("cuda:2", torch.bfloat16), cuda(2)),
                (lambda: module.to(device=torch.device("cuda")), cuda(0)),
                (lambda: module.cpu(), CPU),
            ]:
                assert move() is module
                assert devices() == {device}
            assert all(old is new for old, new in zip(before, module.parameters(), strict=True))
            with torch.device("meta"):
                empty = nn.Linear(2, 2)
            assert empty.to_empty(device="cuda").weight.device == cuda(0)

    def test_gradients_and_hooks_are_on_the_device(self) -> None:
        with cuda_stand_in():
            seen = []
            module = nn.Linear(2, 2).cuda(1)
            module.register_full_backward_hook(lambda _module, _in, _out: seen.append(next(module.parameters()).device))
            module(torch.ones(1, 2, device="cuda:1")).sum().backward()
            assert module.weight.grad is not None
            assert module.weight.grad.device == cuda(1)
            assert seen == [cuda(1)]

    def test_the_default_device(self) -> None:
        with cuda_stand_in():
            with torch.device("cuda:1"):
                assert torch.zeros(2).device == nn.Linear(2, 2).weight.device == cuda(1)
                assert torch.get_default_device() == cuda(1)
            assert torch.get_default_device() == CPU
            torch.set_default_device("cuda")
            assert torch.arange(3).device == torch.get_default_device() == cuda(0)
            assert torch.empty(3, device=None).device == nn.Linear(2, 2).weight.device == cuda(0)
        assert torch.get_default_device() == CPU
        assert torch.zeros(1).device == CPU

    def test_threads_of_the_script_believe_too(self) -> None:
        found = []
        with cuda_stand_in():
            thread = threading.Thread(target=lambda: found.append(torch.zeros(1, device="cuda").device))
            thread.start()
            thread.join()
        assert found == [cuda(0)]


class TestBlock:
    def test_leaves_nothing_behind(self) -> None:
        with cuda_stand_in():
            kept = torch.zeros(2, device="cuda")
            assert torch.cuda.is_available()
        assert not torch.cuda.is_available()
        assert kept.device == CPU
        assert ATTRIBUTE not in vars(kept)
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(2, device="cuda")

    def test_a_wrapper_takes_its_device_by_position_or_by_name(self) -> None:
        class Wrapper(Tensor):
            @classmethod
            def __torch_dispatch__(cls, *_: object) -> None:
                raise NotImplementedError

        with cuda_stand_in():
            make = partial(torch.Tensor._make_wrapper_subclass, Wrapper, (2, 3))  # type: ignore[attr-defined]
            made = make(None, None, None, torch.float32, torch.strided, "cuda"), make(device="cuda"), make()
            assert [tensor.device.type for tensor in made] == ["cuda", "cuda", "cpu"]

    def test_flags_of_cudnn_are_set_and_taken_back(self) -> None:
        with cuda_stand_in():
            before = torch.backends.cudnn.deterministic
            with torch.backends.cudnn.flags(enabled=True, deterministic=not before):
                out = nn.Conv1d(2, 2, 1, device="cuda")(torch.ones(1, 2, 3, device="cuda"))
                assert torch.backends.cudnn.deterministic is not before
            assert out.is_cuda
            assert torch.backends.cudnn.deterministic is before

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_leaves_nothing_behind_after_an_error(self, error: type[BaseException]) -> None:
        with pytest.raises(error), cuda_stand_in():
            torch.set_default_device("cuda")
            torch.autocast("cuda").__enter__()
            raise error
        assert not torch.cuda.is_available()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16

    def test_leaves_even_under_a_mode_that_the_script_left_open(self) -> None:
        mode = torch.device("cuda")
        with cuda_stand_in():
            mode.__enter__()
        mode.__exit__(None, None, None)

    def test_another_block_inside_is_refused(self) -> None:
        with cuda_stand_in(), pytest.raises(UsageError, match="stands in for NVIDIA H100"), cuda_stand_in():
            pass

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"gpu": "h1000"}, "no hardware named 'h1000' is known .*: name one of a100, b200, h100"),
            ({"ranks_per_node": 0}, "a node cannot have 0 GPUs"),
            ({"local_rank": 8}, "local rank 8 is not in a node of 8 GPUs: give one from 0 to 7"),
            ({"local_rank": -1}, "local rank -1"),
        ],
    )
    def test_refuses_what_cannot_be(self, arguments: dict[str, int], named: str) -> None:
        with pytest.raises(UsageError, match=named), cuda_stand_in(**arguments):  # type: ignore[arg-type]
            pass
        with cuda_stand_in():
            pass

    def test_a_device_that_the_node_lacks_is_named(self) -> None:
        with (
            cuda_stand_in(ranks_per_node=4),
            pytest.raises(UsageError, match=r"there is no cuda:4: .* has 4 GPUs"),
        ):
            torch.cuda.set_device(4)


def test_functions_that_only_a_cuda_build_has_are_as_absent_as_on_a_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentBlasHandle", len, raising=False)
    with cuda_stand_in(), pytest.raises(AttributeError, match="_cuda_getCurrentBlasHandle needs a GPU"):
        torch.cuda.current_blas_handle()
    assert torch._C._cuda_getCurrentBlasHandle is len  # type: ignore[attr-defined, comparison-overlap]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_pickled_keeps_its_device(dtype: torch.dtype) -> None:
    with cuda_stand_in():
        tensors = {"moved": torch.ones(3, dtype=dtype, device="cuda:1"), "stays": torch.ones(3, dtype=dtype)}
        layer = nn.Linear(2, 2).cuda()
        pickled = pickle.dumps((tensors, layer))
        loaded, same_layer = pickle.loads(pickled)
        assert {name: str(tensor.device) for name, tensor in loaded.items()} == {"moved": "cuda:1", "stays": "cpu"}
        assert same_layer.weight.is_cuda
        assert same_layer.weight.equal(layer.weight)
        saved = io.BytesIO()
        torch.save(tensors, saved)  # a file that any machine can read, though its storage was pickled before
    saved.seek(0)
    assert torch.load(saved)["moved"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        pickle.loads(pickled)


def test_closing_looks_for_marks_only_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[None] = []
    monkeypatch.setattr(device_marks, "tensors_alive", lambda: looked.append(None) or [])
    with cuda_stand_in():
        assert (torch.ones(2) + 1).device == CPU
    assert not looked
    with cuda_stand_in():
        torch.ones(2).cuda()
    assert len(looked) == 1


class Labeled(Tensor):
    """A tensor subclass of the program."""


def test_a_tensor_of_the_programs_class_keeps_it_when_it_is_moved() -> None:
    with cuda_stand_in():
        moved = torch.ones(2).as_subclass(Labeled).cuda()
        assert type(moved) is Labeled
        assert moved.device.type == "cuda"
        assert type(nn.Parameter(torch.ones(2)).cuda()) is Tensor
        assert type(nn.Buffer(torch.ones(2)).cuda()) is Tensor
