"""A simulated world gives torch's own mesh and groups, refuses what does not fit, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.torch_internals.names import minor_version
from dsexplore._internal.worlds.simulate import World, current_world, simulate
from dsexplore._internal.worlds.world_settings import WorldSettings
from tests.worlds.sharded_models import Build, both, fully_sharded, layers, replicated, step, tensor_parallel

# Imported by name before any world is open, as notebooks do: these too must reach the open world.
from torch.distributed import destroy_process_group, init_process_group  # isort: skip


class TestMesh:
    def test_is_torchs_own_with_the_axes_asked_for(self) -> None:
        with simulate(world_size=8, mesh="dp=2,tp=4", rank=5) as mesh:
            assert type(mesh) is DeviceMesh
            assert mesh.mesh_dim_names == ("dp", "tp")
            assert mesh.mesh.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert tuple(mesh.get_coordinate() or ()) == (1, 1)
            assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (5, 8, "fake")
            assert dist.get_process_group_ranks(mesh["tp"].get_group()) == [4, 5, 6, 7]

    def test_size_alone_gives_one_axis_and_mesh_alone_gives_the_size(self) -> None:
        with simulate(4) as mesh:
            assert (mesh.ndim, mesh.size(), mesh.mesh_dim_names) == (1, 4, None)
        with simulate(mesh={"dp": 3}) as mesh:
            assert dist.get_world_size() == 3

    def test_is_public_and_large_worlds_are_cheap(self) -> None:
        with dsexplore.simulate(131_072, "pp=16,dp=1024,tp=8", rank=131_071) as mesh:
            assert tuple(mesh.get_coordinate() or ()) == (15, 1023, 7)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({}, "needs a size"),
            ({"world_size": 0}, "world size 0"),
            ({"world_size": "8"}, "'8' is not AXIS=RANKS"),
            ({"world_size": 6, "mesh": "dp=2,tp=4"}, "mesh dp=2,tp=4 has 2×4 = 8 ranks, but the world size is 6"),
            ({"world_size": 8, "rank": 8}, "rank 8 is not in a world of 8 ranks: give one from 0 to 7"),
            ({"world_size": 8, "rank": -1}, "rank -1"),
        ],
    )
    def test_numbers_that_do_not_fit(self, arguments: dict[str, object], named: str) -> None:
        with pytest.raises(UsageError) as caught, simulate(**arguments):
            pass
        assert named in str(caught.value)
        with simulate(2):
            pass

    def test_a_second_world(self) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            with pytest.raises(UsageError, match=r"a simulated world of 8 ranks \(dp=2,tp=4\) is open"), simulate(4):
                pass
            assert mesh.size() == dist.get_world_size() == 8

    def test_a_group_that_the_user_made(self) -> None:
        store = torch.testing._internal.distributed.fake_pg.FakeStore()
        hook = sys.excepthook
        init_process_group("fake", store=store, rank=0, world_size=4)
        try:
            with pytest.raises(UsageError, match="a process group of 4 ranks") as caught, simulate(8):
                pass
            assert "destroy_process_group" in str(caught.value)
            assert dist.get_world_size() == 4
        finally:
            destroy_process_group()
            sys.excepthook = hook


class TestScriptsThatSetUpThemselves:
    def test_get_the_simulated_group_and_may_end_theirs(self) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            init_process_group("nccl")
            dist.init_process_group(backend="gloo", world_size=8, rank=0)
            init_process_group()
            assert dist.get_backend() == "gloo"
            theirs = init_device_mesh("cpu", (4, 2), mesh_dim_names=("a", "b"))
            assert theirs["b"].size() == 2
            subgroup = dist.new_group([0, 1])
            destroy_process_group(subgroup)
            destroy_process_group()
            assert mesh["tp"].get_group().size() == 4
            dist.all_reduce(torch.ones(2))

    def test_may_ask_for_devices_and_backends_that_are_not_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        with simulate(8, hardware="cpu"):
            theirs = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
            assert theirs.device_type == "cpu"
            step(tensor_parallel(theirs))
            group = dist.new_group([0, 1, 2], backend="gloo")
            assert (dist.get_backend(group), group.size()) == ("gloo", 3)
            assert dist.get_backend(dist.new_group(None, None, "NCCL")) == dist.Backend.NCCL
            both = dist.new_group(backend="cpu:gloo,cuda:NCCL")
            assert dist.get_backend(both) == "cpu:gloo,cuda:nccl"  # as torch reports it, not "custom"
            assert dist.get_backend() == "gloo"  # that of CPUs
            with dsexplore.commtrace() as trace:
                dist.all_reduce(torch.ones(2), group=group)
            assert trace.groups.select("backend", "timing").rows() == [("fake", "none")]
            pairs, _ = dist.new_subgroups(2)
            assert pairs.size() == 2

    def test_with_another_size_get_one_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with simulate(8, "dp=2,tp=4"):
            with pytest.raises(UsageError, match=r"asks for 4 ranks.*world of 8 ranks \(dp=2,tp=4\)"):
                init_process_group("gloo", world_size=4, rank=0)
            with pytest.raises(UsageError, match=r"asks for 4×4 = 16 ranks"):
                init_device_mesh("cpu", (4, 4))
            with monkeypatch.context() as launcher, pytest.raises(UsageError, match="asks for 2 ranks"):
                launcher.setenv("WORLD_SIZE", "2")
                init_process_group("gloo")
            with pytest.raises(UsageError, match=r"asks for rank 3, but this process runs as rank 0"):
                init_process_group("gloo", world_size=8, rank=3)

    def test_are_as_before_afterwards(self) -> None:
        signature = init_device_mesh.__kwdefaults__, init_process_group.__wrapped__.__wrapped__.__defaults__
        with simulate(2):
            assert init_device_mesh.__kwdefaults__ is None
        after = init_device_mesh.__kwdefaults__, init_process_group.__wrapped__.__wrapped__.__defaults__
        assert after == signature
        assert signature[0] == {"mesh_dim_names": None, "backend_override": None}
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            dist.get_rank()


class TestClosing:
    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
    @pytest.mark.parametrize("fake", [False, True])
    def test_after_an_exception_nothing_is_left(self, error: type[BaseException], fake: bool) -> None:
        def program() -> None:
            with simulate(8, "dp=2,tp=4", fake=fake) as mesh:
                tensor_parallel(mesh)
                raise error

        with pytest.raises(error):
            program()
        assert current_world() is None
        assert not dist.is_initialized()

    def test_after_a_failure_while_opening_nothing_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("dsexplore._internal.worlds.fake.fake_dispatch.SimulationMode", broken)
        with pytest.raises(KeyboardInterrupt), simulate(8, fake=True):
            pass
        assert current_world() is None

    def test_twice_is_once(self) -> None:
        world = World(WorldSettings(world_size=4))
        assert world.open().size() == 4
        world.close()
        world.close()
        assert current_world() is None

    def test_waits_for_an_interrupt_and_then_delivers_it(self) -> None:
        done = []

        def interrupted_at_the_start() -> None:
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("to the end")

        with pytest.raises(KeyboardInterrupt):
            interrupted_at_the_start()
        assert done == ["to the end"]

    def test_delivers_every_signal_that_waited_to_whom_it_would_have_gone(self) -> None:
        told: list[int] = []
        before = {number: signal.signal(number, lambda n, _: told.append(n)) for number in (2, 15)}
        try:
            with uninterrupted():
                for number in before:
                    os.kill(os.getpid(), number)
                assert told == []
            assert sorted(told) == [2, 15]
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def test_keeps_an_excepthook_that_the_user_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mine(*_: object) -> None: ...

        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        with simulate(2):
            sys.excepthook = mine
        assert sys.excepthook is mine

    @pytest.mark.skipif(
        minor_version(torch.__version__) == (2, 11), reason="C++ of torch 2.11 keeps a placement with its mesh for good"
    )
    @pytest.mark.parametrize("build", [tensor_parallel, fully_sharded, both, replicated])
    def test_frees_the_mesh_and_the_model(self, build: Build) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            model = build(mesh)
            step(model)
        held = [weakref.ref(mesh), weakref.ref(model)]
        del mesh, model
        gc.collect()
        assert [reference() for reference in held] == [None, None]


class TestFakeTensors:
    @pytest.mark.parametrize("build", [tensor_parallel, fully_sharded, both])
    def test_meshes_models_and_steps_inside_the_mode(self, build: Build) -> None:
        with simulate(8, "dp=2,tp=4", fake=True):
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
            assert mesh.mesh.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert mesh["dp", "tp"]._flatten("all").size() == 8
            model = build(mesh).to(torch.bfloat16)
            loss = model(torch.randn(4, 16, dtype=torch.bfloat16)).sum()
            loss.backward()
            torch.optim.AdamW(model.parameters()).step()
            assert loss.dtype == torch.bfloat16

    def test_conversion_keeps_the_parameter_and_what_is_tied_to_it(self) -> None:
        with simulate(2, fake=True):
            model = layers()
            model[1].weight = model[0].weight
            weight = model[0].weight
            model(torch.randn(1, 16)).sum().backward()
            model.half()
            assert model[0].weight is model[1].weight is weight
            assert weight.dtype == weight.grad.dtype == torch.float16
            assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
            with torch.device("meta"):
                elsewhere = layers()
            elsewhere.to_empty(device="cpu")
            assert elsewhere[0].weight.device.type == "cpu"

    def test_an_optimizer_takes_plain_and_sharded_parameters_together(self) -> None:
        with simulate(8, "dp=2,tp=4", fake=True) as mesh:
            model = parallelize_module(layers(), mesh["tp"], {"0": ColwiseParallel(output_layouts=Replicate())})
            step(model)
            assert {isinstance(p, DTensor) for p in model.parameters()} == {True, False}

    def test_values_take_no_memory(self) -> None:
        with simulate(64, "dp=8,tp=8", fake=True):
            huge = nn.Linear(1 << 20, 1 << 20, bias=False)  # 4 TiB
            assert huge(torch.empty(1, 1 << 20)).shape == (1, 1 << 20)

    @pytest.mark.parametrize(("length", "ranks"), [(16, 4), (10, 4), (3, 4), (1, 8), (0, 4)])
    def test_chunks_are_those_of_torch(self, length: int, ranks: int) -> None:
        from torch.distributed.fsdp._fully_shard._fsdp_param import _chunk_with_empty

        from dsexplore._internal.worlds.fake.fake_workarounds import Chunks

        whole = torch.arange(length * 2).view(length, 2)
        ours, theirs = Chunks(whole, ranks, 0), _chunk_with_empty(whole, ranks, dim=0)
        assert len(ours) == len(theirs) == ranks
        assert [(c.shape, c.tolist()) for c in ours] == [(c.shape, c.tolist()) for c in theirs]
        assert ours[-1].tolist() == theirs[-1].tolist()
        assert [c.tolist() for c in ours[1:3]] == [c.tolist() for c in theirs[1:3]]
        with pytest.raises(IndexError):
            ours[ranks]

    def test_sharding_does_not_grow_with_the_world(self) -> None:
        def tensors_made(ranks: int) -> int:
            with simulate(ranks, fake=True) as mesh:
                with CountTensors() as counted:
                    fully_shard(nn.Linear(64, 64, bias=False), mesh=mesh)
                return counted.calls

        assert tensors_made(16_384) == tensors_made(64)


class CountTensors(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the ops that run."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


class TestDdp:
    def test_a_hook_of_the_users_own_is_used(self) -> None:
        seen = []

        def hook(state: object, bucket: dist.GradBucket):  # type: ignore[no-untyped-def]
            seen.append(bucket.buffer().numel())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        hook.__annotations__ = {}
        with simulate(4) as mesh:
            model = DistributedDataParallel(layers(), None, None, 0, True, True, mesh.get_group())
            model.register_comm_hook(None, hook)
            step(model)
        assert sum(seen) == 2 * (16 * 16 + 16)

    def test_gradients_are_divided_by_the_size_of_the_group(self) -> None:
        torch.manual_seed(0)
        plain = layers()
        inputs = torch.randn(4, 16)
        plain(inputs).sum().backward()
        wanted = plain[0].weight.grad.clone()
        plain.zero_grad()
        with simulate(4):
            model = DistributedDataParallel(plain)
            model(inputs).sum().backward()
            torch.testing.assert_close(plain[0].weight.grad, wanted / 4)


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (3.0, 4.0)])
def test_a_truncated_normal_initialisation_ends(bounds: tuple[float, float]) -> None:
    """Drawing ends, although torch draws until all values are in bounds, which a fake tensor never shows."""
    with simulate(mesh="dp=2", fake=True) as mesh, warnings.catch_warnings():
        warnings.simplefilter("error")
        weight = torch.nn.init.trunc_normal_(torch.empty(4, 4), a=bounds[0], b=bounds[1])
        assert weight.shape == (4, 4)
        sharded = distribute_tensor(torch.empty(4, 4), mesh, [Shard(0)])
        assert torch.nn.init.trunc_normal_(sharded, a=bounds[0], b=bounds[1]) is sharded
    values = torch.nn.init.trunc_normal_(torch.empty(99), a=-0.1, b=0.1)
    assert values.abs().max() <= 0.1
