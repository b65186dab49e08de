"""Values that scripts read from fake tensors are invented and plausible, and a remark says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import dsexplore
from dsexplore._internal import cli
from dsexplore._internal.worlds.fake import endless_loops
from dsexplore._internal.worlds.fake.invented_values import FILLED, READ, SIZED
from dsexplore._internal.worlds.fake.known_values import values_of
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")


def numbers() -> torch.Tensor:
    """Return a function that torch.compile has to support."""
    return torch.tensor([1, 2])


@pytest.fixture
def fake_gpu() -> Iterator[None]:
    with simulate(4, fake=True, hardware="h100"):
        yield


def test_where_a_rank_stands_in_a_grid_is_known() -> None:
    with dsexplore.commtrace(world_size=24, rank=17, fake=True, hardware="h100") as trace:
        grid = torch.arange(24).view(2, 3, 1, 4)
        assert (grid == dist.get_rank()).nonzero().flatten().tolist() == [1, 1, 0, 1]
        dp, pp, cp, tp = (int(place) for place in torch.where(grid == 17))
        assert grid[dp, pp, cp, :].tolist() == [16, 17, 18, 19]
        assert grid[:, pp, :, tp].flatten().tolist() == [5, 17]
        ranks = torch.tensor([3, 1, 2], device="cuda")
        assert (ranks * 8 + 1).tolist() == [25, 9, 17]
        assert (torch.arange(8) // 4 % 2).tolist() == [0] * 4 + [1] * 4
        assert (ranks.max().item(), ranks.sum().item(), ranks.cumsum(0).tolist()) == (3, 6, [3, 4, 6])
        assert ranks[torch.tensor([2, 0])].tolist() == [2, 3]
    assert not [note for note in trace.info.notes if note.startswith((READ, SIZED))]


def test_tokens_that_a_program_gave_are_known_when_padded_and_stacked(fake: None) -> None:
    """OLMo-core's collator refuses tokens that are not in its vocabulary."""
    rows = [torch.tensor(np.arange(2, count)) for count in (7, 9)]
    batch = torch.stack([F.pad(row, (0, 7 - len(row)), value=1) for row in rows])
    assert batch.tolist() == [[2, 3, 4, 5, 6, 1, 1], [2, 3, 4, 5, 6, 7, 8]]
    assert not ((batch < 0) | (batch >= 9)).any()
    assert ((batch < 0) | (batch >= 8)).any()


def test_tokens_that_another_thread_read_are_known(fake: None) -> None:
    """A fake tensor mode is active in one thread only."""
    with ThreadPoolExecutor() as threads:
        rows = list(threads.map(lambda start: torch.tensor([start, 5]), [3, 4]))
    batch = torch.stack([F.pad(row, (0, 1)) for row in rows])
    assert batch.tolist() == [[3, 5, 0], [4, 5, 0]]


def test_values_of_large_tensors_are_not_computed(fake: None) -> None:
    many = torch.arange(1 << 17)
    assert values_of(many[:4] + 1) is not None
    assert values_of(many + 1) is None
    assert values_of(many[:1024, None] + many[:1024]) is None


@pytest.mark.usefixtures("fake_gpu")
class TestLists:
    """Scripts call ``torch.tensor([correct, total])`` before they reduce the counts."""

    @pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_of_tensors_and_numbers_have_their_shape_and_values(
        self, make: Callable[..., torch.Tensor], shape: tuple[int, ...]
    ) -> None:
        made = make([torch.ones(shape) * 3, 4])
        assert made.shape == (2,)
        assert made.dtype == torch.float32
        assert made.tolist() == [3, 4]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
    def test_have_the_dtype_of_their_tensors_or_the_one_asked_for(self, dtype: torch.dtype) -> None:
        tensors = [torch.ones((), dtype=dtype), torch.ones((), dtype=dtype)]
        assert torch.tensor(tensors).dtype == dtype
        assert torch.tensor([tensors], dtype=torch.float16).dtype == torch.float16
        assert torch.tensor([tensors]).shape == (1, 2)

    def test_of_several_elements_each_are_an_error_as_they_are_on_real_tensors(self) -> None:
        with pytest.raises(RuntimeError, match="2 elements cannot be converted"):
            torch.tensor([torch.ones(2), torch.ones(2)])

    def test_are_read_once_with_the_line(self) -> None:
        with dsexplore.commtrace() as trace, pytest.warns(RuntimeWarning, match="invented"):
            torch.tensor([torch.rand(()), 4])
        assert any("test_invented_values.py" in note for note in trace.info.notes)

    def test_an_index_into_numpys_files_is_read_on_the_line_of_the_script(self, tmp_path: Path) -> None:
        np.zeros(8, np.uint16).tofile(tmp_path / "train.bin")
        data = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")
        with dsexplore.commtrace() as trace, pytest.warns(RuntimeWarning, match="invented"):
            data[torch.randint(4, (1,))[0] :]
        (note,) = trace.info.notes
        assert "test_invented_values.py" in note
        assert "memmap" not in note

    def test_of_numbers_alone_are_torchs_own(self) -> None:
        assert torch.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
        torch.jit.script(numbers)  # the compiler knows torch's functions alone


def test_lists_are_read_in_scripts_for_cpus_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nmade = torch.tensor([torch.rand(()), 4])\nassert made.tolist() == [1, 4], made\n"
    )
    dsexplore.run(tmp_path / "train.py", world_size=2, fake=True, hardware="cpu")


class Ops(TorchDispatchMode):
    """Collects the names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().split(".")[0])
        return func(*args, **(kwargs or {}))


def _filled_in_part(share: float) -> torch.Tensor:
    """Return labels of a collator, of which a share counts."""
    labels = torch.full((4,), -100.0)
    labels[: int(4 * share)] = 0
    return labels


@pytest.mark.usefixtures("fake")
class TestReads:
    @pytest.mark.parametrize(
        ("read", "expected"),
        [
            (lambda loss: loss.item(), 1.0),
            (lambda loss: float(loss), 1.0),
            (lambda loss: int(loss), 1),
            (lambda loss: loss.tolist(), 1.0),
            (lambda loss: loss.detach().cpu().numpy().item(), 1.0),
            (lambda loss: f"{loss:.2f} {loss:g}", "1.00 1"),
            (lambda loss: "%.1f" % loss, "1.0"),  # noqa: UP031 # as loggers do
            (lambda loss: f"{loss}"[:10], "FakeTensor"),
            (lambda loss: math.exp(loss.item()), math.e),
            (lambda loss: bool(loss), True),
            (lambda loss: bool(loss.isfinite()), True),
            (lambda loss: bool(torch.isfinite(loss.expand(3)).all()), True),
            (lambda loss: bool(loss.isnan()), False),
            (lambda loss: bool(loss.isinf() | loss.isnan()), False),
            (lambda loss: bool(torch.isnan(torch.randn(9)).any()), False),
            (lambda loss: not torch.isfinite(loss), False),
            (lambda loss: bool(loss != loss), False),  # how scripts ask for NaN
            (lambda loss: bool(torch.zeros(1).add_(loss.isnan())), False),  # how DeepSpeed counts them
            (lambda loss: bool(torch.zeros((), dtype=torch.bool).logical_or_(loss.isinf())), False),
            (lambda loss: bool(torch.maximum(torch.zeros(1, dtype=torch.int), loss.isnan().int())), False),
            (lambda loss: bool(torch.cat([loss.isnan().view(1), loss.isinf().view(1)]).any()), False),
            (lambda loss: bool(torch.stack([loss.isnan(), loss.isinf()]).sum() > 0), False),
            (lambda loss: bool(torch.where(loss.isnan(), 1, 0)), False),
            (lambda loss: bool(torch.count_nonzero(loss.isnan())), False),
            (lambda loss: bool(loss.isnan().sum(dtype=torch.float32).clamp(max=1)), False),
            (lambda loss: loss.clamp(min=2).item(), 1.0),  # nothing is known of it
            (lambda loss: bool((torch.stack([loss.norm(), loss.norm()]) < 0).any()), False),
            (lambda loss: torch.where(loss.isnan(), torch.full_like(loss, math.inf), loss.norm()).item(), 1.0),
            (lambda loss: loss.norm().masked_fill_(loss.isinf(), -1.0).pow(0.5).item(), 1.0),
            (lambda loss: torch.equal(loss, loss), True),
            (lambda loss: loss.to(torch.complex64).item(), 1 + 0j),
        ],
    )
    def test_of_a_loss(self, read: Callable[[torch.Tensor], Any], expected: object) -> None:
        assert read(nn.Linear(4, 4)(torch.randn(2, 4)).sum()) == expected

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: torch.linspace(0, 1, 5), [0, 0.25, 0.5, 0.75, 1]),
            (lambda: torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
            (lambda: torch.arange(6).view(2, 3)[1], [3, 4, 5]),
            (lambda: torch.zeros(2), [0, 0]),
            (lambda: torch.full((2,), 7), [7, 7]),
            (lambda: torch.ones(2) * 3 - 1, [2, 2]),
            (lambda: torch.zeros(2).fill_(4.0), [4, 4]),
            (lambda: torch.zeros(2).add_(torch.randn(2)), [1, 1]),
            (lambda: torch.zeros(2).mul_(3).sub_(torch.ones(2)), [-1, -1]),
            (lambda: torch.zeros(2).clamp(min=3), [3, 3]),
            (lambda: torch.zeros(2).clamp(max=-3), [-3, -3]),
            (lambda: torch.ones(2).clamp(-2, 0.5), [0.5, 0.5]),
            (lambda: torch.ones(2).clamp_max(0.5), [0.5, 0.5]),
            (lambda: torch.zeros(2).clamp_min(0.5), [0.5, 0.5]),
            (lambda: torch.minimum(torch.ones(2), torch.zeros(2)), [0, 0]),
            (lambda: torch.cat([torch.zeros(3), torch.ones(1)]), [0.25] * 4),
            (lambda: torch.where(torch.zeros(2, dtype=torch.bool), torch.ones(2), 5.0), [5, 5]),
            (lambda: torch.count_nonzero(torch.full((6,), -100)), 6),
            (lambda: torch.count_nonzero(torch.zeros(6)), 0),
            (lambda: torch.full((2,), 9.0).sqrt().pow(3), [27, 27]),
            (lambda: torch.full((2,), -9.0).pow(0.5), [1, 1]),  # no number
            (lambda: torch.full((2,), -9.0).sqrt(), [1, 1]),
            (lambda: torch.zeros(2) * math.inf, [1, 1]),
            (lambda: torch.zeros(2).masked_fill(torch.ones(2, dtype=torch.bool), 4.0), [4, 4]),
            (lambda: _filled_in_part(0.5), [-50, -50, -50, -50]),
            (lambda: _filled_in_part(1.0), [0, 0, 0, 0]),
            (lambda: torch.arange(3).add_(torch.tensor([1, 0, 1])), [1, 1, 3]),
            (lambda: torch.arange(3).mul_(torch.full((3,), 7)), [7, 7, 7]),
            (lambda: torch.full((2,), 5.0).copysign_(torch.tensor(-1.0)), [1, 1]),  # nothing is known any more
        ],
    )
    def test_what_was_given_is_known(self, make: Callable[[], torch.Tensor], expected: list[Any]) -> None:
        assert make().tolist() == expected
        assert np.asarray(make()).tolist() == expected

    def test_one_known_element_is_its_item(self) -> None:
        assert torch.tensor([7]).item() == torch.full((1, 1), 7).item() == 7
        with pytest.raises(RuntimeError, match="2 elements"):
            torch.tensor([7, 8]).item()

    def test_iterating_gives_each_value(self) -> None:
        assert [x.item() for x in torch.linspace(0, 3, 4)] == [0, 1, 2, 3]
        assert sorted(torch.randperm(20).tolist()) == list(range(20))

    def test_a_long_list_is_one_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(endless_loops, "MOST", 20)
        ops = Ops()
        with ops:
            assert len(torch.randperm(100).tolist()) == 100
            assert torch.rand(50).tolist() == [1.0] * 50
            assert (torch.rand(2, 30) > 0.5).tolist() == [[True] * 30] * 2
            assert torch.rand(3, 0).tolist() == [[]] * 3
            assert torch.full((40,), 2).mul_(torch.randint(9, (1,))).tolist() == [8] * 40
        assert not {"aten::unbind", "aten::_local_scalar_dense"} & ops.names

    def test_a_gradient_scaler_steps_and_keeps_its_scale(self) -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler("cpu")
        steps = []
        optimizer.register_step_post_hook(lambda *_: steps.append(None))
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        assert (len(steps), scaler.get_scale()) == (1, 65536.0)
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(torch.randn(()))


class TestMemoryToFill:
    """Loaders read a file into the memory of an empty tensor."""

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_has_what_was_read_into_it(self, device: str, tmp_path: Path) -> None:
        file = tmp_path / "tokens.bin"
        np.arange(2, 10, dtype=np.int32).tofile(file)
        with simulate(4, fake=True, hardware="h100" if device == "cuda" else None), dsexplore.commtrace() as trace:
            tokens = torch.empty(8, dtype=torch.int32, pin_memory=device == "cuda")
            with file.open("rb", buffering=0) as opened:
                assert opened.readinto(tokens.numpy()) == 8 * 4
            assert tokens[2:4].tolist() == [4, 5]
            assert tokens[1:].to(device, torch.int64)[0].item() == 3
            (note,) = trace.info.notes
            assert note.startswith(FILLED)
            assert "test_invented_values.py:" in note
            tokens.fill_(7)
            assert tokens.tolist() == [7] * 8

    def test_is_zero_where_nothing_is_written(self, fake: None) -> None:
        tensor = torch.empty(3, 2)
        tensor.numpy()[1, 1] = 5
        assert tensor.tolist() == [[0, 0], [0, 5], [0, 0]]
        assert torch.empty_like(tensor).numpy().tolist() == torch.empty(3, 2).new_empty(3, 2).numpy().tolist()

    def test_is_none_of_what_was_received(self, fake: None) -> None:
        tensor = torch.empty(2)
        dist.broadcast(tensor, 0)
        assert tensor.numpy().tolist() == [1.0, 1.0]

    def test_is_none_of_what_an_op_wrote_to(self, fake: None) -> None:
        for tensor in (torch.empty(2).normal_(), torch.empty(2), torch.empty(2) + 1):
            tensor[:1].normal_()
            assert tensor.numpy().tolist() == [1.0, 1.0]


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.randn(3), "y": index, "z": np.ones(2, dtype="float32")}


@pytest.mark.usefixtures("fake")
class TestDataLoader:
    def test_shuffles_without_workers(self) -> None:
        data = TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,)))
        for workers in (0, 2):
            loader = DataLoader(data, 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
            assert [x.shape for x, _ in loader] == [(4, 4)] * 4

    def test_collates_rows_of_a_distributed_sampler(self) -> None:
        data = Rows()
        (batch,) = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
        assert {name: tuple(each.shape) for name, each in batch.items()} == {"x": (4, 3), "y": (4,), "z": (4, 2)}


SCRIPT = """\
import torch, torch.distributed as dist
dist.init_process_group()
loss = torch.randn(3).sum()
for step in range(3):
    if loss.item() > 2:
        dist.all_reduce(loss)
    print(f"{loss:.1f}")
kept = torch.randn(8)[torch.randn(8) > 0]
dist.all_gather_into_tensor(kept.new_empty(2 * len(kept)), kept)
"""


class TestReport:
    def test_a_known_value_is_not_said_to_be_invented(self) -> None:
        with simulate(2, fake=True), dsexplore.commtrace() as trace:
            assert torch.arange(3)[1].item() == 1
            assert trace.info.notes == ()
            torch.randn(()).item()
            assert READ in "".join(trace.info.notes)

    def test_reads_are_said_once_with_their_lines_and_can_be_given(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT)
        trace = dsexplore.run(path, world_size=2, fake=True)
        read, sized = trace.info.notes
        assert read == f"{READ} ({path}:5, {path}:7)"
        assert sized == f"{SIZED} ({path}:8)"
        assert trace.events.select("op", "message_bytes").rows() == [("all_gather", 2 * 4 * 4)]
        given = dsexplore.run(path, world_size=2, fake=True, values={"train.py:5": 3.0, "train.py:8": 6})
        assert given.by_op().select("op", "count", "message_bytes").rows() == [
            ("all_gather", 1, 2 * 6 * 4),
            ("all_reduce", 3, 12),
        ]

    def test_on_the_command_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT)
        status = cli.main(["run", "--world-size", "2", "--fake", "--value", "train.py:7=2.5", str(path)])
        printed = capsys.readouterr().out
        assert (status, printed.splitlines()[:3]) == (0, ["2.5"] * 3)
        assert "values of fake tensors were read" in printed
        assert cli.main(["run", "--world-size", "2", "--value", "train.py=x", str(path)]) == 2
        assert "--value train.py=x: write a line of the script and a number" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_addresses_tell_memory_apart(device: str) -> None:
    with simulate(8, fake=True, hardware="h100" if device == "cuda" else None):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        assert len({0, *addresses}) == 5
        tied = nn.Parameter(model[0].weight.data)
        assert tied.data_ptr() == model[0].weight.detach().data_ptr() == addresses[0]
        assert model[0].weight[1:].data_ptr() == addresses[0] + 4 * 4
        assert torch.empty(0, device=device).data_ptr() == 0
    assert torch.ones(3, device="meta").data_ptr() == 0
