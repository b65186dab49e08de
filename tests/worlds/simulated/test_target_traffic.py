"""A simulated world sends its target's traffic, wherever torch sends something else on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import rand as sharded_rand
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.world_settings import Target

RANKS = 8
BOTH: tuple[Target, ...] = ("cuda", "cpu")


def sent(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.events.select(*(columns or ("op", "message_bytes", "wire_bytes"))).rows()


def redistributed(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    """Return the collectives of a program's redistributions; up to torch 2.11 an uneven gradient is gathered too."""
    asked = trace.events["cause"].str.starts_with("redistribute")
    return trace.events.filter(asked).select(*columns).rows()


class TestTheTarget:
    def test_is_cuda_unless_said_and_the_trace_says_which(self) -> None:
        with dsexplore.commtrace(world_size=2) as trace:
            dist.barrier()
        assert trace.info.target == "cuda"
        with dsexplore.commtrace(world_size=2, hardware="cpu") as trace:
            dist.barrier()
        assert trace.info.target == "cpu"
        with simulate(2, hardware="cpu"), dsexplore.commtrace() as trace:
            dist.barrier()
        assert trace.info.target == "cpu"

    def test_of_a_group_that_is_not_simulated_here_is_none(self) -> None:
        with record() as trace:
            pass
        assert trace.info.target == ""

    def test_must_be_known(self) -> None:
        with (
            pytest.raises(UsageError, match="no hardware named 'tpu' is known"),
            simulate(2, hardware="tpu"),
        ):
            pass

    def test_survives_a_file_and_two_targets_do_not_merge(self, tmp_path: Any) -> None:
        traces = []
        for rank, target in enumerate(BOTH):
            with dsexplore.commtrace(world_size=2, rank=rank, hardware="cpu" if target == "cpu" else None) as trace:
                dist.barrier()
            traces.append(dsexplore.load(trace.save(tmp_path / f"{target}.parquet")))
        assert [trace.info.target for trace in traces] == [*BOTH]
        with pytest.raises(UsageError, match="target is 'cuda' in one trace and 'cpu' in another"):
            Trace.merge(traces)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("shape", [(16, 32), (13, 9), (3, 40)], ids=str)
class TestFromOneShardedDimToAnother:
    """Symbols: n ranks, S the bytes of one rank's padded shard. all_to_all sends S(n−1)/n each way, all_gather n times
    as much."""

    def run(self, shape: tuple[int, int], target: Target, fake: bool) -> tuple[Trace, list[tuple[int, ...]]]:
        shapes = []
        with simulate(mesh=f"tp={RANKS}", rank=1, fake=fake, hardware="cpu" if target == "cpu" else None) as mesh:
            whole = distribute_tensor(torch.ones(shape), mesh, [Shard(0)]).requires_grad_()
            with record() as trace:
                other = whole.redistribute(mesh, [Shard(1)])
                other.to_local().sum().backward()
            shapes = [tuple(tensor.to_local().shape) for tensor in (other, whole.grad)]
        return trace, shapes

    def test_is_an_all_to_all_on_gpus(self, shape: tuple[int, int], fake: bool) -> None:
        trace, shapes = self.run(shape, "cuda", fake)
        rows, columns = (-(-size // RANKS) for size in shape)
        forward, backward = rows * columns * RANKS * 4, columns * rows * RANKS * 4
        assert redistributed(trace, "op", "phase", "message_bytes", "wire_bytes") == [
            ("all_to_all", "other", forward, forward * (RANKS - 1) // RANKS),
            ("all_to_all", "backward", backward, backward * (RANKS - 1) // RANKS),
        ]
        assert [cause for (cause,) in redistributed(trace, "cause")] == [
            "redistribute S(0)→S(1)",
            "redistribute backward S(1)→S(0)",
        ]
        assert shapes == self.run(shape, "cpu", fake)[1]

    def test_is_an_all_gather_on_cpus(self, shape: tuple[int, int], fake: bool) -> None:
        trace, _ = self.run(shape, "cpu", fake)
        assert {op for (op,) in redistributed(trace, "op")} == {"all_gather"}
        on_gpus, _ = self.run(shape, "cuda", fake)
        ratio = RANKS  # the whole tensor in place of one part
        assert [size // ratio for (size,) in redistributed(trace, "wire_bytes")] == [
            size for (size,) in redistributed(on_gpus, "wire_bytes")
        ]


def test_what_all_to_all_moves_is_what_gathering_and_slicing_gives() -> None:
    """On one rank, where a simulated group computes the right values, both give the same."""
    with simulate(mesh="tp=1") as mesh:
        whole = torch.arange(12.0).view(3, 4)
        sharded = DTensor.from_local(whole, mesh, [Shard(0)], run_check=False)
        assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).to_local(), whole)


@pytest.mark.parametrize("fake", [False, True])
def test_the_first_random_op_broadcasts_the_generators_state(fake: bool) -> None:
    """Rank 0 broadcasts 16 bytes once, before the first step; later random DTensors send nothing."""
    with simulate(mesh=f"tp={RANKS}", fake=fake) as mesh, record() as trace:
        made = sharded_rand(16, 4, device_mesh=mesh, placements=[Shard(0)])
        nn.functional.dropout(made, 0.5)
        assert made.to_local().shape == (2, 4)
    assert sent(trace, "op", "message_bytes", "phase") == [("broadcast", 16, "start-up")]
    warned = pytest.warns(UserWarning, match="may not have complete support")
    with simulate(mesh=f"tp={RANKS}", fake=fake, hardware="cpu") as mesh, record() as trace, warned:
        nn.functional.dropout(DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)], run_check=False), 0.5)
    assert len(trace) == 0


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("op", [torch.randn_like, nn.functional.dropout, nn.init.normal_])
def test_an_op_that_draws_into_a_dtensor_may_be_the_first(op: Callable[..., Any], fake: bool) -> None:
    with simulate(mesh=f"tp={RANKS}", fake=fake) as mesh, record() as trace:
        sharded = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)], run_check=False)
        op(sharded)
        op(sharded)
    assert sent(trace, "op", "message_bytes", "phase") == [("broadcast", 16, "start-up")]


def test_seeding_dtensors_says_nothing_and_sends_nothing() -> None:
    with simulate(mesh=f"tp={RANKS}") as mesh, record() as trace:
        torch.distributed.tensor._random.manual_seed(1, mesh)
        sharded_rand(8, device_mesh=mesh, placements=[Shard(0)])
    assert len(trace) == 0


class TestAttentionOfShardedHeads:
    """Query, key and value have 8 heads on 4 ranks: each rank computes its own heads, without a collective."""

    @pytest.mark.parametrize("is_causal", [False, True])
    def test_is_flash_attention_on_gpus(self, is_causal: bool) -> None:
        local = [torch.randn(2, 2, 6, 16, requires_grad=True) for _ in range(3)]
        nn.functional.scaled_dot_product_attention(*local, is_causal=is_causal).square().sum().backward()
        wanted = [each.grad.clone() for each in local]
        with simulate(mesh="tp=4") as mesh, record() as trace:
            heads = [DTensor.from_local(x.detach(), mesh, [Shard(1)]).requires_grad_() for x in local]
            output = nn.functional.scaled_dot_product_attention(*heads, is_causal=is_causal)
            output.to_local().square().sum().backward()
            assert output.shape == (2, 8, 6, 16)
            found = [each.grad.to_local() for each in heads]
        assert len(trace) == 0
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)

    def test_with_a_mask_says_what_is_missing(self) -> None:
        def run(target: Target, **options: Any) -> None:
            with simulate(mesh="tp=4", hardware="cpu" if target == "cpu" else None) as mesh:
                heads = DTensor.from_local(torch.ones(2, 2, 6, 16), mesh, [Shard(1)])
                options = {name: DTensor.from_local(value, mesh, [Replicate()]) for name, value in options.items()}
                nn.functional.scaled_dot_product_attention(heads, heads, heads, **options)

        with pytest.raises(NotImplementedError, match="an attention mask is not simulated"):
            run("cuda", attn_mask=torch.ones(6, 6))

    def test_flash_attention_of_each_ranks_heads_returns_what_it_does_on_a_gpu(self) -> None:
        def returned(device: str) -> list[Any]:
            query, key = (torch.ones(2, 4, length, 16, device=device) for length in (6, 10))
            found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, key)
            return [each.shape if isinstance(each, torch.Tensor) else each for each in found]

        with simulate(4):
            assert returned("cpu") == returned("meta")


class TestFlatParameters:
    """FSDP1 on 4 ranks has one flat parameter of 16·16 + 16 floats."""

    def run(self, target: Target, **options: Any) -> Trace:
        with simulate(4, hardware="cpu" if target == "cpu" else None):
            torch.manual_seed(0)
            with record() as trace:
                model = FullyShardedDataParallel(nn.Linear(16, 16), device_id=torch.device("cpu"), **options)
                model(torch.ones(2, 16)).sum().backward()
        return trace

    @pytest.mark.parametrize(("target", "raw_op"), [("cuda", "c10d::_allgather_base_"), ("cpu", "c10d::allgather_")])
    def test_are_gathered_into_one_tensor_on_gpus(self, target: Target, raw_op: str) -> None:
        gathers = self.run(target).where(op="all_gather")
        assert set(sent(gathers, "raw_op", "message_bytes")) == {(raw_op, (16 * 16 + 16) * 4)}
        assert len(gathers) >= 1

    def test_are_broadcast_before_the_first_step_where_asked_for(self) -> None:
        trace = self.run("cuda", sync_module_states=True)
        start_up = sent(trace.where(phase="start-up"), "op", "message_bytes", "cause")
        assert start_up == [("broadcast", (16 * 16 + 16) * 4, "model broadcast")]
        with pytest.raises(ValueError, match="requires them to be on GPU"):
            self.run("cpu", sync_module_states=True)


class TestAutogradCollectives:
    """Each of 4 ranks passes a tensor of 6 floats to ``torch.distributed.nn``."""

    def run(self, target: Target, program: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[Any, ...]]:
        with simulate(4, hardware="cpu" if target == "cpu" else None), record() as trace:
            program(torch.ones(6, requires_grad=True)).sum().backward()
        return sent(trace, "op", "phase", "message_bytes")

    @pytest.mark.filterwarnings("ignore:.*:FutureWarning")
    def test_all_gather(self) -> None:
        forward = ("all_gather", "other", 4 * 24)

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.stack(differentiable.all_gather(x))

        assert self.run("cuda", program) == [forward, ("reduce_scatter", "backward", 4 * 24)]
        assert self.run("cpu", program) == [forward, *[("scatter", "backward", 4 * 24)] * 4]

    @pytest.mark.filterwarnings("ignore:.*:FutureWarning")
    def test_all_gather_into_one_tensor(self) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            # NCCL refuses the expanded gradient of a sum.
            return differentiable._all_gather_base(torch.empty(24), x) * 2

        assert self.run("cuda", program) == [("all_gather", "other", 96), ("reduce_scatter", "backward", 96)]
        with pytest.raises(RuntimeError, match="Backend not supported"):
            self.run("cpu", program)

    def test_all_to_all(self) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.stack(differentiable.all_to_all([torch.empty(6) for _ in range(4)], [x + 0 for _ in range(4)]))

        assert self.run("cuda", program) == [("all_to_all", "other", 96), ("all_to_all", "backward", 96)]
        assert self.run("cpu", program) == [("scatter", "other", 96)] * 4 + [("scatter", "backward", 96)] * 4


class TestWhatIsNoFork:
    """Torch checks the device or the backend in these places, and sends the same on CPUs and on GPUs."""

    @pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
    def test_optimizers_with_foreach_which_is_torchs_choice_on_gpus(self, optimizer: Any) -> None:
        """With partial gradients of sharded parameters, the loop over parameters on a CPU sends the same."""
        found = []
        for foreach in (False, True):
            with simulate(mesh="tp=4") as mesh:
                layers = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
                model = parallelize_module(layers, mesh, {"0": ColwiseParallel(), "1": ColwiseParallel()})
                for parameter in model.parameters():
                    gradient = torch.ones(parameter.shape)
                    parameter.grad = DTensor.from_local(gradient, mesh, [Partial()], run_check=False)
                    assert parameter.placements != [Replicate()]
                with record() as trace:
                    optimizer(model.parameters(), lr=0.1, foreach=foreach).step()
            found.append(sorted(sent(trace)))
        assert found[0] == found[1]


def test_everything_is_put_back() -> None:
    """Each replaced function and method is torch's own again."""
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.tensor import _collective_utils, _random
    from torch.nn.parallel import DistributedDataParallel

    def state() -> list[Any]:
        return [
            _collective_utils.shard_dim_alltoall.__code__,
            _random.is_rng_supported_mesh.__code__,
            _random.OffsetBasedRNGTracker,
            _random._rng_tracker,
            FlatParamHandle._all_gather_flat_param,
            DistributedDataParallel._check_comm_hook,
            DistributedDataParallel._register_builtin_comm_hook,
            differentiable.dist,
            len(DTensor._op_dispatcher._custom_op_handlers),
            torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention"),
            *(vars(dist.ProcessGroup)[name] for name in ("allreduce", "allgather", "broadcast")),
        ]

    before = state()
    for target in BOTH:
        with pytest.raises(KeyboardInterrupt), simulate(2, hardware="cpu" if target == "cpu" else None):
            raise KeyboardInterrupt
        assert state() == before
